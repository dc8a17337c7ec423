"""What we ask of Huey's own tables (`task`, `schedule`, `kv`, `counter`) beyond Huey's statements.

Invariant: they hold plain Huey tasks only; an agent task is its row and never has a message here.
"""

from __future__ import annotations

from .database import Database


def is_due(db: Database, queue: str, *, now_s: float) -> bool:
    """Whether a scheduled message of a queue has come due; a look that takes no lock."""
    return (
        db.row("SELECT 1 FROM schedule WHERE queue = ? AND timestamp <= ? LIMIT 1", (queue, now_s))
        is not None
    )


def put_result(db: Database, queue: str, key: str, value: bytes, *, now: int) -> None:
    """Store the result of a plain task, with its time in ms: one that nobody reads is removed after a while."""
    statement = "INSERT OR REPLACE INTO kv (queue, key, value, stored_at) VALUES (?, ?, ?, ?)"
    with db.write():
        db.change(statement, (queue, key, value, now))
        db.touch("watch")


def put_if_absent(db: Database, queue: str, key: str, value: bytes) -> bool:
    """Store a value unless its key has one."""
    with db.write():
        return (
            db.change("INSERT OR IGNORE INTO kv (queue, key, value) VALUES (?, ?, ?)", (queue, key, value))
            == 1
        )


def take_minute(db: Database, queue: str, name: str, minute: int) -> bool:
    """Whether a periodic task has not been enqueued for this minute or a later one; from now on it has.

    One row for each name, however long it runs; fixed width, because values are compared as bytes.
    """
    statement = """
        INSERT INTO kv (queue, key, value) VALUES (?, ?, ?)
        ON CONFLICT (queue, key) DO UPDATE SET value = excluded.value WHERE excluded.value > value
    """
    with db.write():
        return db.change(statement, (queue, f"periodic:{name}", b"%020d" % minute)) == 1
