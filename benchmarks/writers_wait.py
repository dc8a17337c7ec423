"""How long a writer waits beside two busy writing processes, behind the gate."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from relight.models import schema, tasks
from relight.models.database import Database
from relight.models.fields import new_id
from relight.models.tasks import AgentTask, RiskLevel

SECONDS = 4.0


def p99_ms(folder: Path) -> float:
    """The 99th percentile of one writer's transactions, with pauses between them, while two others write without one."""
    path = folder / "state.db"
    schema.open_database(path, now=_now()).close_all()
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    busy = [spawn.Process(target=_write_without_pause, args=(path, stop)) for _ in range(2)]
    for process in busy:
        process.start()
    db = schema.open_database(path, now=_now())
    while tasks.counts(db)["pending"] < 20:
        time.sleep(0.01)
    waits = _measure(db, SECONDS)
    stop.set()
    for process in busy:
        process.join()
    db.close_all()
    return waits[min(len(waits) - 1, int(len(waits) * 0.99))]


def _write_without_pause(path: Path, stop: Event) -> None:
    db = schema.open_database(path, now=_now())
    while not stop.is_set():
        _write(db)


def _measure(db: Database, seconds: float) -> list[float]:
    waits = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(random.random() * 0.02)
        began = time.perf_counter()
        _write(db)
        waits.append((time.perf_counter() - began) * 1000)
    return sorted(waits)


def _write(db: Database) -> None:
    tasks.submit(db, AgentTask.new(new_id(), "s", "nobody", "", RiskLevel.LOW, now=_now()), now=_now())


def _now() -> int:
    return time.time_ns() // 1_000_000
