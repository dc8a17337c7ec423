"""A task that a person has tried again goes on from its record, and asks before it repeats a write."""

from __future__ import annotations

import json

import pytest

from relight import Run, agent, step
from relight.models import confirmations, retries
from relight.models.errors import NotDone
from relight.models.retries import Retried
from relight.models.tasks import AgentTask, TaskStatus
from relight.workers import answers
from relight.workers.handles import TaskHandle
from tests.workers.conftest import Crew


def retry(crew: Crew, task: TaskHandle) -> Retried:
    return retries.by_person(crew.db, task.id, by="ann", now=crew.home.now())


def row(crew: Crew, task: TaskHandle) -> AgentTask:
    return task.task()


class Trouble:
    """Raises as long as it lasts, and counts the calls."""

    def __init__(self, error: Exception) -> None:
        self.error, self.lasts, self.calls = error, True, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.lasts:
            raise self.error
        return "done"


def test_a_read_that_failed_runs_again_and_what_came_before_it_does_not(crew: Crew) -> None:
    trouble, before = Trouble(ConnectionError("down")), Trouble(ValueError())
    before.lasts = False

    @step(effect="read")
    def first() -> str:
        return before()

    @step(effect="read")
    def second() -> str:
        return trouble()

    @agent(risk="low")
    def reader(run: Run) -> str:
        return first() + second()

    task = reader.enqueue()
    assert crew.work().kind == "failed"
    assert json.loads(str(row(crew, task).error_json))["steps"] == ["second#1"]
    assert retry(crew, task).again == ["second#1"]
    assert crew.work().kind == "failed"
    trouble.lasts = False
    retry(crew, task)
    assert crew.work().kind == "completed"
    assert (before.calls, trouble.calls) == (1, 3)
    assert row(crew, task).error_json is None


def test_an_error_that_was_wrapped_is_found_and_one_that_was_caught_stays(crew: Crew) -> None:
    trouble, caught = Trouble(ConnectionError("down")), Trouble(ValueError("no"))

    @step(effect="read")
    def fetch() -> str:
        return trouble()

    @step(effect="read")
    def guess() -> str:
        return caught()

    @agent(risk="low")
    def reader(run: Run) -> str:
        try:
            guess()
        except ValueError:
            pass
        try:
            return fetch()
        except ConnectionError as error:
            raise RuntimeError("no answer") from error

    task = reader.enqueue()
    crew.work()
    trouble.lasts = caught.lasts = False
    assert retry(crew, task).again == ["fetch#1"]
    assert crew.work().kind == "completed"
    assert (caught.calls, trouble.calls) == (1, 2)


def test_an_agent_that_failed_between_its_steps_goes_on_with_what_they_gave(crew: Crew) -> None:
    trouble, calls = Trouble(KeyError("x")), Trouble(ValueError())
    calls.lasts = False

    @step(effect="write")
    def put() -> str:
        return calls()

    @agent(risk="high")
    def writer(run: Run) -> str:
        return put() + trouble()

    task = writer.enqueue()
    crew.work()
    trouble.lasts = False
    retried = retry(crew, task)
    assert (retried.again, retried.in_doubt) == ([], [])
    assert crew.work().kind == "completed"
    assert calls.calls == 1


@pytest.mark.parametrize("answer", ["again", "ran", "abandon"])
def test_a_write_that_failed_is_a_question_before_it_runs_again(crew: Crew, answer: str) -> None:
    trouble = Trouble(TimeoutError("no answer"))

    @step(effect="write")
    def pay() -> str:
        return trouble()

    @agent(risk="high")
    def payer(run: Run) -> str:
        return pay()

    task = payer.enqueue()
    crew.work()
    trouble.lasts = False
    assert retry(crew, task).in_doubt == ["pay#1"]
    assert crew.work().kind == "asked"
    assert trouble.calls == 1, "not repeated unasked"
    [asked] = crew.asked()
    [doubtful] = confirmations.steps(crew.db, asked.id)
    assert doubtful.step_key == "pay#1"
    match answer:
        case "again":
            answers.again(crew.home, asked.id, None, by="ann")
        case "ran":
            answers.ran(crew.home, asked.id, None, "paid", by="ann")
        case _:
            answers.abandon(crew.home, asked.id, None, by="ann")
    assert crew.work().kind == ("failed" if answer == "abandon" else "completed")
    assert trouble.calls == (2 if answer == "again" else 1)
    if answer != "abandon":
        assert task.result(0) == ("done" if answer == "again" else "paid")


def test_a_task_that_dies_before_it_comes_to_the_write_is_asked_about_too(crew: Crew) -> None:
    trouble = Trouble(TimeoutError("no answer"))

    @step(effect="write")
    def pay() -> str:
        return trouble()

    @agent(risk="high")
    def payer(run: Run) -> str:
        return pay()

    task = payer.enqueue()
    crew.work()
    retry(crew, task)
    assert crew.claim() is not None
    crew.relight()
    [asked] = crew.asked()
    assert [one.step_key for one in confirmations.steps(crew.db, asked.id)] == ["pay#1"]
    assert trouble.calls == 1


@pytest.mark.parametrize("declared", ["idempotent", "safe_errors", "NotDone"])
def test_a_write_that_was_declared_safe_runs_again_without_a_question(crew: Crew, declared: str) -> None:
    trouble = Trouble(NotDone("refused") if declared == "NotDone" else ConnectionRefusedError())
    safe = (ConnectionRefusedError,) if declared == "safe_errors" else ()

    @step(effect="write", idempotent=declared == "idempotent", safe_errors=safe)
    def pay() -> str:
        return trouble()

    @agent(risk="high")
    def payer(run: Run) -> str:
        return pay()

    task = payer.enqueue()
    crew.work()
    trouble.lasts = False
    assert retry(crew, task).again == ["pay#1"]
    assert crew.work().kind == "completed"
    assert trouble.calls == 2


def test_a_step_that_was_abandoned_is_asked_about_anew(crew: Crew) -> None:
    trouble = Trouble(TimeoutError("no answer"))

    @step(effect="write", retries=1)
    def pay() -> str:
        return trouble()

    @agent(risk="high")
    def payer(run: Run) -> str:
        return pay()

    task = payer.enqueue()
    assert crew.work().kind == "asked"
    answers.abandon(crew.home, crew.asked()[0].id, None, by="ann")
    assert crew.work().kind == "failed"
    assert retry(crew, task).in_doubt == ["pay#1"]
    assert crew.work().kind == "asked"
    assert trouble.calls == 1


def test_the_losses_of_a_crash_loop_start_again_at_nothing(crew: Crew) -> None:
    @step(effect="read")
    def poison() -> None:
        raise KeyboardInterrupt

    @agent(risk="low")
    def poisoned(run: Run) -> None:
        poison()

    task = poisoned.enqueue()
    crew.db.change("UPDATE agent_tasks SET losses = 2")
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    crew.relight()
    assert (row(crew, task).reason, row(crew, task).losses) == ("crash_loop", 3)
    retry(crew, task)
    found = row(crew, task)
    assert (found.status, found.losses, found.hold, found.reason) == (TaskStatus.PENDING, 0, None, None)
