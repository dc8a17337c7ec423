"""A question is filed once, answered once by a person, and survives everything in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from cysqlite import IntegrityError

from relight.models import claims, confirmations, events, journal, schema, tasks, transitions, workers
from relight.models.confirmations import StepInDoubt
from relight.models.database import Database
from relight.models.errors import (
    AlreadyDecidedError,
    ConflictError,
    NotFoundError,
    StaleMove,
    StepInDoubtError,
)
from relight.models.journal import Claim as Owned
from relight.models.journal import StepCall
from relight.models.tasks import TaskStatus
from tests.models.conftest import AGENT, NOW, Claim

SEND, PAY = StepCall("send#0", "d1", "write"), StepCall("pay#0", "d2", "write")
OUTCOME = '{"kind":"tool_call_completed"}'


def file(db: Database, *calls: StepCall, owner_dead: bool = True, id: str = "t1") -> str:
    """A running task with these steps open, whose worker is gone, and the question about it."""
    if db.row("SELECT 1 FROM workers WHERE id = 'w1'") is None:
        workers.insert(db, id="w1", lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    for call in calls:
        journal.accept_intent(db, Owned(id, 1, "w1"), call, "{}", told={}, now=NOW)
    if owner_dead:
        workers.mark_dead(db, "w1", now=NOW)
    steps = [StepInDoubt(call, 1, {"name": call.key, "verify": {"status": "not asked"}}) for call in calls]
    request = {"why": "it lost its worker", "next": "send#0"}
    return confirmations.ask(
        db, tasks.find(db, id), reason="asked", request=request, steps=steps, now=NOW + 1, lost=True
    )


def types(db: Database, id: str = "t1") -> list[str]:
    return [event.event_type for event in events.by_task(db, id)]


def test_asking_puts_the_task_aside_and_files_its_question_with_one_notice(
    db: Database, claim: Claim
) -> None:
    claim("t1")
    cid = file(db, SEND)
    task, asked = tasks.find(db, "t1"), confirmations.find(db, cid)
    assert (task.status, task.reason, task.losses) == (TaskStatus.INTERRUPTED, "asked", 1)
    assert (asked.task_id, asked.kind, asked.status, asked.attempt, asked.asked_at) == (
        "t1",
        "recovery",
        "open",
        1,
        NOW + 1,
    )
    assert asked.request["why"] == "it lost its worker"
    [step] = confirmations.steps(db, cid)
    assert (step.step_key, step.digest, step.effect, step.decision) == ("send#0", "d1", "write", None)
    assert types(db)[-2:] == ["task_interrupted", "confirmation_requested"]
    assert json.loads(events.by_task(db, "t1")[-1].payload_json)["confirmation"] == cid


def test_a_task_that_waits_is_not_asked_about_again(db: Database, claim: Claim) -> None:
    claim("t1")
    file(db)
    told = types(db)
    for _ in range(3):
        with pytest.raises(StaleMove):
            confirmations.ask(
                db, tasks.find(db, "t1"), reason="asked", request={}, steps=[], now=NOW, lost=True
            )
    assert types(db) == told
    assert len(confirmations.listing(db)) == 1


def test_the_table_itself_holds_one_open_recovery_question_per_task(db: Database, claim: Claim) -> None:
    claim("t1")
    file(db)
    with pytest.raises(IntegrityError, match="UNIQUE"), db.write():
        db.change(
            "INSERT INTO confirmations (id, task_id, kind, status, attempt, request_json, asked_at)"
            " VALUES ('c2', 't1', 'recovery', 'open', 1, '{}', 0)"
        )


def test_a_question_survives_a_restart_under_its_id(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db, SEND)
    db.close_all()
    again = schema.open_database(db.path, now=NOW)
    assert [asked.id for asked in confirmations.listing(again)] == [cid]
    confirmations.answer_ran(again, cid, None, outcome_json=OUTCOME, by="ann", now=NOW)
    assert tasks.find(again, "t1").status is TaskStatus.PENDING
    again.close_all()


def test_a_yes_moves_the_task_once_and_says_by_whom(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db)
    task = confirmations.approve(db, cid, by="ann", now=NOW + 9)
    assert (task.status, task.losses, task.worker_id) == (TaskStatus.PENDING, 0, None)
    asked = confirmations.find(db, cid)
    assert (asked.status, asked.decided_by, asked.decided_at) == ("approved", "ann", NOW + 9)
    assert types(db)[-2:] == ["confirmation_decided", "task_resumed"]
    with pytest.raises(AlreadyDecidedError, match=r"approved, by ann"):
        confirmations.approve(db, cid, by="bob", now=NOW)


def test_of_many_answers_at_once_one_is_accepted(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db)
    outcomes: list[str] = []

    def answer(number: int) -> None:
        try:
            if number % 2:
                confirmations.approve(db, cid, by=f"p{number}", now=NOW)
            else:
                confirmations.reject(db, cid, by=f"p{number}", reason="", now=NOW)
            outcomes.append("accepted")
        except AlreadyDecidedError:
            outcomes.append("too late")

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["accepted"] + ["too late"] * 19
    assert types(db).count("confirmation_decided") == 1


def test_a_no_ends_the_task_with_who_and_why_and_sticks(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db, SEND)
    task = confirmations.reject(db, cid, by="ann", reason="too risky", now=NOW + 9)
    assert (task.status, task.reason, task.completed_at) == (TaskStatus.FAILED, "rejected", NOW + 9)
    assert "too risky" in task.error_json
    asked = confirmations.find(db, cid)
    assert (asked.status, asked.decided_by, asked.decision) == ("rejected", "ann", "rejected")
    assert confirmations.listing(db) == []
    assert [found.id for found in confirmations.listing(db, only_open=False)] == [cid]


def test_a_yes_is_refused_while_a_step_is_in_doubt(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db, SEND, PAY)
    with pytest.raises(StepInDoubtError, match=r"pay#0, send#0"):
        confirmations.approve(db, cid, by="ann", now=NOW)
    assert tasks.find(db, "t1").status is TaskStatus.INTERRUPTED


ANSWERS: dict[str, Callable[..., object]] = {
    "ran": lambda db, cid, key: confirmations.answer_ran(
        db, cid, key, outcome_json=OUTCOME, by="ann", now=NOW
    ),
    "again": lambda db, cid, key: confirmations.answer_again(db, cid, key, by="ann", now=NOW),
    "abandon": lambda db, cid, key: confirmations.answer_abandon(
        db, cid, key, outcome_json=OUTCOME, by="ann", now=NOW
    ),
}


@pytest.mark.parametrize("first", ANSWERS)
@pytest.mark.parametrize("last", ANSWERS)
def test_the_task_moves_with_the_last_answer(db: Database, claim: Claim, first: str, last: str) -> None:
    claim("t1")
    cid = file(db, SEND, PAY)
    assert ANSWERS[first](db, cid, "send#0") is None
    assert tasks.find(db, "t1").status is TaskStatus.INTERRUPTED
    assert ANSWERS[last](db, cid, None) is not None
    assert tasks.find(db, "t1").status is TaskStatus.PENDING
    assert confirmations.find(db, cid).status == "resolved"
    assert {step.step_key: step.decision for step in confirmations.steps(db, cid)} == {
        "send#0": first,
        "pay#0": last,
    }
    outcomes = db.rows("SELECT step_key FROM task_traces WHERE event_kind = 'tool_call_completed'")
    assert {row[0] for row in outcomes} == {
        key for key, answer in (("send#0", first), ("pay#0", last)) if answer != "again"
    }


def test_a_step_is_answered_once(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db, SEND, PAY)
    ANSWERS["ran"](db, cid, "send#0")
    for answer in ANSWERS.values():
        with pytest.raises(AlreadyDecidedError, match="ran for step send#0"):
            answer(db, cid, "send#0")


def test_which_step_is_meant_must_be_clear(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db, SEND, PAY)
    with pytest.raises(ConflictError, match="pay#0, send#0"):
        ANSWERS["ran"](db, cid, None)
    with pytest.raises(NotFoundError, match="other#0"):
        ANSWERS["ran"](db, cid, "other#0")
    with pytest.raises(NotFoundError, match="confirmation"):
        ANSWERS["ran"](db, "nothing", None)


@pytest.mark.parametrize("answer", ANSWERS)
def test_running_again_is_refused_while_the_old_worker_may_still_be_at_it(
    db: Database, claim: Claim, answer: str
) -> None:
    claim("t1")
    cid = file(db, SEND, owner_dead=False)
    assert tasks.find(db, "t1").worker_id == "w1"
    if answer == "again":
        with pytest.raises(ConflictError, match="not proved dead"):
            ANSWERS[answer](db, cid, None)
        assert confirmations.steps(db, cid)[0].decision is None
        workers.mark_dead(db, "w1", now=NOW)
    ANSWERS[answer](db, cid, None)
    assert tasks.find(db, "t1").status is TaskStatus.PENDING


def test_a_used_yes_is_not_used_again_after_the_next_crash(db: Database, claim: Claim) -> None:
    claim("t1")
    first = file(db)
    confirmations.approve(db, first, by="ann", now=NOW)
    claims.claim(db, "subagent", worker_id="w1", now=NOW, known=frozenset({AGENT}))
    journal.accept_intent(db, Owned("t1", 2, "w1"), PAY, "{}", told={}, now=NOW)
    second = confirmations.ask(
        db,
        tasks.find(db, "t1"),
        reason="asked",
        request={},
        steps=[StepInDoubt(PAY, 2, {})],
        now=NOW,
        lost=True,
    )
    assert second != first
    with pytest.raises(AlreadyDecidedError):
        confirmations.approve(db, first, by="ann", now=NOW)
    with pytest.raises(StepInDoubtError):
        confirmations.approve(db, second, by="ann", now=NOW)


def test_a_question_whose_task_was_cancelled_is_withdrawn(db: Database, claim: Claim) -> None:
    claim("t1")
    cid = file(db)
    transitions.cancel(db, "t1", by="ann", detail="{}", now=NOW)
    with pytest.raises(AlreadyDecidedError, match="withdrawn"):
        confirmations.approve(db, cid, by="ann", now=NOW)


def test_open_questions_are_listed_oldest_first(db: Database, claim: Claim) -> None:
    for id in ("t1", "t2"):
        claim(id)
    second = file(db, id="t2")
    first = confirmations.ask(
        db, tasks.find(db, "t1"), reason="diverged", request={}, steps=[], now=NOW, lost=False
    )
    assert [asked.id for asked in confirmations.listing(db)] == [first, second]


@pytest.mark.parametrize(
    "evidence", [{"x": object()}, {"x": {1, 2}}, {"x": float("nan")}, {"x": "\ud83d"}], ids=str
)
def test_evidence_of_any_content_can_be_asked_with(
    db: Database, claim: Claim, evidence: dict[str, object]
) -> None:
    claim("t1")
    cid = confirmations.ask(
        db,
        tasks.find(db, "t1"),
        reason="asked",
        request={"why": evidence},
        steps=[StepInDoubt(SEND, 1, {"verify": evidence})],
        now=NOW,
        lost=True,
    )
    for text in (confirmations.find(db, cid).request_json, confirmations.steps(db, cid)[0].shown_json):
        json.loads(text.encode(), parse_constant=lambda word: pytest.fail(word))


def test_a_worker_asks_about_its_own_running_task_and_lets_it_go(db: Database, claim: Claim) -> None:
    task = claim("t1")
    with pytest.raises(StaleMove):
        confirmations.ask(db, task, reason="diverged", request={}, steps=[], now=NOW, owner="w2")
    confirmations.ask(db, task, reason="diverged", request={"why": "x"}, steps=[], now=NOW, owner="w1")
    found = tasks.find(db, "t1")
    assert (found.status, found.reason, found.worker_id, found.losses) == (
        TaskStatus.INTERRUPTED,
        "diverged",
        None,
        0,
    )
