"""`StateDatabase`: the state file as one object with CRUD by name, for tools and tests.

Invariant: it holds no logic and no state of its own beyond the open database; two of them do not touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import events, journal, orphans, schema, tasks, traces, transitions
from .database import Database
from .events import AgentEvent
from .moves import Move
from .paging import Cursor, Order
from .tasks import AgentTask, TaskStatus
from .traces import TaskTrace, TaskTraceInfo


class StateDatabase:
    """One open state file; every call is its own transaction. Times (`now`) in epoch ms."""

    def __init__(self, path: str | Path, *, now: int = 0, create: bool = True) -> None:
        """Open the file, creating it and its folder where absent; raises StorageError."""
        where = Path(path).absolute()
        if create:
            where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db: Database = schema.open_database(where, now=now, create=create)

    def close(self) -> None:
        """Close every connection of this process."""
        self.db.close_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- tasks ------------------------------------------------------------------------------------------------

    def insert_task(self, task: AgentTask, *, now: int) -> AgentTask:
        """Store a pending task; raises DuplicateTaskError."""
        return tasks.submit(self.db, task, now=now)

    def insert_task_if_absent(self, task: AgentTask, *, now: int) -> bool:
        """Store a pending task unless its id is known; whether it was stored."""
        return tasks.submit_if_absent(self.db, task, now=now)

    def get_task(self, task_id: str) -> AgentTask:
        """The task with this id; raises NotFoundError."""
        return tasks.find(self.db, task_id)

    def get_tasks_by_session(self, session: str, *, limit: int = 200) -> list[AgentTask]:
        """The tasks of a session, newest first."""
        return tasks.listing(self.db, session=session, limit=limit)[0]

    def list_tasks(
        self, *, limit: int = 50, cursor: Cursor | None = None, order: Order = Order.NEWEST, **filters: Any
    ) -> tuple[list[AgentTask], Cursor | None]:
        """A page of tasks and the cursor of the next one; filters are status, lane, session."""
        return tasks.listing(self.db, limit=limit, cursor=cursor, order=order, **filters)

    def get_recoverable_tasks(self) -> list[AgentTask]:
        """The running and interrupted tasks: low risk first, then high, then anything else; oldest first."""
        return orphans.recoverable(self.db)

    def update_task_status(self, task_id: str, status: TaskStatus, *, now: int) -> AgentTask:
        """Move a task along a legal edge; raises NotFoundError or StaleMove."""
        return _set_status(self.db, task_id, status, now=now)

    def update_task_checkpoint(
        self, task_id: str, path: str, last_tool_call_id: str | None, *, now: int
    ) -> None:
        """Set where the snapshot of a task lies; raises NotFoundError."""
        journal.update_checkpoint(self.db, task_id, path=path, last_tool_call_id=last_tool_call_id, now=now)

    def mark_running_as_interrupted(self, *, now: int) -> int:
        """Interrupt every running task, for a process that knows it is alone; how many."""
        return _interrupt_all_running(self.db, now=now)

    # -- traces -----------------------------------------------------------------------------------------------

    def insert_trace(self, trace: TaskTrace) -> int:
        """Store one trace; its row id."""
        return traces.insert(self.db, trace)

    def bulk_insert_traces(self, page: Sequence[TaskTrace]) -> None:
        """Store many traces in one transaction."""
        traces.bulk_insert(self.db, page)

    def get_traces_by_task(self, task_id: str) -> list[TaskTrace]:
        """The traces of a task in step order."""
        return traces.by_task(self.db, task_id)

    def get_traces_by_kind(
        self, kind: str, *, limit: int = 200, after: int | None = None, order: Order = Order.OLDEST
    ) -> list[TaskTrace]:
        """A page of the traces of one kind, of whatever task, by row id."""
        return traces.by_kind(self.db, kind, limit=limit, after=after, order=order)

    def list_trace_tasks_paged(
        self,
        limit: int = 50,
        before_timestamp: int | None = None,
        *,
        cursor: Cursor | None = None,
        order: Order = Order.NEWEST,
    ) -> tuple[list[TaskTraceInfo], Cursor | None]:
        """A page of the tasks that have traces, by the time of their last one, and the cursor of the next page."""
        return traces.list_trace_tasks_paged(self.db, limit, before_timestamp, cursor=cursor, order=order)

    def get_traces_from_step(self, task_id: str, step_index: int) -> list[TaskTrace]:
        """The traces of a task from this step index on."""
        return traces.from_step(self.db, task_id, step_index)

    def get_last_trace(self, task_id: str) -> TaskTrace | None:
        """The trace with the greatest step index."""
        return traces.last(self.db, task_id)

    def delete_traces(self, task_id: str) -> int:
        """Remove the traces of a task; how many."""
        return traces.delete_for_task(self.db, task_id)

    def count_traces(self, task_id: str) -> int:
        """How many traces a task has."""
        return traces.count(self.db, task_id)

    # -- events -----------------------------------------------------------------------------------------------

    def insert_event(self, event: AgentEvent) -> int:
        """Store one event; its row id."""
        return events.insert(self.db, event)

    def bulk_insert_events(self, page: Sequence[AgentEvent]) -> None:
        """Store many events in one transaction."""
        events.bulk_insert(self.db, page)

    def get_events_by_task(self, task_id: str) -> list[AgentEvent]:
        """The events of a task in order."""
        return events.by_task(self.db, task_id)

    def get_events_since(self, task_id: str, seq: int) -> list[AgentEvent]:
        """The events of a task with a greater seq."""
        return events.after(self.db, task_id, seq, limit=-1)

    def get_events_in_range(self, task_id: str, first: int, last: int) -> list[AgentEvent]:
        """The events of a task with first ≤ seq ≤ last."""
        return events.in_range(self.db, task_id, first, last)

    def get_events_in_time_range(
        self,
        first: int,
        last: int,
        *,
        limit: int = events.PAGE,
        cursor: Cursor | None = None,
        order: Order = Order.OLDEST,
    ) -> tuple[list[AgentEvent], Cursor | None]:
        """A page of the events, of whatever task, with first ≤ timestamp ≤ last (ms), and the cursor of the next page."""
        return events.in_time_range(self.db, first, last, limit=limit, cursor=cursor, order=order)

    def get_structural_events(self, task_id: str) -> list[AgentEvent]:
        """The skeleton of a task, in order."""
        return events.structural(self.db, task_id)

    def get_latest_seq(self, task_id: str) -> int | None:
        """The greatest seq of a task, or None."""
        return events.latest_seq(self.db, task_id)

    def delete_events(self, task_id: str) -> int:
        """Remove the events of a task; how many."""
        return events.delete_for_task(self.db, task_id)

    def count_events(self) -> int:
        """How many events are stored."""
        return events.count(self.db)


def _set_status(db: Database, task_id: str, status: TaskStatus, *, now: int) -> AgentTask:
    """Move a task to a status along the edge that leads there, for tools that own no attempt.

    Raises NotFoundError, or StaleMove where no edge leads from here to there.
    """
    move = _EDGES_OF_TOOLS[status]
    with db.write():
        if status.is_terminal():
            return transitions.end(
                db, move, task_id, now=now, reason="error" if status == TaskStatus.FAILED else None
            )
        changes: dict[str, Any] = {"reason": "shutdown"} if status == TaskStatus.INTERRUPTED else {}
        if status == TaskStatus.RUNNING:
            row = db.row("SELECT started_at FROM agent_tasks WHERE id = ?", (task_id,))
            changes["started_at"] = (row and row[0]) or now
        guards = ("resumable", "owner_gone") if move is Move.RESUME else ()
        return transitions.apply(db, move, task_id, now=now, guards=guards, **changes)


_EDGES_OF_TOOLS = {
    TaskStatus.PENDING: Move.RESUME,
    TaskStatus.RUNNING: Move.CLAIM,
    TaskStatus.COMPLETED: Move.COMPLETE,
    TaskStatus.FAILED: Move.FAIL,
    TaskStatus.INTERRUPTED: Move.INTERRUPT,
    TaskStatus.IDLE: Move.SUSPEND,
    TaskStatus.SWAPPED: Move.SWAP_OUT,
}


def _interrupt_all_running(db: Database, *, now: int) -> int:
    """running → interrupted (shutdown) for every running task, for a process that knows it is alone; how many."""
    with db.write():
        running = db.rows("SELECT id FROM agent_tasks WHERE status = 'running'")
        for (task_id,) in running:
            transitions.apply(db, Move.INTERRUPT, task_id, now=now, reason="shutdown", cleared=("worker_id",))
        return len(running)
