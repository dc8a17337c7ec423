"""What a task tells the outside: skeleton events that survive a crash, pulse events that may be dropped.

Invariant: `seq` is gap-free per task and assigned by the insert itself, so an event exists for readers only once it
is committed. Reading is `seq > n`, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import peewee

from . import paging
from .database import Database, Durability, field_names, instances
from .encoding import encode
from .errors import NotFoundError
from .fields import TASK_REF, Int64Field
from .paging import Cursor, Order

PAGE = 500


class AgentEvent(peewee.Model):
    """One event of one task; `timestamp` in epoch ms."""

    TYPE_TASK_STARTED = "task_started"
    TYPE_TOOL_CALL_STARTED = "tool_call_started"
    TYPE_TOOL_CALL_COMPLETED = "tool_call_completed"
    TYPE_ARTIFACT_CREATED = "artifact_created"
    TYPE_TASK_COMPLETED = "task_completed"
    TYPE_TASK_FAILED = "task_failed"
    TYPE_AI_STREAMING = "ai_streaming"

    TYPE_TASK_ENQUEUED = "task_enqueued"
    TYPE_TASK_SPAWNED = "task_spawned"
    TYPE_CONFIRMATION_REQUESTED = "confirmation_requested"
    TYPE_CONFIRMATION_DECIDED = "confirmation_decided"

    id = peewee.AutoField()
    task_id = peewee.TextField()
    seq = Int64Field()
    event_type = peewee.TextField()
    payload_json = peewee.TextField()
    is_structural = Int64Field(default=0)
    timestamp = Int64Field()

    class Meta:
        table_name = "agent_events"
        legacy_table_names = False
        constraints = (TASK_REF,)
        indexes = ((("task_id", "seq"), True), (("timestamp",), False))

    @classmethod
    def new(cls, task_id: str, seq: int, event_type: str, payload: Any, *, now: int) -> Self:
        """An event that is not structural; `payload` is anything JSON can hold."""
        return cls(
            task_id=task_id,
            seq=seq,
            event_type=event_type,
            payload_json=_json(payload),
            is_structural=0,
            timestamp=now,
        )

    @classmethod
    def structural(cls, task_id: str, seq: int, event_type: str, payload: Any, *, now: int) -> Self:
        """A skeleton event: persisted at once, part of what recovery sees."""
        event = cls.new(task_id, seq, event_type, payload, now=now)
        event.is_structural = 1
        return event

    @classmethod
    def pulse(cls, task_id: str, seq: int, event_type: str, payload: Any, *, now: int) -> Self:
        """A pulse event: batched, may be dropped without changing any outcome."""
        return cls.new(task_id, seq, event_type, payload, now=now)


FIELDS = field_names(AgentEvent)


def record(db: Database, task_id: str, event_type: str, payload: Any, *, now: int) -> None:
    """Append a skeleton event, inside the transaction of what it tells about."""
    db.change(_APPEND, (task_id, task_id, task_id, event_type, _json(payload), 1, now))
    db.touch("watch")


def record_pulses(db: Database, task_id: str, payloads: Sequence[tuple[Any, int]]) -> None:
    """Append a batch of (payload, ms) as `ai_streaming` pulses of one task."""
    kind = AgentEvent.TYPE_AI_STREAMING
    with db.write(Durability.NORMAL):
        db.change_many(
            _APPEND, [(task_id, task_id, task_id, kind, _json(p), 0, stamp) for p, stamp in payloads]
        )
        db.touch("watch")


# The next seq follows what was ever assigned, also after pruning has removed the rows.
_APPEND = """
    INSERT INTO agent_events (task_id, seq, event_type, payload_json, is_structural, timestamp)
    SELECT ?, 1 + max(
        coalesce((SELECT seq FROM agent_events WHERE task_id = ? ORDER BY seq DESC LIMIT 1), 0),
        coalesce((SELECT trimmed_below FROM agent_tasks WHERE id = ?), 0) - 1
    ), ?, ?, ?, ?
