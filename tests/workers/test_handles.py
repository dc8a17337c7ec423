"""A task seen from outside: waiting that wakes, results that are typed, errors that say why."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from relight import Run, agent, current_step, step
from relight.models import transitions
from relight.models.errors import (
    NotFoundError,
    SealedStepError,
    StaleMove,
    TaskFailedError,
    WaitTimeoutError,
)
from relight.models.events import AgentEvent
from relight.models.tasks import TaskStatus
from relight.workers import agents
from relight.workers.agents import Agent
from relight.workers.handles import TaskHandle
from tests.conftest import wait_until
from tests.workers.conftest import Crew


@dataclass
class Report:
    files: int
    place: tuple[int, str]


@pytest.fixture
def no_poll(crew: Crew) -> Crew:
    """Waiting trusts the bells alone: a ring that is lost is a wait for ever."""
    crew.home.settings = replace(crew.home.settings, poll_ms=0)
    return crew


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def reporter() -> Agent[Any, Any]:
    @agent(risk="low")
    def report(run: Run, files: int = 1) -> Report:
        return Report(files, (1, "x"))

    return report


def hung_up(crew: Crew) -> bool:
    return any(crew.home.path.glob("bells/watch.*"))


def waiting(crew: Crew, pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
    """The future of a call that waits already."""
    future = pool.submit(call)
    wait_until(lambda: hung_up(crew))
    return future


def test_a_result_is_typed_by_the_annotation_of_its_agent(crew: Crew) -> None:
    task = reporter().enqueue(3)
    crew.work()
    assert task.result() == Report(3, (1, "x"))
    assert task.wait(0).status == TaskStatus.COMPLETED


def test_a_result_is_plain_where_the_agent_is_not_known(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    task = reporter().enqueue(3)
    crew.work()
    monkeypatch.setattr(agents, "_registry", {})
    assert task.result() == {"files": 3, "place": [1, "x"]}


def test_who_waits_is_woken_by_the_end_without_a_poll(no_poll: Crew, pool: ThreadPoolExecutor) -> None:
    task = reporter().enqueue(2)
    waiter = waiting(no_poll, pool, lambda: task.result(15))
    no_poll.work()
    assert waiter.result(10) == Report(2, (1, "x"))


def test_many_who_wait_for_the_same_task_are_all_woken(no_poll: Crew, pool: ThreadPoolExecutor) -> None:
    task = reporter().enqueue(2)
    waiters = [waiting(no_poll, pool, lambda: task.result(15)) for _ in range(6)]
    no_poll.work()
    assert [waiter.result(10).files for waiter in waiters] == [2] * 6


def test_a_failure_by_a_person_wakes_who_waits_and_says_why(no_poll: Crew, pool: ThreadPoolExecutor) -> None:
    task = reporter().enqueue()
    waiter = waiting(no_poll, pool, lambda: task.result(15))
    task.cancel(reason="not wanted any more")
    with pytest.raises(TaskFailedError, match="cancelled.*not wanted any more") as caught:
        waiter.result(10)
    assert (caught.value.reason, caught.value.exit_code) == ("cancelled", 1)


def test_an_error_of_the_agent_is_told_with_its_type_and_text(crew: Crew) -> None:
    @agent(risk="low")
    def bad(run: Run) -> None:
        raise KeyError("which")

    task = bad.enqueue()
    crew.work()
    with pytest.raises(TaskFailedError, match="KeyError: 'which'") as caught:
        task.result(0)
    assert caught.value.reason == "error"


def test_a_wait_ends_in_time_and_leaves_the_task_alone(crew: Crew) -> None:
    task = reporter().enqueue()
    for call in (task.result, task.wait):
        began = time.monotonic()
        with pytest.raises(WaitTimeoutError, match="still pending after 0.1 s") as caught:
            call(0.1)
        assert 0.1 <= time.monotonic() - began < 2
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.exit_code == 5
    assert task.status == TaskStatus.PENDING


def test_a_task_can_be_awaited(no_poll: Crew) -> None:
    tasks = [reporter().enqueue(number) for number in range(4)]

    async def main() -> list[Report]:
        async def work() -> None:
            await asyncio.to_thread(no_poll.work_off)

        *found, _ = await asyncio.gather(*map(awaited, tasks), work())
        return [one for one in found if one is not None]

    async def awaited(task: TaskHandle) -> Report:
        found: Report = await task
        return found

    assert [report.files for report in asyncio.run(main())] == [0, 1, 2, 3]


def test_an_await_that_is_given_up_keeps_no_thread(no_poll: Crew) -> None:
    task = reporter().enqueue()
    ended = threading.Event()

    async def main() -> None:
        async def awaited() -> None:
            await task

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaited(), 0.05)

    def run() -> None:
        asyncio.run(main())  # which ends with joining the threads of its executor
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ended.wait(10)
    assert task.status == TaskStatus.PENDING


def test_a_result_in_a_file_is_read_from_it_and_a_damaged_file_is_an_error(crew: Crew) -> None:
    @agent(risk="low")
    def large(run: Run) -> str:
        return "x" * 100_000

    task = large.enqueue()
    crew.work()
    assert len(task.task().result_json or "") < 200
    assert task.result() == "x" * 100_000
    [file] = (path for path in (crew.home.path / "blobs").rglob("*") if path.is_file())
    file.write_bytes(b"other")
    with pytest.raises(SealedStepError):
        task.result()


def test_a_pending_task_is_cancelled_at_once_and_never_runs(crew: Crew) -> None:
    task = reporter().enqueue()
    row = task.cancel()
    assert (row.status, row.reason) == (TaskStatus.FAILED, "cancelled")
    assert row.cancel_requested_at is not None
    assert crew.claim() is None
    with pytest.raises(StaleMove) as caught:
        task.cancel()
    assert caught.value.exit_code == 4


def test_a_handle_of_no_task_says_so(crew: Crew) -> None:
    with pytest.raises(NotFoundError):
        TaskHandle(crew.home, "nothing").result(0)


def test_waiting_inside_the_body_of_a_step_is_refused_too(crew: Crew) -> None:
    other = reporter().enqueue()

    @step(effect="read")
    def look() -> Any:
        return other.result()

    @agent(risk="low")
    def waiting_agent(run: Run) -> None:
        look()

    task = waiting_agent.options(priority=5).enqueue()
    crew.work()
    with pytest.raises(TaskFailedError, match="inside a run"):
        task.result()


def test_events_come_in_order_until_the_task_has_ended(no_poll: Crew, pool: ThreadPoolExecutor) -> None:
    @step(effect="read")
    def streaming() -> None:
        for token in ("a", "b"):
            current_step().stream(token)

    @agent(risk="low")
    def followed(run: Run) -> None:
        streaming()

    task = followed.enqueue()
    reader = pool.submit(lambda: list(task.events()))
    wait_until(lambda: any(no_poll.home.path.glob("bells/*follow*")))
    no_poll.work()
    found = reader.result(10)
    assert all(isinstance(event, AgentEvent) for event in found)
    assert [event.seq for event in found if isinstance(event, AgentEvent)] == list(range(1, 8))
    assert [event.event_type for event in task.events(5) if isinstance(event, AgentEvent)] == [
        "tool_call_completed",
        "task_completed",
    ]


def test_status_is_what_the_row_says_now(crew: Crew) -> None:
    task = reporter().enqueue()
    assert str(task.status) == "pending"
    row = crew.claim()
    assert row is not None
    assert str(task.status) == "running"
    transitions.cancel(crew.db, task.id, by="ann", detail="{}", now=crew.home.now())
    assert str(task.status) == "failed"
    assert repr(task) == f"TaskHandle({task.id!r})"
