"""A lane in this process: claims, plain Huey tasks, hooks and signals, periodic tasks, slots."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from huey import signals
from huey.api import chord, crontab, group
from huey.exceptions import CancelExecution, ConfigurationError, TaskException, TaskLockedException

from relight.models import claims
from relight.models.errors import InputError, StorageLockedError
from relight.models.tasks import AgentTask, TaskStatus
from relight.workers import settings
from relight.workers.agents import agent, ref
from relight.workers.claimed import ClaimedTask
from relight.workers.consumer import LaneConsumer
from relight.workers.handles import TaskHandle
from relight.workers.home import Home
from relight.workers.lanes import LaneHuey
from tests.conftest import environment, wait_until

WAIT = 20.0


@agent(risk="low")
def echo(run: Any, text: str) -> str:
    return text


@agent(risk="low", retries=1, retry_delay=0)
def fail_once(run: Any) -> str:
    if run.attempt == 1:
        raise ValueError("first")
    return "second"


@agent(risk="low")
def fail(run: Any) -> None:
    raise ValueError("always")


class Meter:
    """How many are inside at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.mutex = threading.Lock()

    def __enter__(self) -> None:
        with self.mutex:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.mutex:
            self.now -= 1


meter = Meter()


@agent(risk="low")
async def together(run: Any, wanted: int) -> None:
    with meter:
        for _ in range(500):
            if meter.most >= wanted:
                return
            await asyncio.sleep(0.01)


@agent(risk="low")
async def alone(run: Any) -> None:
    with meter:
        await asyncio.sleep(0.02)


class FakeQueueError(Exception):
    """A class that the messages of these tests can name."""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Home]:
    opened = Home.open(settings.load(home=tmp_path / "state", env={}, cwd=tmp_path, poll_ms=0))
    yield opened
    opened.close()


@pytest.fixture
def lane(state: Home) -> LaneHuey:
    return LaneHuey("main", home=state)


Serve = Callable[..., LaneConsumer]


@pytest.fixture
def serve(lane: LaneHuey) -> Iterator[Serve]:
    """Serve the lane with worker threads of this process; no sweep runs beside them."""
    consumers: list[LaneConsumer] = []

    def start(slots: int = 2) -> LaneConsumer:
        consumers.append(LaneConsumer(lane, slots))
        consumers[-1].start()
        return consumers[-1]

    yield start
    for consumer in consumers:
        consumer.stop(graceful=True)


def enqueue(home: Home, called: Any, *args: Any, **options: Any) -> TaskHandle:
    handle: TaskHandle = called.options(home=home, **{"lane": "main", **options}).enqueue(*args)
    return handle


def take_and_run(lane: LaneHuey) -> Any:
    task = lane.dequeue()
    assert task is not None
    return lane.execute(task)


# -- agent tasks ------------------------------------------------------------------------------------------------


def test_importing_the_lanes_opens_nothing(tmp_path: Path) -> None:
    code = """
import os, sys
before = len(os.listdir("/dev/fd"))
from relight.workers.lanes import main, subagent, upkeep
assert len(os.listdir("/dev/fd")) == before
assert [lane.name for lane in (main, subagent, upkeep)] == ["main", "subagent", "upkeep"]
"""
    home = tmp_path / "home"
    subprocess.run([sys.executable, "-c", code], env=environment(RELIGHT_HOME=str(home)), check=True)
    assert not home.exists()


def test_a_claimed_row_is_a_real_huey_task_and_runs(lane: LaneHuey, state: Home) -> None:
    handle = enqueue(state, echo, "hello", priority=7, retries=3)
    task = lane.dequeue()
    assert isinstance(task, ClaimedTask)
    assert (task.id, task.name, task.priority, task.retries) == (handle.id, "echo", 7, 3)
    assert handle.status == TaskStatus.RUNNING
    lane.execute(task)
    assert handle.result() == "hello"
    assert lane.dequeue() is None


def test_a_lane_takes_its_own_rows_only(lane: LaneHuey, state: Home) -> None:
    enqueue(state, echo, "x", lane="subagent")
    assert lane.dequeue() is None
    assert LaneHuey("upkeep", home=state).dequeue() is None
    assert LaneHuey("subagent", home=state).dequeue() is not None


def test_two_homes_in_one_process_do_not_touch(tmp_path: Path) -> None:
    homes = [
        Home.open(settings.load(home=tmp_path / name, env={}, cwd=tmp_path, poll_ms=0)) for name in ("a", "b")
    ]
    lanes = [LaneHuey("main", home=home) for home in homes]
    enqueue(homes[0], echo, "only a")
    assert lanes[1].dequeue() is None
    assert [lane.pending_count() for lane in lanes] == [1, 0]
    for home in homes:
        home.close()


