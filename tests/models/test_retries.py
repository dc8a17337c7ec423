"""A person's retry keeps what was recorded, sets aside the errors that ended the task, and repeats no write unasked."""

from __future__ import annotations

import json

import pytest

from relight.models import claims, events, journal, retries, tasks, traces, transitions
from relight.models.database import Database
from relight.models.errors import Asked, StaleMove
from relight.models.journal import StepCall
from relight.models.tasks import AgentTask, TaskStatus
from relight.recovery import replay
from relight.recovery.replay import StepState
from tests.models.conftest import AGENT, NOW, Claim, new_task


def claim_of(task: AgentTask) -> journal.Claim:
    return journal.Claim(task.id, task.attempt, str(task.worker_id))


def again(db: Database) -> AgentTask:
    task = claims.claim(db, "subagent", worker_id="w1", now=NOW, known=frozenset({AGENT}))
    assert task is not None
    return task


def step(
    db: Database, task: AgentTask, key: str, effect: str, *, raises: bool = True, retryable: bool = False
) -> StepCall:
    """Begin a step and let it end, by default with an error."""
    call = StepCall(key, "d1", effect)
    journal.accept_intent(db, claim_of(task), call, "{}", told={}, now=NOW)
    result = {"status": "error", "error": "x", "retryable": retryable} if raises else {"status": "success"}
    text = json.dumps({"kind": "tool_call_completed", "result": result})
    journal.record_outcome(db, claim_of(task), call, text, told={}, now=NOW)
    return call


def fail(db: Database, task: AgentTask, *ended_by: str) -> None:
    error = json.dumps({"type": "ValueError", "text": "x", "steps": ended_by})
    transitions.fail(
        db,
        task.id,
        attempt=task.attempt,
        worker_id=str(task.worker_id),
        reason="error",
        error_json=error,
        now=NOW,
    )


def states(db: Database) -> dict[str, StepState]:
    return {key: one.state for key, one in replay.history(traces.step_records(db, "t1")).steps.items()}


def test_the_errors_that_ended_a_task_are_set_aside_and_the_rest_stays(db: Database, claim: Claim) -> None:
    task = claim("t1")
    step(db, task, "good#1", "write", raises=False)
    step(db, task, "caught#1", "read")
    step(db, task, "bad#1", "read")
    step(db, task, "safe#1", "write", retryable=True)
    fail(db, task, "bad#1", "safe#1")
    before = traces.count(db, "t1")
    retried = retries.by_person(db, "t1", by="ann", now=NOW + 5)
    assert (retried.again, retried.in_doubt) == (["bad#1", "safe#1"], [])
    assert retried.task.status is TaskStatus.PENDING
    assert traces.count(db, "t1") == before, "nothing is forgotten"
    assert states(db) == {
        "good#1": StepState.DONE,
        "caught#1": StepState.DONE,
        "bad#1": StepState.OPEN,
        "safe#1": StepState.OPEN,
    }
    step(db, again(db), "bad#1", "read", raises=False)
    assert states(db)["bad#1"] is StepState.DONE


def test_a_write_that_was_not_declared_safe_is_in_doubt_and_asked_about_before_it_runs(
    db: Database, claim: Claim
) -> None:
    task = claim("t1")
    call = step(db, task, "pay#1", "write")
    fail(db, task, "pay#1")
    retried = retries.by_person(db, "t1", by="ann", now=NOW)
    assert (retried.again, retried.in_doubt) == ([], ["pay#1"])
    assert states(db) == {"pay#1": StepState.IN_DOUBT}
    with pytest.raises(Asked):
        journal.accept_intent(db, claim_of(again(db)), call, "{}", told={}, now=NOW)


def test_an_answer_that_a_person_gave_before_is_asked_for_anew(db: Database, claim: Claim) -> None:
    """An error, superseded by the answer "abandon", whose own error then ended the task."""
    task = claim("t1")
    call = step(db, task, "pay#1", "write")
    answer = json.dumps({"kind": "tool_call_completed", "result": {"status": "error", "retryable": False}})
    journal.record_answer(db, "t1", task.attempt, call, answer, told={}, now=NOW)
    fail(db, task, "pay#1")
    assert retries.by_person(db, "t1", by="ann", now=NOW).in_doubt == ["pay#1"]
    assert states(db) == {"pay#1": StepState.IN_DOUBT}


def test_an_answer_settles_a_step_that_was_taken_back(db: Database, claim: Claim) -> None:
    task = claim("t1")
    call = step(db, task, "pay#1", "write")
    fail(db, task, "pay#1")
    retries.by_person(db, "t1", by="ann", now=NOW)
    done = json.dumps({"kind": "tool_call_completed", "result": {"status": "success"}})
    journal.record_answer(db, "t1", 1, call, done, told={}, now=NOW)
    assert states(db) == {"pay#1": StepState.DONE}


def test_a_retry_is_an_event_that_names_the_person_and_the_steps(db: Database, claim: Claim) -> None:
    task = claim("t1")
    step(db, task, "look#1", "read")
    step(db, task, "pay#1", "write")
    fail(db, task, "look#1", "pay#1")
    retries.by_person(db, "t1", by="ann", now=NOW)
    told = json.loads(events.by_task(db, "t1")[-1].payload_json)
    assert {"by": "ann", "again": ["look#1"], "in_doubt": ["pay#1"]}.items() <= told.items()


def test_an_expired_task_that_a_person_wants_anyway_does_not_expire_again(db: Database, claim: Claim) -> None:
    tasks.submit(db, new_task("t1", expires_at=NOW + 5), now=NOW)
    transitions.expire(db, "t1", now=NOW + 5)
    assert retries.by_person(db, "t1", by="ann", now=NOW + 6).task.expires_at is None
    assert claims.expired_ids(db, now=NOW + 9) == []
    assert again(db).id == "t1"


@pytest.mark.parametrize("error", [None, "{}", '{"type":"X","text":"y"}', '{"steps":["gone#1"]}'])
def test_a_task_whose_error_names_no_step_is_tried_again_too(
    db: Database, claim: Claim, error: str | None
) -> None:
    task = claim("t1")
    fail(db, task)
    db.change("UPDATE agent_tasks SET error_json = ?", (error,))
    retried = retries.by_person(db, "t1", by="ann", now=NOW)
    assert (retried.again, retried.in_doubt, retried.task.losses) == ([], [], 0)


def test_a_task_that_lives_or_is_done_is_not_tried_again(db: Database, claim: Claim) -> None:
    task = claim("t1")
    with pytest.raises(StaleMove, match="running"):
        retries.by_person(db, "t1", by="ann", now=NOW)
    transitions.complete(db, "t1", attempt=task.attempt, worker_id="w1", result_json="1", now=NOW)
    with pytest.raises(StaleMove, match="completed"):
        retries.by_person(db, "t1", by="ann", now=NOW)
