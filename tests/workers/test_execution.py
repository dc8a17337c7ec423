"""One attempt ends in exactly one move, whatever its agent did; what may run again by itself, and what is asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from relight import AsyncRun, NotDone, Run, agent, ref, step
from relight.models import confirmations, traces, transitions
from relight.models.errors import ConflictError, InputError, StepAbandoned, TaskFailedError
from relight.models.tasks import AgentTask, TaskStatus
from relight.workers import agents, answers, execution, storing
from tests.conftest import wait_until
from tests.workers.conftest import Crew


@step(effect="read")
def look(value: Any = None) -> Any:
    return value


@step(effect="read")
async def alook(value: Any = None) -> Any:
    return value


def declare(fn: Callable[..., Any], **options: Any) -> agents.Agent[Any, Any]:
    made: agents.Agent[Any, Any] = agent(**{"risk": "low", "retry_delay": 0, **options})(fn)
    return made


def failure_of(task: AgentTask) -> tuple[str | None, str]:
    assert task.status == TaskStatus.FAILED
    found = json.loads(task.error_json or "{}")
    return task.reason, f"{found['type']}: {found['text']}"


# -- how an attempt ends --------------------------------------------------------------------------------------


def test_what_an_agent_returns_completes_its_task(crew: Crew) -> None:
    @agent(risk="low")
    def fine(run: Run, text: str) -> dict[str, Any]:
        return {"text": text, "seen": look(1)}

    task = fine.enqueue("a")
    outcome = crew.work()
    assert (outcome.kind, outcome.value) == ("completed", {"text": "a", "seen": 1})
    row = task.task()
    assert (row.status, row.worker_id, row.completed_at is not None) == (TaskStatus.COMPLETED, None, True)
    assert task.result() == {"text": "a", "seen": 1}
    assert crew.owner.claims == frozenset()


class Silly(BaseException):
    """No Exception at all."""


async def raise_cancelled() -> None:
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


async def raise_from_a_task(error: BaseException) -> None:
    async def raising() -> None:
        raise error

    await asyncio.create_task(raising())


RAISES: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("wrong"),
    "SystemExit": lambda: SystemExit(3),
    "Silly": lambda: Silly("no exception"),
    "CancelledError": lambda: asyncio.CancelledError("of something else"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("both", [Silly("one"), ValueError("two")]),
    "StopIteration": lambda: StopIteration("the end"),
}


@pytest.mark.parametrize("where", ["the agent", "a step"])
@pytest.mark.parametrize("name", RAISES)
def test_whatever_a_synchronous_agent_raises_fails_its_task_at_once_and_the_process_goes_on(
    crew: Crew, name: str, where: str
) -> None:
    @step(effect="read")
    def raising() -> None:
        raise RAISES[name]()

    @agent(risk="low")
    def bad(run: Run) -> None:
        if where == "a step":
            raising()
        raise RAISES[name]()

    bad_one, good_one = bad.enqueue(), declare(lambda run: "fine", name="good").enqueue()
    assert crew.work().kind == "failed"
    reason, text = failure_of(bad_one.task())
    assert reason == "error"
    assert name.removeprefix("Base") in text
    if where == "a step":
        assert crew.outcomes(bad_one.id) == ["raising#1"]
    assert crew.work().kind == "completed"
    assert good_one.result() == "fine"
    assert crew.owner.claims == frozenset()


@pytest.mark.parametrize("where", ["the agent", "a step", "a synchronous step", "a task", "a forgotten task"])
@pytest.mark.parametrize("name", [*RAISES, "KeyboardInterrupt"])
def test_whatever_an_asynchronous_agent_raises_ends_its_task_and_the_loop_goes_on(
    crew: Crew, name: str, where: str
) -> None:
    def make() -> BaseException:
        return RAISES[name]() if name in RAISES else KeyboardInterrupt("not a real one")

    @step(effect="read")
    async def raising() -> None:
        raise make()

    @step(effect="read")
    def sync_raising() -> None:
        raise make()

    @agent(risk="low")
    async def bad(run: AsyncRun) -> None:
        match where:
            case "a step":
                await raising()
            case "a synchronous step":
                await run.step(sync_raising)
            case "a task":
                await raise_from_a_task(make())
            case "a forgotten task":
                task = asyncio.create_task(raise_from_a_task(make()))
                await asyncio.wait([task])
                raise make()
            case _:
                raise make()

    @agent(risk="low")
    async def good(run: AsyncRun) -> str:
        return str(await alook("fine"))

    bad_one, good_one = bad.enqueue(), good.enqueue()
    assert crew.work().kind == "failed"
    assert failure_of(bad_one.task())[0] == "error"
    assert crew.work().kind == "completed"
    assert good_one.result() == "fine"
    assert crew.owner.claims == frozenset()


def test_a_cancelled_future_of_an_agent_fails_the_task_and_gives_the_slot_back(crew: Crew) -> None:
    @agent(risk="low")
    async def cancelled(run: AsyncRun) -> None:
        await raise_cancelled()

    task = cancelled.enqueue()
    assert crew.work().kind == "failed"
    assert "CancelledError" in failure_of(task.task())[1]


def test_an_input_that_does_not_fit_at_the_start_fails_the_task_and_names_the_parameter(crew: Crew) -> None:
    named = ref("picky")
    tasks_ = [named.enqueue(number="many"), named.enqueue(1, 2, 3), named.enqueue(number=1, nmber=2)]

    @agent(risk="low")
    def picky(run: Run, number: int) -> int:
        raise AssertionError("the agent was called")

    for task, name in zip(tasks_, ("'number'", "too many", "nmber"), strict=True):
        assert crew.work().kind == "failed"
        reason, text = failure_of(task.task())
        assert reason == "error"
        assert "InputError: agent picky" in text
        assert name in text


def test_a_stored_input_that_is_damaged_fails_its_task_and_blocks_nothing(crew: Crew) -> None:
    @agent(risk="low")
    def fine(run: Run, text: str = "") -> str:
        return text

    damaged = [fine.enqueue("a") for _ in range(3)]
    for task, stored in zip(damaged, ("{", "[]", '{"args":1,"kwargs":2}'), strict=True):
        crew.db.change("UPDATE agent_tasks SET input_json = ? WHERE id = ?", (stored, task.id))
    good = fine.enqueue("b")
    assert [crew.work().kind for _ in damaged] == ["failed"] * 3
    assert crew.work().kind == "completed"
    assert good.result() == "b"
    assert crew.owner.claims == frozenset()


def test_a_claim_of_an_agent_that_is_gone_is_given_back(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    task = declare(lambda run: 1, name="leaving").enqueue()
    row = crew.claim()
    assert row is not None
    monkeypatch.setattr(agents, "_registry", {})
    assert execution.execute(crew.home, crew.owner, row).kind == "lost"
    assert task.status == TaskStatus.PENDING
    assert crew.claim() is None
    assert task.task().hold == "unknown_agent"


@pytest.mark.parametrize("what", ["unknown agent", "bad input", "other version", "no step", "a step"])
def test_a_task_that_is_cancelled_between_claim_and_start_stays_cancelled(
    crew: Crew, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careful(run: Run, number: int = 0) -> None:
        if what != "no step":
            look(1)
        if what == "other version":
            crew.interrupt()
            look(2)

    task = ref("careful").enqueue(**({"number": "many"} if what == "bad input" else {}))
    declare(careful)
    if what == "other version":
        crew.work()
        crew.db.change("UPDATE agent_tasks SET risk_level = 'low'")
        crew.recover()
        declare(careful, version=2)
    row = crew.claim()
    assert row is not None
    transitions.cancel(crew.db, task.id, by="ann", detail="{}", now=crew.home.now())
    if what == "unknown agent":
        monkeypatch.setattr(agents, "_registry", {})
    assert execution.execute(crew.home, crew.owner, row).kind in ("cancelled", "lost")
    assert (task.task().status, task.task().reason) == (TaskStatus.FAILED, "cancelled")
    assert crew.owner.claims == frozenset()


def test_a_zombie_cannot_finish_a_task_it_lost(crew: Crew) -> None:
    began, go_on = threading.Event(), threading.Event()

    @step(effect="read")
    def slow(attempt: int) -> int:
        if attempt == 0:
            began.set()
            assert go_on.wait(10)
        return attempt

    @agent(risk="low")
    def slow_agent(run: Run) -> str:
        slow(0) if run.attempt == 1 else None
        return f"by attempt {run.attempt}"

    task = slow_agent.enqueue()
    row, zombie = crew.claim(), crew.owner
    assert row is not None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(execution.execute, crew.home, zombie, row)
        assert began.wait(10)
        assert [entry["id"] for entry in crew.relight().resumed] == [task.id]
        assert crew.work().kind == "completed"
        go_on.set()
        assert first.result(10).kind == "lost"
    assert task.result() == "by attempt 2"
    [late] = [trace for trace in traces.by_task(crew.db, task.id, kind=traces.OUTCOME) if trace.late]
    assert (late.attempt, late.step_key) == (1, "slow#1")
    assert crew.events(task.id).count("task_completed") == 1


def test_neither_a_result_nor_an_error_nor_a_retry_of_a_zombie_moves_the_task(crew: Crew) -> None:
    def lost(run: Run, how: str) -> str:
        if run.attempt == 1:
            crew.relight()
            second = crew.claim()
            assert second is not None
            if how == "error":
                raise ValueError("from the zombie")
        return "from the zombie"

    losing = declare(lost, retries=2)
    for how in ("result", "error"):
        task = losing.enqueue(how)
        assert crew.work().kind == "lost"
        row = task.task()
        assert (row.status, row.attempt, row.retries_left) == (TaskStatus.RUNNING, 2, 2)
        assert row.result_json is None
        assert execution.execute(crew.home, crew.owner, row).kind == "completed"


def test_an_end_that_the_store_refuses_leaves_the_task_to_recovery(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    @agent(risk="low")
    def large(run: Run) -> str:
        return "x" * 70_000 if run.attempt == 1 else "small"

    (crew.home.path / "blobs").write_text("a file where the folder should be")
    task = large.enqueue()
    assert crew.work().kind == "lost"
    assert crew.owner.claims == frozenset()  # the lease thread finds it missing and interrupts it as lost
    assert task.status == TaskStatus.RUNNING
    crew.relight()
    assert crew.work().kind == "completed"
    assert task.result() == "small"


def test_a_claim_that_is_missing_from_memory_is_interrupted_as_lost_by_its_own_process(crew: Crew) -> None:
    task = declare(lambda run: 1, name="forgotten").enqueue()
    row = crew.claim()
    assert row is not None
    crew.owner.drop(row.id, row.attempt)
    row = wait_until(lambda: (found := task.task()).status == TaskStatus.INTERRUPTED and found)
    assert (row.reason, row.losses, row.worker_id) == ("lost", 1, None)


def test_a_shutdown_interrupts_what_runs_and_uses_up_no_attempt(crew: Crew) -> None:
    def interrupted(run: Run) -> str:
        if run.attempt == 1:
            assert execution.interrupt_all(crew.home, crew.owner) == 1
            assert execution.interrupt_all(crew.home, crew.owner) == 0
        look(1)
        return "done"

    task = declare(interrupted, retries=1).enqueue()
    assert crew.work().kind == "lost"
    row = task.task()
    assert (row.status, row.reason, row.losses, row.retries_left) == (
        TaskStatus.INTERRUPTED,
        "shutdown",
        0,
        1,
    )
    assert row.worker_id is None
    assert [entry["id"] for entry in crew.recover().resumed] == [task.id]
    assert crew.work().kind == "completed"


@pytest.mark.spec(28)
def test_an_interrupted_task_goes_on_where_it_stopped(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read")
    def count(number: int) -> None:
        executed.append(number)

    def counting(run: Run) -> None:
        for number in range(3):
            count(number)
            if number == 1 and run.attempt == 1:
                crew.interrupt()

    task = declare(counting).enqueue()
    crew.work()
    assert task.task().status == TaskStatus.INTERRUPTED
    crew.recover()
    crew.work()
    assert executed == [0, 1, 2]
    assert task.status == TaskStatus.COMPLETED


# -- retries --------------------------------------------------------------------------------------------------


def test_an_error_is_answered_by_a_retry_until_they_are_used_up(crew: Crew) -> None:
    def always(run: Run) -> None:
        raise ValueError(f"attempt {run.attempt}")

    task = declare(always, retries=2).enqueue()
    before = task.task()
    kinds = [outcome.kind for outcome in crew.work_off()]
    assert kinds == ["retrying", "retrying", "failed"]
    row = task.task()
    assert failure_of(row) == ("error", "ValueError: attempt 3")
    assert (row.retries_left, row.attempt) == (0, 3)
    assert (row.rank, row.lane, row.priority) == (before.rank, before.lane, before.priority)


def test_a_retry_waits_for_its_delay_in_its_place(crew: Crew) -> None:
    def once(run: Run) -> None:
        if run.attempt == 1:
            raise ValueError

    task = declare(once, retries=1, retry_delay=60).enqueue()
    assert crew.work().kind == "retrying"
    row = task.task()
    assert (row.status, row.hold) == (TaskStatus.PENDING, "due")
    assert row.due_at is not None
    assert abs(row.due_at - crew.home.now() - 60_000) < 5_000
    assert crew.claim() is None


class Witness:
    """Steps that fail a number of times and note each execution."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def fails(self, name: str, times: int, error: Exception, **declared: Any) -> Any:
        def body() -> str:
            self.executed.append(name)
            if self.executed.count(name) <= times:
                raise error
            return name

        return step(name=name, **declared)(body)


