"""How long a writer waits beside two busy writing processes, behind the gate.

    python -m benchmarks.writers_wait [SECONDS]
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from relight.models import schema, tasks
from relight.models.database import Database
from relight.models.fields import new_id
from relight.models.tasks import AgentTask, RiskLevel


def main(seconds: float) -> None:
    """Measure one writer's transactions, random pauses between them, while two others write without a pause."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        schema.open_database(path, now=_now()).close_all()
        spawn = multiprocessing.get_context("spawn")
        stop = spawn.Event()
        busy = [spawn.Process(target=_write_without_pause, args=(path, stop)) for _ in range(2)]
        for process in busy:
            process.start()
        db = schema.open_database(path, now=_now())
        while tasks.counts(db)["pending"] < 20:
            time.sleep(0.01)
        waits = _measure(db, seconds)
        stop.set()
        for process in busy:
            process.join()
        total = tasks.counts(db)["pending"]
    print(
        f"writer beside two busy ones: p50 {_at(waits, 0.5):.1f} ms, p99 {_at(waits, 0.99):.1f} ms, "
        f"longest {waits[-1]:.1f} ms, {len(waits)} writes; {total} tasks were written meanwhile"
    )


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


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _now() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
