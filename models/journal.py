"""What a running attempt writes about its steps: intents, outcomes, recorded values.

Invariants: a new intent requires that the attempt still owns its running task (fencing), and an open write step gets
a second intent only by consuming a person's grant. The outcome of an accepted intent is always appended: late, when
the task has moved on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import events, tasks, traces
from .database import Database, Durability
from .errors import Asked, Cancelled, ControlFlow, LeaseLost, NotFoundError
from .events import AgentEvent


@dataclass(frozen=True)
class Claim:
    """What an attempt owns: its task, its fencing number and its worker."""

    task_id: str
    attempt: int
    worker_id: str


@dataclass(frozen=True)
class StepCall:
    """One call of a step: its key in the run, the digest of its arguments, and its side (`read` or `write`)."""

    key: str
    digest: str
    effect: str


def accept_intent(
    db: Database, claim: Claim, call: StepCall, event_json: str, *, told: dict[str, Any], now: int
) -> None:
    """Store that a step is about to run, before it runs.

    A write raises the stored risk to high. Raises Cancelled or LeaseLost where the attempt does not own its task any
    more, Asked where the write may have happened before and no unused grant allows it again.
    """
    write = call.effect == "write"
    with db.write(Durability.FULL if write else Durability.NORMAL):
        if not db.change(_OWN_FOR_INTENT, (call.key, now, call.effect, *_fence(claim))):
            raise lost(db, claim)
        if write:
            _consume_grant(db, claim.task_id, call, now=now)
        traces.append(
            db,
            claim.task_id,
            traces.INTENT,
            event_json,
            attempt=claim.attempt,
            now=now,
            step_key=call.key,
            digest=call.digest,
            effect=call.effect,
        )
        events.record(db, claim.task_id, AgentEvent.TYPE_TOOL_CALL_STARTED, told, now=now)


def record_outcome(
    db: Database, claim: Claim, call: StepCall, event_json: str, *, told: dict[str, Any], now: int
) -> ControlFlow | None:
    """Store how an accepted step ended; the control flow to raise where the task has moved on meanwhile (late)."""
    with db.write():
        late = None if owns(db, claim) else lost(db, claim)
        traces.append(
            db,
            claim.task_id,
            traces.OUTCOME,
            event_json,
            attempt=claim.attempt,
            now=now,
            step_key=call.key,
            digest=call.digest,
            effect=call.effect,
            late=late is not None,
        )
        if late is not None:
            told = {**told, "late": True}
            db.change(_SETTLE_LATE, (now, call.key, claim.task_id))
            let_go(db, claim.task_id, attempt=claim.attempt, worker_id=claim.worker_id)
        events.record(db, claim.task_id, AgentEvent.TYPE_TOOL_CALL_COMPLETED, told, now=now)
    return late


def record_value(
    db: Database,
    claim: Claim,
    call: StepCall,
    event_json: str,
    *,
    now: int,
    event_type: str | None = None,
    told: dict[str, Any] | None = None,
) -> None:
    """Store effect and outcome of a recorded value in one transaction: it is never in doubt."""
    with db.write():
        if not owns(db, claim):
            raise lost(db, claim)
        _append_outcome(db, claim.task_id, claim.attempt, call, event_json, now=now)
        if event_type is not None:
            events.record(db, claim.task_id, event_type, told or {}, now=now)


def record_spawn(
    db: Database,
    claim: Claim,
    call: StepCall,
    event_json: str,
    children: Sequence[tasks.AgentTask],
    *,
    now: int,
) -> None:
    """Store children and the outcome of the step that spawned them in one transaction."""
    with db.write():
        if not owns(db, claim):
            raise lost(db, claim)
        tasks.submit_many(db, children, now=now)
        _append_outcome(db, claim.task_id, claim.attempt, call, event_json, now=now)
        for child in children:
            told = {"child": child.id, "agent": child.agent_id, "step": call.key}
            events.record(db, claim.task_id, AgentEvent.TYPE_TASK_SPAWNED, told, now=now)


def record_answer(
    db: Database,
    task_id: str,
    attempt: int,
    call: StepCall,
    event_json: str,
    *,
    told: dict[str, Any],
    now: int,
) -> None:
    """Store a person's answer as the outcome of a step that was in doubt."""
    with db.write():
        traces.supersede(db, task_id, [call.key])
        _append_outcome(db, task_id, attempt, call, event_json, now=now)
        events.record(db, task_id, AgentEvent.TYPE_TOOL_CALL_COMPLETED, told, now=now)


def stamp_version(db: Database, task_id: str, version: str, *, attempt: int, worker_id: str) -> None:
    """Note which version of its agent records the steps of a task, as long as this attempt owns it."""
    statement = """
        UPDATE agent_tasks SET handler_version = ?
        WHERE id = ? AND attempt = ? AND worker_id = ? AND status = 'running'
    """
    with db.write(Durability.NORMAL):
        db.change(statement, (version, task_id, attempt, worker_id))


