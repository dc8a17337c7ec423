"""A run as agent code sees it: what is recorded, what a replay gives back, and what stops it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pydantic
import pytest

from relight import AsyncRun, Run, agent, current_step, enqueue_many, step
from relight.models import confirmations, events, tasks, traces, transitions
from relight.models.errors import ControlFlow, InputError, LeaseLost, MisuseError, StepFailed, TaskFailedError
from relight.models.events import AgentEvent
from relight.models.tasks import RiskLevel, TaskStatus
from relight.workers import agents
from tests.workers.conftest import Crew


@dataclass(frozen=True)
class Place:
    name: str
    at: tuple[int, int]


class Colour(Enum):
    RED = "red"


class Found(pydantic.BaseModel):
    place: Place
    colour: Colour


class CustomError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class OddError(Exception):
    """It cannot be made again from what it says."""

    def __init__(self, left: object, right: object) -> None:
        super().__init__()
        self.left, self.right = left, right

    def __str__(self) -> str:
        return f"{type(self.left).__name__} and {type(self.right).__name__}"


@step(effect="read")
def tuple_of(place: Place) -> tuple[int, str]:
    return len(place.name), place.name


@step(effect="read")
def place_of(name: str) -> Place:
    return Place(name, (1, 2))


@step(effect="read")
def found(name: str) -> Found:
    return Found(place=Place(name, (3, 4)), colour=Colour.RED)


@step(effect="read")
def untyped(value: Any) -> Any:
    return value


@step(effect="read")
async def echo(value: str) -> str:
    return value


@step(effect="read")
def raise_custom() -> None:
    raise CustomError(7)


@step(effect="read")
def raise_odd() -> None:
    raise OddError(object(), b"")


def interrupted_once(crew: Crew, run: Run | AsyncRun) -> None:
    """What the first attempt meets here: its process has to end."""
    if run.attempt == 1:
        crew.interrupt()


def relit(crew: Crew) -> None:
    """Run the first attempt, which ends early, and the second one, which replays it."""
    assert crew.work().kind == "lost"
    assert crew.recover().resumed
    assert crew.work().kind == "completed"


# -- live and replay ------------------------------------------------------------------------------------------


def test_a_finished_step_is_not_executed_again_and_its_outcome_is_given_back(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read")
    def count(number: int) -> int:
        executed.append(number)
        return number * 10

    @agent(risk="low")
    def counting(run: Run) -> list[int]:
        found = [count(number) for number in range(4)]
        interrupted_once(crew, run)
        return [*found, count(4), count(5)]

    task = counting.enqueue()
    relit(crew)
    assert executed == [0, 1, 2, 3, 4, 5]
    assert task.result() == [0, 10, 20, 30, 40, 50]


def test_stored_outcomes_come_back_byte_for_byte(crew: Crew) -> None:
    value = {
        "ü": [1, 2.5, None, True],
        "b": b"\x00\xff",
        "nested": {"k": (1, 2)},
        "set": {3, 1},
        "big": 10**30,
    }
    seen: list[str] = []

    @agent(risk="low")
    def echoing(run: Run) -> None:
        seen.append(repr(untyped(value)))
        interrupted_once(crew, run)
        run.now()

    task = echoing.enqueue()
    crew.work()
    before = crew.results(task.id)
    crew.recover()
    crew.work()
    assert crew.results(task.id)[: len(before)] == before
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_live_and_replay_give_the_decoded_outcome_typed_by_its_annotation(crew: Crew) -> None:
    seen: list[Any] = []

    @agent(risk="low")
    def typing_agent(run: Run) -> None:
        seen.append((tuple_of(Place("x", (0, 0))), place_of("y"), found("z"), untyped((1, 2))))
        interrupted_once(crew, run)
        run.now()

    typing_agent.enqueue()
    relit(crew)
    wanted = (1, "x"), Place("y", (1, 2)), Found(place=Place("z", (3, 4)), colour=Colour.RED), [1, 2]
    assert seen == [wanted, wanted]


def test_asynchronous_steps_replay_too(crew: Crew) -> None:
    executed: list[str] = []

    @step(effect="read")
    async def ask(text: str) -> str:
        executed.append(text)
        return text.upper()

    @step(effect="read")
    def compute(text: str) -> str:
        executed.append(text)
        return text.title()

    @agent(risk="low")
    async def asking(run: AsyncRun) -> list[str]:
        found = [await ask("a"), await run.step(compute, "bc"), await run.step(ask, "d")]
        interrupted_once(crew, run)
        return [*found, await ask("e")]

    task = asking.enqueue()
    relit(crew)
    assert executed == ["a", "bc", "d", "e"]
    assert task.result() == ["A", "Bc", "D", "E"]


def test_an_exception_is_an_outcome_and_is_the_same_live_and_on_replay(crew: Crew) -> None:
    seen: list[Any] = []

    @agent(risk="low")
    def catching(run: Run) -> None:
        for fn in (raise_custom, raise_odd):
            try:
                fn()
            except Exception as error:
                seen.append((type(error), str(error), getattr(error, "code", None)))
        interrupted_once(crew, run)
        run.now()

    catching.enqueue()
    relit(crew)
    live, replayed = seen[:2], seen[2:]
    assert live == replayed
    assert live[0] == (CustomError, "7", 7)
    assert live[1][0] is StepFailed
    assert "OddError: object and bytes" in live[1][1]


def test_an_exception_of_a_class_that_only_the_step_knew_is_the_same_live_and_on_replay(crew: Crew) -> None:
    seen: list[Any] = []

    @step(effect="read")
    def strange() -> None:
        class LocalError(Exception):
            pass

        raise LocalError("inside")

    @agent(risk="low")
    def catching(run: Run) -> None:
        with pytest.raises(StepFailed, match="LocalError: inside") as caught:
            strange()
        seen.append(str(caught.value))
        interrupted_once(crew, run)
        run.now()

    catching.enqueue()
    relit(crew)
    assert len(seen) == 2
    assert len(set(seen)) == 1


def test_a_step_that_was_never_begun_runs_on_replay_and_a_read_in_doubt_runs_again(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read")
    def dies_once() -> str:
        executed.append(1)
        if len(executed) == 1:
            raise KeyboardInterrupt
        return "there"

    @agent(risk="low")
    def reading(run: Run) -> str:
        return dies_once()

    task = reading.enqueue()
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    assert [step.key for step in crew.history(task.id).in_doubt()] == ["dies_once#1"]
    assert [entry["id"] for entry in crew.relight().resumed] == [task.id]
    assert crew.work().kind == "completed"
    assert task.result() == "there"


def test_a_recorded_outcome_that_is_lost_stops_the_task_and_the_agent_cannot_take_it_for_an_error(
    crew: Crew,
) -> None:
    @step(effect="read")
    def large() -> str:
        return "x" * 70_000

    @agent(risk="low")
    def careless(run: Run) -> str:
        try:
            text = large()
        except Exception:
            text = "a wrong value"
        interrupted_once(crew, run)
        run.now()
        return text

    task = careless.enqueue()
    assert crew.work().kind == "lost"
    [blob] = (path for path in (crew.home.path / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    crew.recover()
    assert crew.work().kind == "failed"
    with pytest.raises(TaskFailedError, match=f"SealedStepError.*{blob.name}"):
        task.result()


# -- divergence -----------------------------------------------------------------------------------------------


def test_other_arguments_than_recorded_stop_the_task_naming_both_sides_with_one_question(crew: Crew) -> None:
    @agent(risk="low")
    def drifting(run: Run) -> None:
        untyped(f"argument {run.attempt}")
        interrupted_once(crew, run)
        run.now()

    task = drifting.enqueue()
    crew.work()
    crew.recover()
    assert crew.work().kind == "asked"
    row = task.task()
    assert (row.status, row.reason) == (TaskStatus.INTERRUPTED, "diverged")
    [asked] = crew.asked()
    assert "untyped#1" in asked.request["why"]
    assert "argument 1" in asked.request["why"]
    assert "argument 2" in asked.request["why"]
    for _ in range(3):
        assert crew.recover().is_empty()
    assert crew.events(task.id).count("confirmation_requested") == 1


def test_a_diverged_task_cannot_be_carried_on_by_agent_code_that_catches_everything(crew: Crew) -> None:
    @agent(risk="low")
    def drifting(run: Run) -> str:
        try:
            untyped(run.attempt)
        except BaseException:
            return "carried on"
        interrupted_once(crew, run)
        run.now()
        return "done"

    task = drifting.enqueue()
    crew.work()
    crew.recover()
    assert crew.work().kind == "asked"
    assert task.task().result_json is None


def test_a_recorded_write_that_the_code_does_not_come_to_any_more_is_a_divergence(crew: Crew) -> None:
    @step(effect="write")
    def put() -> None:
        pass

    @agent(risk="low")
    def changed(run: Run) -> None:
        if run.attempt == 1:
            put()
        interrupted_once(crew, run)
        run.now()

    task = changed.enqueue()
    crew.work()
    confirmation = crew_asks(crew)
    approve(crew, confirmation)
    assert crew.work().kind == "asked"
    assert task.task().reason == "diverged"
    assert "put#1" in crew.asked()[0].request["why"]


def crew_asks(crew: Crew) -> str:
    crew.recover()
    [asked] = crew.asked()
    return str(asked.id)


def approve(crew: Crew, confirmation: str) -> None:
    confirmations.approve(crew.db, confirmation, by="ann", now=crew.home.now())


def versioned(crew: Crew, version: int, answer: str) -> agents.Agent[Any, Any]:
    def versioned_agent(run: Run) -> str:
        untyped("one")
        interrupted_once(crew, run)
        run.now()
        return answer

    return agent(risk="low", version=version)(versioned_agent)


def test_a_task_that_began_under_another_version_stops_and_says_so(crew: Crew) -> None:
    task = versioned(crew, 1, "old").enqueue()
    crew.work()
    crew.recover()
    versioned(crew, 2, "new")
    assert crew.work().kind == "asked"
    assert task.task().reason == "diverged"
    assert "version 1" in crew.asked()[0].request["why"]
    assert "version 2" in crew.asked()[0].request["why"]


def test_a_task_without_a_recorded_step_runs_under_the_new_version(crew: Crew) -> None:
    task = versioned(crew, 1, "old").enqueue()
    versioned(crew, 2, "new")
    relit(crew)
    assert task.result() == "new"


def test_changed_source_of_the_same_version_warns_and_goes_on(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    task = versioned(crew, 1, "old").enqueue()
    crew.work()
    crew.recover()

    def versioned_agent(run: Run) -> str:
        return str(untyped("one")) + " and more"

    agents._registry.clear()  # as in the process that loads the changed code
    agent(risk="low", version=1)(versioned_agent)
    assert crew.work().kind == "completed"
    assert task.result() == "one and more"
    assert "the agent's source has changed" in caplog.text


# -- recorded values ------------------------------------------------------------------------------------------


def test_time_chance_and_artifacts_are_the_same_in_every_replay(crew: Crew) -> None:
    seen: list[Any] = []

    @agent(risk="low")
    def valuing(run: Run) -> None:
        found = run.now(), run.uuid(), run.random(), run.uuid(), run.artifact("report", {"rows": [1, 2]})
        seen.append(found)
        interrupted_once(crew, run)
        run.now()

    task = valuing.enqueue()
    relit(crew)
    assert seen[0] == seen[1]
    assert seen[0][1] != seen[0][3]
    assert abs(seen[0][0] - crew.home.now()) < 60_000
    assert 0 <= seen[0][2] < 1
    assert crew.events(task.id).count(AgentEvent.TYPE_ARTIFACT_CREATED) == 1


def test_recorded_values_of_an_asynchronous_run_are_the_same_in_every_replay(crew: Crew) -> None:
    seen: list[Any] = []

    @agent(risk="low")
    async def valuing(run: AsyncRun) -> None:
        found = await asyncio.gather(run.now(), run.uuid(), run.random(), run.artifact("report", "text"))
        seen.append(found)
        interrupted_once(crew, run)
        await run.now()

    task = valuing.enqueue()
    relit(crew)
    assert seen[0] == seen[1]
    wanted = {"run.now#1", "run.uuid#1", "run.random#1", "run.artifact#1", "run.now#2"}
    assert set(crew.outcomes(task.id)) == wanted


def test_recorded_values_and_children_are_never_in_doubt_and_never_raise_the_risk(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run) -> None: ...

    @agent(risk="low")
    def valuing(run: Run) -> None:
        run.now()
        run.uuid()
        run.artifact("a", "b")
        run.spawn(child)
        child.enqueue()

    task = valuing.enqueue()
    crew.work()
    assert crew.intents(task.id) == []
    assert task.task().risk_level == RiskLevel.LOW


def test_what_is_called_on_a_run_inside_the_body_of_a_step_is_refused(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run) -> None: ...

    @agent(risk="low")
    def confused(run: Run) -> list[str]:
        @step(effect="read")
        def body(what: str) -> str:
            calls: dict[str, Callable[[], Any]] = {
                "step": lambda: run.step(untyped, 1),
                "now": run.now,
                "artifact": lambda: run.artifact("a", "b"),
                "spawn": lambda: run.spawn(child),
            }
            with pytest.raises(MisuseError, match="inside a step"):
                calls[what]()
            return what

        return [body(what) for what in ("step", "now", "artifact", "spawn")]

    task = confused.enqueue()
    assert crew.work().kind == "completed"
    assert set(crew.outcomes(task.id)) == {f"body#{number}" for number in range(1, 5)}


# -- children -------------------------------------------------------------------------------------------------


def test_a_child_is_spawned_once_over_all_replays_and_inherits_session_and_depth(crew: Crew) -> None:
    handles: list[str] = []

    @agent(risk="low")
    def child(run: Run, text: str) -> str:
        return text.upper()

    @agent(risk="low")
    def parent(run: Run) -> None:
        handles.append(run.spawn(child, "one").id)
        handles.append(child.enqueue("two").id)
        handles.append(child.options(lane="main", session="other").enqueue(text="three").id)
        interrupted_once(crew, run)
        run.now()

    task = parent.options(session="s1").enqueue()
    relit_beside_children(crew)
    assert handles[:3] == handles[3:]
    children = [tasks.find(crew.db, handle) for handle in handles[:3]]
    assert [child.parent_task_id for child in children] == [task.id] * 3
    assert [child.recursion_depth for child in children] == [1, 1, 1]
    assert [child.parent_session_id for child in children] == ["s1", "s1", "other"]
    assert [str(child.lane) for child in children] == ["subagent", "subagent", "main"]
    assert [child.key for child in children] == [f"{task.id}/spawn.child#{number}" for number in (1, 2, 3)]
    assert len(crew.db.rows("SELECT 1 FROM agent_tasks")) == 4
    assert crew.events(task.id).count(AgentEvent.TYPE_TASK_SPAWNED) == 3


def relit_beside_children(crew: Crew) -> None:
    assert crew.work().kind == "lost"
    crew.recover()
    crew.work_off()


def test_an_asynchronous_run_spawns_its_children_once_too(crew: Crew) -> None:
    handles: list[list[str]] = []

    @agent(risk="low")
    def child(run: Run, number: int) -> int:
        return number

    @agent(risk="low")
    async def parent(run: AsyncRun) -> None:
        spawned = await asyncio.gather(*(run.spawn(child, number) for number in range(3)))
        handles.append([one.id for one in spawned])
        interrupted_once(crew, run)
        await run.now()

    task = parent.enqueue()
    relit_beside_children(crew)
    assert handles[0] == handles[1]
    assert {one.key for one in tasks.children(crew.db, task.id)} == {
        f"{task.id}/spawn.child#{number}" for number in (1, 2, 3)
    }


def test_enqueue_many_inside_a_run_makes_the_same_children_on_replay(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run, number: int) -> int:
        return number

    @agent(risk="low")
    def parent(run: Run) -> None:
        enqueue_many([child.call(number) for number in range(3)])
        interrupted_once(crew, run)
        run.now()

    task = parent.enqueue()
    relit_beside_children(crew)
    assert len(tasks.children(crew.db, task.id)) == 3
    assert len(crew.db.rows("SELECT 1 FROM agent_tasks")) == 4


def test_enqueue_many_inside_a_run_spawns_all_or_none(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run, number: int) -> int:
        return number

    @agent(risk="low")
    def parent(run: Run) -> None:
        with pytest.raises(InputError):
            enqueue_many([child.call(1), child.call("many")])

    task = parent.enqueue()
    assert crew.work().kind == "completed"
    assert tasks.children(crew.db, task.id) == []


def test_a_child_may_have_a_parameter_of_any_name(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run, agent: str, fn: str) -> str:
        return f"{agent} {fn}"

    @step(effect="read")
    def odd(fn: str, step: str) -> str:
        return f"{fn} {step}"

    @agent(risk="low")
    async def parent(run: AsyncRun) -> list[str]:
        await run.spawn(child, agent="a", fn="b")
        return [await run.step(odd, fn="c", step="d")]

    @agent(risk="low")
    def sync_parent(run: Run) -> list[str]:
        run.spawn(child, agent="a", fn="b")
        return [run.step(odd, fn="c", step="d")]

    handles = [parent.enqueue(), sync_parent.enqueue()]
    assert [outcome.kind for outcome in crew.work_off()] == ["completed"] * 4
    assert [handle.result() for handle in handles] == [["c d"], ["c d"]]


def test_a_spawn_that_does_not_fit_tells_the_agent_and_stores_nothing(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run, number: int) -> int:
        return number

    @agent(risk="low")
    def parent(run: Run) -> str:
        with pytest.raises(InputError, match="number"):
            run.spawn(child, "many")
        return "told"

    task = parent.enqueue()
    crew.work()
    assert task.result() == "told"
    assert tasks.children(crew.db, task.id) == []


# -- the loop, threads and forgotten awaits -------------------------------------------------------------------


def test_a_blocking_call_on_the_loop_is_refused_and_the_form_that_is_allowed_is_named(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run) -> None: ...

    @agent(risk="low")
    async def blocking(run: AsyncRun, what: str) -> None:
        if what == "step":
            untyped(1)
        else:
            child.enqueue()

    for what, form in (
        ("step", r"await run\.step\(untyped, …\)"),
        ("enqueue", r"await run\.spawn\(child, …\)"),
    ):
        task = blocking.enqueue(what)
        assert crew.work().kind == "failed"
        with pytest.raises(TaskFailedError, match=f"StepNeedsAwait.*{form}"):
            task.result()


def test_a_synchronous_step_of_an_asynchronous_run_leaves_the_loop_free(crew: Crew) -> None:
    reached = threading.Event()

    @step(effect="read")
    def wait() -> bool:
        return reached.wait(10)

    @step(effect="read")
    async def reach() -> None:
        reached.set()

    @agent(risk="low")
    async def both(run: AsyncRun) -> bool:
        waited, _ = await asyncio.gather(run.step(wait), reach())
        return bool(waited)

    task = both.enqueue()
    crew.work()
    assert task.result() is True


def test_a_thread_of_an_asynchronous_run_calls_steps_in_its_branch(crew: Crew) -> None:
    @agent(risk="low")
    async def threading_agent(run: AsyncRun) -> list[Any]:
        def strand() -> list[Any]:
            with run.branch("thread"):
                return [untyped(1), echo("two")]

        found = await asyncio.to_thread(strand)
        interrupted_once(crew, run)
        await run.now()
        return found

    task = threading_agent.enqueue()
    relit(crew)
    assert task.result() == [1, "two"]
    assert crew.outcomes(task.id)[:2] == ["thread/untyped#1", "thread/echo#1"]


def test_a_step_that_is_created_and_not_awaited_fails_the_task(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run) -> None: ...

    @agent(risk="low")
    async def forgetful(run: AsyncRun, what: str) -> str:
        match what:
            case "step":
                _ = echo("x")
            case "run.step":
                _ = run.step(echo, "x")
            case "spawn":
                _ = run.spawn(child)
            case "value":
                _ = run.uuid()
            case "task":
                _ = asyncio.create_task(echo("x"))  # noqa: RUF006  # forgetting it is the point
        return "done"

    for what in ("step", "run.step", "spawn", "value", "task"):
        task = forgetful.enqueue(what)
        assert crew.work().kind == "failed", what
        with pytest.raises(TaskFailedError, match="StepNotAwaited"):
            task.result()
        assert crew.outcomes(task.id) == []


# -- what ends a run ------------------------------------------------------------------------------------------


def test_a_new_intent_needs_the_task_its_attempt_and_its_worker(crew: Crew) -> None:
    executed: list[str] = []

    @step(effect="read")
    def look(text: str) -> None:
        executed.append(text)

    @agent(risk="low")
    def reading(run: Run) -> None:
        look("before")
        crew.interrupt()
        with pytest.raises(LeaseLost):
            look("after")

    reading.enqueue()
    assert crew.work().kind == "lost"
    assert executed == ["before"]


def test_control_flow_is_sticky_through_everything_that_agent_code_can_do_with_it(crew: Crew) -> None:
    reached: list[str] = []

    def bare_except(run: Run) -> str:
        for _ in range(3):
            try:
                crew.interrupt()
                untyped(1)
                reached.append("a step ran")
            except:  # noqa: E722  # agent code does this
                pass
        return "a result"

    def replaced(run: Run) -> None:
        crew.interrupt()
        try:
            untyped(1)
        except BaseException as flow:
            raise ValueError("of its own") from flow

    def in_finally(run: Run) -> str:
        crew.interrupt()
        try:
            untyped(1)
        finally:
            try:
                run.now()
                reached.append("a value was recorded")
            finally:
                return "a result"  # noqa: B012  # agent code does this

    async def gathered(run: AsyncRun) -> str:
        crew.interrupt()
        found = await asyncio.gather(echo("1"), echo("2"), return_exceptions=True)
        assert all(isinstance(one, ControlFlow) for one in found)
        return "a result"

    async def grouped(run: AsyncRun) -> None:
        crew.interrupt()
        async with asyncio.TaskGroup() as group:
            group.create_task(echo("1"))
            group.create_task(echo("2"))

    async def caught_in_a_group(run: AsyncRun) -> str:
        crew.interrupt()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(echo("1"))
        except BaseExceptionGroup:
            return "a result"
        return "not reached"

    async def suppressed(run: AsyncRun) -> None:
        crew.interrupt()
        try:
            await echo("1")
        except BaseException:
            raise RuntimeError("of its own") from None

    for fn in (bare_except, replaced, in_finally, gathered, grouped, caught_in_a_group, suppressed):
        declare: Any = agent(risk="low", retries=3)
        task = declare(fn).enqueue()
        assert crew.work().kind == "lost", fn.__name__
        row = task.task()
        assert (row.status, row.reason) == (TaskStatus.INTERRUPTED, "shutdown"), fn.__name__
        assert row.retries_left == 3
        assert crew.outcomes(task.id) == []
    assert reached == []


def test_a_cancelled_task_stops_before_its_next_step_and_stays_cancelled(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read")
    def count(number: int) -> None:
        executed.append(number)

    @agent(risk="low")
    def cancelled(run: Run) -> str:
        for number in range(5):
            count(number)
            if number == 1:
                cancel(crew, run.task_id)
        return "a late result"

    task = cancelled.enqueue()
    assert crew.work().kind == "cancelled"
    assert executed == [0, 1]
    row = task.task()
    assert (row.status, row.reason, row.result_json) == (TaskStatus.FAILED, "cancelled", None)


def cancel(crew: Crew, task_id: str) -> None:
    transitions.cancel(crew.db, task_id, by="ann", detail="{}", now=crew.home.now())


def test_the_outcome_of_an_accepted_step_is_kept_when_its_task_moved_on_meanwhile(crew: Crew) -> None:
    @step(effect="read")
    def slow() -> str:
        crew.interrupt()
        return "late"

    @agent(risk="low")
    def reading(run: Run) -> str:
        return slow()

    task = reading.enqueue()
    assert crew.work().kind == "lost"
    [outcome] = traces.by_task(crew.db, task.id, kind=traces.OUTCOME)
    assert outcome.late == 1
    row = task.task()
    assert (row.status, row.worker_id) == (TaskStatus.INTERRUPTED, None)
    told = [json.loads(event.payload_json) for event in events.by_task(crew.db, task.id)]
    assert told[-1]["late"] is True


def test_an_outcome_that_the_store_refuses_ends_the_run_and_not_the_step(crew: Crew) -> None:
    reached: list[str] = []

    @step(effect="read")
    def large() -> str:
        return "x" * 70_000

    @agent(risk="low")
    def careless(run: Run) -> str:
        try:
            large()
        except Exception:
            reached.append("taken for an error of the step")
        return "done"

    (crew.home.path / "blobs").write_text("a file where the folder should be")
    careless.enqueue()
    assert crew.work().kind == "lost"
    assert reached == []


# -- what a step is told and tells ----------------------------------------------------------------------------


def test_the_idempotency_key_is_the_same_in_every_attempt_and_no_other_step_has_it(crew: Crew) -> None:
    seen: list[tuple[str, int]] = []

    @step(effect="write", idempotent=True, safe_errors=(ValueError,))
    def put(number: int) -> None:
        seen.append((current_step().key, current_step().attempt))
        if len(seen) == 2:
            raise ValueError("not yet")

    @agent(retries=1, retry_delay=0)
    def putting(run: Run) -> None:
        put(1)
        put(2)

    task = putting.enqueue()
    crew.work_off()
    assert task.status == TaskStatus.COMPLETED
    assert seen == [(f"{task.id}:put#1", 1), (f"{task.id}:put#2", 1), (f"{task.id}:put#2", 2)]


def test_a_step_tells_its_intent_and_its_outcome_as_skeleton_events_around_its_pulses(crew: Crew) -> None:
    @step(effect="read")
    def streaming() -> str:
        current_step().stream("a")
        current_step().stream("b")
        return "ab"

    @agent(risk="low")
    def reading(run: Run) -> str:
        return streaming()

    task = reading.enqueue()
    crew.work()
    assert crew.events(task.id) == [
        AgentEvent.TYPE_TASK_ENQUEUED,
        AgentEvent.TYPE_TASK_STARTED,
        AgentEvent.TYPE_TOOL_CALL_STARTED,
        AgentEvent.TYPE_AI_STREAMING,
        AgentEvent.TYPE_AI_STREAMING,
        AgentEvent.TYPE_TOOL_CALL_COMPLETED,
        AgentEvent.TYPE_TASK_COMPLETED,
    ]
    assert task.task().last_tool_call_id == "streaming#1"
    found = events.by_task(crew.db, task.id)
    assert [event.seq for event in found] == list(range(1, 8))
    assert [event.is_structural for event in found] == [1, 1, 1, 0, 0, 1, 1]


@pytest.mark.spec(8)
def test_every_recorded_trace_is_a_trace_event_that_reads_back(crew: Crew) -> None:
    @agent(risk="low")
    def child(run: Run) -> None: ...

    @agent(risk="low")
    def everything(run: Run) -> None:
        untyped({"any": (1, 2)})
        with pytest.raises(CustomError):
            raise_custom()
        run.now()
        run.artifact("a", b"bytes")
        run.spawn(child)

    task = everything.enqueue()
    assert crew.work().kind == "completed"
    for trace in traces.by_task(crew.db, task.id):
        again = type(trace.event).parse(trace.event.to_json())
        assert again == trace.event
        assert again.kind == trace.event_kind
    assert [trace.step_index for trace in traces.by_task(crew.db, task.id)] == list(range(8))


def test_a_write_in_a_low_risk_task_raises_the_stored_risk_before_it_runs(crew: Crew) -> None:
    seen: list[RiskLevel] = []

    @agent(risk="low")
    def mixed(run: Run) -> None:
        def risk() -> RiskLevel:
            found: RiskLevel = tasks.find(crew.db, run.task_id).risk_level
            seen.append(found)
            return found

        @step(effect="read")
        def look() -> None:
            risk()

        @step(effect="write")
        def put() -> None:
            risk()

        look()
        put()

    mixed.enqueue()
    crew.work()
    assert seen == [RiskLevel.LOW, RiskLevel.HIGH]


def test_a_step_without_an_effect_takes_the_side_of_its_agent(crew: Crew) -> None:
    @step
    def plain() -> None: ...

    @agent(risk="low")
    def low(run: Run) -> None:
        plain()

    @agent
    def high(run: Run) -> None:
        run.step(plain)
        run.step(len, [1])

    for fn, effect in ((low, "read"), (high, "write")):
        task = fn.enqueue()
        crew.work()
        found = traces.by_task(crew.db, task.id, kind=traces.INTENT)
        assert {trace.effect for trace in found} == {effect}
    assert high.risk == RiskLevel.HIGH


def test_arguments_that_do_not_fit_a_step_name_it_and_nothing_runs(crew: Crew) -> None:
    @agent(risk="low")
    def wrong(run: Run) -> None:
        run.step(place_of, nme="x")

    task = wrong.enqueue()
    assert crew.work().kind == "failed"
    with pytest.raises(TaskFailedError, match="InputError: step place_of.*name"):
        task.result()
    assert crew.intents(task.id) == []


def test_a_run_knows_its_task_session_and_attempt(crew: Crew) -> None:
    @agent(risk="low")
    def knowing(run: Run) -> list[Any]:
        return [run.task_id, run.session, run.attempt]

    task = knowing.options(session="s9").enqueue()
    crew.work()
    assert task.result() == [task.id, "s9", 1]


def test_an_outcome_that_json_cannot_hold_is_kept_in_a_marked_form_and_the_step_is_done(
    crew: Crew, tmp_path: Path
) -> None:
    seen: list[Any] = []

    @step(effect="write")
    def strange() -> Any:
        (tmp_path / "effect").touch(exist_ok=False)
        return {"lock": threading.Lock(), "set": {1}}

    @agent
    def writing(run: Run) -> None:
        seen.append(strange())
        interrupted_once(crew, run)
        run.now()

    task = writing.enqueue()
    assert crew.work().kind == "lost"
    approve(crew, crew_asks(crew))
    assert crew.work().kind == "completed"
    assert seen[0] == seen[1] == {"lock": {"$lossy": "_thread.lock"}, "set": {1}}
    told = [
        json.loads(one.payload_json)
        for one in events.by_task(crew.db, task.id)
        if "completed" in one.event_type
    ]
    assert told[0]["lossy"] is True
    assert crew.results(task.id)[0]["lossy"] is True
