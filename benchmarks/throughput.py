"""Throughput in one process: enqueue, drain, durable steps; beside plain SqliteHuey at the same durability."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cysqlite
from huey import SqliteHuey

from relight.workers import settings
from relight.workers.agents import Agent, enqueue_many
from relight.workers.home import Home
from relight.workers.lanes import LaneHuey

from . import agents
from .rounds import Contender

COUNT = 1_000
BULK = 10_000


def home_in(folder: Path, durability: str) -> Home:
    """A new state directory."""
    return Home.open(settings.load(home=folder / "home", durability=durability))


def enqueue(durability: str, *, threads: int = 1) -> Contender:
    """Tasks stored a second, each in a transaction of its own."""

    def measure(folder: Path) -> float:
        home = home_in(folder, durability)
        bound = agents.noop.options(home=home)
        rate = _rate(COUNT, threads, bound.enqueue)
        home.close()
        return rate

    return measure


def enqueue_bulk(folder: Path) -> float:
    """Tasks stored a second in one transaction."""
    home = home_in(folder, "power")
    bound = agents.noop.options(home=home)
    began = time.perf_counter()
    enqueue_many([bound.call() for _ in range(BULK)])
    rate = BULK / (time.perf_counter() - began)
    home.close()
    return rate


def drain(durability: str, *, threads: int = 4) -> Contender:
    """No-op tasks run a second by the workers of one process."""
    return lambda folder: _drained(folder, durability, agents.noop, [()] * COUNT, threads, COUNT)


def durable_steps(durability: str) -> Contender:
    """Steps a second of one run of a thousand."""
    return lambda folder: _drained(folder, durability, agents.steps, [(COUNT,)], 1, COUNT)


def many_runs(durability: str) -> Contender:
    """Steps a second of a hundred runs of ten steps on four workers."""
    return lambda folder: _drained(folder, durability, agents.steps, [(10,)] * 100, 4, COUNT)


def huey_enqueue(*, fsync: bool, threads: int = 1) -> Contender:
    """The same for plain SqliteHuey."""

    def measure(folder: Path) -> float:
        _, noop = _plain(folder, fsync)
        return _rate(COUNT, threads, noop)

    return measure


def huey_drain(*, fsync: bool, threads: int = 4) -> Contender:
    """The same for plain SqliteHuey, which records nothing."""

    def measure(folder: Path) -> float:
        huey, noop = _plain(folder, fsync)
        for _ in range(COUNT):
            noop()
        return _run_dry(huey.dequeue, huey.execute, threads, COUNT)

    return measure


def raw_commits(durability: int) -> Contender:
    """Transactions a second that SQLite itself reaches, with one row of the size of a task each."""

    def measure(folder: Path) -> float:
        conn = cysqlite.connect(str(folder / "raw.db"))  # type: ignore[attr-defined]  # cysqlite names no exports
        conn.execute("PRAGMA journal_mode = WAL").fetchall()
        conn.execute(f"PRAGMA synchronous = {durability}").fetchall()
        conn.execute("CREATE TABLE t (id TEXT PRIMARY KEY, body TEXT)")
        began = time.perf_counter()
        for number in range(COUNT):
            conn.begin("immediate")
            conn.execute("INSERT INTO t VALUES (?, ?)", (f"{number:036d}", "x" * 300))
            conn.commit()
        return COUNT / (time.perf_counter() - began)

    return measure


def _drained(
    folder: Path,
    durability: str,
    agent: Agent[Any, Any],
    inputs: list[tuple[Any, ...]],
    threads: int,
    counted: int,
) -> float:
    home = home_in(folder, durability)
    bound = agent.options(home=home)
    enqueue_many([bound.call(*given) for given in inputs])
    lane = LaneHuey("subagent", home=home)
    rate = _run_dry(lane.dequeue, lane.execute, threads, counted)
    home.close()
    return rate


def _run_dry(take: Callable[[], Any], execute: Callable[[Any], Any], threads: int, counted: int) -> float:
    def work() -> None:
        while (task := take()) is not None:
            execute(task)

    began = time.perf_counter()
    _in_threads(threads, work)
    return counted / (time.perf_counter() - began)


def _rate(count: int, threads: int, call: Callable[[], object]) -> float:
    def work() -> None:
        for _ in range(count // threads):
            call()

    began = time.perf_counter()
    _in_threads(threads, work)
    return count / (time.perf_counter() - began)


def _in_threads(threads: int, work: Callable[[], None]) -> None:
    pool = [threading.Thread(target=work) for _ in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()


def _plain(folder: Path, fsync: bool) -> tuple[SqliteHuey, Callable[[], object]]:
    huey = SqliteHuey("plain", filename=str(folder / "huey.db"), fsync=True if fsync else None)

    @huey.task()  # type: ignore[untyped-decorator]  # huey is untyped
    def noop() -> None:
        return None

    return huey, noop
