"""What a person has paused: a lane, by a row here, or one pending task, by its hold.

Invariant: the rows of `lane_pauses` are what claims look at, so a pause outlives every process; what runs already goes
on to its end. Pausing what is paused, or going on with what is not, changes nothing.
"""

from __future__ import annotations

import peewee

from . import tasks, transitions
from .database import Database, field_names, instances
from .fields import Int64Field
from .moves import Move
from .tasks import HOLD_DUE, HOLD_PAUSED, AgentTask


class LanePause(peewee.Model):
    """A lane from which nothing is claimed; `paused_at` in epoch ms."""

    lane = peewee.TextField(primary_key=True)
    paused_at = Int64Field()
    paused_by = peewee.TextField()

    class Meta:
        table_name = "lane_pauses"
        legacy_table_names = False


def lanes(db: Database) -> dict[str, LanePause]:
    """The paused lanes."""
    found = instances(LanePause, db.rows("SELECT * FROM lane_pauses"), field_names(LanePause))
    return {pause.lane: pause for pause in found}


def pause_lane(db: Database, lane: str, *, by: str, now: int) -> bool:
    """Let nothing of a lane be claimed any more; whether that is new."""
    statement = "INSERT OR IGNORE INTO lane_pauses (lane, paused_at, paused_by) VALUES (?, ?, ?)"
    with db.write():
        return bool(db.change(statement, (lane, now, by)))


def unpause_lane(db: Database, lane: str) -> bool:
    """Let the tasks of a lane be claimed again; whether it was paused."""
    with db.write():
        gone = bool(db.change("DELETE FROM lane_pauses WHERE lane = ?", (lane,)))
        db.touch(lane)
        return gone


def pause_task(db: Database, task_id: str, *, by: str, now: int) -> AgentTask:
    """pending → pending: hold a task until a person lets it go on. Raises StaleMove where it is not pending."""
    with db.write():
        task = tasks.find(db, task_id)
        if task.hold == HOLD_PAUSED:
            return task
        payload = {"hold": HOLD_PAUSED, "by": by}
        return transitions.apply(db, Move.HOLD, task_id, now=now, payload=payload, hold=HOLD_PAUSED)


def unpause_task(db: Database, task_id: str, *, by: str, now: int) -> AgentTask:
    """pending → pending: let a paused task go on, when it is due; any other task stays as it is."""
    with db.write():
        task = tasks.find(db, task_id)
        if task.hold != HOLD_PAUSED:
            return task
        hold = HOLD_DUE if task.due_at is not None and task.due_at > now else None
        task = transitions.apply(db, Move.RELEASE, task_id, now=now, payload={"by": by}, hold=hold)
        db.touch(task.lane)
        return task