def test_a_retry_runs_the_step_again_whose_error_ended_the_attempt_and_no_other(crew: Crew) -> None:
    witness = Witness()
    good = witness.fails("good", 0, ValueError(), effect="read")
    caught = witness.fails("caught", 1, KeyError("caught"), effect="read")
    bad = witness.fails("bad", 1, ValueError("bad"), effect="read")
    seen: list[str] = []

    def mixed(run: Run) -> str:
        good()
        try:
            caught()
        except KeyError as error:
            seen.append(repr(error))
        return str(bad())

    task = declare(mixed, retries=1).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["retrying", "completed"]
    assert witness.executed == ["good", "caught", "bad", "bad"]
    assert seen == ["KeyError('caught')"] * 2
    assert task.result() == "bad"


@pytest.mark.parametrize("how", ["cause", "context", "group", "nested group", "from None"])
def test_an_error_that_reached_the_runner_inside_another_is_superseded_too(crew: Crew, how: str) -> None:
    witness = Witness()
    bad = witness.fails("bad", 1, ValueError("bad"), effect="read")

    def wrapping(run: Run) -> str:
        try:
            return str(bad())
        except ValueError as error:
            match how:
                case "cause":
                    raise RuntimeError("mine") from error
                case "from None":
                    raise RuntimeError("mine") from None
                case "context":
                    raise RuntimeError("mine")  # noqa: B904
                case "group":
                    raise ExceptionGroup("mine", [KeyError(), error]) from None
                case _:
                    raise ExceptionGroup("mine", [ExceptionGroup("inner", [error])]) from None

    task = declare(wrapping, retries=1).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["retrying", "completed"]
    assert witness.executed == ["bad", "bad"]
    assert task.result() == "bad"


