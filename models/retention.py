"""What leaves the state file, and what never does.

Invariants: unfinished tasks keep everything but old pulses; a task that has ended loses its traces in ascending order,
so that a missing first trace says "trimmed" and nobody runs its finished steps again; a row goes last, and stays as long
as its parent could still ask for it. `trimmed_below` follows every removed event in the same transaction. Everything
here that writes takes a bounded page and belongs inside a `db.write()` of its caller, who watches the time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import peewee

from .database import Database
from .fields import Int64Field

SCAN = 2_000  # index entries read by one look, outside of any write transaction: about 2 ms
GRAIN = 50  # rows removed by one call: about 0.5 ms


class UpkeepMark(peewee.Model):
    """How far an upkeep job has come, so that the next one does not read the same rows again."""

    name = peewee.TextField(primary_key=True)
    value = Int64Field()

    class Meta:
        table_name = "upkeep_marks"
        legacy_table_names = False


def mark(db: Database, name: str) -> int:
    """The value of a mark; 0 where it was never set."""
    row = db.row("SELECT value FROM upkeep_marks WHERE name = ?", (name,))
    return int(row[0]) if row else 0


def set_mark(db: Database, name: str, value: int) -> None:
    """Move a mark."""
    db.change(
        "INSERT INTO upkeep_marks (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


# -- pulses ---------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a scan is: a time in ms and a row id."""

    stamp: int
    id: int


class Pulse(NamedTuple):
    """An event that may go."""

    id: int
    task_id: str
    seq: int


def old_pulses(db: Database, *, after: Place, before: int) -> tuple[list[Pulse], Place | None]:
    """Among the next events older than `before` (ms), the pulses; and where to go on, None at the end."""
    rows = db.rows(_OLD_EVENTS, (*after, before, SCAN))
    pulses = [Pulse(*row[1:4]) for row in rows if not row[4]]
    return pulses, Place(rows[-1][0], rows[-1][1]) if len(rows) == SCAN else None


_OLD_EVENTS = """
    SELECT timestamp, id, task_id, seq, is_structural FROM agent_events
    WHERE (timestamp, id) > (?, ?) AND timestamp < ? ORDER BY timestamp, id LIMIT ?
"""


def remove_pulses(db: Database, pulses: Sequence[Pulse]) -> int:
    """Remove these events; how many there still were."""
    gone = db.change(
        "DELETE FROM agent_events WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps([pulse.id for pulse in pulses]),),
    )
    last: dict[str, int] = {}
    for pulse in pulses:
        last[pulse.task_id] = max(pulse.seq, last.get(pulse.task_id, 0))
    db.change_many(_TRIM_BELOW, [(seq + 1, task_id) for task_id, seq in last.items()])
    return gone


_TRIM_BELOW = "UPDATE agent_tasks SET trimmed_below = max(trimmed_below, ?) WHERE id = ?"


# -- what a task leaves behind --------------------------------------------------------------------------------


class Ended(NamedTuple):
    """A task that has ended, and where it stands in the scan."""

    place: Place
    task_id: str


def ended(db: Database, *, after: Place, before: int, limit: int = SCAN) -> list[Ended]:
    """The next tasks that ended before `before` (ms), in the order in which they did."""
    return [Ended(Place(row[0], row[1]), row[2]) for row in db.rows(_ENDED, (*after, before, limit))]


_ENDED = """
    SELECT completed_at, rowid, id FROM agent_tasks
    WHERE completed_at IS NOT NULL AND (completed_at, rowid) > (?, ?) AND completed_at < ?
    ORDER BY completed_at, rowid LIMIT ?
"""


def trim(db: Database, task_id: str, *, before: int) -> int:
    """Remove a grain of the traces, events and decided confirmations of a task that ended before `before`.

    How many rows; less than GRAIN means that nothing is left. A task that goes on meanwhile loses nothing.
    """
    if db.row(_MAY_GO, (task_id, before)) is None:
        return 0
    gone = db.change(_TRIM_TRACES, (task_id, GRAIN))
    if gone < GRAIN:
        gone += _trim_events(db, task_id, GRAIN - gone)
    if gone < GRAIN:
        db.change("DELETE FROM confirmations WHERE task_id = ? AND status <> 'open'", (task_id,))
    return gone


