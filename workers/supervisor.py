"""Runs the lines of a Procfile, restarts what dies, and owns the signals: the loop behind `relight up`.

Invariant: every child leads a session of its own, so a signal reaches it only through here, once. The first TERM, INT
or HUP asks the children to stop; whoever has not ended when the grace time is over, or when a second signal comes, is
killed with its whole process group. Honcho reads the Procfile and prints the lines; its own manager stops everything
when one child ends, and kills after 5 s.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil
from honcho.colour import get_colours
from honcho.environ import parse_procfile
from honcho.printer import Message, Printer

from ..models.errors import SettingError
from . import lifeline

PROCFILE = "Procfile"
BUILT_IN = "main: relight worker main\nsubagent: relight worker subagent\nrecovery: relight worker upkeep\n"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
BACK_OFF_S, BACK_OFF_MOST_S, STEADY_S = 0.2, 10.0, 30.0
OVER_GRACE_S = 2.0  # what a child needs beyond its grace time to mark its tasks and go

Report = Callable[[dict[str, Any]], None]


def lines_of(folder: Path) -> dict[str, str]:
    """Return name and command of each line of the Procfile in `folder`, or of the built-in one."""
    file = folder / PROCFILE
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else BUILT_IN
        lines: dict[str, str] = dict(parse_procfile(text).processes)
    except (OSError, ValueError, AssertionError) as error:  # honcho asserts that names are unique
        raise SettingError(f"{file} cannot be used: {error}") from error
    if not lines:
        raise SettingError(f"{file} names nothing to run; a line looks like: main: relight worker main")
    return lines


@dataclass
class Child:
    """One line of the Procfile, and the process that runs it now."""

    name: str
    command: str
    colour: str
    popen: subprocess.Popen[bytes] | None = None
    through_shell: bool = False
    started: float = 0.0
    pause: float = BACK_OFF_S
    restart_at: float | None = None
    ended: SimpleQueue[Any] = field(default_factory=SimpleQueue)


class Supervisor:
    """Keeps the given lines running until it is told to stop."""

    def __init__(
        self,
        lines: Mapping[str, str],
        *,
        env: Mapping[str, str],
        grace_ms: int,
        prefix: bool = True,
        report: Report | None = None,
    ) -> None:
        colours = get_colours()
        self._children = [Child(name, command, next(colours)) for name, command in lines.items()]
        self._env = _child_environment(env)
        self._patience = grace_ms / 1000 + OVER_GRACE_S
        self._printer = Printer(sys.stderr, width=max(map(len, [*lines, "relight"])), prefix=prefix)
        self._report = report
        self._happened: SimpleQueue[Child | None] = SimpleQueue()  # a child that ended, or None for a signal
        self._stopping_until: float | None = None
        self._killed = False

    def run(self) -> int:
        """Run until every child has ended after a signal; return 0, or 1 where one had to be killed."""
        with self._signals():
            for child in self._children:
                self._start(child)
            while self._unfinished():
                self._wait_once()
                self._restart_due()
                self._kill_late()
        return int(self._killed)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, lambda *_: self._happened.put(None)) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, child: Child) -> None:
        arguments, child.through_shell = _arguments(child.command)
        child.restart_at, child.started = None, time.monotonic()
        child.popen = subprocess.Popen(
            arguments,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._copy_lines, args=(child, child.popen), daemon=True).start()
        threading.Thread(target=self._await_end, args=(child, child.popen), daemon=True).start()
        self._tell({"event": "started", "name": child.name, "pid": child.popen.pid})

    def _tell(self, event: dict[str, Any]) -> None:
        self._printer.write(Message("line", _sentence(event), datetime.now(UTC), "relight", None))
        if self._report is not None:
            self._report(event)

    def _copy_lines(self, child: Child, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        with popen.stdout as lines:
            for line in lines:
                self._printer.write(Message("line", line, datetime.now(UTC), child.name, child.colour))

    def _await_end(self, child: Child, popen: subprocess.Popen[bytes]) -> None:
        popen.wait()
        self._happened.put(child)

    def _unfinished(self) -> bool:
        return self._stopping_until is None or any(child.popen for child in self._children)

    def _wait_once(self) -> None:
        times = [child.restart_at for child in self._children] + [self._stopping_until]
        soonest = min((at for at in times if at is not None), default=None)
        with suppress(Empty):
            happened = self._happened.get(
                timeout=None if soonest is None else max(0.0, soonest - time.monotonic())
            )
            if happened is None:
                self._stop()
            else:
                self._ended(happened)

    def _stop(self) -> None:
        if self._stopping_until is not None:
            self._kill()
            return
        self._stopping_until = time.monotonic() + self._patience
        for child in self._children:
            child.restart_at = None
            _terminate(child)

    def _ended(self, child: Child) -> None:
        assert child.popen is not None
        lasted = time.monotonic() - child.started
        done = {"event": "ended", "name": child.name, "pid": child.popen.pid, "code": child.popen.returncode}
        child.popen = None
        if self._stopping_until is not None:
            self._tell(done)
            return
        child.pause = BACK_OFF_S if lasted >= STEADY_S else child.pause
        child.restart_at = time.monotonic() + child.pause
        self._tell({**done, "restart_in_ms": round(child.pause * 1000)})
        child.pause = min(child.pause * 2, BACK_OFF_MOST_S)

    def _restart_due(self) -> None:
        for child in self._children:
            if child.restart_at is not None and child.restart_at <= time.monotonic():
                self._start(child)

    def _kill_late(self) -> None:
        if self._stopping_until is not None and self._stopping_until <= time.monotonic():
            self._kill()

    def _kill(self) -> None:
        self._stopping_until = float("inf")
        for child in self._children:
            if child.popen is not None:
                self._killed = True
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.popen.pid, signal.SIGKILL)


def _terminate(child: Child) -> None:
    """Ask a child to stop; a shell would die of it alone, so there the processes that it runs are asked."""
    if child.popen is None:
        return
    receivers = [child.popen.pid]
    if child.through_shell:
        with suppress(psutil.Error):
            receivers += [grandchild.pid for grandchild in psutil.Process(child.popen.pid).children()]
    for pid in receivers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _sentence(event: Mapping[str, Any]) -> str:
    told = f"{event['name']} (pid {event['pid']}) {event['event']}"
    told += f" with {event['code']}" if "code" in event else ""
    return told + (
        f"; starts again in {event['restart_in_ms'] / 1000:g} s" if "restart_in_ms" in event else ""
    )


_SHELL = re.compile(r"[|&;<>()$`\"'\\*?\[\]#~%{}]|^\s*\w+=")


def _arguments(command: str) -> tuple[list[str], bool]:
    """Return what to execute, and whether a shell stands between; a plain line needs none."""
    if _SHELL.search(command):
        return ["/bin/sh", "-c", command], True
    words = shlex.split(command)
    if words[0] == "relight":  # the same interpreter and installation as this one
        words[:1] = [sys.executable, "-m", "relight.workers.cli"]
    return words, False


def _child_environment(env: Mapping[str, str]) -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    return {
        **env,
        "PATH": os.pathsep.join(filter(None, [scripts, env.get("PATH")])),
        lifeline.VARIABLE: str(os.getpid()),
    }
