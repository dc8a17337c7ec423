"""The only place where a task's status changes.

Invariant: a move is one guarded UPDATE that names its sources (and, for a run, its attempt and worker) together with
its skeleton event, in one transaction. No row back means that someone else was first: `StaleMove`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import peewee

from . import events, traces
from .database import Database, Durability, instances
from .errors import NotFoundError, StaleMove
from .tasks import FIELDS, HOLD_DUE, HOLD_UNKNOWN_AGENT, AgentTask, TaskStatus

P, R, C, F, I, D, S = (  # noqa: E741  # the seven statuses, short enough to read the table below
    TaskStatus.PENDING,
    TaskStatus.RUNNING,
    TaskStatus.COMPLETED,
    TaskStatus.FAILED,
    TaskStatus.INTERRUPTED,
    TaskStatus.IDLE,
    TaskStatus.SWAPPED,
)
LIVE = (P, R, I, D, S)
RESUMABLE_REASONS = ("shutdown", "lost")
DECIDABLE_REASONS = ("asked", "diverged")
RELEASE_PAGE = 100  # design §5: due rows released by one claim


@dataclass(frozen=True)
class Edge:
    """A move: where it may start, where it ends, and the skeleton event it leaves."""

    name: str
    sources: tuple[TaskStatus, ...]
    target: TaskStatus
    event: str


class Move(Enum):
    """Every edge of a task's life; there is no other."""

    CLAIM = Edge("claim", (P,), R, "task_started")
    UNCLAIM = Edge("unclaim", (R,), P, "task_unclaimed")
    HOLD = Edge("hold", (P,), P, "task_held")
    RELEASE = Edge("release", (P,), P, "task_released")
    EXPIRE = Edge("expire", (P,), F, "task_failed")
    COMPLETE = Edge("complete", (R,), C, "task_completed")
    FAIL = Edge("fail", (R,), F, "task_failed")
    RETRY = Edge("retry", (R,), P, "task_retrying")
    INTERRUPT = Edge("interrupt", (R,), I, "task_interrupted")
    ASK = Edge("ask", (I,), I, "task_interrupted")
    SUSPEND = Edge("suspend", (R,), D, "task_suspended")
    WAKE = Edge("wake", (D, S), P, "task_woken")
    SWAP_OUT = Edge("swap_out", (D,), S, "task_swapped")
    RESUME = Edge("resume", (R, I), P, "task_recovered")
    DECIDE = Edge("decide", (I,), P, "task_resumed")
    REJECT = Edge("reject", LIVE, F, "task_failed")
    QUARANTINE = Edge("quarantine", LIVE, F, "task_failed")
    CANCEL = Edge("cancel", LIVE, F, "task_failed")
    RETRY_BY_PERSON = Edge("retry_by_person", (F, I), P, "task_retried")


def claim(
    db: Database,
    lane: str,
    *,
    worker_id: str,
    now: int,
    known: frozenset[str],
    without: frozenset[str] = frozenset(),
) -> AgentTask | None:
    """pending → running: take the best ready task of a lane, or None.

    Releases due tasks on the way. A task of an agent that is not in `known` is held unclaimed; agents in `without`
    are passed over for now. The claim is a trace and an event of its own, so a claimed task always has a trace.
    """
    with db.write(Durability.NORMAL):
        release_due(db, now=now)
        while (found := db.row(*_best(lane, now, without))) is not None:
            task_id, agent_id, attempt, started_at = found
            if agent_id not in known:
                _apply(db, Move.HOLD, task_id, now=now, hold=HOLD_UNKNOWN_AGENT)
                continue
            return _start(db, task_id, attempt + 1, worker_id=worker_id, started_at=started_at or now, now=now)
    return None


def unclaim(db: Database, task_id: str, *, attempt: int, worker_id: str, now: int) -> AgentTask:
    """running → pending: give a claim back before its agent was called."""
    with db.write(Durability.NORMAL):
        task = _apply(
            db, Move.UNCLAIM, task_id, now=now, where={"attempt": attempt, "worker_id": worker_id}, cleared=("worker_id",)
        )
        db.touch(task.lane)
        return task


def hold(db: Database, task_id: str, *, hold: str, now: int) -> AgentTask:
    """pending → pending: say why a task is not claimable."""
    with db.write(Durability.NORMAL):
        return _apply(db, Move.HOLD, task_id, now=now, hold=hold)


