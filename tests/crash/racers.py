"""What several processes do at the same time, each as `python -m tests.crash.racers ROLE HOME BARRIER`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from relight.models import claims, tasks
from relight.models.database import Database
from relight.models.tasks import AgentTask
from relight.recovery import policy, sweep
from relight.workers import recovery_job, settings
from relight.workers.home import Home
from tests.crash import agents_work, witness


def claim(home: Home, barrier: Path) -> list[str]:
    """Take tasks until there is none; every seventh is given back once. What was kept, as "task attempt"."""
    owner = home.owner("subagent")
    kept: list[str] = []
    witness.hold_until(barrier.exists)
    while (task := take(home.db, owner.id, home.now())) is not None:
        if hash(task.id) % 7 == 0 and task.attempt == 1:
            claims.unclaim(home.db, task.id, attempt=1, worker_id=owner.id, now=home.now())
        else:
            kept.append(f"{task.id} {task.attempt}")
    return kept


def take(db: Database, worker_id: str, now: int) -> AgentTask | None:
    return claims.claim(db, "subagent", worker_id=worker_id, now=now, known=frozenset({"nobody"}))


def recover(home: Home, barrier: Path) -> list[list[str]]:
    """Run a pass in each round, in turn as the job does it and with nothing that keeps passes apart."""
    found = []
    for number in range(ROUNDS):
        witness.hold_until((barrier / f"{number}").exists)
        report = recovery_job.recover(home) if number % 2 else unguarded_pass(home)
        found.append([entry["id"] for entry in report.resumed])
        assert report.errors == []
        (barrier / f"{number}.{home.owner('subagent').id}").touch()
    return found


def unguarded_pass(home: Home) -> sweep.Report:
    rules = sweep.Rules(policy.parse(policy.DEFAULT_TEXT, path="-"), 1_000_000)
    return sweep.sweep(home.db, rules, now=home.now())


def fork(home: Home, barrier: Path) -> list[str]:
    """Fork again and again while recovery passes run; the names of the locks that children have inherited."""
    ended = threading.Event()

    def sweep_on() -> None:
        while not ended.is_set():
            recovery_job.recover(home)

    threading.Thread(target=sweep_on, daemon=True).start()
    home.owner("subagent")
    inherited: set[str] = set()
    while not ended.is_set():
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(pid, os.WUNTRACED)
        inherited |= {file.path for file in psutil.Process(pid).open_files() if "/locks/" in file.path}
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if barrier.exists():
            ended.set()
    return sorted(inherited)


def load(home: Home, barrier: Path) -> dict[str, list[Any]]:
    """Store tasks for both lanes and cancel every fifth before it is due; what was done, and how long each write took."""
    found: dict[str, list[Any]] = {"kept": [], "cancelled": [], "waits": []}
    witness.hold_until(barrier.exists)
    for number in range(UPDATES):
        began = time.monotonic()
        cancelled = number % 5 == 0
        lane = "main" if number % 2 else "subagent"
        chosen = agents_work.quick.options(home=home, lane=lane, delay=3_600 if cancelled else None)
        handle = chosen.enqueue(f"{number}")
        found["waits"].append(time.monotonic() - began)
        found["cancelled" if cancelled else "kept"].append(handle.id)
        if cancelled:
            handle.cancel()
        if number % 10 == 0:
            recovery_job.recover(home)
            tasks.counts(home.db)
    return found


ROUNDS, UPDATES = 20, 100

if __name__ == "__main__":
    role, folder, at = sys.argv[1:]
    opened = Home.open(settings.load(home=Path(folder)))
    print(
        json.dumps({"claim": claim, "recover": recover, "fork": fork, "load": load}[role](opened, Path(at)))
    )
    opened.close()
