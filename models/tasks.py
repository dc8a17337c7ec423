"""The task row, which is the queue: its columns and words, submission, and reads.

Invariant: `agent_tasks` is the only truth about a task. A row is inserted here, with its first event, in one
transaction; after that only `transitions.py` changes its status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import cysqlite
import peewee

from . import events, paging
from .database import Database, field_names, instances
from .errors import DuplicateTaskError, KeyConflictError, NotFoundError
from .fields import Int64Field, StoredText, Word, WordField
from .paging import Cursor, Order

MAIN_PRIORITY, SUBAGENT_PRIORITY = 10, 0  # higher first, as in Huey
PRIORITY_MS = 60_000  # design §5: a priority point is worth a minute of waiting
HOLD_DUE, HOLD_UNKNOWN_AGENT, HOLD_PAUSED = "due", "unknown_agent", "paused"


class TaskStatus(Word):
    """Where a task is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    IDLE = "idle"
    SWAPPED = "swapped"

    @classmethod
    def fallback(cls) -> TaskStatus:
        return cls.PENDING

    def is_recoverable(self) -> bool:
        """Whether recovery looks at a task in this status."""
        return self in (TaskStatus.RUNNING, TaskStatus.INTERRUPTED)

    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self in (TaskStatus.COMPLETED, TaskStatus.FAILED)


class RiskLevel(Word):
    """Whether recovery may resume a task by itself."""

    LOW = "low"
    HIGH = "high"

    @classmethod
    def fallback(cls) -> RiskLevel:
        return cls.HIGH  # fail closed: an unknown text never enables auto-resume (ruling 3)


class Lane(Word):
    """Which workers run a task: those a person waits for, or those of background work."""

    MAIN = "main"
    SUBAGENT = "subagent"

    @classmethod
    def fallback(cls) -> Lane:
        return cls.SUBAGENT

    @property
    def default_priority(self) -> int:
        """The priority of a task that names none."""
        return MAIN_PRIORITY if self is Lane.MAIN else SUBAGENT_PRIORITY


class AgentTask(peewee.Model):
    """One task. The first sixteen columns are the specification's; times are epoch milliseconds, UTC."""

    id = peewee.TextField(primary_key=True)
    parent_session_id = peewee.TextField()
    agent_id = peewee.TextField()
    task_prompt = peewee.TextField()
    status = WordField(TaskStatus)
    risk_level = WordField(RiskLevel)
    lane = WordField(Lane, default=Lane.SUBAGENT)
    checkpoint_snapshot_path = peewee.TextField(null=True)
    last_tool_call_id = peewee.TextField(null=True)
    recursion_depth = Int64Field(default=0)
    parent_task_id = peewee.TextField(null=True)
    created_at = Int64Field()
    updated_at = Int64Field()
    started_at = Int64Field(null=True)
    completed_at = Int64Field(null=True)
    metadata_json = peewee.TextField(null=True)

    attempt = Int64Field(default=0)
    losses = Int64Field(default=0)
    worker_id = peewee.TextField(null=True)
    reason = peewee.TextField(null=True)
    hold = peewee.TextField(null=True)
    priority = Int64Field(default=SUBAGENT_PRIORITY)
    rank = Int64Field(default=0)
    due_at = Int64Field(null=True)
    expires_at = Int64Field(null=True)
    retries_left = Int64Field(default=0)
    key = peewee.TextField(null=True)
    input_json = StoredText(default='{"args":[],"kwargs":{}}')
    result_json = peewee.TextField(null=True)
    error_json = peewee.TextField(null=True)
    handler_version = peewee.TextField(null=True)
    needs = peewee.TextField(null=True)
    cancel_requested_at = Int64Field(null=True)
    swap_path = peewee.TextField(null=True)
    trimmed_below = Int64Field(default=0)

    class Meta:
        table_name = "agent_tasks"
        legacy_table_names = False
        constraints = (
            peewee.Check(
                "status IN ('pending','running','completed','failed','interrupted','idle','swapped')"
            ),
            peewee.Check("(status IN ('completed','failed')) = (completed_at IS NOT NULL)"),
            peewee.Check("hold IS NULL OR status = 'pending'"),
            peewee.Check("hold IS NULL OR hold <> 'due' OR due_at IS NOT NULL"),
            peewee.Check("attempt >= 0 AND losses >= 0 AND retries_left >= 0 AND recursion_depth >= 0"),
        )

    @classmethod
    def new(
        cls,
        id: str,
        parent_session_id: str,
        agent_id: str,
        task_prompt: str,
        risk_level: RiskLevel,
        *,
        now: int,
    ) -> Self:
        """A pending task of the Subagent lane at depth 0, not stored yet; `now` in ms."""
        return cls(
            id=id,
            parent_session_id=parent_session_id,
            agent_id=agent_id,
            task_prompt=task_prompt,
            status=TaskStatus.PENDING,
            risk_level=risk_level,
            created_at=now,
            updated_at=now,
            rank=now,
        )

    def with_parent_task(self, parent_task_id: str, parent_depth: int) -> Self:
        """This task as a child of another: one level deeper."""
        self.parent_task_id, self.recursion_depth = parent_task_id, parent_depth + 1
        return self

    def with_lane(self, lane: Lane) -> Self:
        """This task in a lane, with the lane's default priority."""
        self.lane, self.priority = lane, lane.default_priority
        return self.with_order()

    def with_order(self, *, priority: int | None = None, due_at: int | None = None) -> Self:
        """This task with a priority and, when delayed, a due time in ms; both decide its rank."""
        self.priority = self.priority if priority is None else priority
        if due_at is not None and due_at > self.created_at:
            self.due_at, self.hold = due_at, HOLD_DUE
        self.rank = max(self.created_at, self.due_at or 0) - self.priority * PRIORITY_MS
        return self

    def should_auto_resume(self) -> bool:
        """Recoverable and of low risk."""
        return bool(self.status.is_recoverable() and self.risk_level == RiskLevel.LOW)

    def needs_resume_confirmation(self) -> bool:
        """Recoverable and of high risk."""
        return bool(self.status.is_recoverable() and self.risk_level == RiskLevel.HIGH)


