"""What a run writes about its steps: fenced before the effect, never lost after it."""

from __future__ import annotations

from typing import Any

import pytest

from relight.models import claims, confirmations, events, journal, tasks, transitions, workers
from relight.models.confirmations import StepInDoubt
from relight.models.database import Database
from relight.models.errors import Asked, Cancelled, ControlFlow, DuplicateTaskError, LeaseLost
from relight.models.journal import Claim as Owned
from relight.models.journal import StepCall
from relight.models.tasks import AgentTask, RiskLevel, TaskStatus
from tests.models.conftest import AGENT, NOW, Claim, new_task

OURS = Owned("t1", 1, "w1")
READ, WRITE = StepCall("read#0", "d1", "read"), StepCall("send#0", "d2", "write")


def intend(db: Database, call: StepCall, owned: Owned = OURS, *, now: int = NOW) -> None:
    journal.accept_intent(db, owned, call, "{}", told={"step": call.key}, now=now)


def conclude(db: Database, call: StepCall, owned: Owned = OURS, *, now: int = NOW) -> ControlFlow | None:
    return journal.record_outcome(db, owned, call, '{"x":1}', told={"step": call.key}, now=now)


def kinds(db: Database) -> list[tuple[Any, ...]]:
    return db.rows(
        "SELECT event_kind, step_key, attempt, effect, late FROM task_traces"
        " WHERE task_id = 't1' AND step_key IS NOT NULL ORDER BY step_index"
    )


def types(db: Database) -> list[str]:
    return [event.event_type for event in events.by_task(db, "t1")]


