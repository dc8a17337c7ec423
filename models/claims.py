"""Which pending task a worker takes, and which ones it may not take yet.

Invariant: a claim is one transaction: the move to running with the next attempt and its owner, a `turn_started` trace
and the `task_started` event. So a claimed task always has a trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from . import traces, transitions
from .database import Database, Durability
from .fields import INT64_MAX
from .moves import Move
from .tasks import HOLD_UNKNOWN_AGENT, AgentTask

PAGE = 100  # design §5: due rows released by one claim; as many are held by one


def ready(db: Database, lane: str) -> bool:
    """Whether a claimable row exists in a lane: a cheap look before a write transaction."""
    return db.row(_READY, (lane,)) is not None


_READY = """
    SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM lane_pauses WHERE lane = ?1)
    AND EXISTS (SELECT 1 FROM agent_tasks WHERE lane = ?1 AND status = 'pending' AND hold IS NULL)
"""


def ready_ids(db: Database, lane: str, *, limit: int | None = None) -> list[str]:
    """The ids of the claimable rows of a lane, in the order in which they will be claimed."""
    statement = """
        SELECT id FROM agent_tasks WHERE lane = ? AND status = 'pending' AND hold IS NULL ORDER BY rank, id LIMIT ?
    """
    return [row[0] for row in db.rows(statement, (lane, -1 if limit is None else limit))]


def ready_count(db: Database, lane: str) -> int:
    """How many rows of a lane are claimable."""
    row = db.row(
        "SELECT count(*) FROM agent_tasks WHERE lane = ? AND status = 'pending' AND hold IS NULL", (lane,)
    )
    return int(row[0]) if row else 0


def position(db: Database, task: AgentTask) -> int:
    """The place of a pending task among the claimable ones of its lane, from 1."""
    statement = """
        SELECT count(*) FROM agent_tasks
        WHERE lane = ? AND status = 'pending' AND hold IS NULL AND (rank, id) < (?, ?)
    """
    row = db.row(statement, (str(task.lane), task.rank, task.id))
    return 1 + int(row[0]) if row else 1


def next_due(db: Database) -> int | None:
    """When the next delayed task, of whichever lane, is due, in ms."""
    row = db.row("SELECT due_at FROM agent_tasks WHERE hold = 'due' ORDER BY due_at LIMIT 1")
    return None if row is None else int(row[0])


def expired_ids(db: Database, *, now: int, limit: int = 200) -> list[str]:
    """Pending tasks that were never claimed and whose time is over."""
    statement = """
        SELECT id FROM agent_tasks
        WHERE expires_at IS NOT NULL AND status = 'pending' AND expires_at <= ? AND attempt = 0 LIMIT ?
    """
    return [row[0] for row in db.rows(statement, (now, limit))]


def claim(
    db: Database,
    lane: str,
    *,
    worker_id: str,
    now: int,
    known: frozenset[str],
    without: frozenset[str] = frozenset(),
    suspect_from: int = INT64_MAX,
    on_unknown: Callable[[str], object] | None = None,
) -> AgentTask | None:
    """pending → running: take the best ready task of a lane, or None.

    Releases due tasks on the way. A task of an agent that is not in `known` is held unclaimed, and `on_unknown` is told
    its agent; agents in `without` are passed over for now. Tasks with `suspect_from` losses in a row are run by a worker one at a time, until one has
    finished a step, so that the one that takes its worker down is not mistaken for another. The claim is a trace and an
    event of its own, so a claimed task always has a trace.
    """
    while True:
        with db.write(Durability.NORMAL):
            release_due(db, now=now)
            for _ in range(PAGE):
                found = db.row(*_best(without, lane, now, suspect_from, worker_id))
                if found is None:
                    return None
                task_id, agent_id, attempt, started_at = found
                if agent_id in known:
                    begun = started_at or now
                    return _start(db, task_id, attempt + 1, worker_id=worker_id, started_at=begun, now=now)
                why = {"hold": HOLD_UNKNOWN_AGENT, "agent": agent_id}
                transitions.apply(db, Move.HOLD, task_id, now=now, payload=why, hold=HOLD_UNKNOWN_AGENT)
                if on_unknown is not None:
                    on_unknown(agent_id)


def unclaim(db: Database, task_id: str, *, attempt: int, worker_id: str, now: int) -> AgentTask:
    """running → pending: give a claim back before its agent was called."""
    with db.write(Durability.NORMAL):
        task = transitions.apply(
            db,
            Move.UNCLAIM,
            task_id,
            now=now,
            where={"attempt": attempt, "worker_id": worker_id},
            cleared=("worker_id",),
        )
        db.touch(task.lane)
        return task


def hold(db: Database, task_id: str, *, hold: str, now: int) -> AgentTask:
    """pending → pending: say why a task is not claimable."""
    with db.write(Durability.NORMAL):
        return transitions.apply(db, Move.HOLD, task_id, now=now, payload={"hold": hold}, hold=hold)


def release(db: Database, task_id: str, *, now: int) -> AgentTask:
    """pending → pending: make a held task claimable."""
    with db.write(Durability.NORMAL):
        task = transitions.apply(db, Move.RELEASE, task_id, now=now, cleared=("hold",))
        db.touch(task.lane)
        return task


def release_due(db: Database, *, now: int) -> None:
    """Make up to a page of delayed tasks claimable whose time has come."""
    statement = "SELECT id FROM agent_tasks WHERE hold = 'due' AND due_at <= ? ORDER BY due_at LIMIT ?"
    for (task_id,) in db.rows(statement, (now, PAGE)):
        release(db, task_id, now=now)


def release_unknown(db: Database, *, known: frozenset[str], now: int) -> int:
    """Make the tasks claimable that wait for an agent which is known here; how many."""
    waiting = db.rows("SELECT id, agent_id FROM agent_tasks WHERE hold = 'unknown_agent'")
    ours = [task_id for task_id, agent_id in waiting if agent_id in known]
    if ours:
        with db.write(Durability.NORMAL):
            for task_id in ours:
                release(db, task_id, now=now)
    return len(ours)


def _start(
    db: Database, task_id: str, attempt: int, *, worker_id: str, started_at: int, now: int
) -> AgentTask:
    task = transitions.apply(
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
    turn = json.dumps(
        {"kind": "turn_started", "iteration": attempt, "attempt": attempt, "worker_id": worker_id}
    )
    traces.append(db, task_id, traces.TURN_STARTED, turn, attempt=attempt, now=now)
    return task


def _best(without: frozenset[str], *params: Any) -> tuple[str, Sequence[Any]]:
    return (_BEST_WITHOUT, (*params, json.dumps(sorted(without)))) if without else (_BEST, params)


# A paused lane is no lane: one look into an empty table, and never a scan of what waits in it.
_CANDIDATES = """
    SELECT id, agent_id, attempt, started_at FROM agent_tasks
    WHERE lane = (SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM lane_pauses WHERE lane = ?1))
    AND status = 'pending' AND hold IS NULL AND (expires_at IS NULL OR expires_at > ?2 OR attempt > 0)
    AND (losses < ?3 OR NOT EXISTS (
        SELECT 1 FROM agent_tasks r WHERE r.worker_id = ?4 AND r.status = 'running' AND r.losses >= ?3
        AND NOT EXISTS (
            SELECT 1 FROM task_traces t
            WHERE t.task_id = r.id AND t.attempt = r.attempt AND t.event_kind = 'tool_call_completed'
        )
    ))
"""
_OTHERS = "AND agent_id NOT IN (SELECT value FROM json_each(?5))"
_FIRST = "ORDER BY rank, id LIMIT 1"
_BEST, _BEST_WITHOUT = f"{_CANDIDATES} {_FIRST}", f"{_CANDIDATES} {_OTHERS} {_FIRST}"