def release(db: Database, task_id: str, *, now: int) -> AgentTask:
    """pending → pending: make a held task claimable."""
    with db.write(Durability.NORMAL):
        task = _apply(db, Move.RELEASE, task_id, now=now, cleared=("hold",))
        db.touch(task.lane)
        return task


def release_due(db: Database, *, now: int) -> None:
    """Make up to a page of delayed tasks claimable whose time has come."""
    statement = "SELECT id FROM agent_tasks WHERE hold = 'due' AND due_at <= ? ORDER BY due_at LIMIT ?"
    for (task_id,) in db.rows(statement, (now, RELEASE_PAGE)):
        release(db, task_id, now=now)


def release_unknown(db: Database, *, known: frozenset[str], now: int) -> int:
    """Make the tasks claimable that wait for an agent which is known here; how many."""
    waiting = db.rows("SELECT id, agent_id FROM agent_tasks WHERE status = 'pending' AND hold = ?", (HOLD_UNKNOWN_AGENT,))
    ours = [task_id for task_id, agent_id in waiting if agent_id in known]
    if ours:
        with db.write(Durability.NORMAL):
            for task_id in ours:
                release(db, task_id, now=now)
    return len(ours)


def expire(db: Database, task_id: str, *, now: int) -> AgentTask:
    """pending → failed: a task that was never claimed and whose time is over."""
    return _end(db, Move.EXPIRE, task_id, now=now, reason="expired", where={"attempt": 0})


def complete(
    db: Database, task_id: str, *, attempt: int, worker_id: str, result_json: str, now: int
) -> AgentTask:
    """running → completed, with its result."""
    fence = {"attempt": attempt, "worker_id": worker_id}
    return _end(db, Move.COMPLETE, task_id, now=now, where=fence, result_json=result_json)