def test_errors_of_a_task_group_are_all_superseded(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read")
    async def bad(number: int) -> int:
        executed.append(number)
        if executed.count(number) == 1:
            raise ValueError(number)
        return number

    async def grouping(run: AsyncRun) -> list[int]:
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(bad(number)) for number in range(3)]
        return [one.result() for one in made]

    task = declare(grouping, retries=3).enqueue()
    assert crew.work_off()[-1].kind == "completed"
    assert task.result() == [0, 1, 2]


@dataclass(eq=True)
class EqualError(Exception):
    """All of them are equal."""


def test_a_caught_error_stays_although_an_equal_one_reached_the_runner(crew: Crew) -> None:
    witness = Witness()
    caught = witness.fails("caught", 9, EqualError(), effect="read")
    bad = witness.fails("bad", 1, EqualError(), effect="read")

    def mixed(run: Run) -> str:
        with pytest.raises(EqualError):
            caught()
        return str(bad())

    task = declare(mixed, retries=1).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["retrying", "completed"]
    assert witness.executed == ["caught", "bad", "bad"]
    assert task.result() == "bad"


def test_an_error_of_the_agent_itself_is_retried_and_its_steps_are_not_executed_again(crew: Crew) -> None:
    witness = Witness()
    wrote = witness.fails("wrote", 0, ValueError(), effect="write")

    def clumsy(run: Run) -> str:
        found = wrote()
        if run.attempt == 1:
            raise ValueError("my own")
        return str(found)

    task = declare(clumsy, retries=1).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["retrying", "completed"]
    assert witness.executed == ["wrote"]
    assert task.result() == "wrote"


