"""Bringing a state file to this version, and backing it up as it is.

Invariant: a backup never migrates: it is what one makes before an upgrade.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..models import backups, copies, inspection, schema
from ..models.backups import Backup
from ..models.copies import Told, silent
from ..models.database import Database
from ..models.errors import ConflictError, NewerSchemaError
from .clock import now_ms
from .exclusive import Exclusive
from .home import STATE_FILE
from .lock_files import FOLDER
from .settings import Settings


@dataclass
class Migrated:
    """The migrations of a state file: applied (with their time in ms), applied by this call, and still pending."""

    applied: dict[str, int]
    now: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)


def plan(settings: Settings) -> Migrated:
    """What is applied and what is pending; nothing is changed. Raises NewerSchemaError."""
    with _as_it_is(settings) as db:
        found = inspection.plan(db, schema.MIGRATIONS)
    if found.unknown:
        raise NewerSchemaError(
            f"{settings.home / STATE_FILE}: written by a newer version (it has {', '.join(found.unknown)}); upgrade Relight"
        )
    return Migrated(applied=found.applied, pending=found.pending)


def migrate(settings: Settings, *, told: Told = silent) -> Migrated:
    """Apply what is pending, after a copy was made in `backups/`."""
    with copies.storage_errors(settings.home / STATE_FILE), _as_it_is(settings) as db:
        applied = schema.upgrade(db, now=now_ms(settings.test_clock), told=told)
    return Migrated(**{**vars(plan(settings)), "now": applied})


def backup(settings: Settings, dest: Path, *, told: Told = silent) -> Backup:
    """Back up the state directory to a new folder; one backup at a time. Raises ConflictError or StorageError."""
    with copies.storage_errors(dest), Exclusive(settings.home, "backup") as lock, _as_it_is(settings) as db:
        if not lock.take():
            raise ConflictError(f"another backup of {settings.home} runs (pid {lock.holder()})")
        return backups.write(db, dest, told=told)


@contextmanager
def _as_it_is(settings: Settings) -> Iterator[Database]:
    (settings.home / FOLDER).mkdir(mode=0o700, exist_ok=True)
    db = schema.open_existing(
        settings.home / STATE_FILE, gate_ms=settings.gate_ms, durability=settings.durability
    )
    try:
        yield db
    finally:
        db.close_all()