# A worker that still executes a step of a task that was ended meanwhile is named in it, and will append its outcome.
_MAY_GO = """
    SELECT 1 FROM agent_tasks WHERE id = ? AND completed_at < ?
    AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = agent_tasks.worker_id AND w.dead_at IS NULL)
"""
_TRIM_TRACES = """
    DELETE FROM task_traces WHERE id IN (SELECT id FROM task_traces WHERE task_id = ? ORDER BY step_index LIMIT ?)
"""


def _trim_events(db: Database, task_id: str, limit: int) -> int:
    statement = "SELECT id, task_id, seq FROM agent_events WHERE task_id = ? ORDER BY seq LIMIT ?"
    page = [Pulse(*row) for row in db.rows(statement, (task_id, limit))]
    return remove_pulses(db, page) if page else 0


def remove(db: Database, task_id: str, *, before: int) -> bool:
    """Remove the row of a trimmed task that ended before `before`; whether it went. Its key may be used again."""
    return db.change(_REMOVE, (task_id, before)) == 1


# A parent that is not completed may be replayed, and then asks for the children that it recorded.
_REMOVE = """
    DELETE FROM agent_tasks WHERE id = ? AND completed_at < ?
    AND NOT EXISTS (SELECT 1 FROM task_traces r WHERE r.task_id = agent_tasks.id)
    AND NOT EXISTS (SELECT 1 FROM agent_events e WHERE e.task_id = agent_tasks.id)
    AND NOT EXISTS (SELECT 1 FROM confirmations c WHERE c.task_id = agent_tasks.id)
    AND NOT EXISTS (SELECT 1 FROM agent_tasks p WHERE p.id = agent_tasks.parent_task_id AND p.status <> 'completed')
"""


# -- the rest -------------------------------------------------------------------------------------------------


def remove_runs(db: Database, *, before: int) -> int:
    """Remove a page of the recovery passes that began before `before`; the last one stays. How many."""
    return db.change(_REMOVE_RUNS, (before, GRAIN))


_REMOVE_RUNS = """
    DELETE FROM recovery_runs WHERE id IN (
        SELECT id FROM recovery_runs WHERE started_at < ? AND id < (SELECT max(id) FROM recovery_runs)
        ORDER BY started_at LIMIT ?
    )
"""


def remove_plain_results(db: Database, *, before: int) -> int:
    """Remove a page of the results of plain Huey tasks that were stored before `before` and never read. How many."""
    statement = """
        DELETE FROM kv WHERE (queue, key) IN (
            SELECT queue, key FROM kv WHERE stored_at IS NOT NULL AND stored_at < ? ORDER BY stored_at LIMIT ?
        )
    """
    return db.change(statement, (before, GRAIN))


# -- looking beforehand ---------------------------------------------------------------------------------------


def due(db: Database, *, pulses: int, records: int, tasks: int) -> dict[str, int]:
    """How many rows of each kind are older than these times (ms) and would go; a pulse counts as a pulse only."""
    asked = {
        "pulses": ("SELECT count(*) FROM agent_events WHERE timestamp < ? AND is_structural = 0", (pulses,)),
        "records": (_DUE_RECORDS, (records, records, pulses)),
        "tasks": (_DUE_TASKS, (tasks,)),
    }
    found = {name: db.row(statement, params) for name, (statement, params) in asked.items()}
    return {name: int(row[0]) if row else 0 for name, row in found.items()}


_DUE_RECORDS = """
    SELECT (
        SELECT count(*) FROM task_traces WHERE task_id IN (SELECT id FROM agent_tasks WHERE completed_at < ?)
    ) + (
        SELECT count(*) FROM agent_events WHERE task_id IN (SELECT id FROM agent_tasks WHERE completed_at < ?)
        AND NOT (is_structural = 0 AND timestamp < ?)
    )
"""
_DUE_TASKS = """
    SELECT count(*) FROM agent_tasks t WHERE t.completed_at < ?
    AND NOT EXISTS (SELECT 1 FROM agent_tasks p WHERE p.id = t.parent_task_id AND p.status <> 'completed')
"""
