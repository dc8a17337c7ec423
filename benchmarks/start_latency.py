"""How long a Main task waits for its start while every Subagent slot is busy and thousands are queued.

    python -m benchmarks.start_latency [TASKS]

Starts the Procfile's three processes on a home of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from relight.models import tasks
from relight.workers import settings
from relight.workers.agents import enqueue_many, ref
from relight.workers.home import Home

AGENTS = """
import time
from relight import agent

@agent(risk="low")
def busy(run, seconds: float) -> None:
    time.sleep(seconds)

@agent(risk="low")
def quick(run) -> int:
    return time.time_ns() // 1_000_000
"""
QUEUED, LONG_S, SHORT_S = 5_000, 60.0, 0.005


def main(count: int) -> None:
    """Measure from the enqueue to the first line of the agent, for long and for short background tasks."""
    for seconds in (SHORT_S, LONG_S):
        with tempfile.TemporaryDirectory() as folder:
            waits = _measure(Path(folder), seconds, count)
        print(
            f"Main start, Subagent tasks of {seconds:g} s: p50 {waits[len(waits) // 2]} ms, "
            f"p99 {waits[int(len(waits) * 0.99)]} ms, longest {waits[-1]} ms ({count} tasks)"
        )


def _measure(folder: Path, seconds: float, count: int) -> list[int]:
    app = folder / "bench_agents.py"
    app.write_text(AGENTS)
    home = Home.open(settings.load(home=folder / "home"))
    background = ref("busy").options(home=home, risk="low")
    enqueue_many([background.call(seconds=seconds) for _ in range(QUEUED)])
    lanes = ("main", "subagent", "upkeep")
    base = [sys.executable, "-m", "relight.workers.cli", "--home", str(home.path), "-A", str(app), "worker"]
    workers = [subprocess.Popen([*base, lane], stderr=subprocess.DEVNULL) for lane in lanes]
    try:
        while tasks.counts(home.db)["running"] < 4:
            time.sleep(0.05)
        question = ref("quick").options(home=home, lane="main", risk="low")
        return sorted(_one(question) for _ in range(count))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        home.close()


def _one(question: object) -> int:
    time.sleep(0.02)
    asked = time.time_ns() // 1_000_000
    started: int = question.enqueue().result(timeout=30)  # type: ignore[attr-defined]
    return started - asked


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