SAFE: dict[str, tuple[dict[str, Any], Exception]] = {
    "a read": ({"effect": "read"}, ValueError("again")),
    "an idempotent write": ({"effect": "write", "idempotent": True}, ValueError("again")),
    "a safe error": ({"effect": "write", "safe_errors": (ConnectionError,)}, ConnectionRefusedError("again")),
    "NotDone": ({"effect": "write"}, NotDone("nothing happened")),
}
UNSAFE: dict[str, tuple[dict[str, Any], Exception]] = {
    "a write": ({"effect": "write"}, ValueError("after the effect")),
    "another error than the safe ones": (
        {"effect": "write", "safe_errors": (ConnectionError,)},
        ValueError("after the effect"),
    ),
    "a timeout": ({"effect": "write"}, TimeoutError("after the effect")),
}


@pytest.mark.parametrize("level", ["step", "task"])
@pytest.mark.parametrize("case", SAFE)
def test_what_is_declared_safe_is_repeated_without_asking(crew: Crew, case: str, level: str) -> None:
    declared, error = SAFE[case]
    witness = Witness()
    fails = witness.fails("fails", 2, error, **declared, retries=2 if level == "step" else 0)
    task = declare(lambda run: fails(), name="trying", retries=2 if level == "task" else 0).enqueue()
    kinds = [outcome.kind for outcome in crew.work_off()]
    assert kinds == (["completed"] if level == "step" else ["retrying", "retrying", "completed"])
    assert witness.executed == ["fails"] * 3
    assert task.result() == "fails"
    assert crew.asked() == []


