"""One row for each recovery pass: what it did, and when the last one was.

Invariant: passes that found nothing are kept for an hour only, so that the table does not grow with time.
"""

from __future__ import annotations

import json

import peewee

from .database import Database, Durability, field_names, instances
from .fields import Int64Field

KEEP_IDLE_MS = 3_600_000


class RecoveryRun(peewee.Model):
    """One pass; times in epoch ms, the rest are counts, `detail_json` the ids by verdict where there are any."""

    id = peewee.AutoField()
    started_at = Int64Field()
    finished_at = Int64Field()
    pid = Int64Field()
    resumed = Int64Field(default=0)
    asked = Int64Field(default=0)
    skipped = Int64Field(default=0)
    quarantined = Int64Field(default=0)
    errors = Int64Field(default=0)
    detail_json = peewee.TextField(null=True)

    class Meta:
        table_name = "recovery_runs"
        legacy_table_names = False
        indexes = ((("started_at",), False),)


def last_started_at(db: Database) -> int | None:
    """When the last pass began, in ms."""
    row = db.row("SELECT max(started_at) FROM recovery_runs")
    return None if row is None else row[0]


def record(
    db: Database, *, started_at: int, finished_at: int, pid: int, verdicts: dict[str, list[str]]
) -> None:
    """Store what a pass did: the ids by verdict (resumed, asked, skipped, quarantined, errors)."""
    found = {name: ids for name, ids in verdicts.items() if ids}
    run = RecoveryRun(
        started_at=started_at,
        finished_at=finished_at,
        pid=pid,
        detail_json=json.dumps(found) if found else None,
        **{name: len(ids) for name, ids in verdicts.items()},
    )
    with db.write(Durability.NORMAL):
        db.insert(run)
        db.change(
            "DELETE FROM recovery_runs WHERE detail_json IS NULL AND started_at < ?",
            (started_at - KEEP_IDLE_MS,),
        )


def recent(db: Database, *, limit: int = 20) -> list[RecoveryRun]:
    """The last passes, newest first."""
    statement = "SELECT * FROM recovery_runs ORDER BY started_at DESC, id DESC LIMIT ?"
    return instances(RecoveryRun, db.rows(statement, (limit,)), field_names(RecoveryRun))
