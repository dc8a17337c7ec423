"""The worker processes of the demo, each in a process group of its own.

Invariant: whatever happens to the demo, `stop` leaves none of them behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from .. import lifeline
from ..settings import PREFIX

_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception)\b.*$", re.MULTILINE)
_PATIENCE_S = 5.0  # for a worker that was told to stop, before it is killed


@dataclass
class Crew:
    """Starts workers on one home, with the same agents for all, and ends them."""

    home: Path
    apps: list[Path]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *args: str) -> int:
        """Run `relight worker ARGS`; what it says goes to a file. Returns its pid."""
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                self._command("worker", *args),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=_environment(),
                start_new_session=True,
            )
        self.processes[name] = process
        return process.pid

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `relight ARGS` to its end, as a person would."""
        return subprocess.run(
            self._command(*args),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S * 2,
            cwd=self.home,
            env=_environment(),
            check=False,
        )

    def log(self, name: str) -> Path:
        """Where a worker's output goes."""
        return self.home / f"{name}.log"

    def name_of(self, pid: int) -> str | None:
        """The worker with this pid, if it is one of ours."""
        return next((name for name, process in self.processes.items() if process.pid == pid), None)

    def kill(self, pid: int) -> None:
        """SIGKILL one worker of the crew."""
        os.kill(self.processes[str(self.name_of(pid))].pid, signal.SIGKILL)

    def fallen(self) -> list[str]:
        """The workers that ended by themselves, with their exit codes and last words."""
        ended = {name: process.poll() for name, process in self.processes.items()}
        return [
            f"the {name} worker ended with code {code}: {self._last_words(name)}"
            for name, code in ended.items()
            if code not in (None, -signal.SIGKILL)
        ]

    def troubles(self) -> list[str]:
        """The last exception that each worker logged, for whoever has to find out why something did not happen."""
        found = {name: _EXCEPTION.findall(self._said(name)) for name in self.processes}
        return [f"the {name} worker logged {lines[-1]}" for name, lines in found.items() if lines]

    def stop(self) -> None:
        """End every process group: politely first, then by force."""
        for process in self.processes.values():
            _signal_group(process, signal.SIGTERM)
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            _signal_group(process, signal.SIGKILL)
            process.wait()

    def _command(self, *args: str) -> list[str]:
        apps = ",".join(map(str, self.apps))
        return [sys.executable, "-m", "relight.workers.cli", "--home", str(self.home), "-A", apps, *args]

    def _last_words(self, name: str) -> str:
        lines = self._said(name).strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _said(self, name: str) -> str:
        return self.log(name).read_text(encoding="utf-8", errors="replace")


@contextmanager
def crew(home: Path, apps: list[Path]) -> Iterator[Crew]:
    """A crew that is gone when the block ends."""
    workers = Crew(home, apps)
    try:
        yield workers
    finally:
        workers.stop()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, for a group of zombies
        os.killpg(process.pid, number)


def _environment() -> dict[str, str]:
    """Without the person's own RELIGHT_… settings, and with the Relight that runs the demo in reach."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    root = str(Path(sys.modules["relight"].__file__ or "").resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, lifeline.VARIABLE: str(os.getpid())}
