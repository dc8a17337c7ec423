"""The conditions of moves that need more than the task's own row, as SQL for their guarded UPDATE.

Invariant: each is evaluated inside the UPDATE that it guards, so nothing can change between looking and moving.
"""

from __future__ import annotations

RESUMABLE_REASONS = ("shutdown", "lost")
DECIDABLE_REASONS = ("asked", "diverged")
CLEARED_BY_A_RETRY = (  # what a row says about its last try, when a person wants another one
    *("worker_id", "reason", "error_json", "completed_at"),
    *("cancel_requested_at", "due_at", "expires_at"),
)

_OWNER_DEAD = "EXISTS (SELECT 1 FROM workers w WHERE w.id = agent_tasks.worker_id AND w.dead_at IS NOT NULL)"
_OPEN_WRITES = """
    FROM task_traces i
    WHERE i.task_id = agent_tasks.id AND i.event_kind = 'tool_call_started' AND i.effect = 'write'
    AND NOT EXISTS (
        SELECT 1 FROM task_traces o
        WHERE o.task_id = i.task_id AND o.step_key = i.step_key
        AND o.event_kind = 'tool_call_completed' AND o.step_index > i.step_index AND o.superseded < 2
    )
"""
_NO_OPEN_WRITE = f"NOT EXISTS (SELECT 1 {_OPEN_WRITES})"
_IS_WRITING = f"EXISTS (SELECT 1 {_OPEN_WRITES} AND i.attempt = agent_tasks.attempt)"
_HAS_ITS_TRACES = """
    (attempt = 0 OR EXISTS (SELECT 1 FROM task_traces f WHERE f.task_id = agent_tasks.id AND f.step_index = 0))
"""
_OWNER_GONE = f"worker_id IS NULL OR {_OWNER_DEAD}"
GUARDS = {
    "owner_gone": f"({_OWNER_GONE})",
    # For an owner that is fenced off, or whose lease was seen to run out: it can start no step any more, so only a
    # write that is still open matters.
    "owner_harmless": f"({_OWNER_GONE} OR {_NO_OPEN_WRITE})",
    "resumable": f"(status = 'running' OR reason IS NULL OR reason IN {RESUMABLE_REASONS})",
    "decidable": f"reason IN {DECIDABLE_REASONS}",
    # Without its traces a retry would run finished steps again; retention removes the first one first.
    "retriable": f"(status = 'failed' AND {_HAS_ITS_TRACES} OR reason IN ('skipped', 'diverged'))",
}
_LOSSES = """
    CASE WHEN EXISTS (
        SELECT 1 FROM task_traces t
        WHERE t.task_id = agent_tasks.id AND t.event_kind = 'tool_call_completed' AND t.attempt = agent_tasks.attempt
    ) THEN 1 ELSE losses + 1 END
"""
# What a move computes from the row itself: the column, and its value.
COMPUTED = {
    "losses": ("losses", _LOSSES),
    "worker_if_alive": ("worker_id", f"CASE WHEN {_OWNER_DEAD} THEN NULL ELSE worker_id END"),
    "worker_if_writing": (
        "worker_id",
        f"CASE WHEN {_IS_WRITING} AND NOT {_OWNER_DEAD} THEN worker_id END",
    ),
}