def update_checkpoint(
    db: Database, task_id: str, *, path: str, last_tool_call_id: str | None, now: int
) -> None:
    """Set where a task's snapshot lies and the last tool call that it contains; raises NotFoundError."""
    statement = """
        UPDATE agent_tasks SET checkpoint_snapshot_path = ?, last_tool_call_id = ?, updated_at = ? WHERE id = ?
    """
    with db.write():
        if not db.change(statement, (path, last_tool_call_id, now, task_id)):
            raise NotFoundError("task", task_id)


def let_go(db: Database, task_id: str, *, attempt: int, worker_id: str) -> None:
    """A fenced owner has ended the last write that it was still executing: its name leaves the row."""
    with db.write():
        db.change(_LET_GO, (task_id, attempt, worker_id))


_LET_GO = """
    UPDATE agent_tasks SET worker_id = NULL
    WHERE id = ? AND attempt = ? AND worker_id = ? AND status IN ('interrupted', 'failed') AND NOT EXISTS (
        SELECT 1 FROM task_traces i
        WHERE i.task_id = agent_tasks.id AND i.attempt = agent_tasks.attempt
        AND i.event_kind = 'tool_call_started' AND i.effect = 'write'
        AND NOT EXISTS (
            SELECT 1 FROM task_traces o
            WHERE o.task_id = i.task_id AND o.step_key = i.step_key
            AND o.event_kind = 'tool_call_completed' AND o.step_index > i.step_index
        )
    )
"""


def owns(db: Database, claim: Claim) -> bool:
    """Whether the attempt still owns its running task."""
    return db.row(_OWNS, _fence(claim)) is not None


def lost(db: Database, claim: Claim) -> ControlFlow:
    """Why the attempt does not own its task any more, to be raised in its run."""
    row = db.row("SELECT status, reason, attempt FROM agent_tasks WHERE id = ?", (claim.task_id,))
    if row is None:
        return LeaseLost(f"task {claim.task_id} is gone")
    status, reason, attempt = row
    if reason in ("cancelled", "parent_cancelled"):
        return Cancelled(f"task {claim.task_id} was cancelled")
    return LeaseLost(
        f"task {claim.task_id}, attempt {claim.attempt}: now {status} ({reason}), attempt {attempt}"
    )


def _append_outcome(
    db: Database, task_id: str, attempt: int, call: StepCall, event_json: str, *, now: int
) -> None:
    traces.append(
        db,
        task_id,
        traces.OUTCOME,
        event_json,
        attempt=attempt,
        now=now,
        step_key=call.key,
        digest=call.digest,
        effect=call.effect,
    )


def _consume_grant(db: Database, task_id: str, call: StepCall, *, now: int) -> None:
    """Use up a yes, whether or not this intent needs it: what is left would allow a later one."""
    used = db.change(_CONSUME_GRANT, (now, call.key, call.digest, task_id))
    if not used and db.row(_OPEN_INTENT, (task_id, call.key)) is not None:
        raise Asked(call.key, "the step may have happened before and nobody allowed it to run again")


def _fence(claim: Claim) -> tuple[str, int, str]:
    return claim.task_id, claim.attempt, claim.worker_id


_OWNS = "SELECT 1 FROM agent_tasks WHERE id = ? AND attempt = ? AND worker_id = ? AND status = 'running'"
_OWN_FOR_INTENT = """
    UPDATE agent_tasks SET last_tool_call_id = ?, updated_at = ?,
        risk_level = CASE WHEN ? = 'write' THEN 'high' ELSE risk_level END
    WHERE id = ? AND attempt = ? AND worker_id = ? AND status = 'running'
"""
_OPEN_INTENT = """
    SELECT 1 FROM task_traces i
    WHERE i.task_id = ? AND i.step_key = ? AND i.event_kind = 'tool_call_started'
    AND NOT EXISTS (
        SELECT 1 FROM task_traces o
        WHERE o.task_id = i.task_id AND o.step_key = i.step_key
        AND o.event_kind = 'tool_call_completed' AND o.step_index > i.step_index AND o.superseded < 2
    )
"""
_CONSUME_GRANT = """
    UPDATE confirmation_steps SET consumed_at = ?
    WHERE step_key = ? AND digest = ? AND decision = 'again' AND consumed_at IS NULL
    AND confirmation_id IN (SELECT id FROM confirmations WHERE task_id = ?)
"""
_SETTLE_LATE = """
    UPDATE confirmation_steps SET decision = 'settled_late', decided_at = ?
    WHERE step_key = ? AND decision IS NULL
    AND confirmation_id IN (SELECT id FROM confirmations WHERE task_id = ? AND status = 'open')
"""
