"""Measure everything that exists and write RESULTS.md: `make bench`.

python -m benchmarks [ROUNDS]
"""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import cysqlite

from . import footprint, recovering, throughput, writers_wait
from .rounds import Contender, interleaved

HEAD = """# Figures

Medians of {rounds} interleaved rounds in one run, on {cores} cores, Python {python}, SQLite {sqlite}, {day}. The ratio compares
with the first line of its scenario. Compare only within this table: absolute figures belong to the machine and the moment.
"full" survives a power cut, "normal" a process death. SqliteHuey records nothing; Relight stores for each task its row, a
trace, three events and its result.

| scenario | contender | median | least–most | ratio |
|---|---|---|---|---|
"""

FULL, NORMAL = 2, 1


def scenarios() -> dict[str, dict[str, tuple[str, Contender]]]:
    """Every scenario with its contenders; the first one is what the others are compared with."""
    t = throughput
    return {
        "enqueue, 1 thread, full": {
            "raw SQLite commit": ("/s", t.raw_commits(FULL)),
            "SqliteHuey": ("/s", t.huey_enqueue(fsync=True)),
            "Relight": ("/s", t.enqueue("power")),
        },
        "enqueue, 4 threads, full": {
            "SqliteHuey": ("/s", t.huey_enqueue(fsync=True, threads=4)),
            "Relight": ("/s", t.enqueue("power", threads=4)),
        },
        "enqueue, 1 thread, normal": {
            "raw SQLite commit": ("/s", t.raw_commits(NORMAL)),
            "SqliteHuey": ("/s", t.huey_enqueue(fsync=False)),
            "Relight": ("/s", t.enqueue("process")),
        },
        "enqueue of 10,000 at once": {"Relight": ("/s", t.enqueue_bulk)},
        "drain of no-ops, 4 workers, full": {
            "SqliteHuey": ("/s", t.huey_drain(fsync=True)),
            "Relight": ("/s", t.drain("power")),
        },
        "drain of no-ops, 4 workers, normal": {
            "SqliteHuey": ("/s", t.huey_drain(fsync=False)),
            "Relight": ("/s", t.drain("process")),
        },
        "1,000 steps in one run, full": {
            "raw SQLite commit": ("/s", t.raw_commits(FULL)),
            "Relight": ("/s", t.durable_steps("power")),
        },
        "1,000 steps in one run, normal": {"Relight": ("/s", t.durable_steps("process"))},
        "100 runs × 10 steps, 4 workers, full": {"Relight": ("/s", t.many_runs("power"))},
        "record of 1,000 steps read back": {"Relight": ("ms", recovering.replay_ms)},
        "pass over 10,000 orphans": {"Relight": ("s", recovering.sweep_s)},
        "Main task to an idle worker": {
            "Relight, p50": ("ms", footprint.wake_ms(0.5)),
            "Relight, p99": ("ms", footprint.wake_ms(0.99)),
        },
        "Main start, Subagent slots busy (5 ms tasks), 5,000 queued": {
            "Relight, p50": ("ms", footprint.wake_ms(0.5, background=0.005)),
            "Relight, p99": ("ms", footprint.wake_ms(0.99, background=0.005)),
        },
        "Main start, Subagent slots busy (60 s tasks), 5,000 queued": {
            "Relight, p50": ("ms", footprint.wake_ms(0.5, background=60.0)),
            "Relight, p99": ("ms", footprint.wake_ms(0.99, background=60.0)),
        },
        "a writer beside two busy writing processes, p99": {"Relight": ("ms", writers_wait.p99_ms)},
        "bytes per finished no-op task": {"Relight": ("bytes", footprint.bytes_per_task)},
        "bytes per finished step": {"Relight": ("bytes", footprint.bytes_per_step)},
        "import": {"Relight": ("ms", footprint.import_ms)},
        "idle worker, CPU of a core": {"Relight": ("%", footprint.idle_cpu_percent)},
        "idle worker, memory": {"Relight": ("MiB", footprint.idle_memory_mib)},
    }


def main(rounds: int) -> None:
    """Run all scenarios and write RESULTS.md beside this file's folder."""
    lines = []
    for scenario, contenders in scenarios().items():
        figures = interleaved(contenders, rounds=rounds)
        lines += [one.row(scenario, figures[0]) for one in figures]
        print(*lines[-len(figures) :], sep="\n", flush=True)
    head = HEAD.format(
        rounds=rounds,
        cores=os.cpu_count(),
        python=platform.python_version(),
        sqlite=cysqlite.sqlite_version,  # type: ignore[attr-defined]  # cysqlite names no exports
        day=datetime.now(UTC).date(),
    )
    (Path(__file__).parent / "RESULTS.md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