def fail(
    db: Database, task_id: str, *, attempt: int, worker_id: str, reason: str, error_json: str, now: int
) -> AgentTask:
    """running → failed, with its reason code and error."""
    fence = {"attempt": attempt, "worker_id": worker_id}
    return _end(db, Move.FAIL, task_id, now=now, reason=reason, where=fence, error_json=error_json)


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
        task = _apply(
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
        return _apply(
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
        return _apply(
            db,
            move,
            task.id,
            now=now,
            where={"attempt": task.attempt},
            guards=() if move is Move.INTERRUPT else ("resumable",),
            computed=("losses", "worker_id") if lost else ("worker_id",),
            reason=reason,
            error_json=error_json,
        )


def suspend(db: Database, task_id: str, *, attempt: int, worker_id: str, now: int) -> AgentTask:
    """running → idle: the run waits and gives its worker back."""
    with db.write():
        fence = {"attempt": attempt, "worker_id": worker_id}
        return _apply(db, Move.SUSPEND, task_id, now=now, where=fence, cleared=("worker_id",))


def wake(db: Database, task_id: str, *, now: int) -> AgentTask:
    """idle | swapped → pending: what the run waited for is there."""
    with db.write():
        task = _apply(db, Move.WAKE, task_id, now=now)
        db.touch(task.lane)
        return task


def swap_out(db: Database, task_id: str, *, swap_path: str, now: int) -> AgentTask:
    """idle → swapped: the traces lie in a file."""
    with db.write():
        return _apply(db, Move.SWAP_OUT, task_id, now=now, swap_path=swap_path)


def resume(db: Database, task: AgentTask, *, now: int, lease_out: bool = False) -> AgentTask:
    """running | interrupted (shutdown, lost) → pending: recovery puts the task back; rank, lane and budget stay.

    Only if no worker is named, or the named one is proved dead, or no write step is open and its lease ran out
    (`lease_out`) or it was fenced off before.
    """
    guards = ("resumable", "owner_gone_or_lease_out" if lease_out else "owner_gone")
    with db.write():
        resumed = _apply(
            db,
            Move.RESUME,
            task.id,
            now=now,
            where={"attempt": task.attempt},
            guards=guards,
            cleared=("worker_id", "reason"),
            computed=("losses",) if task.status == R else (),
        )
        db.touch(resumed.lane)
        return resumed


def decide(db: Database, task_id: str, *, by: str, now: int) -> AgentTask:
    """interrupted (asked, diverged) → pending: a person has answered the last question."""
    with db.write():
        task = _apply(
            db,
            Move.DECIDE,
            task_id,
            now=now,
            guards=("decidable", "owner_gone"),
            cleared=("worker_id", "reason", "error_json"),
            payload={"by": by},
            losses=0,
        )
        db.touch(task.lane)
        return task


def reject(db: Database, task_id: str, *, by: str, detail: str, now: int) -> AgentTask:
    """any live status → failed: a person said no."""
    return _end(db, Move.REJECT, task_id, now=now, reason="rejected", by=by, error_json=detail)


def quarantine(db: Database, task: AgentTask, *, detail: str, now: int) -> AgentTask:
    """any live status → failed: the task took its worker down too often."""
    with db.write():
        counted = ("losses",) if task.status == R else ()
        where = {"attempt": task.attempt}
        return _end(
            db, Move.QUARANTINE, task.id, now=now, reason="crash_loop", where=where, computed=counted, error_json=detail
        )


def cancel(db: Database, task_id: str, *, by: str, detail: str, now: int) -> AgentTask:
    """any live status → failed: a running attempt stops at its next step boundary."""
    return _end(
        db, Move.CANCEL, task_id, now=now, reason="cancelled", by=by, error_json=detail, cancel_requested_at=now
    )


def retry_by_person(db: Database, task_id: str, *, by: str, now: int) -> AgentTask:
    """failed | interrupted (skipped, diverged) → pending: traces stay, losses start again at 0."""
    with db.write():
        task = _apply(
            db,
            Move.RETRY_BY_PERSON,
            task_id,
            now=now,
            guards=("retriable", "owner_gone"),
            cleared=("worker_id", "reason", "error_json", "completed_at", "cancel_requested_at", "due_at"),
            payload={"by": by},
            losses=0,
        )
        _withdraw_questions(db, task_id, now=now)
        db.touch(task.lane)
        return task


def let_go(db: Database, task_id: str, *, attempt: int, worker_id: str) -> None:
    """A fenced owner has ended the step that it was still executing: its name leaves the row."""
    with db.write():
        db.change(
            "UPDATE agent_tasks SET worker_id = NULL WHERE id = ? AND attempt = ? AND worker_id = ? AND status = 'interrupted'",
            (task_id, attempt, worker_id),
        )


def _start(
    db: Database, task_id: str, attempt: int, *, worker_id: str, started_at: int, now: int
) -> AgentTask:
    task = _apply(
        db,
        Move.CLAIM,
        task_id,
        now=now,
        where={"attempt": attempt - 1},
        cleared=("reason",),
        payload={"attempt": attempt, "worker": worker_id},
        attempt=attempt,
        worker_id=worker_id,
        started_at=started_at,
    )
    turn = f'{{"kind":"turn_started","iteration":{attempt},"attempt":{attempt},"worker_id":"{worker_id}"}}'
    traces.append(db, task_id, traces.TURN_STARTED, turn, attempt=attempt, now=now)
    return task


def _end(
    db: Database, move: Move, task_id: str, *, now: int, reason: str | None = None, by: str | None = None, **rest: Any
) -> AgentTask:
    """Apply a move to a terminal status and withdraw the questions that it leaves without an object."""
    payload = {name: value for name, value in (("reason", reason), ("by", by)) if value is not None}
    with db.write():
        cleared = ("worker_id", "hold")
        task = _apply(
            db, move, task_id, now=now, cleared=cleared, payload=payload, reason=reason, completed_at=now, **rest
        )
        _withdraw_questions(db, task_id, now=now)
        return task


def _withdraw_questions(db: Database, task_id: str, *, now: int) -> None:
    statement = "UPDATE confirmations SET status = 'withdrawn', decided_at = ? WHERE task_id = ? AND status = 'open'"
    db.change(statement, (now, task_id))


def _apply(
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
    rows = db.rows(sql, [*(values[name] for name in order), task_id, *(where[name] for name in sorted(where))])
    if not rows:
        raise StaleMove(task_id, edge.name, _found(db, task_id))
    task = instances(AgentTask, rows, FIELDS)[0]
    told = {"attempt": task.attempt, **({"reason": task.reason} if task.reason else {}), **(payload or {})}
    events.record(db, task_id, edge.event, told, now=now)
    return task


@cache
def _statement(
    move: Move, values: frozenset[str], computed: tuple[str, ...], where: tuple[str, ...], guards: tuple[str, ...]
) -> tuple[str, list[str]]:
    """The UPDATE of a move as peewee writes it, and the order of the values that it binds."""
    edge, fields = move.value, AgentTask._meta.fields
    order = [name for name in AgentTask._meta.sorted_field_names if name in values]
    changes = {fields[name]: peewee.SQL("?") for name in order}
    changes |= {fields[name]: peewee.SQL(_COMPUTED[name]) for name in computed}
    changes[AgentTask.status] = peewee.SQL(f"'{edge.target}'")
    sources = ", ".join(f"'{status}'" for status in edge.sources)
    conditions = [
        AgentTask.id == peewee.SQL("?"),
        *(fields[name] == peewee.SQL("?") for name in where),
        peewee.SQL(f"status IN ({sources})"),
        *(peewee.SQL(_GUARDS[name]) for name in guards),
    ]
    sql, _ = AgentTask.update(changes).where(*conditions).sql()
    return f"{sql} RETURNING *", order


_OWNER_DEAD = "EXISTS (SELECT 1 FROM workers w WHERE w.id = agent_tasks.worker_id AND w.dead_at IS NOT NULL)"
_NO_OPEN_WRITE = """
    NOT EXISTS (
        SELECT 1 FROM task_traces i
        WHERE i.task_id = agent_tasks.id AND i.event_kind = 'tool_call_started' AND i.effect = 'write'
        AND NOT EXISTS (
            SELECT 1 FROM task_traces o
            WHERE o.task_id = i.task_id AND o.step_key = i.step_key
            AND o.event_kind = 'tool_call_completed' AND o.step_index > i.step_index
        )
    )
"""
# An interrupted attempt is fenced off: it can start no step any more, so only a write that is still open matters.
_OWNER_GONE = f"worker_id IS NULL OR {_OWNER_DEAD} OR (status = 'interrupted' AND {_NO_OPEN_WRITE})"
_GUARDS = {
    "owner_gone": f"({_OWNER_GONE})",
    "owner_gone_or_lease_out": f"({_OWNER_GONE} OR {_NO_OPEN_WRITE})",
    "resumable": f"(status = 'running' OR reason IN {RESUMABLE_REASONS})",
    "decidable": f"reason IN {DECIDABLE_REASONS}",
    "retriable": "(status = 'failed' OR reason IN ('skipped', 'diverged'))",
}
_COMPUTED = {
    "losses": """
        CASE WHEN EXISTS (
            SELECT 1 FROM task_traces t
            WHERE t.task_id = agent_tasks.id AND t.event_kind = 'tool_call_completed' AND t.attempt = agent_tasks.attempt
        ) THEN 1 ELSE losses + 1 END
    """,
    "worker_id": f"CASE WHEN {_OWNER_DEAD} THEN NULL ELSE worker_id END",
}


def _best(lane: str, now: int, without: frozenset[str]) -> tuple[str, Sequence[Any]]:
    if not without:
        return _BEST, (lane, now)
    return _BEST_WITHOUT, (lane, now, json.dumps(sorted(without)))


_BEST = """
    SELECT id, agent_id, attempt, started_at FROM agent_tasks
    WHERE lane = ? AND status = 'pending' AND hold IS NULL AND (expires_at IS NULL OR expires_at > ? OR attempt > 0)
    ORDER BY rank, id LIMIT 1
"""
_BEST_WITHOUT = """
    SELECT id, agent_id, attempt, started_at FROM agent_tasks
    WHERE lane = ? AND status = 'pending' AND hold IS NULL AND (expires_at IS NULL OR expires_at > ? OR attempt > 0)
    AND agent_id NOT IN (SELECT value FROM json_each(?))
    ORDER BY rank, id LIMIT 1
"""


def _found(db: Database, task_id: str) -> str:
    row = db.row("SELECT status, reason, attempt, worker_id FROM agent_tasks WHERE id = ?", (task_id,))
    if row is None:
        raise NotFoundError("task", task_id)
    status, reason, attempt, worker_id = row
    return f"{status}{f' ({reason})' if reason else ''}, attempt {attempt}, worker {worker_id or 'none'}"