@pytest.mark.parametrize("level", ["step", "task", "both"])
@pytest.mark.parametrize("case", UNSAFE)
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_write_that_raised_after_its_effect_is_never_repeated_unasked(
    crew: Crew, case: str, level: str, form: str
) -> None:
    declared, error = UNSAFE[case]
    witness = Witness()
    fails = witness.fails("fails", 1, error, **declared, retries=0 if level == "task" else 3)

    def trying(run: Run) -> Any:
        return fails()

    async def atrying(run: AsyncRun) -> Any:
        return await run.step(fails)

    fn: Callable[..., Any] = trying if form == "sync" else atrying
    task = declare(fn, retries=0 if level == "step" else 3).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["asked"]
    assert witness.executed == ["fails"]
    row = task.task()
    assert (row.status, row.reason, row.worker_id) == (TaskStatus.INTERRUPTED, "asked", None)
    [asked] = crew.asked()
    [in_doubt] = confirmations.steps(crew.db, asked.id)
    assert in_doubt.step_key == "fails#1"
    assert "after the effect" in json.loads(in_doubt.shown_json)["error"]
    for _ in range(3):
        assert crew.recover().is_empty()

    answers.again(crew.home, asked.id, None, by="ann")
    assert crew.work().kind == "completed"
    assert witness.executed == ["fails"] * 2
    assert task.result() == "fails"


@pytest.mark.parametrize("level", ["none", "caught"])
def test_a_write_whose_error_nobody_wants_to_retry_is_the_agents_business(crew: Crew, level: str) -> None:
    witness = Witness()
    fails = witness.fails("fails", 1, ValueError("after the effect"), effect="write")

    def trying(run: Run) -> str:
        if level == "none":
            return str(fails())
        try:
            return str(fails())
        except ValueError:
            return "handled"

    task = declare(trying, retries=0 if level == "none" else 3).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["failed" if level == "none" else "completed"]
    assert witness.executed == ["fails"]
    assert crew.asked() == []
    assert task.status.is_terminal()


def test_a_caught_write_error_stays_when_something_else_is_retried(crew: Crew) -> None:
    witness = Witness()
    wrote = witness.fails("wrote", 1, ValueError("after the effect"), effect="write")
    read = witness.fails("read", 1, ConnectionError("later"), effect="read")

    def trying(run: Run) -> str:
        with pytest.raises(ValueError, match="after the effect"):
            wrote()
        return str(read())

    task = declare(trying, retries=1).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["retrying", "completed"]
    assert witness.executed == ["wrote", "read", "read"]
    assert task.status == TaskStatus.COMPLETED


def test_every_write_that_raised_in_parallel_is_asked_about(crew: Crew) -> None:
    executed: list[int] = []
    both = asyncio.Event()

    @step(effect="write")
    async def put(number: int) -> None:
        executed.append(number)
        if len(executed) == 2:
            both.set()
        await both.wait()
        raise ValueError(number)

    async def grouping(run: AsyncRun) -> None:
        found = await asyncio.gather(put(0), put(1), return_exceptions=True)
        raise ExceptionGroup("both", [one for one in found if isinstance(one, Exception)])

    declare(grouping, retries=3).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["asked"]
    assert sorted(executed) == [0, 1]
    [asked] = crew.asked()
    assert [one.step_key for one in confirmations.steps(crew.db, asked.id)] == ["put#1", "put#2"]


