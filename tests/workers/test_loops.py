"""The loop of the asynchronous agents: shared, never ended by agent code, and watched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from relight import AsyncRun, agent, step
from relight.models.tasks import AgentTask, TaskStatus
from relight.workers import execution
from relight.workers.attempts import Outcome
from tests.conftest import wait_until
from tests.workers.conftest import Crew


@step(effect="read")
async def look(value: Any) -> Any:
    return value


def launch_all(crew: Crew) -> Callable[[], list[Outcome]]:
    """Start an attempt of everything that is ready; gives the outcomes when all have ended."""
    ended: list[Outcome] = []
    started = 0
    while (row := crew.claim()) is not None:
        execution.launch(crew.home, crew.owner, row, ended.append)
        started += 1

    def wait() -> list[Outcome]:
        wait_until(lambda: len(ended) == started)
        return ended

    return wait


def test_asynchronous_agents_share_one_thread_and_run_at_the_same_time(crew: Crew) -> None:
    threads: set[int] = set()
    inside = 0
    all_there = asyncio.Event()

    @agent(risk="low")
    async def together(run: AsyncRun) -> None:
        nonlocal inside
        threads.add(threading.get_ident())
        inside += 1
        if inside == 20:
            all_there.set()
        await all_there.wait()
        await look(1)

    for _ in range(20):
        together.enqueue()
    assert [outcome.kind for outcome in launch_all(crew)()] == ["completed"] * 20
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_a_loop_that_is_blocked_is_reported_with_task_and_step(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    reported = threading.Event()

    @agent(risk="low")
    async def blocking(run: AsyncRun) -> bool:
        await look(1)
        return reported.wait(10)

    def report() -> list[Any]:
        return [record for record in caplog.records if record.message == "the event loop is blocked"]

    task = blocking.enqueue()
    wait = launch_all(crew)
    [record] = wait_until(report)
    reported.set()
    wait()
    assert record.runs == [f"{task.id} at look#1"]
    assert record.seconds >= 1
    assert len(report()) == 1


def test_what_a_run_leaves_running_ends_with_it(crew: Crew) -> None:
    cancelled: list[str] = []
    begun = asyncio.Event()

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("for ever")
            raise

    @agent(risk="low")
    async def leaving(run: AsyncRun) -> str:
        leaving_behind = asyncio.create_task(for_ever())
        await begun.wait()
        return f"done {leaving_behind.done()}"

    task = leaving.enqueue()
    assert launch_all(crew)()[0].kind == "completed"
    assert cancelled == ["for ever"]
    assert task.result() == "done False"


def test_a_step_that_an_ended_run_still_holds_stores_nothing_any_more(crew: Crew) -> None:
    kept: list[AsyncRun] = []

    @agent(risk="low")
    async def leaking(run: AsyncRun) -> str:
        kept.append(run)
        return "done"

    task = leaking.enqueue()
    launch_all(crew)()
    before = len(crew.history(task.id).steps)

    async def late() -> None:
        await kept[0].step(lambda: 1)

    with pytest.raises(BaseException):  # noqa: B017, PT011  # control flow, or that it is called from elsewhere
        asyncio.run(late())
    assert len(crew.history(task.id).steps) == before
    assert task.status == TaskStatus.COMPLETED


def test_an_attempt_lasts_as_long_as_its_bodies_in_threads(crew: Crew) -> None:
    began, go_on = threading.Event(), threading.Event()

    @step(effect="write")
    def put() -> str:
        began.set()
        assert go_on.wait(10)
        return "put"

    @agent(retries=0)
    async def failing(run: AsyncRun) -> None:
        put_task = asyncio.create_task(run.step(put))
        await asyncio.to_thread(began.wait, 10)
        raise ValueError(f"while the step executes: {put_task.done()}")

    task = failing.enqueue()
    wait = launch_all(crew)
    assert began.wait(10)
    assert task.status == TaskStatus.RUNNING
    go_on.set()
    assert wait()[0].kind == "failed"
    assert crew.outcomes(task.id) == ["put#1"]
    assert crew.results(task.id)[0]["status"] == "success"


def test_a_retry_begins_only_when_the_bodies_of_the_attempt_before_have_ended(crew: Crew) -> None:
    began, go_on = threading.Event(), threading.Event()
    executed: list[int] = []

    @step(effect="write")
    def put() -> str:
        executed.append(1)
        began.set()
        assert go_on.wait(10)
        return "put"

    @agent(retries=1, retry_delay=0)
    async def failing(run: AsyncRun) -> str:
        putting = asyncio.create_task(run.step(put))
        await asyncio.to_thread(began.wait, 10)
        if run.attempt == 1:
            raise ValueError("my own")
        return str(await putting)

    task = failing.enqueue()
    wait = launch_all(crew)
    assert began.wait(10)
    assert crew.claim() is None
    go_on.set()
    assert wait()[0].kind == "retrying"
    assert launch_all(crew)()[0].kind == "completed"
    assert executed == [1]
    assert task.result() == "put"


def test_sys_exit_anywhere_on_the_loop_ends_no_other_run(crew: Crew) -> None:
    leaving = asyncio.Event()

    async def exits() -> None:
        raise SystemExit(3)

    @agent(risk="low")
    async def exiting(run: AsyncRun) -> None:
        task = asyncio.create_task(exits())
        await asyncio.wait([task])
        leaving.set()
        task.result()

    @agent(risk="low")
    async def staying(run: AsyncRun) -> str:
        await leaving.wait()
        return str(await look("still here"))

    handles = [staying.enqueue(), exiting.enqueue()]
    kinds = sorted(outcome.kind for outcome in launch_all(crew)())
    assert kinds == ["completed", "failed"]
    assert handles[0].result() == "still here"
    row: AgentTask = handles[1].task()
    assert "SystemExit" in str(row.error_json)


def test_an_attempt_ends_once_its_many_bodies_have(crew: Crew) -> None:
    @step(effect="read")
    def quick(number: int) -> int:
        return number

    @agent(risk="low")
    async def hasty(run: AsyncRun) -> str:
        for number in range(40):
            run.tasks.add(asyncio.create_task(run.step(quick, number)))
        await asyncio.sleep(0)
        raise ValueError("did not wait for them")

    for _ in range(10):
        hasty.enqueue()
    assert [outcome.kind for outcome in launch_all(crew)()] == ["failed"] * 10