"""


def insert(db: Database, event: AgentEvent) -> int:
    """Store one event with its own seq; the row id. A taken (task, seq) is an IntegrityError."""
    with db.write():
        db.insert(event)
        db.touch("watch")
    return int(event.id)


def bulk_insert(db: Database, page: Sequence[AgentEvent]) -> None:
    """Store many events in one transaction; none is a no-op."""
    if page:
        with db.write():
            for event in page:
                db.insert(event)
            db.touch("watch")


def after(db: Database, task_id: str, seq: int, *, limit: int = PAGE) -> list[AgentEvent]:
    """A page of the events of a task with a greater seq, in order."""
    statement = "SELECT * FROM agent_events WHERE task_id = ? AND seq > ? ORDER BY seq LIMIT ?"
    return instances(AgentEvent, db.rows(statement, (task_id, seq, limit)), FIELDS)


def by_task(db: Database, task_id: str) -> list[AgentEvent]:
    """Every event of a task, in order."""
    return after(db, task_id, 0, limit=-1)


def in_range(db: Database, task_id: str, first: int, last: int) -> list[AgentEvent]:
    """The events of a task with first ≤ seq ≤ last."""
    statement = "SELECT * FROM agent_events WHERE task_id = ? AND seq BETWEEN ? AND ? ORDER BY seq"
    return instances(AgentEvent, db.rows(statement, (task_id, first, last)), FIELDS)


def in_time_range(
    db: Database,
    first: int,
    last: int,
    *,
    limit: int = PAGE,
    cursor: tuple[int, int] | None = None,
    order: Order = Order.OLDEST,
) -> tuple[list[AgentEvent], Cursor | None]:
    """A page of the events, of whatever task, with first ≤ timestamp ≤ last (ms); and the cursor of the next page."""
    query = AgentEvent.select().where(AgentEvent.timestamp.between(first, last))
    stamp, ident = AgentEvent.timestamp, AgentEvent.id
    return paging.page(db, query, stamp, ident, order=order, limit=limit, cursor=cursor)


def structural(db: Database, task_id: str) -> list[AgentEvent]:
    """The skeleton of a task, in order."""
    statement = "SELECT * FROM agent_events WHERE task_id = ? AND is_structural = 1 ORDER BY seq"
    return instances(AgentEvent, db.rows(statement, (task_id,)), FIELDS)


def last(db: Database, task_id: str, kinds: Sequence[str]) -> AgentEvent | None:
    """The last event of a task that is of one of these types."""
    query = AgentEvent.select().where(AgentEvent.task_id == task_id, AgentEvent.event_type.in_(kinds))
    found: list[AgentEvent] = db.select(query.order_by(AgentEvent.seq.desc()).limit(1))
    return found[0] if found else None


def latest_seq(db: Database, task_id: str) -> int | None:
    """The greatest seq of a task, or None where it has no events."""
    row = db.row("SELECT max(seq) FROM agent_events WHERE task_id = ?", (task_id,))
    return None if row is None or row[0] is None else int(row[0])


def trimmed_below(db: Database, task_id: str) -> int:
    """The seq below which retention may have removed events of a task; what is missing above it was lost."""
    row = db.row("SELECT trimmed_below FROM agent_tasks WHERE id = ?", (task_id,))
    if row is None:
        raise NotFoundError("task", task_id)
    return int(row[0])


def delete_for_task(db: Database, task_id: str) -> int:
    """Remove the events of a task; how many there were."""
    with db.write():
        return db.change("DELETE FROM agent_events WHERE task_id = ?", (task_id,))


def count(db: Database) -> int:
    """How many events are stored."""
    row = db.row("SELECT count(*) FROM agent_events")
    return int(row[0]) if row else 0


def _json(payload: Any) -> str:
    return encode(payload).text
