"""Runs the lines of a Procfile, restarts what dies, and owns the signals: the loop behind `relight up`.

Invariant: every child leads a session of its own, so a signal reaches it only through here, once. The first TERM, INT
or HUP asks the children to stop; whoever has not ended when the grace time is over, or when a second signal comes, is
killed with its whole process group. Honcho reads the Procfile and prints the lines; its own manager stops everything
when one child ends, and kills after 5 s.
"""

from __future__ import annotations

import logging
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
from dataclasses import dataclass
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

log = logging.getLogger("relight.supervisor")

PROCFILE = "Procfile"
BUILT_IN = "main: relight worker main\nsubagent: relight worker subagent\nrecovery: relight worker upkeep\n"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
BACK_OFF_S, BACK_OFF_MOST_S, STEADY_S = 0.2, 10.0, 30.0
OURSELVES = "relight"
OVER_GRACE_S = 2.0  # what a child needs beyond its grace time to mark its tasks and go

Report = Callable[[dict[str, Any]], None]

_SHELL = re.compile(r"[|&;<>()$`\"'\\*?\[\]#~%{}]|^\s*\w+=")  # what makes a line more than words


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


def pause_after(*, lasted: float, before: float | None) -> float:
    """Return how long to wait before a restart, in seconds: twice as long each time, until a run was steady."""
    return BACK_OFF_S if before is None or lasted >= STEADY_S else min(before * 2, BACK_OFF_MOST_S)


@dataclass
class Child:
    """One line of the Procfile, and the process that runs it now."""

    name: str
    command: str
    colour: str
    popen: subprocess.Popen[bytes] | None = None
    copying: threading.Thread | None = None
    started: float = 0.0
    pause: float | None = None  # before its last restart
    restart_at: float | None = None

    def shell_command(self) -> str:
        """Return what a shell is given: of a plain line the program replaces it, and gets the signals itself."""
        if _SHELL.search(self.command):
            return self.command
        ours = f"{shlex.quote(sys.executable)} -m relight.workers.cli"
        return f"export {lifeline.CHILD}=$$; exec " + re.sub(
            r"^\s*relight(?=\s|$)", lambda _: ours, self.command
        )

    def terminate(self) -> None:
        """Ask it to stop; a shell would die of it alone, so there the processes that it runs are asked too."""
        if self.popen is None:
            return
        with suppress(psutil.Error):
            for process in psutil.Process(self.popen.pid).children() if _SHELL.search(self.command) else []:
                process.terminate()
        self.popen.terminate()

    def kill(self) -> bool:
        """Kill it and every process of its group; whether it was still there."""
        if self.popen is None or self.popen.poll() is not None:
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        return True

    def join(self) -> None:
        """Wait until its last lines are printed, unless somebody it left behind keeps them open."""
        if self.copying is not None:
            self.copying.join(timeout=0.5)


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
        self._printer = Printer(sys.stderr, width=max(map(len, [*lines, OURSELVES])), prefix=prefix)
        self._printing = threading.Lock()
        self._report = report
        self._happened: SimpleQueue[Child | None] = SimpleQueue()  # a child that ended, or None for a signal
        self._stopping = self._killed = False
        self._kill_at: float | None = None

    def run(self) -> int:
        """Run until every child has ended after a signal; return 0, or 1 where one had to be killed."""
        with self._signals():
            for child in self._children:
                self._start(child)
            while not self._stopping or any(child.popen for child in self._children):
                self._wait_once()
                self._act_on_time()
        for child in self._children:
            child.join()
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
        child.restart_at, child.started = None, time.monotonic()
        child.popen = subprocess.Popen(
            ["/bin/sh", "-c", child.shell_command()],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        child.copying = threading.Thread(target=self._copy_lines, args=(child, child.popen), daemon=True)
        child.copying.start()
        threading.Thread(target=self._await_end, args=(child, child.popen), daemon=True).start()
        self._tell({"event": "started", "name": child.name, "pid": child.popen.pid})

    def _copy_lines(self, child: Child, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        with popen.stdout as lines:
            for line in lines:
                self._print(line, child.name, child.colour)

    def _await_end(self, child: Child, popen: subprocess.Popen[bytes]) -> None:
        popen.wait()
        self._happened.put(child)

    def _wait_once(self) -> None:
        times = [child.restart_at for child in self._children] + [self._kill_at]
        soonest = min((at for at in times if at is not None), default=None)
        with suppress(Empty):
            timeout = None if soonest is None else max(0.0, soonest - time.monotonic())
            ended = self._happened.get(timeout=timeout)
            if ended is not None:
                self._ended(ended)
            elif self._stopping:
                self._kill()
            else:
                self._stop()

    def _ended(self, child: Child) -> None:
        assert child.popen is not None
        event = {"event": "ended", "name": child.name, "pid": child.popen.pid, "code": child.popen.returncode}
        child.popen = None
        if not self._stopping:
            now = time.monotonic()
            child.pause = pause_after(lasted=now - child.started, before=child.pause)
            child.restart_at = now + child.pause
            event["restart_in_ms"] = round(child.pause * 1000)
        self._tell(event)

    def _stop(self) -> None:
        self._stopping, self._kill_at = True, time.monotonic() + self._patience
        for child in self._children:
            child.restart_at = None
            child.terminate()

    def _kill(self) -> None:
        self._kill_at = None
        for child in self._children:
            self._killed |= child.kill()

    def _act_on_time(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.restart_at is not None and child.restart_at <= now:
                self._start(child)
        if self._kill_at is not None and self._kill_at <= now:
            self._kill()

    def _tell(self, event: dict[str, Any]) -> None:
        if self._printer.prefix:
            self._print(_sentence(event), OURSELVES, None)
        else:
            fields = {"line": event["name"], "pid": event["pid"], "code": event.get("code")}
            log.info("a line %s", event["event"], extra=fields)
        if self._report is not None:
            self._report(event)

    def _print(self, text: str | bytes, name: str, colour: str | None) -> None:
        with (
            self._printing,
            suppress(OSError),
        ):  # a closed terminal must not end who still has to stop the others
            self._printer.write(Message("line", text, datetime.now(UTC), name, colour))


def _sentence(event: Mapping[str, Any]) -> str:
    told = f"{event['name']} (pid {event['pid']}) {event['event']}"
    told += f" with {event['code']}" if "code" in event else ""
    return told + (
        f"; starts again in {event['restart_in_ms'] / 1000:g} s" if "restart_in_ms" in event else ""
    )


def _child_environment(env: Mapping[str, str]) -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join(filter(None, [scripts, env.get("PATH")]))
    return {"PYTHONUNBUFFERED": "1", **env, "PATH": path, lifeline.VARIABLE: str(os.getpid())}
