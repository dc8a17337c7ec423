"""The processes that run tasks, as far as they must be known after their death.

Invariant: `dead_at` is set only by who holds the worker's kernel lock (or by a restore); from then on it is the proof.
"""

from __future__ import annotations

import peewee

from .database import Database, Durability, field_names, instances
from .fields import Int64Field


class Worker(peewee.Model):
    """One process that claims tasks; times in epoch ms. `renewed_at` informs people, the lease is in the lock file."""

    id = peewee.TextField(primary_key=True)
    lane = peewee.TextField()
    pid = Int64Field()
    host = peewee.TextField()
    lock_inode = Int64Field()
    nonce = peewee.TextField()
    started_at = Int64Field()
    renewed_at = Int64Field()
    dead_at = Int64Field(null=True)

    class Meta:
        table_name = "workers"
        legacy_table_names = False


Worker.add_index(Worker.index(Worker.id, where=peewee.SQL("dead_at IS NULL"), name="workers_alive"))

FIELDS = field_names(Worker)


def insert(
    db: Database, *, id: str, lane: str, pid: int, host: str, lock_inode: int, nonce: str, now: int
) -> None:
    """Make a worker known, once it holds its lock."""
    worker = Worker(
        id=id,
        lane=lane,
        pid=pid,
        host=host,
        lock_inode=lock_inode,
        nonce=nonce,
        started_at=now,
        renewed_at=now,
    )
    with db.write(Durability.NORMAL):
        db.insert(worker)


def renew(db: Database, worker_id: str, *, now: int) -> None:
    """Note that a worker was alive now."""
    with db.write(Durability.NORMAL):
        db.change("UPDATE workers SET renewed_at = ? WHERE id = ?", (now, worker_id))


def find(db: Database, worker_id: str) -> Worker | None:
    """One worker, dead or alive, as long as it is remembered."""
    found = instances(Worker, db.rows("SELECT * FROM workers WHERE id = ?", (worker_id,)), FIELDS)
    return found[0] if found else None


def alive(db: Database) -> list[Worker]:
    """The workers that are not proved dead."""
    return instances(Worker, db.rows("SELECT * FROM workers WHERE dead_at IS NULL ORDER BY id"), FIELDS)


def mark_dead(db: Database, worker_id: str, *, now: int) -> None:
    """Commit the proof that a worker is dead; whoever calls holds its lock."""
    with db.write():
        db.change("UPDATE workers SET dead_at = ? WHERE id = ? AND dead_at IS NULL", (now, worker_id))


def running_claims(db: Database, worker_id: str) -> list[tuple[str, int]]:
    """The (task id, attempt) that are running under a worker's name."""
    statement = "SELECT id, attempt FROM agent_tasks WHERE worker_id = ? AND status = 'running'"
    return [(row[0], row[1]) for row in db.rows(statement, (worker_id,))]


def forget_dead(db: Database, *, before: int) -> int:
    """Remove workers that died before `before` (ms) and own no task any more; how many."""
    statement = """
        DELETE FROM workers WHERE dead_at < ? AND id NOT IN (SELECT worker_id FROM agent_tasks WHERE worker_id IS NOT NULL)
    """
    with db.write(Durability.NORMAL):
        return db.change(statement, (before,))
