"""Which tables there are, and how a new or older state file gets them.

Invariant: a state file appears under its name only when it is whole; a migration and its stamp are one transaction;
a file that cannot be read, is empty, is not ours or is newer is refused with its path and cause, never replaced.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cysqlite
import peewee
from playhouse.migrations import Runner

from . import confirmations, copies, events, pauses, recovery_runs, retention, tasks, traces, workers
from .database import Database
from .errors import NewerSchemaError, StorageError, StorageUnreadableError
from .fields import Int64Field

MIGRATIONS = Path(__file__).parent / "migrations"
MODELS: tuple[type[peewee.Model], ...] = (
    tasks.AgentTask,
    traces.TaskTrace,
    events.AgentEvent,
    workers.Worker,
    confirmations.Confirmation,
    confirmations.ConfirmationStep,
    recovery_runs.RecoveryRun,
    pauses.LanePause,
    retention.UpkeepMark,
)
_CREATE, _READWRITE = 4, 2


class Migrations(Runner):  # type: ignore[misc]  # playhouse is untyped
    """The migration runner: stamps are milliseconds, and foreign keys are checked before a migration commits."""

    def __init__(self, db: Database, *, now: int, directory: Path = MIGRATIONS) -> None:
        super().__init__(db, str(directory))

        class Stamp(db.Model):  # type: ignore[name-defined, misc]  # a model of this database, as playhouse makes it
            name = peewee.TextField(unique=True)
            applied = Int64Field(default=lambda: max(now, 1))  # playhouse takes 0 for "not applied yet"

            class Meta:
                table_name = "schema_migration"
                legacy_table_names = False

        self.History = Stamp

    def pending(self) -> list[str]:
        """The migrations that this file lacks; raises NewerSchemaError where it has one that is not known here."""
        rows = self.status()
        unknown = [row.name for row in rows if row.path is None]
        if unknown:
            raise NewerSchemaError(
                f"{self.database.path}: written by a newer version (it has {', '.join(unknown)}); upgrade Relight"
            )
        return [row.name for row in rows if not row.applied]

    def _run(self, name: str, module: Any, direction: str, fake: bool = False) -> None:
        with self.migrator.migration_context(True):
            module.up(self.migrator, self.database)
            broken = self.database.rows("PRAGMA foreign_key_check")
            if broken:
                raise StorageError(
                    f"{self.database.path}: migration {name} leaves dangling rows: {broken[:3]}"
                )
            self.History.create(name=name)


def open_database(
    path: Path, *, now: int, gate_ms: int = 500, durability: str = "power", create: bool = True
) -> Database:
    """Open a state file, creating it where it is absent and migrating it where it is older.

    Raises StorageUnreadableError, NewerSchemaError or StorageLockedError; an existing file is never replaced.
    """
    if not path.parent.is_dir():
        raise StorageUnreadableError(f"{path}: its folder does not exist; create it or correct RELIGHT_HOME")
    locks = path.parent / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        if not create:
            raise StorageUnreadableError(f"{path}: does not exist; relight init creates it")
        with _alone(locks / "migrate"):
            if not path.exists():
                _create(path, now=now)
    db = open_existing(path, gate_ms=gate_ms, durability=durability)
    try:
        upgrade(db, now=now)
    except BaseException:
        db.close_all()
        raise
    return db


def open_existing(path: Path, *, gate_ms: int = 500, durability: str = "power") -> Database:
    """Open a state file as it is, without migrating it; raises StorageUnreadableError or StorageLockedError."""
    if not path.exists():
        raise StorageUnreadableError(f"{path}: does not exist; relight init creates it")
    _refuse_what_is_no_database(path)
    db = Database(path, gate_ms=gate_ms, durability=durability)
    try:
        _verify(db)
    except BaseException:
        db.close_all()
        raise
    return db


def upgrade(
    db: Database, *, now: int, directory: Path = MIGRATIONS, told: copies.Told = copies.silent
) -> list[str]:
    """Apply what is pending, after a copy was made beside the file; the names applied."""
    if not Migrations(db, now=now, directory=directory).pending():
        return []
    with _alone(db.path.parent / "locks" / "migrate"):
        runner = Migrations(db, now=now, directory=directory)
        pending = runner.pending()
        if not pending:
            return []
        copy = db.path.parent / "backups" / f"before-{pending[0]}-{now}.db"
        copy.parent.mkdir(mode=0o700, exist_ok=True)
        copies.copy(db, copy, told=told)
        applied: list[str] = runner.up()
        return applied


def _create(path: Path, *, now: int) -> None:
    """Build the file under another name and give it its own once it is whole."""
    for leftover in (f"{path}-wal", f"{path}-shm"):
        if Path(leftover).exists():
            raise StorageUnreadableError(
                f"{path}: is missing although {leftover} exists; restore it from a backup"
            )
    draft = path.with_name(f".{path.name}.draft")
    for part in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm"), Path(f"{draft}-journal")):
        part.unlink(missing_ok=True)
    conn = cysqlite.connect(str(draft), flags=_READWRITE | _CREATE)  # type: ignore[attr-defined]  # as in database.py
    conn.execute(
        "PRAGMA auto_vacuum = INCREMENTAL"
    ).fetchall()  # works only as the first pragma of a new file
    conn.execute("PRAGMA journal_mode = WAL").fetchall()
    conn.close()
    os.chmod(draft, 0o600)
    db = Database(draft, gate_ms=0, durability="power")
    Migrations(db, now=now).up()
    db.connection().checkpoint(truncate=True)
    db.close_all()
    _sync(draft)
    os.rename(draft, path)
    _sync(path.parent)


def _refuse_what_is_no_database(path: Path) -> None:
    if path.is_dir():
        raise StorageUnreadableError(f"{path}: is a folder, not a state file")
    if path.stat().st_size == 0:
        raise StorageUnreadableError(
            f"{path}: is empty, so it was truncated; restore it from a backup or remove it"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise StorageUnreadableError(f"{path}: no permission to read and write it")


def _verify(db: Database) -> None:
    mode = db.row("PRAGMA journal_mode")
    if mode is None or mode[0] != "wal":
        raise StorageUnreadableError(
            f"{db.path}: journal mode is {mode and mode[0]}, not wal; use a local disk"
        )
    vacuum = db.row("PRAGMA auto_vacuum")
    if vacuum is None or vacuum[0] != 2:
        raise StorageUnreadableError(
            f"{db.path}: auto_vacuum is {vacuum and vacuum[0]}, so Relight did not create it"
        )
    if db.row("SELECT 1 FROM sqlite_master WHERE name = 'schema_migration'") is None:
        raise StorageUnreadableError(f"{db.path}: holds no Relight schema")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