def test_a_served_lane_wakes_for_a_task_without_a_poll(state: Home, serve: Serve) -> None:
    serve()
    assert [enqueue(state, echo, str(i)).result(WAIT) for i in range(20)] == [str(i) for i in range(20)]


def test_a_delayed_task_starts_when_it_is_due(state: Home, serve: Serve) -> None:
    serve()
    handles = [enqueue(state, echo, "late", delay=0.4) for _ in range(3)]
    for handle in handles:
        row = handle.wait(WAIT)
        assert row.started_at is not None
        assert 0 <= row.started_at - row.due_at < 100


def test_a_task_of_an_unknown_agent_stays_held_until_one_knows_it(lane: LaneHuey, state: Home) -> None:
    handle = enqueue(state, ref("nobody-knows-this"), "x")
    assert lane.dequeue() is None
    assert (handle.status, handle.task().hold) == (TaskStatus.PENDING, "unknown_agent")
    assert handle.task().attempt == 0


def test_hooks_and_huey_signals_see_agent_tasks_and_plain_tasks(lane: LaneHuey, state: Home) -> None:
    told: list[tuple[str, ...]] = []

    @lane.task(name="plain")
    def plain() -> int:
        return 1

    lane.signal()(lambda signal, task, *error: told.append((signal, task.name, *map(repr, error))))
    lane.pre_execute("before")(lambda task: told.append(("pre", task.name)))
    lane.post_execute("after")(
        lambda task, value, error: told.append(("post", task.name, repr(value or error)))
    )
    enqueue(state, echo, "v")
    plain()
    take_and_run(lane)
    take_and_run(lane)
    enqueue(state, fail_once)
    take_and_run(lane)
    wait_until(lambda: claims.next_due(state.db) is None or take_and_run(lane) is None)
    assert told == [
        ("enqueued", "plain"),
        ("executing", "echo"),
        ("pre", "echo"),
        ("post", "echo", "'v'"),
        ("complete", "echo"),
        ("executing", "plain"),
        ("pre", "plain"),
        ("post", "plain", "1"),
        ("complete", "plain"),
        ("executing", "fail_once"),
        ("pre", "fail_once"),
        ("error", "fail_once", "ValueError('first')"),
        ("post", "fail_once", "ValueError('first')"),
        ("retrying", "fail_once"),
        ("executing", "fail_once"),
        ("pre", "fail_once"),
        ("post", "fail_once", "'second'"),
        ("complete", "fail_once"),
    ]


def test_a_hook_can_cancel_an_agent_task_before_it_runs(lane: LaneHuey, state: Home) -> None:
    cancelled: list[str] = []

    @lane.pre_execute()
    def guard(task: Any) -> None:
        raise CancelExecution("not today")

    lane.signal(signals.SIGNAL_CANCELED)(lambda signal, task: cancelled.append(task.id))
    handle = enqueue(state, echo, "x")
    take_and_run(lane)
    row = handle.task()
    assert (row.status, row.reason) == (TaskStatus.FAILED, "cancelled")
    assert json.loads(row.error_json)["text"] == "not today"
    assert cancelled == [handle.id]
    assert state.owner("main").claims == frozenset()


def test_what_waits_is_counted_and_listed(lane: LaneHuey, state: Home) -> None:
    @lane.task()
    def plain(n: int) -> None: ...

    later = enqueue(state, echo, "b", priority=1)
    first = enqueue(state, echo, "a", priority=5)
    enqueue(state, echo, "delayed", delay=60)
    message = plain(1)
    assert lane.pending_count() == len(lane) == 3
    assert [task.id for task in lane.pending()] == [first.id, later.id, message.id]
    assert [task.id for task in lane.pending(limit=1)] == [first.id]
    assert [task.name for task in lane.pending()] == ["echo", "echo", "plain"]


def test_plain_messages_are_served_beside_a_full_lane(lane: LaneHuey, state: Home) -> None:
    @lane.task()
    def plain() -> None: ...

    for number in range(20):
        enqueue(state, echo, str(number))
    message = plain()
    taken = [lane.dequeue() for _ in range(8)]
    assert message.id in [task.id for task in taken if task is not None]


def test_a_message_that_names_a_row_runs_nothing(lane: LaneHuey, state: Home) -> None:
    handle = enqueue(state, echo, "x")
    for data in lane.storage.enqueued_items() * 10:
        lane.storage.enqueue(data)
    assert lane.pending_count() == 11
    ran = [task for task in iter(lambda: lane.dequeue() or _none_left(lane), None) if task is not True]
    assert [task.id for task in ran] == [handle.id]
    assert lane.pending_count() == 0


def _none_left(lane: LaneHuey) -> bool | None:
    return True if lane.pending_count() else None