def bury(db: Database) -> None:
    workers.insert(db, id="w1", lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    workers.mark_dead(db, "w1", now=NOW)


def lose(db: Database) -> AgentTask:
    """The worker is gone; recovery puts the task back and another worker claims it."""
    bury(db)
    transitions.resume(db, tasks.find(db, "t1"), now=NOW)
    again = claims.claim(db, "subagent", worker_id="w2", now=NOW, known=frozenset({AGENT}))
    assert again is not None
    return again


NEXT = Owned("t1", 2, "w2")


def ask(db: Database, *calls: StepCall) -> str:
    """The worker is gone; a person is asked about the steps that it left open."""
    bury(db)
    steps = [StepInDoubt(call, 1, {}) for call in calls]
    return confirmations.ask(
        db, tasks.find(db, "t1"), reason="asked", request={"why": "x"}, steps=steps, now=NOW, lost=True
    )


def test_an_intent_is_trace_event_and_last_tool_call_in_one(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, READ, now=NOW + 5)
    assert kinds(db) == [("tool_call_started", "read#0", 1, "read", 0)]
    assert types(db)[-1] == "tool_call_started"
    task = tasks.find(db, "t1")
    assert (task.last_tool_call_id, task.updated_at, task.risk_level) == ("read#0", NOW + 5, RiskLevel.LOW)


def test_a_write_raises_the_stored_risk_before_it_runs_and_nothing_lowers_it(
    db: Database, claim: Claim
) -> None:
    claim("t1")
    intend(db, WRITE)
    assert tasks.find(db, "t1").risk_level is RiskLevel.HIGH
    conclude(db, WRITE)
    intend(db, READ)
    assert tasks.find(db, "t1").risk_level is RiskLevel.HIGH


def test_an_outcome_follows_its_intent(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, READ)
    assert conclude(db, READ) is None
    assert kinds(db)[-1] == ("tool_call_completed", "read#0", 1, "read", 0)
    assert types(db)[-2:] == ["tool_call_started", "tool_call_completed"]


@pytest.mark.parametrize(
    "owned",
    [Owned("t1", 2, "w1"), Owned("t1", 0, "w1"), Owned("t1", 1, "w2"), Owned("nobody", 1, "w1")],
    ids=str,
)
def test_a_step_of_another_attempt_or_worker_does_not_begin(db: Database, claim: Claim, owned: Owned) -> None:
    claim("t1")
    with pytest.raises(LeaseLost):
        intend(db, WRITE, owned)
    with pytest.raises(LeaseLost):
        journal.record_value(db, owned, READ, "{}", now=NOW)
    with pytest.raises(LeaseLost):
        journal.record_spawn(db, owned, READ, "{}", [new_task("c1")], now=NOW)
    assert kinds(db) == []
    assert tasks.find(db, "t1").risk_level is RiskLevel.LOW
    assert tasks.counts(db)["pending"] == 0


def test_a_cancelled_run_is_told_so_at_its_next_step(db: Database, claim: Claim) -> None:
    claim("t1")
    transitions.cancel(db, "t1", by="ann", detail="{}", now=NOW)
    with pytest.raises(Cancelled, match="t1"):
        intend(db, READ)


def test_the_outcome_of_a_step_is_kept_even_when_the_task_has_moved_on(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, READ)
    lose(db)
    status = tasks.find(db, "t1").status
    assert isinstance(conclude(db, READ), LeaseLost)
    assert kinds(db)[-1] == ("tool_call_completed", "read#0", 1, "read", 1)
    assert tasks.find(db, "t1").status is status
    assert '"late":true' in events.by_task(db, "t1")[-1].payload_json.replace(" ", "")


def test_the_outcome_of_a_step_is_kept_even_when_the_task_has_ended(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, WRITE)
    transitions.cancel(db, "t1", by="ann", detail="{}", now=NOW)
    assert isinstance(conclude(db, WRITE), Cancelled)
    assert kinds(db)[-1][-1] == 1
    assert tasks.find(db, "t1").status is TaskStatus.FAILED


def test_a_write_that_may_have_happened_does_not_begin_again_unasked(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, WRITE)
    lose(db)
    before = kinds(db)
    with pytest.raises(Asked) as asked:
        intend(db, WRITE, NEXT)
    assert asked.value.step_key == "send#0"
    assert kinds(db) == before


def test_a_read_that_may_have_happened_begins_again(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, READ)
    lose(db)
    intend(db, READ, NEXT)
    assert conclude(db, READ, NEXT) is None


def test_a_grant_lets_a_write_begin_again_once(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, WRITE)
    cid = ask(db, WRITE)
    confirmations.answer_again(db, cid, None, by="ann", now=NOW)
    assert confirmations.granted(db, "t1") == {("send#0", "d2")}
    claims.claim(db, "subagent", worker_id="w2", now=NOW, known=frozenset({AGENT}))
    intend(db, WRITE, NEXT)
    assert confirmations.granted(db, "t1") == set()
    with pytest.raises(Asked):
        intend(db, WRITE, NEXT)


def test_a_grant_stays_good_over_attempts_until_it_is_used(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, WRITE)
    confirmations.answer_again(db, ask(db, WRITE), None, by="ann", now=NOW)
    for attempt in (2, 3):
        task = claims.claim(db, "subagent", worker_id="w2", now=NOW, known=frozenset({AGENT}))
        assert task is not None
        assert task.attempt == attempt
        if attempt == 2:
            transitions.interrupt(db, "t1", reason="lost", now=NOW, attempt=2)
            transitions.resume(db, tasks.find(db, "t1"), now=NOW)
    intend(db, WRITE, Owned("t1", 3, "w2"))


def test_a_grant_that_its_step_does_not_need_is_used_up_too(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, WRITE)
    conclude(db, WRITE)
    confirmations.answer_again(db, ask(db, WRITE), None, by="ann", now=NOW)
    claims.claim(db, "subagent", worker_id="w2", now=NOW, known=frozenset({AGENT}))
    intend(db, WRITE, NEXT)
    assert confirmations.granted(db, "t1") == set()
    with pytest.raises(Asked):
        intend(db, WRITE, NEXT)


@pytest.mark.parametrize(
    "other", [StepCall("send#0", "other", "write"), StepCall("send#1", "d2", "write")], ids=str
)
def test_a_grant_is_for_one_step_with_the_same_arguments(db: Database, claim: Claim, other: StepCall) -> None:
    claim("t1")
    intend(db, WRITE)
    intend(db, StepCall("send#1", "d2", "write"))
    cid = ask(db, WRITE, StepCall("send#1", "d2", "write"))
    confirmations.answer_again(db, cid, "send#0", by="ann", now=NOW)
    confirmations.answer_ran(db, cid, "send#1", outcome_json="{}", by="ann", now=NOW)
    claims.claim(db, "subagent", worker_id="w2", now=NOW, known=frozenset({AGENT}))
    with db.write():
        db.change("DELETE FROM task_traces WHERE event_kind = 'tool_call_completed'")
    with pytest.raises(Asked):
        intend(db, other, NEXT)
    intend(db, WRITE, NEXT)


def test_a_superseded_outcome_lets_its_step_begin_again(db: Database, claim: Claim) -> None:
    claim("t1")
    intend(db, WRITE)
    conclude(db, WRITE)
    transitions.retry(
        db,
        "t1",
        attempt=1,
        worker_id="w1",
        due_at=NOW,
        retries_left=0,
        error_json="{}",
        supersede=["send#0"],
        now=NOW,
    )
    claims.claim(db, "subagent", worker_id="w2", now=NOW, known=frozenset({AGENT}))
    intend(db, WRITE, NEXT)


def test_a_recorded_value_is_never_in_doubt(db: Database, claim: Claim) -> None:
    claim("t1")
    journal.record_value(
        db, OURS, StepCall("now#0", "", "read"), "{}", now=NOW, event_type="artifact_created", told={"a": 1}
    )
    assert kinds(db) == [("tool_call_completed", "now#0", 1, "read", 0)]
    assert types(db)[-1] == "artifact_created"
    assert tasks.find(db, "t1").risk_level is RiskLevel.LOW


def test_children_and_the_step_that_spawned_them_are_stored_together(db: Database, claim: Claim) -> None:
    claim("t1")
    call = StepCall("spawn#0", "", "read")
    with pytest.raises(DuplicateTaskError):
        journal.record_spawn(db, OURS, call, "{}", [new_task("c1"), new_task("t1")], now=NOW)
    assert kinds(db) == []
    journal.record_spawn(db, OURS, call, "{}", [new_task("c1"), new_task("c2")], now=NOW)
    assert kinds(db) == [("tool_call_completed", "spawn#0", 1, "read", 0)]
    assert types(db)[-2:] == ["task_spawned", "task_spawned"]
    assert tasks.counts(db)["pending"] == 2


def test_a_late_outcome_settles_its_open_question_and_not_a_person_s_answer(
    db: Database, claim: Claim
) -> None:
    claim("t1")
    other = StepCall("send#1", "d", "write")
    intend(db, WRITE)
    intend(db, other)
    cid = ask(db, WRITE, other)
    confirmations.answer_ran(db, cid, "send#1", outcome_json='{"by":"ann"}', by="ann", now=NOW)
    conclude(db, WRITE, now=NOW + 5)
    conclude(db, other, now=NOW + 5)
    found = {step.step_key: (step.decision, step.decided_at) for step in confirmations.steps(db, cid)}
    assert found == {"send#0": ("settled_late", NOW + 5), "send#1": ("ran", NOW)}
    assert confirmations.find(db, cid).status == "open"
    assert tasks.find(db, "t1").status is TaskStatus.INTERRUPTED
    assert confirmations.approve(db, cid, by="ann", now=NOW).status is TaskStatus.PENDING


def test_an_owner_lets_go_only_when_the_last_of_its_steps_has_ended(db: Database, claim: Claim) -> None:
    claim("t1")
    workers.insert(db, id="w1", lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    intend(db, READ)
    intend(db, WRITE)
    transitions.interrupt(db, "t1", reason="shutdown", now=NOW, attempt=1, worker_id="w1", keep_owner=True)
    conclude(db, READ)
    assert tasks.find(db, "t1").worker_id == "w1"  # it is still executing the write
    conclude(db, WRITE)
    assert tasks.find(db, "t1").worker_id is None
