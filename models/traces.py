"""The execution trace: what replay and recovery are computed from.

Invariant: `step_index` is unique per task and only grows; a trace is appended, never changed, but for the mark that
its outcome was superseded by a retry.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import peewee

from .database import Database, field_names, instances
from .fields import TASK_REF, Int64Field

if TYPE_CHECKING:
    from .trace_events import AgentTraceEvent

TURN_STARTED, INTENT, OUTCOME = "turn_started", "tool_call_started", "tool_call_completed"


class TaskTrace(peewee.Model):
    """One step record of one task; `timestamp` in epoch ms, `step_index` from 0."""

    id = peewee.AutoField()
    task_id = peewee.TextField()
    step_index = Int64Field()
    event_kind = peewee.TextField()
    event_json = peewee.TextField()
    timestamp = Int64Field()
    step_key = peewee.TextField(null=True)
    digest = peewee.TextField(null=True)
    attempt = Int64Field(default=0)
    effect = peewee.TextField(null=True)
    late = Int64Field(default=0)
    superseded = Int64Field(default=0)

    class Meta:
        table_name = "task_traces"
        legacy_table_names = False
        constraints = (TASK_REF, peewee.Check("step_index >= 0"))
        indexes = ((("task_id", "step_index"), True),)

    @classmethod
    def new(cls, task_id: str, step_index: int, event: AgentTraceEvent, *, now: int) -> Self:
        """A trace that is not stored yet: its id is 0."""
        return cls(
            id=0,
            task_id=task_id,
            step_index=step_index,
            event_kind=event.kind,
            event_json=event.to_json(),
            timestamp=now,
        )

    def with_timestamp(self, timestamp: int) -> Self:
        """The same trace with another stamp, in ms."""
        twin = copy.copy(self)
        twin.__data__ = dict(self.__data__, timestamp=timestamp)
        return twin

    @property
    def event(self) -> AgentTraceEvent:
        """The structured event; raises where the stored JSON is not one."""
        from .trace_events import AgentTraceEvent

        return AgentTraceEvent.parse(self.event_json)


TaskTrace.add_index(
    TaskTrace.index(
        TaskTrace.task_id,
        TaskTrace.step_key,
        where=peewee.SQL("step_key IS NOT NULL"),
        name="task_traces_step",
    )
)

FIELDS = field_names(TaskTrace)


def append(
    db: Database,
    task_id: str,
    kind: str,
    event_json: str,
    *,
    attempt: int,
    now: int,
    step_key: str | None = None,
    digest: str | None = None,
    effect: str | None = None,
    late: bool = False,
) -> None:
    """Append a trace at the next free step index, inside the transaction of what it tells about."""
    db.change(
        _APPEND, (task_id, task_id, kind, event_json, now, step_key, digest, attempt, effect, int(late))
    )


_APPEND = """
    INSERT INTO task_traces
        (task_id, step_index, event_kind, event_json, timestamp, step_key, digest, attempt, effect, late, superseded)
    SELECT ?, coalesce((SELECT step_index FROM task_traces WHERE task_id = ? ORDER BY step_index DESC LIMIT 1), -1) + 1,
        ?, ?, ?, ?, ?, ?, ?, ?, 0
"""


def insert(db: Database, trace: TaskTrace) -> int:
    """Store one trace at its own step index; the row id. A taken (task, step) is an IntegrityError."""
    with db.write():
        db.insert(trace)
    return int(trace.id)


def bulk_insert(db: Database, page: Sequence[TaskTrace]) -> None:
    """Store many traces in one transaction; none is a no-op."""
    if page:
        with db.write():
            for trace in page:
                db.insert(trace)


def by_task(db: Database, task_id: str, *, kind: str | None = None) -> list[TaskTrace]:
    """The traces of a task in step order, of one kind where given."""
    query = TaskTrace.select().where(TaskTrace.task_id == task_id).order_by(TaskTrace.step_index)
    found: list[TaskTrace] = db.select(query if kind is None else query.where(TaskTrace.event_kind == kind))
    return found


def from_step(db: Database, task_id: str, step_index: int) -> list[TaskTrace]:
    """The traces of a task at this step index and after it."""
    query = TaskTrace.select().where(TaskTrace.task_id == task_id, TaskTrace.step_index >= step_index)
    found: list[TaskTrace] = db.select(query.order_by(TaskTrace.step_index))
    return found


def last(db: Database, task_id: str) -> TaskTrace | None:
    """The trace with the greatest step index."""
    statement = "SELECT * FROM task_traces WHERE task_id = ? ORDER BY step_index DESC LIMIT 1"
    found = instances(TaskTrace, db.rows(statement, (task_id,)), FIELDS)
    return found[0] if found else None


def by_id(db: Database, trace_id: int) -> TaskTrace | None:
    """One trace by its row id."""
    found = instances(TaskTrace, db.rows("SELECT * FROM task_traces WHERE id = ?", (trace_id,)), FIELDS)
    return found[0] if found else None


def delete_for_task(db: Database, task_id: str) -> int:
    """Remove the traces of a task; how many there were."""
    with db.write():
        return db.change("DELETE FROM task_traces WHERE task_id = ?", (task_id,))


def count(db: Database, task_id: str) -> int:
    """How many traces a task has."""
    row = db.row("SELECT count(*) FROM task_traces WHERE task_id = ?", (task_id,))
    return int(row[0]) if row else 0


def step_records(db: Database, task_id: str) -> list[tuple[Any, ...]]:
    """The intents and outcomes of a task in step order: what `recovery.replay.history` reads."""
    return db.rows(_STEP_RECORDS, (task_id,))


_STEP_RECORDS = """
    SELECT step_index, event_kind, event_json, step_key, digest, attempt, effect, late, superseded, timestamp
    FROM task_traces WHERE task_id = ? AND step_key IS NOT NULL ORDER BY step_index
"""


def supersede(db: Database, task_id: str, step_keys: Sequence[str]) -> None:
    """Mark the outcomes of these steps as replaced: the steps run again."""
    statement = """
        UPDATE task_traces SET superseded = 1
        WHERE task_id = ? AND step_key = ? AND event_kind = 'tool_call_completed' AND superseded = 0
    """
    for key in step_keys:
        db.change(statement, (task_id, key))
