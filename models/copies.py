"""Copies of a state file that is in use: whole, of one moment, durable before they get their name.

Invariant: a copy under its final name is complete. It holds everything that was committed before it began: one read
transaction spans it, so writers go on and no page of theirs gets in between.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cysqlite
import peewee

from . import forks
from .database import Database, translated
from .errors import StorageError, StorageFullError

Told = Callable[[str, int, int], object]
_STEP_PAGES = 1024
_SCARCE_BYTES = 8 << 20  # less than a step and the metadata of a file system


@contextmanager
def storage_errors(file: Path) -> Iterator[None]:
    """In the block, what the disk or SQLite refuses becomes a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(f"{error.filename or file}: {error.strerror or error}") from error
    except (cysqlite.SqliteError, peewee.PeeweeException) as error:
        raise translated(error, file) from error


def silent(what: str, done: int, total: int) -> None:
    """Hear of progress and say nothing."""


def copy(db: Database, target: Path, *, told: Told = silent) -> None:
    """Copy the state as it is now to a new file, readable by its owner alone; `told` hears how far it is, in pages."""
    partial = target.with_name(f".{target.name}.partial")
    discard(partial)
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _copy_pages(db, partial, told)
        sync(partial)
        os.rename(partial, target)
        sync(target.parent)
    finally:
        discard(partial)


def second_name(file: Path, name: Path) -> None:
    """Give a file another name beside its own; where the file system has no such thing, a copy."""
    name.unlink(missing_ok=True)
    try:
        os.link(file, name)
    except OSError:
        shutil.copy2(file, name)


def discard(file: Path) -> None:
    """Remove a state file that nobody needs, with what lies beside it."""
    for end in ("", "-wal", "-shm", "-journal"):
        file.with_name(f"{file.name}{end}").unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_pages(db: Database, partial: Path, told: Told) -> None:
    def progress(left: int, total: int, is_done: bool) -> None:
        told("pages", total - left, total)

    dest = cysqlite.connect(str(partial))  # type: ignore[attr-defined]  # as in database.py
    try:
        with forks.guard:
            conn = db.connection()
            conn.begin("deferred")
            try:
                conn.execute("SELECT count(*) FROM sqlite_master").fetchall()  # from here on it is one moment
                conn.backup(dest, pages=_STEP_PAGES, progress=progress)
            finally:
                conn.rollback()
    except cysqlite.SqliteError as error:
        raise _failed(partial, error) from error
    finally:
        dest.close()


def _failed(partial: Path, error: Exception) -> StorageError:
    """Of an error of the copy itself cysqlite tells only that there was one, so look at the disk."""
    if shutil.disk_usage(partial.parent).free < _SCARCE_BYTES:
        return StorageFullError(f"{partial.parent}: no space is left on the disk for the copy ({error})")
    return StorageError(f"{partial}: the copy failed ({error})")
