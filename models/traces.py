"""The execution trace: what replay and recovery are computed from.

Invariant: `step_index` is unique per task and only grows; a trace is appended, never changed, but for the mark that
its outcome was superseded: 1, by a retry or an answer, so that the step runs again; 2, taken back, so that its step is in
doubt again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import peewee

from . import paging
from .database import Database, field_names, instances
from .fields import TASK_REF, Int64Field
from .paging import Cursor, Order

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
TaskTrace.add_index(
    TaskTrace.index(
        TaskTrace.id, where=peewee.SQL("""instr(event_json, '{"$blob"') > 0"""), name="task_traces_blob"
    )
)

FIELDS = field_names(TaskTrace)
MOST_LISTED = 200


@dataclass(frozen=True)
class TaskTraceInfo:
    """A task that has traces, as a list shows it; times in epoch ms."""

    task_id: str
    event_count: int
    last_timestamp: int
    status: str
    started_at: int | None
    prompt_preview: str


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


def by_kind(
    db: Database, kind: str, *, limit: int = 200, after: int | None = None, order: Order = Order.OLDEST
) -> list[TaskTrace]:
    """A page of the traces of one kind, of whatever task, by row id; the last one's id goes on as `after`."""
    query = TaskTrace.select().where(TaskTrace.event_kind == kind).limit(limit)
    if after is not None:
        query = query.where(TaskTrace.id < after if order is Order.NEWEST else TaskTrace.id > after)
    found: list[TaskTrace] = db.select(
        query.order_by(TaskTrace.id.desc() if order is Order.NEWEST else TaskTrace.id)
    )
    return found


def list_trace_tasks_paged(
    db: Database,
    limit: int = 50,
    before_timestamp: int | None = None,
    *,
    cursor: tuple[int, str] | None = None,
    order: Order = Order.NEWEST,
) -> tuple[list[TaskTraceInfo], Cursor | None]:
    """A page of the tasks that have traces, by the time of their last one, and the cursor of the next page.

    `limit` is taken as 1 to 200. `before_timestamp` gives only tasks whose last trace is strictly older, so it passes
    over ties at the edge of a page; `cursor` does not.
    """
    limit = max(1, min(limit, MOST_LISTED))
    last = peewee.fn.MAX(TaskTrace.timestamp)
    query = TaskTrace.select(TaskTrace.task_id, peewee.fn.COUNT(TaskTrace.id), last).group_by(
        TaskTrace.task_id
    )
    if before_timestamp is not None:
        query = query.having(last < before_timestamp)
    place, newest = peewee.Tuple(last, TaskTrace.task_id), order is Order.NEWEST
    if cursor is not None:
        query = query.having(place < cursor if newest else place > cursor)
    by = (last.desc(), TaskTrace.task_id.desc()) if newest else (last, TaskTrace.task_id)
    sql, params = query.order_by(*by).limit(limit + 1).sql()
    page, following = paging.cut(db.rows(sql, params), limit, lambda row: Cursor(row[2], row[0]))
    about = {row[0]: row[1:] for row in db.rows(_ABOUT, (json.dumps([row[0] for row in page]),))}
    return [TaskTraceInfo(*row, *about[row[0]]) for row in page if row[0] in about], following


_ABOUT = """
    SELECT id, status, started_at, substr(task_prompt, 1, 200) FROM agent_tasks
    WHERE id IN (SELECT value FROM json_each(?))
"""


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


def take_back(db: Database, task_id: str, step_keys: Sequence[str]) -> None:
    """Mark every outcome since the last intent of these steps as no answer: whether they happened is open again."""
    statement = """
        UPDATE task_traces SET superseded = 2
        WHERE task_id = ?1 AND step_key = ?2 AND event_kind = 'tool_call_completed' AND step_index > (
            SELECT max(step_index) FROM task_traces
            WHERE task_id = ?1 AND step_key = ?2 AND event_kind = 'tool_call_started'
        )
    """
    for key in step_keys:
        db.change(statement, (task_id, key))


def outcome_of(db: Database, task_id: str, step_key: str) -> TaskTrace | None:
    """The outcome of a step that stands: the last one that was not superseded."""
    statement = """
        SELECT * FROM task_traces
        WHERE task_id = ? AND step_key = ? AND event_kind = 'tool_call_completed' AND superseded = 0
        ORDER BY late, step_index DESC LIMIT 1
    """
    found = instances(TaskTrace, db.rows(statement, (task_id, step_key)), FIELDS)
    return found[0] if found else None
