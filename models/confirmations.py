"""Questions that only a person answers, and the grants that their answers leave.

Invariants: at most one open recovery confirmation per task; filing one emits one `confirmation_requested`; a decision
is taken once; the task moves in the transaction of the last answer. `run again` is a grant for one step and one digest
of arguments, consumed by the next intent of that step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import peewee

from . import events, journal, tasks, traces, transitions
from .database import Database, field_names, instances
from .encoding import splice
from .errors import AlreadyDecidedError, ConflictError, NotFoundError, StepInDoubtError
from .events import AgentEvent
from .fields import Int64Field, StoredText, new_id
from .journal import StepCall
from .tasks import AgentTask


class Confirmation(peewee.Model):
    """One question about one task; times in epoch ms. `status`: open, approved, resolved, rejected, withdrawn."""

    id = peewee.TextField(primary_key=True)
    task_id = peewee.TextField()
    kind = StoredText(default="recovery")
    status = StoredText(default="open")
    attempt = Int64Field()
    request_json = peewee.TextField()
    asked_at = Int64Field()
    decided_at = Int64Field(null=True)
    decided_by = peewee.TextField(null=True)
    decision = peewee.TextField(null=True)

    class Meta:
        table_name = "confirmations"
        legacy_table_names = False
        constraints = (
            peewee.SQL("FOREIGN KEY (task_id) REFERENCES agent_tasks (id) ON DELETE CASCADE"),
            peewee.Check("status IN ('open','approved','resolved','rejected','withdrawn')"),
        )

    @property
    def request(self) -> dict[str, Any]:
        """What the person is shown: why, what was restored, what runs next."""
        found: dict[str, Any] = json.loads(self.request_json)
        return found


Confirmation.add_index(
    Confirmation.index(
        Confirmation.task_id,
        unique=True,
        where=peewee.SQL("status = 'open' AND kind = 'recovery'"),
        name="confirmations_open",
    )
)
Confirmation.add_index(Confirmation.index(Confirmation.task_id, name="confirmations_task"))


class ConfirmationStep(peewee.Model):
    """One step in doubt. `decision`: ran, again, abandon (a person's), settled_late (its late outcome arrived)."""

    confirmation_id = peewee.TextField()
    step_key = peewee.TextField()
    digest = peewee.TextField()
    effect = peewee.TextField()
    attempt = Int64Field()
    shown_json = peewee.TextField()
    decision = peewee.TextField(null=True)
    decided_at = Int64Field(null=True)
    consumed_at = Int64Field(null=True)

    class Meta:
        table_name = "confirmation_steps"
        legacy_table_names = False
        primary_key = peewee.CompositeKey("confirmation_id", "step_key")
        constraints = (
            peewee.SQL("FOREIGN KEY (confirmation_id) REFERENCES confirmations (id) ON DELETE CASCADE"),
        )


FIELDS = field_names(Confirmation)
STEP_FIELDS = field_names(ConfirmationStep)


@dataclass(frozen=True)
class StepInDoubt:
    """A step whose effect may have happened: what identifies it and what the person is shown."""

    call: StepCall
    attempt: int
    shown: dict[str, Any]


def ask(
    db: Database,
    task: AgentTask,
    *,
    reason: str,
    request: dict[str, Any],
    steps: Sequence[StepInDoubt],
    now: int,
    lost: bool = False,
    owner: str | None = None,
) -> str:
    """Put a task aside as interrupted (`asked` or `diverged`) and file its question; the confirmation's id.

    `owner` is the worker that asks about its own running task; without it the task is an orphan. Raises StaleMove where the task is not what the caller saw.
    """
    with db.write():
        why = splice({"type": "Interrupted", "text": request.get("why", "")})
        if owner is not None:
            transitions.interrupt(
                db, task.id, reason=reason, now=now, attempt=task.attempt, worker_id=owner, error_json=why
            )
        else:
            transitions.put_aside(db, task, reason=reason, now=now, lost=lost, error_json=why)
        cid = new_id()
        db.insert(
            Confirmation(
                id=cid,
                task_id=task.id,
                attempt=task.attempt,
                request_json=splice(request),
                asked_at=now,
            )
        )
        for step in steps:
            db.insert(
                ConfirmationStep(
                    confirmation_id=cid,
                    step_key=step.call.key,
                    digest=step.call.digest,
                    effect=step.call.effect,
                    attempt=step.attempt,
                    shown_json=splice(step.shown),
                )
            )
        told = {"confirmation": cid, "reason": reason, "steps": [step.call.key for step in steps]}
        events.record(db, task.id, AgentEvent.TYPE_CONFIRMATION_REQUESTED, told, now=now)
    return cid


def find(db: Database, confirmation_id: str) -> Confirmation:
    """One confirmation; raises NotFoundError."""
    found = instances(
        Confirmation, db.rows("SELECT * FROM confirmations WHERE id = ?", (confirmation_id,)), FIELDS
    )
    if not found:
        raise NotFoundError("confirmation", confirmation_id)
    return found[0]


def listing(db: Database, *, only_open: bool = True) -> list[Confirmation]:
    """The confirmations, oldest first."""
    query = Confirmation.select().order_by(Confirmation.asked_at, Confirmation.id)
    found: list[Confirmation] = db.select(query.where(Confirmation.status == "open") if only_open else query)
    return found


def open_for(db: Database, task_id: str) -> Confirmation | None:
    """The question about a task that is open, if there is one."""
    statement = "SELECT * FROM confirmations WHERE task_id = ? AND status = 'open' ORDER BY asked_at LIMIT 1"
    found = instances(Confirmation, db.rows(statement, (task_id,)), FIELDS)
    return found[0] if found else None


def steps(db: Database, confirmation_id: str) -> list[ConfirmationStep]:
    """The steps in doubt that a confirmation names."""
    statement = "SELECT * FROM confirmation_steps WHERE confirmation_id = ? ORDER BY step_key"
    return instances(ConfirmationStep, db.rows(statement, (confirmation_id,)), STEP_FIELDS)


def granted(db: Database, task_id: str) -> set[tuple[str, str]]:
    """The (step key, digest) that a person allowed to run again and that have not done so yet."""
    statement = """
        SELECT s.step_key, s.digest FROM confirmation_steps s JOIN confirmations c ON c.id = s.confirmation_id
        WHERE c.task_id = ? AND s.decision = 'again' AND s.consumed_at IS NULL
    """
    return {(row[0], row[1]) for row in db.rows(statement, (task_id,))}


def approve(db: Database, confirmation_id: str, *, by: str, now: int) -> AgentTask:
    """Let a task go on; raises StepInDoubtError while a step of it is undecided, AlreadyDecidedError when late."""
    with db.write():
        asked = _open(db, confirmation_id)
        undecided = [step.step_key for step in steps(db, asked.id) if step.decision is None]
        if undecided:
            raise StepInDoubtError(asked.id, undecided)
        return _conclude(db, asked, "approved", by=by, now=now)


def reject(db: Database, confirmation_id: str, *, by: str, reason: str, now: int) -> AgentTask:
    """End a task as failed/rejected: recovery never proposes it again."""
    with db.write():
        asked = _open(db, confirmation_id)
        _close(db, asked, "rejected", by=by, now=now)
        detail = splice({"type": "Rejected", "text": reason or f"rejected by {by}"})
        return transitions.reject(db, asked.task_id, by=by, detail=detail, now=now)


def answer_ran(
    db: Database, confirmation_id: str, step_key: str | None, *, outcome_json: str, by: str, now: int
) -> AgentTask | None:
    """A step in doubt did happen, with this outcome; the moved task where it was the last step in doubt."""
    return _answer(db, confirmation_id, step_key, "ran", outcome_json=outcome_json, by=by, now=now)


def answer_again(
    db: Database, confirmation_id: str, step_key: str | None, *, by: str, now: int
) -> AgentTask | None:
    """A step in doubt may run again, once; refused while its old worker may still be executing it."""
    return _answer(db, confirmation_id, step_key, "again", outcome_json=None, by=by, now=now)


def answer_abandon(
    db: Database, confirmation_id: str, step_key: str | None, *, outcome_json: str, by: str, now: int
) -> AgentTask | None:
    """A step in doubt is given up: its outcome is StepAbandoned, which the agent receives."""
    return _answer(db, confirmation_id, step_key, "abandon", outcome_json=outcome_json, by=by, now=now)


def undecided_step(db: Database, confirmation_id: str, step_key: str | None) -> ConfirmationStep:
    """The step that an answer is about: the named one, or the only one that is undecided."""
    found = steps(db, _open(db, confirmation_id).id)
    named = [step for step in found if step.step_key == step_key]
    if step_key is not None and not named:
        raise NotFoundError(
            "step in doubt", step_key, hint=f"it has {', '.join(s.step_key for s in found) or 'none'}"
        )
    open_ones = [step for step in found if step.decision is None]
    if named and named[0].decision is not None:
        raise AlreadyDecidedError(confirmation_id, f"{named[0].decision} for step {step_key}", None)
    if named:
        return named[0]
    if len(open_ones) != 1:
        keys = ", ".join(step.step_key for step in open_ones) or "none"
        raise ConflictError(
            f"confirmation {confirmation_id} has these steps in doubt: {keys}; name one with --step"
        )
    return open_ones[0]


def _answer(
    db: Database,
    confirmation_id: str,
    step_key: str | None,
    decision: str,
    *,
    outcome_json: str | None,
    by: str,
    now: int,
) -> AgentTask | None:
    with db.write():
        asked = _open(db, confirmation_id)
        step = undecided_step(db, asked.id, step_key)
        task = tasks.find(db, asked.task_id)
        call = StepCall(step.step_key, step.digest, step.effect)
        if outcome_json is None:
            _refuse_while_owner_may_live(db, task, step.step_key)
            traces.supersede(db, task.id, [step.step_key])
        else:
            told = {"step": step.step_key, "decision": decision, "by": by}
            journal.record_answer(db, task.id, task.attempt, call, outcome_json, told=told, now=now)
        db.change(
            "UPDATE confirmation_steps SET decision = ?, decided_at = ? WHERE confirmation_id = ? AND step_key = ?",
            (decision, now, asked.id, step.step_key),
        )
        if any(other.decision is None for other in steps(db, asked.id)):
            return None
        return _conclude(db, asked, "resolved", by=by, now=now)


def _refuse_while_owner_may_live(db: Database, task: AgentTask, step_key: str) -> None:
    if task.worker_id is None:
        return
    if db.row("SELECT 1 FROM workers WHERE id = ? AND dead_at IS NULL", (task.worker_id,)) is not None:
        raise ConflictError(
            f"step {step_key} of task {task.id} cannot run again: worker {task.worker_id} is not proved dead "
            "and may still be executing it; end that process, or answer --ran or --abandon"
        )


def _open(db: Database, confirmation_id: str) -> Confirmation:
    asked = find(db, confirmation_id)
    if asked.status != "open":
        raise AlreadyDecidedError(asked.id, asked.status, asked.decided_by)
    return asked


def _conclude(db: Database, asked: Confirmation, status: str, *, by: str, now: int) -> AgentTask:
    _close(db, asked, status, by=by, now=now)
    return transitions.decide(db, asked.task_id, by=by, now=now)


def _close(db: Database, asked: Confirmation, status: str, *, by: str, now: int) -> None:
    db.change(
        "UPDATE confirmations SET status = ?, decided_at = ?, decided_by = ?, decision = ? WHERE id = ?",
        (status, now, by, status, asked.id),
    )
    told = {"confirmation": asked.id, "decision": status, "by": by}
    events.record(db, asked.task_id, AgentEvent.TYPE_CONFIRMATION_DECIDED, told, now=now)