def test_a_write_that_was_cut_off_by_a_time_limit_is_in_doubt_and_not_repeated_unasked(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="write")
    async def put() -> None:
        executed.append(1)
        await asyncio.Event().wait()

    async def limited(run: AsyncRun) -> None:
        await asyncio.wait_for(put(), 0.05)

    task = declare(limited, retries=3).enqueue()
    kinds = [outcome.kind for outcome in crew.work_off()]
    assert kinds[-1] == "asked"
    assert executed == [1]
    [asked] = crew.asked()
    assert [one.step_key for one in confirmations.steps(crew.db, asked.id)] == ["put#1"]
    assert task.task().reason == "asked"


def test_a_write_that_still_runs_when_its_agent_ends_is_asked_about(crew: Crew) -> None:
    begun = threading.Event()

    @step(effect="write")
    async def send() -> None:
        begun.set()
        await asyncio.Event().wait()

    @agent(risk="high")
    async def hasty(run: AsyncRun) -> str:
        left = asyncio.create_task(send())
        while not begun.is_set():
            await asyncio.sleep(0)
        assert not left.done()
        return "done"

    task = hasty.enqueue()
    assert crew.work().kind == "asked"
    assert task.status == TaskStatus.INTERRUPTED
    asked = confirmations.listing(crew.db)[0]
    assert [doubtful.step_key for doubtful in confirmations.steps(crew.db, asked.id)] == ["send#1"]


def test_a_question_about_one_write_names_the_others_whose_end_nobody_knows(crew: Crew) -> None:
    @step(effect="write", retries=1)
    async def breaks() -> None:
        raise ValueError("sent, and then the line broke")

    @step(effect="write")
    async def slow() -> None:
        await asyncio.Event().wait()

    async def both(run: AsyncRun) -> None:
        await asyncio.gather(slow(), breaks())

    declare(both).enqueue()
    assert crew.work().kind == "asked"
    [asked] = crew.asked()
    assert [doubtful.step_key for doubtful in confirmations.steps(crew.db, asked.id)] == [
        "breaks#1",
        "slow#1",
    ]


def test_an_attempt_that_is_cancelled_while_it_waits_to_try_a_step_again_does_not(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="read", retries=5)
    def failing(task_id: str) -> None:
        executed.append(1)
        transitions.cancel(crew.db, task_id, by="ann", detail="{}", now=crew.home.now())
        raise ValueError

    task = declare(lambda run: failing(run.task_id), name="trying").enqueue()
    assert crew.work().kind == "cancelled"
    assert executed == [1]
    assert task.task().reason == "cancelled"


# -- answers reach the agent ----------------------------------------------------------------------------------


def in_doubt_write(crew: Crew) -> tuple[Any, list[int], list[Any]]:
    """A task whose write was cut off by the death of its process, asked about."""
    executed: list[int] = []
    seen: list[Any] = []

    @step(effect="write")
    def put(number: int) -> str:
        executed.append(number)
        if len(executed) == 1:
            raise KeyboardInterrupt
        return f"put {number}"

    def putting(run: Run) -> None:
        try:
            seen.append(put(7))
        except Exception as error:
            seen.append(error)

    task = declare(putting).enqueue()
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    assert [entry["id"] for entry in crew.relight().asked] == [task.id]
    assert crew.claim() is None
    return task, executed, seen


def test_ran_gives_the_agent_the_result_that_a_person_told(crew: Crew) -> None:
    task, executed, seen = in_doubt_write(crew)
    moved = answers.ran(crew.home, crew.asked()[0].id, None, "told", by="ann")
    assert moved is not None
    assert crew.work().kind == "completed"
    assert (executed, seen) == ([7], ["told"])
    assert task.status == TaskStatus.COMPLETED


def test_abandon_gives_the_agent_an_error(crew: Crew) -> None:
    _, executed, seen = in_doubt_write(crew)
    answers.abandon(crew.home, crew.asked()[0].id, "put#1", by="ann")
    assert crew.work().kind == "completed"
    assert executed == [7]
    assert isinstance(seen[0], StepAbandoned)
    assert "ann" in str(seen[0])


def test_again_is_one_more_execution_and_no_second_one(crew: Crew) -> None:
    task, executed, seen = in_doubt_write(crew)
    first = crew.asked()[0].id
    answers.again(crew.home, first, None, by="ann")
    assert crew.work().kind == "completed"
    assert (executed, seen) == ([7, 7], ["put 7"])
    [used] = confirmations.steps(crew.db, first)
    assert used.consumed_at is not None
    assert task.status == TaskStatus.COMPLETED


