"""Looking into a state file without changing anything: not the file, not its log, not the folder.

Invariant: a look takes no write lock, runs no recovery of the log, creates no file, and leaves none behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cysqlite
from playhouse.migrations import Migration

from .database import BUSY_TIMEOUT_S, Database
from .errors import StorageUnreadableError
from .space import wal_path

_READONLY, _URI = 1, 0x40
_HEADER_BYTES = 100


@dataclass(frozen=True)
class Header:
    """What the first bytes of an SQLite file say."""

    is_wal: bool
    is_incremental: bool


@dataclass(frozen=True)
class Plan:
    """The migrations of a file: applied with their time in ms, not yet applied, and not known to this version."""

    applied: dict[str, int]
    pending: list[str]
    unknown: list[str]


class LookOnly(Database):
    """A state file that is only read; every function that reads takes it for a Database."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, gate_ms=0, durability="power")

    def _connect(self) -> Any:
        conn = cysqlite.connect(  # type: ignore[attr-defined]  # as in database.py
            _address(self.path), uri=True, flags=_READONLY | _URI, timeout=BUSY_TIMEOUT_S
        )
        self._opened.append((threading.current_thread(), conn))
        return conn


def sqlite_version() -> tuple[int, ...]:
    """The version of the SQLite library that opens state files."""
    version: tuple[int, ...] = LookOnly.server_version
    return version


@contextmanager
def look(path: Path) -> Iterator[LookOnly]:
    """Look into a state file; raises StorageUnreadableError where that is not possible without changing something."""
    db = LookOnly(path)
    try:
        if has_log(path) and not path.with_name(f"{path.name}-shm").exists():
            raise StorageUnreadableError(
                f"{path}: {wal_path(path).name} holds changes that are not in the file yet, and nobody has it open; "
                "they get there when any verb opens it"
            )
        yield db
    finally:
        db.close_all()


def has_log(path: Path) -> bool:
    """Whether changes lie in the write-ahead log."""
    try:
        return wal_path(path).stat().st_size > 0
    except FileNotFoundError:
        return False


def header(path: Path) -> Header | None:
    """What the header of a file says; None where it is no SQLite file.

    Only for a process that has not opened the file: closing a descriptor of it drops the locks of its connections.
    """
    with path.open("rb") as file:
        first = file.read(_HEADER_BYTES)
    if len(first) < _HEADER_BYTES or not first.startswith(b"SQLite format 3\0"):
        return None
    return Header(is_wal=first[18:20] == b"\2\2", is_incremental=any(first[52:56]) and any(first[64:68]))


def is_ours(db: Database) -> bool:
    """Whether a database holds a schema of Relight."""
    return db.row("SELECT 1 FROM sqlite_master WHERE name = 'schema_migration'") is not None


def task_count(db: Database) -> int:
    """How many tasks a file holds."""
    row = db.row("SELECT count(*) FROM agent_tasks")
    return int(row[0]) if row else 0


def faults(db: Database, *, whole: bool = False) -> list[str]:
    """What SQLite finds wrong in the file; `whole` also compares each index with its table."""
    rows = db.rows("PRAGMA integrity_check(20)" if whole else "PRAGMA quick_check(20)")
    return [str(row[0]) for row in rows if row[0] != "ok"]


def plan(db: Database, directory: Path) -> Plan:
    """Which migrations of a folder a file has and lacks."""
    known = [found.name for found in Migration.load_directory(str(directory))]
    applied = {
        row[0]: int(row[1]) for row in db.rows("SELECT name, applied FROM schema_migration ORDER BY name")
    }
    return Plan(
        applied=applied,
        pending=[name for name in known if name not in applied],
        unknown=[name for name in applied if name not in known],
    )


def recorded_versions(db: Database) -> list[tuple[str, str | None, int]]:
    """The (agent, version that recorded it, number of tasks) of all tasks that have not ended and began to run."""
    statement = """
        SELECT agent_id, handler_version, count(*) FROM agent_tasks
        WHERE status IN ('pending', 'running', 'interrupted', 'idle', 'swapped') AND attempt > 0
        GROUP BY agent_id, handler_version ORDER BY agent_id, handler_version
    """
    return [(row[0], row[1], int(row[2])) for row in db.rows(statement)]


def _address(path: Path) -> str:
    """Without a log nobody has the file open, and it is read as it is; with one, through the index of the others."""
    how = "mode=ro&readonly_shm=1" if has_log(path) else "immutable=1"
    return f"file:{quote(str(path))}?{how}"
