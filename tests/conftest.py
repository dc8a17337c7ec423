"""What every test may use: the waiter, a home folder of its own, the command line, real worker processes.

`wait_until` is the only place in the tests that sleeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import psutil
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")

# A busy machine is no fault of a test: it may be slow, it may not be wrong.
settings.register_profile("relight", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relight")


def wait_until(predicate: Callable[[], T], deadline: float = 10.0) -> T:
    """Return the first true answer of `predicate`; fail when `deadline` seconds have passed without one."""
    end = time.monotonic() + deadline
    while not (answer := predicate()):
        if time.monotonic() > end:
            pytest.fail(f"still not true after {deadline:g} s: {predicate}")
        time.sleep(0.005)
    return answer


@pytest.fixture(name="wait_until")
def the_waiter() -> Callable[..., object]:
    return wait_until


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own RELIGHT_… variables never reach a test."""
    for name in [name for name in os.environ if name.startswith("RELIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory for this test, named by RELIGHT_HOME here and in every child; it does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("RELIGHT_HOME", str(folder))
    return folder


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a child that imports Relight from this checkout."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **extra}


class Cli(Protocol):
    def __call__(
        self, *args: str, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `relight ARGS` to its end in a real process, in a folder of the test."""

    def run(
        *args: str, stdin: str = "", env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "relight.workers.cli", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(**(env or {})),
            cwd=cwd or tmp_path,
            check=False,
        )

    return run


@dataclass(frozen=True)
class Worker:
    """A real `relight` process in a group of its own, and the file that holds what it said."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the whole group and reap the leader."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(10)

    def wait(self, timeout: float = 20.0) -> int:
        return self.process.wait(timeout)


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


class StartWorker(Protocol):
    def __call__(
        self, home: Path, app: str | Path | None, *args: str, env: dict[str, str] | None = None
    ) -> Worker: ...


class StartRelight(Protocol):
    def __call__(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Worker: ...


@pytest.fixture
def start_relight(tmp_path: Path) -> Iterator[StartRelight]:
    """Start `relight ARGS` in the background; its process group is killed when the test ends."""
    started: list[Worker] = []

    def start(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Worker:
        log = tmp_path / f"relight-{len(started)}.log"
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "relight.workers.cli", *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(**(env or {})),
                cwd=cwd or tmp_path,
                start_new_session=True,
            )
        started.append(Worker(process, log))
        return started[-1]

    yield start
    for worker in started:
        below = _below(worker.pid)  # a supervisor's children have sessions of their own
        worker.kill()
        for child in below:
            with suppress(psutil.Error):
                child.kill()


@pytest.fixture
def start_worker(start_relight: StartRelight) -> StartWorker:
    """Start `relight worker ARGS` on `home` with the agents of `app` (a module or a file)."""

    def start(home: Path, app: str | Path | None, *args: str, env: dict[str, str] | None = None) -> Worker:
        apps = ["-A", str(app)] if app else []
        return start_relight("--home", str(home), *apps, "worker", *args, env=env)

    return start