def test_an_old_yes_does_not_allow_the_same_step_after_the_next_crash(crew: Crew) -> None:
    crashes = 2
    executed: list[int] = []

    @step(effect="write")
    def put() -> str:
        executed.append(1)
        if len(executed) <= crashes:
            raise KeyboardInterrupt
        return "put"

    task = declare(lambda run: put(), name="putting").enqueue()
    questions = set()
    for number in range(1, crashes + 1):
        with pytest.raises(KeyboardInterrupt):
            crew.work()
        assert crew.relight().asked, f"crash {number} was not asked about"
        assert crew.claim() is None
        assert len(executed) == number
        [asked] = crew.asked()
        assert [one.step_key for one in confirmations.steps(crew.db, asked.id)] == ["put#1"]
        questions.add(asked.id)
        answers.again(crew.home, asked.id, None, by="ann")
    assert crew.work().kind == "completed"
    assert len(questions) == crashes
    assert len(executed) == crashes + 1
    assert task.result() == "put"


def test_a_yes_to_a_write_that_raised_does_not_allow_it_again_after_a_later_crash(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="write", retries=1)
    def put() -> None:
        executed.append(1)
        if len(executed) == 1:
            raise ValueError("after the effect")
        raise KeyboardInterrupt

    declare(lambda run: put(), name="putting").enqueue()
    assert crew.work().kind == "asked"
    answers.again(crew.home, crew.asked()[0].id, None, by="ann")
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    assert crew.relight().asked
    [asked] = crew.asked()
    assert [one.step_key for one in confirmations.steps(crew.db, asked.id)] == ["put#1"]
    assert crew.claim() is None
    assert len(executed) == 2


def test_a_yes_is_good_until_it_is_used_over_a_crash_before_the_step(crew: Crew) -> None:
    _, executed, seen = in_doubt_write(crew)
    answers.again(crew.home, crew.asked()[0].id, None, by="ann")
    assert crew.claim() is not None
    report = crew.relight()
    assert report.asked, "the risk is high since the write: recovery asks, but not about the step again"
    [asked] = crew.asked()
    assert confirmations.steps(crew.db, asked.id) == []
    confirmations.approve(crew.db, asked.id, by="ann", now=crew.home.now())
    assert crew.work().kind == "completed"
    assert (executed, seen) == ([7, 7], ["put 7"])


def test_a_yes_is_for_the_arguments_that_were_asked_about(crew: Crew) -> None:
    executed: list[int] = []

    @step(effect="write")
    def put(number: int) -> None:
        executed.append(number)
        raise KeyboardInterrupt

    task = declare(lambda run: put(run.attempt), name="drifting").enqueue()
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    crew.relight()
    answers.again(crew.home, crew.asked()[0].id, None, by="ann")
    assert crew.work().kind == "asked"
    assert executed == [1]
    assert task.task().reason == "diverged"


def test_again_is_refused_while_the_worker_may_still_be_executing_the_step(crew: Crew) -> None:
    began, go_on = threading.Event(), threading.Event()
    executed: list[int] = []

    @step(effect="write")
    def put() -> str:
        executed.append(1)
        began.set()
        assert go_on.wait(10)
        return "put by the first"

    task = declare(lambda run: put(), name="putting").enqueue()
    row = crew.claim()
    assert row is not None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(execution.execute, crew.home, crew.owner, row)
        assert began.wait(10)
        crew.interrupt()
        assert crew.recover().asked
        [asked] = crew.asked()
        with pytest.raises(ConflictError, match="not proved dead"):
            answers.again(crew.home, asked.id, None, by="ann")
        go_on.set()
        assert first.result(10).kind == "lost"
    [settled] = confirmations.steps(crew.db, asked.id)
    assert settled.decision == "settled_late"
    assert task.task().worker_id is None
    confirmations.approve(crew.db, asked.id, by="ann", now=crew.home.now())
    assert crew.work().kind == "completed"
    assert executed == [1]
    assert task.result() == "put by the first"