def test_a_claim_that_meets_a_halt_is_given_back(
    lane: LaneHuey, state: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = enqueue(state, echo, "x")
    claim = claims.claim

    def claim_at_the_last_moment(*args: Any, **kwargs: Any) -> AgentTask | None:
        found = claim(*args, **kwargs)
        lane.halt()
        return found

    monkeypatch.setattr(claims, "claim", claim_at_the_last_moment)
    lane.serve(1)
    assert lane.dequeue() is None
    assert (handle.status, handle.task().worker_id) == (TaskStatus.PENDING, None)
    assert state.owner("main").claims == frozenset()


def test_an_error_of_the_store_stops_no_worker(
    state: Home, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, failures = claims.claim, iter(range(3))

    def locked_at_first(*args: Any, **kwargs: Any) -> AgentTask | None:
        if next(failures, None) is not None:
            raise StorageLockedError("busy")
        return claim(*args, **kwargs)

    monkeypatch.setattr(claims, "claim", locked_at_first)
    serve()
    assert enqueue(state, echo, "through").result(WAIT) == "through"


# -- slots ------------------------------------------------------------------------------------------------------


def test_async_agents_need_no_thread_each(state: Home, serve: Serve) -> None:
    """All of them wait for each other: with a thread for each, a lane of 64 threads would never get there."""
    meter.most = 0
    consumer = serve(80)
    handles = [enqueue(state, together, 80) for _ in range(80)]
    for handle in handles:
        handle.wait(WAIT)
    assert meter.most == 80
    assert len(consumer.worker_threads) == 64


def test_slots_limit_async_agents(state: Home, serve: Serve) -> None:
    meter.most = 0
    serve(3)
    handles = [enqueue(state, alone) for _ in range(12)]
    for handle in handles:
        handle.wait(WAIT)
    assert meter.most == 3


def test_a_full_lane_with_a_task_that_is_due_waits_without_spinning(state: Home, serve: Serve) -> None:
    meter.most = 0
    serve(1)
    enqueue(state, alone).wait(WAIT)
    blocker = enqueue(state, together, 2)
    wait_until(lambda: meter.now == 1)
    due = enqueue(state, echo, "x", delay=0.02)
    wait_until(lambda: due.task().due_at < state.now() - 300)
    began = time.process_time()
    wait_until(lambda: due.task().due_at < state.now() - 800)
    with meter:  # lets the blocker go
        blocker.wait(WAIT)
    assert due.result(WAIT) == "x"
    assert time.process_time() - began < 0.45, "the wait of half a second must not cost half a second"


# -- plain Huey tasks -------------------------------------------------------------------------------------------


def test_a_plain_task_takes_and_returns_values(lane: LaneHuey, serve: Serve) -> None:
    @lane.task()
    def add(a: int, b: int = 0, *, when: datetime | None = None) -> tuple[int, datetime | None]:
        return a + b, when

    serve()
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert add(1, b=2, when=moment).get(blocking=True, timeout=WAIT) == (3, moment)


def test_a_plain_result_wakes_who_waits_for_it(lane: LaneHuey, serve: Serve) -> None:
    @lane.task()
    def one() -> int:
        return 1

    serve()
    one().get(blocking=True, timeout=WAIT)
    took = []
    for _ in range(10):
        began = time.monotonic()
        one().get(blocking=True, timeout=WAIT)
        took.append(time.monotonic() - began)
    assert min(took) < 0.03, "Huey's own wait starts with a sleep of 50 ms"


def test_a_plain_task_is_retried_and_reports_its_last_error(lane: LaneHuey, serve: Serve) -> None:
    tries: list[int] = []

    @lane.task(retries=2)
    def flaky(good_at: int) -> str:
        tries.append(1)
        if len(tries) < good_at:
            raise FakeQueueError("not yet")
        return "done"

    serve()
    result = flaky(3)
    wait_until(lambda: len(tries) == 3)
    wait_until(lambda: result.get_raw_result(preserve=True) == "done" or result.reset())
    tries.clear()
    hopeless = flaky(99)
    wait_until(lambda: len(tries) == 3)
    with pytest.raises(TaskException, match="not yet"):
        hopeless.get(blocking=True, timeout=WAIT)


def test_a_scheduled_plain_task_runs_later(lane: LaneHuey, serve: Serve) -> None:
    @lane.task()
    def stamp() -> float:
        return time.time()

    serve()
    began = time.time()
    result = stamp.schedule(delay=0.6)
    wait_until(lambda: lane.scheduled_count() == 1)
    assert result.get(blocking=True, timeout=WAIT) - began >= 0.6
    assert lane.scheduled_count() == 0


def test_nothing_scheduled_takes_no_write_lock(lane: LaneHuey, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a look must not write")

    with monkeypatch.context() as patch:
        patch.setattr(lane.home.db, "write", refuse)
        assert lane.read_schedule() == []


def test_pipelines_groups_chords_and_error_handlers_work(lane: LaneHuey, serve: Serve) -> None:
    errors: list[BaseException] = []

    @lane.task()
    def add(a: int, b: int) -> int:
        return a + b

    @lane.task()
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @lane.task()
    def explode() -> None:
        raise FakeQueueError("boom", 1)

    @lane.task()
    def note(error: BaseException) -> None:
        errors.append(error)

    serve()
    pipeline = lane.enqueue(add.s(1, 2).then(add, 10))
    assert pipeline.get(blocking=True, timeout=WAIT) == [3, 13]
    assert lane.enqueue(group([add.s(1, 1), add.s(2, 2)])).get(blocking=True, timeout=WAIT) == [2, 4]
    assert lane.enqueue(chord([add.s(1, 1), add.s(2, 2)], total)).get(blocking=True, timeout=WAIT) == 6
    lane.enqueue(explode.s().error(note))
    wait_until(lambda: errors)
    assert (type(errors[0]), errors[0].args) == (FakeQueueError, ("boom", 1))


def test_revoking_locking_and_limiting_work(lane: LaneHuey) -> None:
    ran: list[int] = []

    @lane.task()
    def note(n: int) -> None:
        ran.append(n)

    note(1).revoke()
    take_and_run(lane)
    note(2)
    take_and_run(lane)
    assert ran == [2]
    with lane.lock_task("one"), pytest.raises(TaskLockedException), lane.lock_task("one"):
        pass
    with lane.lock_task("one"):
        assert lane.is_locked("one")
    limit = lane.rate_limit("calls", limit=1, per=60)
    limit.acquire()
    assert limit.current_usage() == 1
    lane.flush()
    assert limit.current_usage() == 0


def test_a_call_that_cannot_be_written_is_refused_where_it_is_made(lane: LaneHuey) -> None:
    @lane.task()
    def take(value: object) -> None: ...

    with pytest.raises(InputError, match=r"args\[0\] is a .*Meter"):
        take(meter)
    assert lane.pending_count() == 0


def test_a_result_that_cannot_be_written_is_told_to_who_waits(lane: LaneHuey) -> None:
    @lane.task()
    def make() -> object:
        return meter

    result = make()
    take_and_run(lane)
    with pytest.raises(TaskException, match="cannot be stored.*Meter"):
        result.get()


def test_a_lane_takes_no_storage_of_its_own() -> None:
    with pytest.raises(ConfigurationError):
        LaneHuey("main", filename="elsewhere.db")
    with pytest.raises(ConfigurationError, match="greenlet"):
        LaneConsumer(LaneHuey("main", home=_anywhere()), 1, worker_type="greenlet")


def _anywhere() -> Any:
    class Anywhere:
        settings = settings.Settings(home=Path("/nonexistent"))

    return Anywhere()


# -- periodic tasks ---------------------------------------------------------------------------------------------


def test_a_periodic_task_is_enqueued_once_a_minute_however_many_look(lane: LaneHuey, state: Home) -> None:
    @lane.periodic_task(crontab())
    def tidy() -> None: ...

    @lane.periodic_task(crontab(minute="5"))
    def rarely() -> None: ...

    start = threading.Barrier(4)
    enqueued: list[str] = []

    def look(minutes: range) -> None:
        consumer = LaneConsumer(lane, 1)
        start.wait()
        for minute in minutes:
            for second in (0, 30, 59):
                moment = datetime.fromtimestamp(minute * 60 + second, UTC)
                consumer._create_scheduler().enqueue_periodic_tasks(moment)

    lane.signal(signals.SIGNAL_ENQUEUED)(lambda signal, task: enqueued.append(task.name))
    first = 29_000_000 * 60 // 60 // 60 * 60  # a whole hour, in minutes
    threads = [threading.Thread(target=look, args=(range(first, first + 10),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(enqueued) == ["rarely"] + ["tidy"] * 10
    assert lane.pending_count() == 11
    rows = state.db.rows("SELECT key FROM kv WHERE queue = 'main'")
    assert len(rows) == 2, "one row for each name, however long it runs"


def test_the_recovery_job_is_registered_in_the_upkeep_lane() -> None:
    from relight.workers import lanes, recovery_job

    registered = lanes.upkeep._registry.periodic_tasks
    (job,) = [task for task in registered if type(task) is recovery_job.recover_tasks.task_class]
    assert all(job.validate_datetime(datetime(2026, 1, 1, 0, m, tzinfo=UTC)) for m in (0, 7))