AgentTask.add_index(
    AgentTask.index(
        AgentTask.lane,
        AgentTask.rank,
        AgentTask.id,
        where=peewee.SQL("status = 'pending' AND hold IS NULL"),
        name="agent_tasks_ready",
    )
)
AgentTask.add_index(
    AgentTask.index(AgentTask.due_at, where=peewee.SQL("hold = 'due'"), name="agent_tasks_due")
)
AgentTask.add_index(
    AgentTask.index(
        AgentTask.agent_id, where=peewee.SQL("hold = 'unknown_agent'"), name="agent_tasks_unknown"
    )
)
AgentTask.add_index(AgentTask.index(AgentTask.status, AgentTask.created_at, name="agent_tasks_status"))
AgentTask.add_index(
    AgentTask.index(AgentTask.parent_session_id, AgentTask.created_at, name="agent_tasks_session")
)
AgentTask.add_index(
    AgentTask.index(
        AgentTask.parent_task_id, where=peewee.SQL("parent_task_id IS NOT NULL"), name="agent_tasks_parent"
    )
)
AgentTask.add_index(
    AgentTask.index(AgentTask.worker_id, where=peewee.SQL("worker_id IS NOT NULL"), name="agent_tasks_worker")
)
AgentTask.add_index(
    AgentTask.index(
        AgentTask.agent_id,
        AgentTask.key,
        unique=True,
        where=peewee.SQL("key IS NOT NULL"),
        name="agent_tasks_key",
    )
)
AgentTask.add_index(AgentTask.index(AgentTask.created_at, name="agent_tasks_created"))
AgentTask.add_index(
    AgentTask.index(
        AgentTask.expires_at,
        where=peewee.SQL("expires_at IS NOT NULL AND status = 'pending'"),
        name="agent_tasks_expiry",
    )
)

AgentTask.add_index(
    AgentTask.index(
        AgentTask.completed_at, where=peewee.SQL("completed_at IS NOT NULL"), name="agent_tasks_ended"
    )
)
AgentTask.add_index(
    AgentTask.index(
        AgentTask.id, where=peewee.SQL("""instr(result_json, '{"$blob"') > 0"""), name="agent_tasks_blob"
    )
)

