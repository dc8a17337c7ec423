"""The only place where a task's status changes.

Invariant: a move is one guarded UPDATE that names its sources (and, for a run, its attempt and worker) together with
its skeleton event, in one transaction. No row back means that someone else was first: `StaleMove`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import peewee

from . import events, traces
from . import guards as conditions
from .database import Database, instances
from .errors import NotFoundError, StaleMove
from .moves import Move, P, R
from .tasks import FIELDS, HOLD_DUE, AgentTask


def expire(db: Database, task_id: str, *, now: int) -> AgentTask:
    """pending → failed: a task that was never claimed and whose time is over."""
    return end(db, Move.EXPIRE, task_id, now=now, reason="expired", where={"attempt": 0})


def complete(
    db: Database, task_id: str, *, attempt: int, worker_id: str, result_json: str, now: int
) -> AgentTask:
    """running → completed, with its result."""
    fence = {"attempt": attempt, "worker_id": worker_id}
    return end(db, Move.COMPLETE, task_id, now=now, where=fence, result_json=result_json, error_json=None)


def fail(
    db: Database, task_id: str, *, attempt: int, worker_id: str, reason: str, error_json: str, now: int
) -> AgentTask:
    """running → failed, with its reason code and error."""
    fence = {"attempt": attempt, "worker_id": worker_id}
    return end(db, Move.FAIL, task_id, now=now, reason=reason, where=fence, error_json=error_json)


def retry(
    db: Database,
    task_id: str,
    *,
    attempt: int,
    worker_id: str,
    due_at: int,
    retries_left: int,
    error_json: str,
    supersede: Sequence[str],
    now: int,
) -> AgentTask:
    """running → pending, due later: the steps whose errors ended this attempt run again; rank and lane stay."""
    with db.write():
        task = apply(
            db,
            Move.RETRY,
            task_id,
            now=now,
            where={"attempt": attempt, "worker_id": worker_id},
            cleared=("worker_id",),
            hold=HOLD_DUE,
            due_at=due_at,
            retries_left=retries_left,
            error_json=error_json,
        )
        traces.supersede(db, task_id, supersede)
        db.touch(task.lane)
        return task


def interrupt(
    db: Database,
    task_id: str,
    *,
    reason: str,
    now: int,
    attempt: int,
    worker_id: str | None = None,
    keep_owner: bool = False,
    error_json: str | None = None,
) -> AgentTask:
    """running → interrupted, with its reason; a worker that still executes a step stays named until it ends.

    `lost` counts a loss: the losses in a row, that is without a step that finished in between.
    """
    where: dict[str, Any] = {"attempt": attempt}
    if worker_id is not None:
        where["worker_id"] = worker_id
    changes: dict[str, Any] = {"reason": reason}
    if error_json is not None:
        changes["error_json"] = error_json
    with db.write():
        counted = ("losses",) if reason == "lost" else ()
        cleared = () if keep_owner else ("worker_id",)
        return apply(
            db, Move.INTERRUPT, task_id, now=now, where=where, cleared=cleared, computed=counted, **changes
        )


def put_aside(
    db: Database, task: AgentTask, *, reason: str, now: int, lost: bool, error_json: str | None = None
) -> AgentTask:
    """running | interrupted (shutdown, lost) → interrupted: it waits for a person (asked) or is skipped.

    A worker that is not proved dead stays named in the row.
    """
    with db.write():
        move = Move.INTERRUPT if task.status == R else Move.ASK
        return apply(
            db,
            move,
            task.id,
            now=now,
            where={"attempt": task.attempt},
            guards=() if move is Move.INTERRUPT else ("resumable",),
            computed=("losses", "worker_if_alive") if lost else ("worker_if_alive",),
            reason=reason,
            error_json=error_json,
        )


def suspend(db: Database, task_id: str, *, attempt: int, worker_id: str, now: int) -> AgentTask:
    """running → idle: the run waits and gives its worker back."""
    with db.write():
        fence = {"attempt": attempt, "worker_id": worker_id}
        return apply(db, Move.SUSPEND, task_id, now=now, where=fence, cleared=("worker_id",))


def wake(db: Database, task_id: str, *, now: int) -> AgentTask:
    """idle | swapped → pending: what the run waited for is there."""
    with db.write():
        task = apply(db, Move.WAKE, task_id, now=now)
        db.touch(task.lane)
        return task


def swap_out(db: Database, task_id: str, *, swap_path: str, now: int) -> AgentTask:
    """idle → swapped: the traces lie in a file."""
    with db.write():
        return apply(db, Move.SWAP_OUT, task_id, now=now, swap_path=swap_path)


def resume(
    db: Database, task: AgentTask, *, now: int, lease_out: bool = False, due_at: int | None = None
) -> AgentTask:
    """running | interrupted (shutdown, lost) → pending: recovery puts the task back; rank, lane and budget stay.

    Only if no worker is named, or the named one is proved dead, or no write step is open and its lease ran out
    (`lease_out`). `due_at` has it wait, when it took down its worker before.
    """
    guards = ("resumable", "owner_harmless" if lease_out else "owner_gone")
    wait = {} if due_at is None else {"hold": HOLD_DUE, "due_at": due_at}
    with db.write():
        resumed = apply(
            db,
            Move.RESUME,
            task.id,
            now=now,
            where={"attempt": task.attempt},
            guards=guards,
            cleared=("worker_id", "reason"),
            computed=("losses",) if task.status == R else (),
            payload=None if due_at is None else {"due_at": due_at},
            **wait,
        )
        db.touch(resumed.lane)
        return resumed


def decide(db: Database, task_id: str, *, by: str, now: int) -> AgentTask:
    """interrupted (asked, diverged) → pending: a person has answered the last question."""
    with db.write():
        task = apply(
            db,
            Move.DECIDE,
            task_id,
            now=now,
            guards=("decidable", "owner_harmless"),
            cleared=("worker_id", "reason", "error_json"),
            payload={"by": by},
            losses=0,
        )
        db.touch(task.lane)
        return task


def reject(db: Database, task_id: str, *, by: str, detail: str, now: int) -> AgentTask:
    """any live status → failed: a person said no."""
    return end(db, Move.REJECT, task_id, now=now, reason="rejected", by=by, error_json=detail)


def quarantine(db: Database, task: AgentTask, *, detail: str, now: int) -> AgentTask:
    """any live status → failed: the task took its worker down too often."""
    with db.write():
        counted = ("losses",) if task.status == R else ()
        where = {"attempt": task.attempt}
        return end(
            db,
            Move.QUARANTINE,
            task.id,
            now=now,
            reason="crash_loop",
            where=where,
            computed=counted,
            error_json=detail,
        )


def cancel(db: Database, task_id: str, *, by: str, detail: str, now: int) -> AgentTask:
    """any live status → failed: a running attempt stops at its next step boundary."""
    return end(
        db,
        Move.CANCEL,
        task_id,
        now=now,
        reason="cancelled",
        by=by,
        error_json=detail,
        cancel_requested_at=now,
    )


def retry_by_person(
    db: Database, task_id: str, *, by: str, now: int, told: dict[str, Any] | None = None
) -> AgentTask:
    """failed | interrupted (skipped, diverged) → pending: traces stay, losses start again at 0; it expires no more."""
    with db.write():
        task = apply(
            db,
            Move.RETRY_BY_PERSON,
            task_id,
            now=now,
            guards=("retriable", "owner_harmless"),
            cleared=conditions.CLEARED_BY_A_RETRY,
            payload={"by": by, **(told or {})},
            losses=0,
        )
        _withdraw_questions(db, task_id, now=now)
        db.touch(task.lane)
        return task


def end(
    db: Database,
    move: Move,
    task_id: str,
    *,
    now: int,
    reason: str | None = None,
    by: str | None = None,
    computed: tuple[str, ...] = (),
    **rest: Any,
) -> AgentTask:
    """Apply a move to a terminal status and withdraw the questions that it leaves without an object.

    A worker that may still be executing a write stays named, so that a retry cannot have it run twice at a time.
    """
    payload = {name: value for name, value in (("reason", reason), ("by", by)) if value is not None}
    clears, keeps = (("worker_id",), ()) if move is Move.COMPLETE else ((), ("worker_if_writing",))
    with db.write():
        task = apply(
            db,
            move,
            task_id,
            now=now,
            cleared=("hold", *clears),
            computed=(*computed, *keeps),
            payload=payload,
            reason=reason,
            completed_at=now,
            **rest,
        )
        _withdraw_questions(db, task_id, now=now)
        return task


def _withdraw_questions(db: Database, task_id: str, *, now: int) -> None:
    statement = (
        "UPDATE confirmations SET status = 'withdrawn', decided_at = ? WHERE task_id = ? AND status = 'open'"
    )
    db.change(statement, (now, task_id))


def apply(
    db: Database,
    move: Move,
    task_id: str,
    *,
    now: int,
    where: dict[str, Any] | None = None,
    guards: tuple[str, ...] = (),
    cleared: tuple[str, ...] = (),
    computed: tuple[str, ...] = (),
    payload: dict[str, Any] | None = None,
    **changes: Any,
) -> AgentTask:
    """The guarded UPDATE of a move and its event; `cleared` become null, `computed` follow from the row itself."""
    edge = move.value
    if edge.target != P and "hold" not in cleared:
        cleared = (*cleared, "hold")
    where = where or {}
    values = {"updated_at": now, **changes, **dict.fromkeys(cleared)}
    sql, order = _statement(move, frozenset(values), computed, tuple(sorted(where)), guards)
    rows = db.rows(
        sql, [*(values[name] for name in order), task_id, *(where[name] for name in sorted(where))]
    )
    if not rows:
        raise StaleMove(task_id, edge.name, _found(db, task_id))
    task = instances(AgentTask, rows, FIELDS)[0]
    told = {"attempt": task.attempt, **({"reason": task.reason} if task.reason else {}), **(payload or {})}
    events.record(db, task_id, edge.event, told, now=now)
    return task


@cache
def _statement(
    move: Move,
    values: frozenset[str],
    computed: tuple[str, ...],
    where: tuple[str, ...],
    guards: tuple[str, ...],
) -> tuple[str, list[str]]:
    """The UPDATE of a move as peewee writes it, and the order of the values that it binds."""
    edge, fields = move.value, AgentTask._meta.fields
    order = [name for name in AgentTask._meta.sorted_field_names if name in values]
    changes = {fields[name]: peewee.SQL("?") for name in order}
    for column, sql in (conditions.COMPUTED[name] for name in computed):
        changes[fields[column]] = peewee.SQL(sql)
    changes[AgentTask.status] = peewee.SQL(f"'{edge.target}'")
    sources = ", ".join(f"'{status}'" for status in edge.sources)
    wanted = [
        AgentTask.id == peewee.SQL("?"),
        *(fields[name] == peewee.SQL("?") for name in where),
        peewee.SQL(f"status IN ({sources})"),
        *(peewee.SQL(conditions.GUARDS[name]) for name in guards),
    ]
    sql, _ = AgentTask.update(changes).where(*wanted).sql()
    return f"{sql} RETURNING *", order


def _found(db: Database, task_id: str) -> str:
    row = db.row("SELECT status, reason, attempt, worker_id FROM agent_tasks WHERE id = ?", (task_id,))
    if row is None:
        raise NotFoundError("task", task_id)
    status, reason, attempt, worker_id = row
    return f"{status}{f' ({reason})' if reason else ''}, attempt {attempt}, worker {worker_id or 'none'}"
