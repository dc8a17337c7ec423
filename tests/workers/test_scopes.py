"""Where a step is called decides its key, and nothing else does: no timing, no order of completion."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relight import AsyncRun, Run, agent, step
from relight.models.errors import MisuseError, TaskFailedError
from relight.workers.agents import Agent
from tests.workers.conftest import Crew


@step(effect="read")
async def look(number: int) -> int:
    return number * number


@step(effect="read")
def sync_look(number: int) -> int:
    return number * number


def keys_of(crew: Crew, fn: Callable[..., Any]) -> set[str]:
    """The step keys of one run of an agent, which must complete."""
    task = declared(fn).enqueue()
    assert crew.work().kind == "completed"
    return set(crew.outcomes(task.id))


def declared(fn: Callable[..., Any]) -> Agent[Any, Any]:
    return agent(risk="low")(fn)


def test_a_key_is_the_name_and_its_occurrence_in_the_scope(crew: Crew) -> None:
    def plain(run: Run) -> None:
        sync_look(1)
        run.step(sync_look, 2)
        run.now()
        sync_look(3)

    assert keys_of(crew, plain) == {"sync_look#1", "sync_look#2", "sync_look#3", "run.now#1"}


def test_the_occurrence_is_taken_at_the_call_not_at_the_await(crew: Crew) -> None:
    async def backwards(run: AsyncRun) -> list[int]:
        first, second = look(1), look(2)
        return [await second, await first]

    task = declared(backwards).enqueue()
    assert crew.work().kind == "completed"
    assert crew.outcomes(task.id) == ["look#2", "look#1"]
    assert task.result() == [4, 1]


def test_a_gathered_call_keeps_the_scope_it_was_called_in(crew: Crew) -> None:
    async def gathering(run: AsyncRun) -> None:
        await asyncio.gather(look(1), look(2), run.step(look, 3))

    assert keys_of(crew, gathering) == {"look#1", "look#2", "look#3"}


def test_every_asyncio_task_is_a_scope_numbered_in_creation_order(crew: Crew) -> None:
    async def branch(number: int) -> None:
        await look(number)
        await look(number)

    async def branching(run: AsyncRun) -> None:
        await asyncio.gather(branch(1), branch(2))
        async with asyncio.TaskGroup() as group:
            group.create_task(branch(3))
        await asyncio.create_task(branch(4))
        await asyncio.wait_for(asyncio.ensure_future(branch(5)), 10)
        await look(6)

    inside = {f"{number}/look#{occurrence}" for number in range(1, 6) for occurrence in (1, 2)}
    assert keys_of(crew, branching) == inside | {"look#1"}


def test_nested_tasks_are_scopes_within_their_parent(crew: Crew) -> None:
    async def leaf() -> None:
        await look(1)

    async def middle() -> None:
        await look(1)
        await asyncio.gather(leaf(), leaf())

    async def nesting(run: AsyncRun) -> None:
        await asyncio.gather(middle(), middle())

    assert keys_of(crew, nesting) == {
        *("1/look#1", "1/1/look#1", "1/2/look#1"),
        *("2/look#1", "2/1/look#1", "2/2/look#1"),
    }


def test_tasks_that_a_step_makes_for_itself_move_no_key_of_the_agent(crew: Crew) -> None:
    async def chore() -> int:
        await asyncio.sleep(0)
        return 1

    @step(effect="read")
    async def busy() -> int:
        return sum(await asyncio.gather(*(chore() for _ in range(7))))

    async def branch() -> None:
        await look(1)

    async def mixing(run: AsyncRun) -> None:
        await busy()
        await asyncio.gather(branch(), branch())

    assert keys_of(crew, mixing) == {"busy#1", "1/look#1", "2/look#1"}


def test_parallel_branches_replay_to_the_same_keys_and_values_whatever_the_timing(crew: Crew) -> None:
    turns: dict[str, int] = {}
    executed: list[str] = []
    stop_after = 0

    @step(effect="read")
    async def slow(branch: int, place: int) -> str:
        for _ in range(turns.pop(f"{branch}.{place}", 0)):
            await asyncio.sleep(0)
        executed.append(f"{branch}.{place}")
        if len(executed) == stop_after:
            await asyncio.to_thread(crew.interrupt)
        return f"{branch}.{place}"

    async def strand(branch: int) -> list[str]:
        return [await slow(branch, place) for place in range(3)]

    @agent(risk="low")
    async def five(run: AsyncRun) -> list[list[str]]:
        return await asyncio.gather(*(strand(branch) for branch in range(5)))

    wanted = [[f"{branch}.{place}" for place in range(3)] for branch in range(5)]
    for round_ in range(15):
        executed.clear()
        stop_after = round_ + 1
        turns.update({f"{b}.{p}": (b * 7 + p * 5 + round_ * 3) % 11 for b in range(5) for p in range(3)})
        task = five.enqueue()
        assert crew.work().kind == "lost"
        crew.recover()
        assert crew.work().kind == "completed"
        assert task.result() == wanted
        record = crew.history(task.id)
        assert {key: value_of(record, key) for key in record.steps} == {
            f"{b + 1}/slow#{p + 1}": f"{b}.{p}" for b in range(5) for p in range(3)
        }


def value_of(record: Any, key: str) -> Any:
    return json.loads(record.steps[key].outcome_json)["result"]["output"]


def test_threads_open_a_branch_by_name_and_their_keys_do_not_depend_on_who_is_first(crew: Crew) -> None:
    for order in (("left", "right"), ("right", "left")):
        turn = {name: threading.Event() for name in order}
        turn[order[0]].set()

        def strand(run: Run, name: str, turn: dict[str, threading.Event] = turn) -> int:
            assert turn[name].wait(10)
            with run.branch(name):
                found = sync_look(2) + run.step(sync_look, 3)
            for other in turn.values():
                other.set()
            return found

        def threading_agent(run: Run) -> int:
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(lambda name: strand(run, name), ["left", "right"]))  # noqa: B023

        names = {f"{name}/sync_look#{occurrence}" for name in ("left", "right") for occurrence in (1, 2)}
        assert keys_of(crew, threading_agent) == names


def test_branches_nest_and_go_on_counting_when_they_are_left(crew: Crew) -> None:
    def nesting(run: Run) -> None:
        sync_look(1)
        with run.branch("outer"):
            sync_look(1)
            with run.branch("inner"):
                sync_look(1)
            sync_look(1)
        sync_look(1)

    assert keys_of(crew, nesting) == {
        *("sync_look#1", "sync_look#2"),
        *("outer/sync_look#1", "outer/sync_look#2", "outer/inner/sync_look#1"),
    }


def test_a_branch_of_an_asynchronous_run_is_a_scope_for_its_tasks_too(crew: Crew) -> None:
    async def strand() -> None:
        await look(1)

    async def branching(run: AsyncRun) -> None:
        with run.branch("one"):
            await look(1)
            await asyncio.gather(strand(), strand())
        await asyncio.gather(strand())

    assert keys_of(crew, branching) == {"one/look#1", "one/1/look#1", "one/2/look#1", "1/look#1"}


def test_a_thread_without_a_branch_is_refused_and_told_how(crew: Crew) -> None:
    @agent(risk="low")
    async def careless(run: AsyncRun) -> None:
        await asyncio.to_thread(sync_look, 1)

    @agent(risk="low")
    def careless_too(run: Run) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run.step, sync_look, 1).result()

    for one in (careless, careless_too):
        task = one.enqueue()
        assert crew.work().kind == "failed"
        with pytest.raises(TaskFailedError, match=r"MisuseError.*run\.branch"):
            task.result()


@pytest.mark.parametrize("name", ["", "a/b", "a#1", "12"])
def test_a_branch_name_that_could_be_taken_for_another_key_is_refused(crew: Crew, name: str) -> None:
    @agent(risk="low")
    def branching(run: Run) -> str:
        with pytest.raises(MisuseError, match="branch name"), run.branch(name):
            pass
        return "refused"

    task = branching.enqueue()
    crew.work()
    assert task.result() == "refused"


def test_a_branch_name_is_used_once_in_its_scope(crew: Crew) -> None:
    @agent(risk="low")
    def branching(run: Run) -> str:
        with run.branch("one"):
            pass
        with run.branch("two"), run.branch("one"):
            pass
        with pytest.raises(MisuseError, match="opened before"), run.branch("one"):
            pass
        return "refused"

    task = branching.enqueue()
    crew.work()
    assert task.result() == "refused"
