"""How large the state file is, and how it becomes smaller.

Invariant: pages go back to the disk in bites that a writer does not notice, and nobody waits for a reader here: what a
checkpoint cannot do now, a later one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cysqlite

from . import forks
from .database import BUSY_TIMEOUT_S, Database

KEPT_FREE_PAGES = 256  # 1 MiB: a file that shrinks and grows again with every task would only cost writes
_BRIEFLY_S = 0.05


@dataclass(frozen=True)
class Size:
    """Bytes: of the file, of its write-ahead log, and how much of the file is free pages."""

    file_bytes: int
    wal_bytes: int
    free_bytes: int


def size(db: Database) -> Size:
    """How large the state file is now."""
    free = _number(db, "PRAGMA freelist_count") * _number(db, "PRAGMA page_size")
    return Size(_bytes(db.path), _bytes(wal_path(db.path)), free)


def wal_path(path: Path) -> Path:
    """Where the write-ahead log of a state file lies."""
    return path.with_name(f"{path.name}-wal")


def free_pages(db: Database) -> int:
    """How many pages of the file hold nothing and could go back to the disk."""
    return max(0, _number(db, "PRAGMA freelist_count") - KEPT_FREE_PAGES)


def give_back(db: Database) -> int:
    """Give a few free pages back, inside a write transaction; how many. Moving one costs 10–50 µs."""
    before = _number(db, "PRAGMA freelist_count")
    if before <= KEPT_FREE_PAGES:
        return 0
    db.rows("PRAGMA incremental_vacuum(16)")
    return before - _number(db, "PRAGMA freelist_count")


@contextmanager
def own_checkpoints(db: Database) -> Iterator[None]:
    """In the block, commits of this thread never copy the log into the file: `checkpoint` does, outside of the gate."""
    conn = db.connection()
    conn.set_autocheckpoint(0)
    try:
        yield
    finally:
        if not conn.is_closed():
            conn.set_autocheckpoint(1000)  # SQLite's default


def checkpoint(db: Database) -> None:
    """Copy what can be copied from the log into the file; nobody waits, neither here nor elsewhere."""
    with forks.guard:
        db.connection().checkpoint()


def truncate_wal(db: Database) -> bool:
    """Empty the log file; False where a reader or writer is in the way for longer than a moment."""
    checkpoint(db)
    with forks.guard:
        conn = db.connection()
        conn.set_busy_handler(_BRIEFLY_S)
        try:
            conn.checkpoint(truncate=True)
        except cysqlite.DatabaseLockedError:
            return False
        finally:
            conn.set_busy_handler(BUSY_TIMEOUT_S)
    return _bytes(wal_path(db.path)) == 0


def _number(db: Database, question: str) -> int:
    row = db.row(question)
    return int(row[0]) if row else 0


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
