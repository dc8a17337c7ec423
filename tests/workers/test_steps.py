"""A step outside and inside of runs, what it may ask about itself, and what it declares."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relight import NotDone, Run, agent, current_step, step
from relight.models.errors import InputError, MisuseError, StepOutsideRun, TaskFailedError
from relight.workers import serving, steps
from tests.workers.conftest import Crew


@step(effect="read")
def double(number: int, *, add: int = 0) -> int:
    return number * 2 + add


@step(effect="read")
async def adouble(number: int) -> int:
    return number * 2


@step(effect="read")
def name_itself() -> str:
    current_step().stream("a token that nobody follows")
    return f"{current_step().key} {current_step().attempt}"


@step(effect="read")
async def aname_itself() -> str:
    return current_step().key


@pytest.fixture
def runs_tasks(crew: Crew) -> Crew:
    serving.begin()
    return crew


def test_outside_a_run_a_step_is_its_plain_function() -> None:
    assert double(2, add=1) == 5
    assert double.local(3) == 6
    assert asyncio.run(adouble(4)) == 8
    assert getattr(double, "__name__", "") == "double"


def test_a_plain_call_has_a_step_to_ask_too() -> None:
    assert name_itself() == "local:name_itself 1"
    assert asyncio.run(aname_itself()) == "local:aname_itself"
    with pytest.raises(MisuseError, match="outside of a step"):
        current_step()


def test_a_step_without_its_run_is_refused_in_a_process_that_runs_tasks(runs_tasks: Crew) -> None:
    with pytest.raises(StepOutsideRun, match=r"double\.local"):
        double(1)
    with pytest.raises(StepOutsideRun, match=r"adouble\.local"):
        asyncio.run(adouble(1))
    assert double.local(2) == 4
    assert asyncio.run(adouble.local(2)) == 4


def test_a_plain_call_of_a_step_may_call_others_in_a_process_that_runs_tasks(runs_tasks: Crew) -> None:
    @step
    def outer() -> int:
        return double(1) + double.local(2)

    assert outer.local() == 6


def test_a_thread_that_does_not_know_the_run_is_refused(crew: Crew) -> None:
    @agent(risk="low")
    def careless(run: Run) -> None:
        errors: list[BaseException] = []

        def strand() -> None:
            try:
                double(1)
            except MisuseError as error:
                errors.append(error)

        thread = threading.Thread(target=strand)
        thread.start()
        thread.join()
        raise errors[0]

    task = careless.enqueue()
    crew.work()
    with pytest.raises(TaskFailedError, match="StepOutsideRun"):
        task.result()


def test_a_step_that_is_called_in_the_body_of_another_is_a_part_of_it(crew: Crew) -> None:
    @step(effect="read")
    def outer() -> int:
        return double(1) + double(2)

    @agent(risk="low")
    def nesting(run: Run) -> list[Any]:
        return [outer(), double(3)]

    task = nesting.enqueue()
    crew.work()
    assert task.result() == [6, 6]
    assert crew.outcomes(task.id) == ["outer#1", "double#1"]


def test_the_local_form_records_nothing_inside_a_run(crew: Crew) -> None:
    @agent(risk="low")
    def plain(run: Run) -> list[Any]:
        return [double.local(1), name_itself.local(), double(2)]

    task = plain.enqueue()
    crew.work()
    assert task.result() == [2, "local:name_itself 1", 4]
    assert crew.outcomes(task.id) == ["double#1"]


def test_a_plain_function_is_a_step_through_run_step(crew: Crew) -> None:
    @agent(risk="low")
    def plain(run: Run) -> list[Any]:
        return [run.step(sorted, [2, 1]), run.step(int, "7")]

    task = plain.enqueue()
    crew.work()
    assert task.result() == [[1, 2], 7]
    assert crew.outcomes(task.id) == ["sorted#1", "int#1"]


def test_an_asynchronous_step_gives_a_synchronous_agent_its_value(crew: Crew) -> None:
    @agent(risk="low")
    def mixing(run: Run) -> list[Any]:
        return [adouble(2), run.step(adouble, 3), aname_itself()]

    task = mixing.enqueue()
    crew.work()
    assert task.result() == [4, 6, f"{task.id}:aname_itself#1"]


def test_what_a_step_says_about_itself_is_checked_where_it_is_declared() -> None:
    with pytest.raises(InputError, match="'read' or 'write'"):
        step(effect="maybe")  # type: ignore[call-overload]
    for name in ("a/b", "a#1"):
        with pytest.raises(InputError, match="separate the parts"):
            step(name=name)(lambda: None)


@pytest.mark.parametrize(
    ("effect", "declared", "error", "may"),
    [
        ("read", {}, ValueError(), True),
        ("write", {}, ValueError(), False),
        ("write", {}, NotDone(), True),
        ("write", {"idempotent": True}, ValueError(), True),
        ("write", {"safe_errors": (OSError,)}, ConnectionError(), True),
        ("write", {"safe_errors": (OSError,)}, ValueError(), False),
        ("write", {}, TimeoutError(), False),
        ("write", {}, SystemExit(), False),
    ],
)
def test_a_write_may_repeat_only_what_is_declared_safe(
    effect: steps.Effect, declared: dict[str, Any], error: BaseException, may: bool
) -> None:
    assert step(**declared)(double.fn).may_repeat(effect, error) is may


def test_arguments_are_taken_by_name_with_their_defaults() -> None:
    assert (
        double.arguments((1,), {}) == double.arguments((), {"number": 1, "add": 0}) == {"number": 1, "add": 0}
    )
    with pytest.raises(InputError, match="step double: .*'number'"):
        double.arguments((), {"add": 1})


def test_an_annotation_that_cannot_be_resolved_leaves_the_value_untyped(crew: Crew) -> None:
    @step(effect="read")
    def odd() -> NoSuchName:  # type: ignore[name-defined]  # noqa: F821
        return (1, 2)

    @agent(risk="low")
    def plain(run: Run) -> Any:
        return odd()

    task = plain.enqueue()
    crew.work()
    assert task.result() == [1, 2]


def test_what_cannot_be_called_is_no_step(crew: Crew) -> None:
    @agent(risk="low")
    def odd(run: Run) -> None:
        run.step("sorted", [1])  # type: ignore[arg-type]

    task = odd.enqueue()
    crew.work()
    with pytest.raises(TaskFailedError, match="InputError: 'sorted' cannot be a step"):
        task.result()


class Tools:
    @step(effect="read")
    def method(self, number: int) -> int:
        return number + 1

    @step(effect="read")
    @staticmethod
    def inner(number: int) -> int:
        return number + 2

    @staticmethod
    @step(effect="read")
    def outer(number: int) -> int:
        return number + 3

    def plain(self, number: int) -> int:
        return number + 4


def test_a_method_that_is_a_step_is_refused_inside_a_run_and_stays_a_method_outside(crew: Crew) -> None:
    tools, refused = Tools(), []

    @agent(risk="low")
    def calling(run: Run) -> None:
        for call in (lambda: tools.method(1), lambda: run.step(tools.method, 1)):
            with pytest.raises(InputError, match="step method .*self cannot be recorded") as caught:
                call()
            refused.append(caught)

    assert tools.method(1) == 2
    task = calling.enqueue()
    assert crew.work().kind == "completed"
    assert (len(refused), crew.outcomes(task.id)) == (2, [])


def test_a_static_method_is_a_step_and_a_plain_method_is_recorded_by_its_arguments(crew: Crew) -> None:
    @agent(risk="low")
    def calling(run: Run) -> list[Any]:
        tools = Tools()
        return [tools.inner(1), Tools.inner(1), tools.outer(1), Tools.outer(1), run.step(tools.plain, 1)]

    task = calling.enqueue()
    crew.work()
    assert task.result() == [3, 3, 4, 4, 5]
    assert crew.outcomes(task.id) == ["inner#1", "inner#2", "outer#1", "outer#2", "plain#1"]


def test_a_step_in_a_pool_of_threads_is_told_of_the_branch(crew: Crew) -> None:
    @agent(risk="low")
    def pooling(run: Run) -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            return list(pool.map(double, [1, 2]))

    serving.begin()
    task = pooling.enqueue()
    crew.work()
    with pytest.raises(TaskFailedError, match=r"with run\.branch\(NAME\)"):
        task.result()


def test_safe_errors_may_be_one_class() -> None:
    assert step(safe_errors=OSError)(double.fn).declared.safe_errors == (OSError,)


@pytest.mark.parametrize(
    "declared",
    [
        {"safe_errors": "OSError"},
        {"safe_errors": int},
        {"safe_errors": (OSError, 3)},
        {"safe_errors": 3},
        {"verify": 3},
        {"retries": -1},
        {"retry_delay": -0.5},
    ],
    ids=repr,
)
def test_a_declaration_that_cannot_be_meant_is_refused_by_its_name(declared: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(declared))):
        step(**declared)