def test_a_worker_that_still_executes_another_write_stays_named_in_the_row(crew: Crew) -> None:
    began, go_on = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    executed: list[int] = []

    @step(effect="write")
    def put(number: int) -> int:
        executed.append(number)
        began[number].set()
        assert go_on[number].wait(10)
        return number

    async def both(run: AsyncRun) -> list[int]:
        return list(await asyncio.gather(run.step(put, 0), run.step(put, 1)))

    task = declare(both).enqueue()
    row = crew.claim()
    assert row is not None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(execution.execute, crew.home, crew.owner, row)
        assert all(event.wait(10) for event in began)
        crew.interrupt()
        crew.recover()
        [asked] = crew.asked()
        go_on[0].set()
        wait_until(lambda: crew.outcomes(task.id) == ["put#1"])
        with pytest.raises(ConflictError, match="not proved dead"):
            answers.again(crew.home, asked.id, "put#2", by="ann")
        go_on[1].set()
        assert first.result(10).kind == "lost"
    wait_until(lambda: sorted(crew.outcomes(task.id)) == ["put#1", "put#2"])
    assert sorted(executed) == [0, 1]
    confirmations.approve(crew.db, asked.id, by="ann", now=crew.home.now())
    assert crew.work().kind == "completed"
    assert sorted(executed) == [0, 1]
    assert task.result() == [0, 1]


def test_an_answer_of_a_person_stays_when_the_late_outcome_comes(crew: Crew) -> None:
    began, go_on = threading.Event(), threading.Event()

    @step(effect="write")
    def put() -> str:
        began.set()
        assert go_on.wait(10)
        return "late"

    task = declare(lambda run: put(), name="putting").enqueue()
    row = crew.claim()
    assert row is not None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(execution.execute, crew.home, crew.owner, row)
        assert began.wait(10)
        crew.relight()
        answers.ran(crew.home, crew.asked()[0].id, None, "told", by="ann")
        assert crew.work().kind == "completed"
        go_on.set()
        assert first.result(10).kind == "lost"
    assert task.result() == "told"
    assert crew.outcomes(task.id) == ["put#1", "put#1"]


# -- the storage in trouble -----------------------------------------------------------------------------------


def test_a_run_whose_steps_cannot_be_stored_ends_without_running_them(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[int] = []

    @step(effect="read")
    def count() -> None:
        executed.append(1)

    def reading(run: Run) -> None:
        monkeypatch.setattr(storing, "PATIENCE_S", 0.0)
        crew.db.change("CREATE TRIGGER full BEFORE INSERT ON task_traces BEGIN SELECT RAISE(ABORT, 'x'); END")
        count()

    task = declare(reading).enqueue()
    assert crew.work().kind in ("lost", "failed")
    assert executed == []
    crew.db.change("DROP TRIGGER full")
    assert task.task().result_json is None


def test_nothing_inside_a_run_may_wait_for_a_task(crew: Crew) -> None:
    other = declare(lambda run: 1, name="other")

    async def waiting(run: AsyncRun, how: str) -> Any:
        child = await run.spawn(other)
        return child.result() if how == "result" else await child

    def sync_waiting(run: Run, how: str) -> Any:
        return run.spawn(other).wait()

    for fn in (waiting, sync_waiting):
        declared = declare(fn)
        for how in ("result", "await"):
            task = declared.enqueue(how)
            assert crew.work().kind == "failed"
            with pytest.raises(TaskFailedError, match=r"MisuseError.*inside a run"):
                task.result()
            assert crew.work().kind == "completed"


def test_an_agent_that_raises_what_looks_like_a_bad_call_is_an_error_like_any(crew: Crew) -> None:
    def raising(run: Run) -> None:
        raise InputError("from the agent")

    task = declare(raising, retries=1).enqueue()
    assert [outcome.kind for outcome in crew.work_off()] == ["retrying", "failed"]
    assert failure_of(task.task()) == ("error", "InputError: from the agent")


def test_a_failed_attempt_keeps_where_it_was_raised_and_its_causes_within_bounds(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    @declare
    def broken(run: Run) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("x" * 20_000) from error

    task = broken.enqueue()
    assert crew.work().kind == "failed"
    kept = json.loads(task.task().error_json or "{}")["traceback"]
    assert len(kept.encode()) <= 8192
    (line,) = [record for record in caplog.records if record.getMessage() == "attempt ended"]
    assert (line.levelname, vars(line)["agent"], line.exc_info is not None) == ("WARNING", "broken", True)


def test_a_step_that_is_asked_about_is_what_comes_next_and_not_restored(crew: Crew) -> None:
    @step(effect="write")
    def pay() -> None:
        raise ValueError("lost")

    @agent(risk="low", retries=1)
    def payer(run: Run) -> None:
        look(1)
        pay()

    payer.enqueue()
    assert crew.work().kind == "asked"
    (question,) = crew.asked()
    assert question.request["restored"] == {"finished_steps": 1, "last": ["look#1"]}
    assert question.request["next"] == "step pay#1 again"