FIELDS = field_names(AgentTask)


def submit(db: Database, task: AgentTask, *, now: int) -> AgentTask:
    """Store a pending task and its first event in one transaction.

    Where the task carries a `key` that its agent has used before, the task stored then is returned instead.
    Raises DuplicateTaskError for a known id, KeyConflictError for a known key with another input.
    """
    return submit_many(db, [task], now=now)[0]


def submit_many(db: Database, tasks: Sequence[AgentTask], *, now: int) -> list[AgentTask]:
    """Store many tasks in one transaction: all of them or none."""
    with db.write():
        return [_submit(db, task, now=now) for task in tasks]


def submit_if_absent(db: Database, task: AgentTask, *, now: int) -> bool:
    """Store a pending task unless its id is known; whether it was stored."""
    with db.write():
        if db.row("SELECT 1 FROM agent_tasks WHERE id = ?", (task.id,)) is not None:
            return False
        _submit(db, task, now=now)
        return True


def find(db: Database, task_id: str) -> AgentTask:
    """The task with this id; raises NotFoundError."""
    found = instances(AgentTask, db.rows("SELECT * FROM agent_tasks WHERE id = ?", (task_id,)), FIELDS)
    if not found:
        raise NotFoundError("task", task_id)
    return found[0]


def find_by_key(db: Database, agent_id: str, key: str) -> AgentTask | None:
    """The task that an agent was given under this key."""
    rows = db.rows("SELECT * FROM agent_tasks WHERE agent_id = ? AND key = ?", (agent_id, key))
    return instances(AgentTask, rows, FIELDS)[0] if rows else None


def listing(
    db: Database,
    *,
    status: TaskStatus | None = None,
    lane: Lane | None = None,
    session: str | None = None,
    limit: int = 50,
    cursor: tuple[int, str] | None = None,
    order: Order = Order.NEWEST,
) -> tuple[list[AgentTask], Cursor | None]:
    """A page of tasks, without their input, result and error; and the cursor of the next page."""
    query = AgentTask.select(*_LISTED)
    for column, value in (
        (AgentTask.status, status),
        (AgentTask.lane, lane),
        (AgentTask.parent_session_id, session),
    ):
        query = query if value is None else query.where(column == value)
    stamp, ident = AgentTask.created_at, AgentTask.id
    return paging.page(db, query, stamp, ident, order=order, limit=limit, cursor=cursor)


_LISTED = [
    field
    for field in AgentTask._meta.sorted_fields
    if field.name not in ("input_json", "result_json", "error_json")
]


def children(db: Database, task_id: str) -> list[AgentTask]:
    """The tasks that a task spawned, oldest first."""
    query = AgentTask.select().where(AgentTask.parent_task_id == task_id)
    found: list[AgentTask] = db.select(query.order_by(AgentTask.created_at, AgentTask.id))
    return found


def counts(db: Database) -> dict[str, int]:
    """How many tasks are in each status."""
    found = dict(db.rows("SELECT status, count(*) FROM agent_tasks GROUP BY status"))
    return {str(status): int(found.get(str(status), 0)) for status in TaskStatus}


def _submit(db: Database, task: AgentTask, *, now: int) -> AgentTask:
    if task.key is not None and (known := find_by_key(db, task.agent_id, task.key)) is not None:
        if known.input_json != task.input_json:
            raise KeyConflictError(task.key, known.id)
        return known
    try:
        db.insert(task)
    except (cysqlite.IntegrityError, peewee.IntegrityError) as error:
        if db.row("SELECT 1 FROM agent_tasks WHERE id = ?", (task.id,)) is None:
            raise
        raise DuplicateTaskError(task.id) from error
    payload: dict[str, Any] = {"agent": task.agent_id, "lane": str(task.lane)}
    if task.due_at is not None:
        payload["due_at"] = task.due_at
    events.record(db, task.id, events.AgentEvent.TYPE_TASK_ENQUEUED, payload, now=now)
    db.touch(str(task.lane))
    return task
