"""A person's answer about a step in doubt becomes what the agent gets, in one transaction with who gave it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from relight import Run, agent, step
from relight.models import confirmations, events, traces
from relight.models.errors import AlreadyDecidedError, ConflictError, NotFoundError
from relight.models.tasks import TaskStatus
from relight.workers import answers
from relight.workers.handles import TaskHandle
from tests.workers.conftest import Crew


@dataclass(frozen=True)
class Receipt:
    number: int
    place: tuple[str, str]


seen: list[Any] = []


@pytest.fixture
def task(crew: Crew) -> TaskHandle:
    """A task with two writes in doubt, asked about."""
    seen.clear()
    executed: list[str] = []

    @step(effect="write")
    def put(name: str) -> Receipt:
        executed.append(name)
        raise KeyboardInterrupt

    @agent
    def putting(run: Run) -> None:
        for branch in ("left", "right"):
            with run.branch(branch):
                try:
                    seen.append(put(branch))
                except KeyboardInterrupt:
                    if branch == "right":
                        raise
                except Exception as error:
                    seen.append(error)

    made = putting.enqueue()
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    crew.relight()
    return made


def test_the_task_moves_with_the_last_answer_and_the_agent_gets_each(crew: Crew, task: TaskHandle) -> None:
    [asked] = crew.asked()
    told = {"number": 7, "place": ["a", "b"]}
    assert answers.ran(crew.home, asked.id, "left/put#1", told, by="ann") is None
    assert task.status == TaskStatus.INTERRUPTED
    moved = answers.abandon(crew.home, asked.id, "right/put#1", by="ben")
    assert moved is not None
    assert moved.status == TaskStatus.PENDING
    assert crew.work().kind == "completed"
    assert seen[0] == Receipt(7, ("a", "b"))
    assert "ben" in str(seen[1])


def test_an_answer_is_a_trace_event_that_says_a_person_gave_it_and_an_event_that_says_who(
    crew: Crew, task: TaskHandle
) -> None:
    [asked] = crew.asked()
    answers.ran(crew.home, asked.id, "left/put#1", None, by="ann")
    answers.abandon(crew.home, asked.id, "right/put#1", by="ann")
    found = traces.by_task(crew.db, task.id, kind=traces.OUTCOME)
    assert [trace.step_key for trace in found] == ["left/put#1", "right/put#1"]
    for trace in found:
        assert trace.event.kind == traces.OUTCOME
        assert json.loads(trace.event_json)["result"]["by_person"] is True
    told = [json.loads(event.payload_json) for event in events.by_task(crew.db, task.id)]
    assert [one["decision"] for one in told if one.get("by") == "ann" and "step" in one] == ["ran", "abandon"]


def test_a_large_result_that_a_person_tells_is_kept_in_a_file(crew: Crew, task: TaskHandle) -> None:
    [asked] = crew.asked()
    answers.ran(crew.home, asked.id, "left/put#1", "x" * 100_000, by="ann")
    answers.ran(crew.home, asked.id, "right/put#1", "half an emoji \ud83d", by="ann")
    assert crew.work().kind == "completed"
    assert seen == ["x" * 100_000, "half an emoji \ufffd"]


def test_which_step_is_meant_must_be_clear(crew: Crew, task: TaskHandle) -> None:
    [asked] = crew.asked()
    with pytest.raises(ConflictError, match="left/put#1, right/put#1"):
        answers.again(crew.home, asked.id, None, by="ann")
    with pytest.raises(NotFoundError, match="left/put#1"):
        answers.ran(crew.home, asked.id, "put#1", 1, by="ann")
    answers.again(crew.home, asked.id, "left/put#1", by="ann")
    moved = answers.again(crew.home, asked.id, None, by="ann")
    assert moved is not None


def test_a_step_is_answered_once_and_a_decided_question_not_at_all(crew: Crew, task: TaskHandle) -> None:
    [asked] = crew.asked()
    answers.ran(crew.home, asked.id, "left/put#1", 1, by="ann")
    with pytest.raises(AlreadyDecidedError, match="ran"):
        answers.abandon(crew.home, asked.id, "left/put#1", by="ben")
    answers.ran(crew.home, asked.id, "right/put#1", 2, by="ann")
    with pytest.raises(AlreadyDecidedError, match="resolved"):
        answers.ran(crew.home, asked.id, "right/put#1", 3, by="ben")
    with pytest.raises(NotFoundError):
        answers.ran(crew.home, "no such question", None, 1, by="ann")
    assert crew.work().kind == "completed"
    assert seen == [1, 2]


def test_a_rejected_question_takes_no_answers_any_more(crew: Crew, task: TaskHandle) -> None:
    [asked] = crew.asked()
    confirmations.reject(crew.db, asked.id, by="ann", reason="", now=crew.home.now())
    with pytest.raises(AlreadyDecidedError, match="rejected"):
        answers.again(crew.home, asked.id, "left/put#1", by="ben")
    assert (task.task().status, task.task().reason) == (TaskStatus.FAILED, "rejected")


def test_an_answer_that_cannot_be_stored_changes_nothing(crew: Crew, task: TaskHandle) -> None:
    [asked] = crew.asked()
    crew.db.change(
        "CREATE TRIGGER full BEFORE UPDATE ON confirmation_steps BEGIN SELECT RAISE(ABORT, 'x'); END"
    )
    with pytest.raises(Exception, match="x"):
        answers.ran(crew.home, asked.id, "left/put#1", 1, by="ann")
    crew.db.change("DROP TRIGGER full")
    assert crew.outcomes(task.id) == []
    assert answers.ran(crew.home, asked.id, "left/put#1", 1, by="ann") is None
