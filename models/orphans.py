"""Which tasks recovery looks at, in the order in which it does.

Invariant: an orphan is a task whose worker is gone, by proof or by a lease that was watched; being old makes none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .database import Database, instances
from .tasks import FIELDS, AgentTask


def recoverable(db: Database) -> list[AgentTask]:
    """Every running or interrupted task: low risk first, then high, then anything else; oldest first."""
    rows = db.rows(
        """
        SELECT * FROM agent_tasks WHERE status IN ('running', 'interrupted')
        ORDER BY CASE risk_level WHEN 'low' THEN 0 WHEN 'high' THEN 1 ELSE 2 END, created_at, id
        """
    )
    return instances(AgentTask, rows, FIELDS)


@dataclass(frozen=True)
class Orphan:
    """A task whose run has ended without an end: where it stands in the scan, and what the decision needs."""

    order: tuple[int, int, str]
    task: AgentTask
    risk_text: str
    trace_count: int
    owner_gone: bool


def page(
    db: Database, *, lease_out: frozenset[str], after: tuple[int, int, str] | None, limit: int = 200
) -> list[Orphan]:
    """A page of the running tasks whose worker is gone and of the interrupted ones that recovery may move.

    A worker is gone when its row says dead, when it is in `lease_out`, or when it was never known; being old makes no
    orphan. Low risk comes first, then high, then anything else; oldest first.
    """
    rows = db.rows(_ORPHANS, (json.dumps(sorted(lease_out)), *(after or (-1, 0, "")), limit))
    found = instances(AgentTask, [row[:-4] for row in rows], FIELDS)
    return [
        Orphan((row[-4], task.created_at, task.id), task, row[-3], row[-2], bool(row[-1]))
        for row, task in zip(rows, found, strict=True)
    ]


_ORPHANS = """
    SELECT t.*, p.risk_order, t.risk_level,
        (SELECT count(*) FROM task_traces c WHERE c.task_id = t.id),
        (t.worker_id IS NULL OR w.dead_at IS NOT NULL)
    FROM (
        SELECT o.id, CASE o.risk_level WHEN 'low' THEN 0 WHEN 'high' THEN 1 ELSE 2 END AS risk_order
        FROM agent_tasks o LEFT JOIN workers v ON v.id = o.worker_id
        WHERE (
            (o.status = 'running' AND (
                o.worker_id IS NULL OR v.id IS NULL OR v.dead_at IS NOT NULL
                OR o.worker_id IN (SELECT value FROM json_each(?))
            ))
            OR (o.status = 'interrupted' AND (o.reason IS NULL OR o.reason IN ('shutdown', 'lost')))
        )
        AND (risk_order, o.created_at, o.id) > (?, ?, ?)
        ORDER BY risk_order, o.created_at, o.id LIMIT ?
    ) p
    JOIN agent_tasks t ON t.id = p.id LEFT JOIN workers w ON w.id = t.worker_id
    ORDER BY p.risk_order, t.created_at, t.id
"""
