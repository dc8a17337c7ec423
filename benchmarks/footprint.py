"""What Relight takes: bytes a task, time to import, memory and CPU of an idle worker, time to wake one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from relight.models import tasks
from relight.workers.agents import Bound, enqueue_many
from relight.workers.home import Home
from relight.workers.lanes import LaneHuey

from . import agents
from .throughput import home_in

APP = str(Path(agents.__file__))
QUEUED = 5_000


def bytes_per_task(folder: Path) -> float:
    """Bytes of the state file for a finished no-op task, everything included."""
    return _growth(folder, 2_000, 0)


def bytes_per_step(folder: Path) -> float:
    """Bytes of the state file for a finished step."""
    return _growth(folder, 100, 20)


def import_ms(folder: Path) -> float:
    """Milliseconds that `import relight` and an agent module take beyond an empty Python."""
    return 1000 * (_timed("import relight; relight.agent") - _timed("pass"))


def idle_cpu_percent(folder: Path) -> float:
    """Percent of a core that an idle worker uses, over five seconds."""
    home = home_in(folder, "power")
    with worker(home, "main") as process:
        watched = psutil.Process(process.pid)
        before = sum(watched.cpu_times()[:2])
        time.sleep(5)
        return 100 * (sum(watched.cpu_times()[:2]) - before) / 5


def idle_memory_mib(folder: Path) -> float:
    """Resident memory of an idle worker."""
    home = home_in(folder, "power")
    with worker(home, "main") as process:
        return psutil.Process(process.pid).memory_info().rss / 2**20


def wake_ms(share: float, *, background: float | None = None) -> object:
    """Milliseconds from the enqueue to the first line of a Main task in an idle worker process; a percentile.

    With `background`, every Subagent slot is busy with tasks of that many seconds and thousands are queued.
    """

    def measure(folder: Path) -> float:
        home = home_in(folder, "power")
        if background is not None:
            calls = [agents.busy.options(home=home).call(background) for _ in range(QUEUED)]
            enqueue_many(calls)
        lanes = ["main"] if background is None else ["main", "subagent"]
        with workers(home, lanes):
            while background is not None and tasks.counts(home.db)["running"] < 4:
                time.sleep(0.05)
            question = agents.started_at.options(home=home, lane="main")
            question.enqueue().result(timeout=30)
            waits = sorted(_wait_of(question) for _ in range(200))
        return waits[min(len(waits) - 1, int(len(waits) * share))]

    return measure


@contextmanager
def workers(home: Home, lanes: list[str]) -> Iterator[None]:
    """Worker processes of these lanes, until the block ends."""
    if not lanes:
        yield
        return
    with worker(home, lanes[0]), workers(home, lanes[1:]):
        yield


@contextmanager
def worker(home: Home, lane: str) -> Iterator[subprocess.Popen[bytes]]:
    """One worker process that has hung its bell up, killed when the block ends."""
    command = [
        sys.executable,
        "-m",
        "relight.workers.cli",
        "--home",
        str(home.path),
        "-A",
        APP,
        "worker",
        lane,
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not list((home.path / "bells").glob(f"{lane}.*")):
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_of(question: Bound) -> float:
    time.sleep(0.01)
    asked = time.time_ns() // 1000
    started: int = question.enqueue().result(timeout=30)
    return (started - asked) / 1000


def _growth(folder: Path, count: int, steps: int) -> float:
    home = home_in(folder, "process")
    before = _size(home)
    bound = (agents.steps if steps else agents.noop).options(home=home)
    enqueue_many([bound.call(steps) if steps else bound.call() for _ in range(count)])
    lane = LaneHuey("subagent", home=home)
    while (task := lane.dequeue()) is not None:
        lane.execute(task)
    grown = _size(home) - before
    home.close()
    return grown / (count * (steps or 1))


def _size(home: Home) -> int:
    pages = home.db.row("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
    return int(pages[0]) if pages else 0


def _timed(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began
