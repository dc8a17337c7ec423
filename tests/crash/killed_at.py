"""Does a piece of upkeep again and again, each time in a fork that dies at another point; tells as JSON lines.

Half of the forks are killed before the n-th line of our code that they come to, the others after a while, wherever they
are then, inside of SQLite too. No handler runs in either case.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from relight.models import schema
from relight.workers import restoring, settings, tidying, upgrading
from relight.workers.home import Home
from tests.conftest import ROOT

NOW = 1_700_000_000_000
_TRIES = 10


def migrate(home: Path, order: dict[str, Any]) -> None:
    db = schema.open_existing(home / "state.db")
    schema.upgrade(db, now=NOW, directory=Path(order["migrations"]))


def restore(home: Path, order: dict[str, Any]) -> None:
    restoring.restore(home, Path(order["source"]), now=NOW)


def backup(home: Path, order: dict[str, Any]) -> None:
    upgrading.backup(settings.load(home=home), home.parent / f"backup-of-{home.name}")


def prune(home: Path, order: dict[str, Any]) -> None:
    tidying.tidy(Home.open(settings.load(home=home)))


WORK: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "migrate": migrate,
    "restore": restore,
    "backup": backup,
    "prune": prune,
}


class Counter:
    """Counts the lines of our code that run, and kills the process before the `last` one."""

    def __init__(self, last: int, report: int) -> None:
        self.count, self.last, self.report = 0, last, report

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        ours = str(ROOT) in name or "playhouse" in name or "migrations" in name
        return self.line if ours else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.last:
                os.write(self.report, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}".encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def forked(order: dict[str, Any], home: Path, *, line: int = 0, after_s: float = 0.0) -> tuple[int, str]:
    """The wait status of a fork that did the work, or died at it, and what it reported."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        counter = Counter(line, writing)
        if after_s:
            signal.setitimer(signal.ITIMER_REAL, after_s)  # SIGALRM ends the process as SIGKILL does
        else:
            sys.settrace(counter.trace)
        WORK[order["work"]](home, order)
        sys.settrace(None)
        os.write(writing, str(counter.count).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as told:
        report = told.read()
    return os.waitpid(pid, 0)[1], report


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    chosen, into = random.Random(order["seed"]), Path(order["into"])

    def fresh(name: str) -> Path:
        return Path(shutil.copytree(order["template"], into / name))

    status, lines = forked(order, fresh("whole"))
    assert status == 0, lines
    began = time.monotonic()
    assert forked(order, fresh("timed"), after_s=60)[0] == 0
    took = time.monotonic() - began
    for number in range(order["points"]):
        for again in range(_TRIES):  # a fork that was quicker than its kill proves nothing
            home = fresh(f"{number}-{again}")
            if number % 2:
                status, where = forked(order, home, after_s=max(0.000_1, chosen.random() * took))
            else:
                share = (number + chosen.random() * 2) / order["points"]
                status, where = forked(order, home, line=max(1, int(share * int(lines))))
            if os.WIFSIGNALED(status):
                break
        print(json.dumps({"home": str(home), "killed": os.WIFSIGNALED(status), "where": where}), flush=True)


if __name__ == "__main__":
    main()
