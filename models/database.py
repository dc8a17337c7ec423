"""Connections to the state file, its transactions, and the one place where SQLite's errors become ours.

Invariants: every connection of a process goes through `Database`, one per thread; a write transaction is BEGIN
IMMEDIATE behind the write gate; a read fetches its whole page, so that no statement stays open afterwards (an
unfinished SELECT pins the WAL and makes BEGIN IMMEDIATE on that connection fail).
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import cysqlite
import peewee
from playhouse.cysqlite_ext import CySqliteDatabase

from . import forks
from .errors import (
    RelightError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageUnreadableError,
)
from .fields import clamped
from .gate import WriteGate
from .marks import clean_text

M = TypeVar("M", bound=peewee.Model)
Params = Sequence[Any]

BUSY_TIMEOUT_S = 5.0  # spec A2.4
_OPEN_READWRITE = 2  # without SQLITE_OPEN_CREATE: a file that vanished is an error, never a new empty one
_JOURNAL_LIMIT = 64 * 1024 * 1024


class Durability(IntEnum):
    """What a commit survives; the value is SQLite's `synchronous`."""

    NORMAL = 1  # death of the process
    FULL = 2  # loss of power


class Database(CySqliteDatabase):  # type: ignore[misc]  # playhouse is untyped
    """One state file, seen from one process.

    `ring` is called with the topics touched by a transaction, after its commit; whoever waits for work sets it.
    """

    def __init__(self, path: Path, *, gate_ms: int, durability: str) -> None:
        super().__init__(str(path), rank_functions=False, lock_type="IMMEDIATE")
        self.path = path
        self.ring: Callable[[frozenset[str]], object] = lambda topics: None
        self.gate = WriteGate(path.parent / "locks", gate_ms=gate_ms)
        self._ceiling = Durability.NORMAL if durability == "process" else Durability.FULL
        self._opened: list[tuple[threading.Thread, Any]] = []
        self._local = _Local()
        forks.guard.register(self)

    # -- transactions -----------------------------------------------------------------------------------------

    @contextmanager
    def write(self, durability: Durability = Durability.FULL) -> Iterator[None]:
        """Run the block as one write transaction, committed when it ends and rolled back when it raises.

        Inside another `write()` it is a savepoint of that transaction. Nothing slow belongs inside.
        Raises StorageLockedError, StorageFullError or StorageUnreadableError.
        """
        if self._local.topics is not None:
            with self._savepoint():
                yield
            return
        with forks.guard:
            topics: set[str] = set()
            passed = self.gate.acquire()
            try:
                conn = self._begin(min(durability, self._ceiling))
                self._local.topics = topics
                yield
                conn.commit()
            except (cysqlite.SqliteError, peewee.PeeweeException) as error:
                self._roll_back()
                raise translated(error, self.path) from error
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._local.topics = None
                if passed:
                    self.gate.release()
        if topics:
            self.ring(frozenset(topics))

    def touch(self, *topics: str) -> None:
        """Have these topics rung once the current transaction is committed."""
        if self._local.topics is None:
            raise RuntimeError("touch() belongs inside write()")
        self._local.topics.update(topics)

    # -- statements -------------------------------------------------------------------------------------------

    def rows(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Run a statement and fetch everything it returns."""
        with forks.guard:
            try:
                return self._execute(sql, params).fetchall()  # type: ignore[no-any-return]
            except (cysqlite.SqliteError, peewee.PeeweeException) as error:
                raise translated(error, self.path) from error

    def row(self, sql: str, params: Params = ()) -> tuple[Any, ...] | None:
        """The first row that a statement returns, or None."""
        found = self.rows(sql, params)
        return found[0] if found else None

    def change(self, sql: str, params: Params = ()) -> int:
        """Run a statement that writes; the number of rows it changed."""
        with forks.guard:
            try:
                self._execute(sql, params)
            except (cysqlite.SqliteError, peewee.PeeweeException) as error:
                raise translated(error, self.path) from error
            return self.connection().changes()  # type: ignore[no-any-return]

    def change_many(self, sql: str, page: Sequence[Params]) -> None:
        """Run one writing statement for each of the parameter rows."""
        with forks.guard:
            try:
                self.connection().executemany(sql, [_storable(params) for params in page])
            except (cysqlite.SqliteError, peewee.PeeweeException) as error:
                raise translated(error, self.path) from error

    def insert(self, record: peewee.Model) -> None:
        """Insert a model instance; the id that the table assigned is set on it."""
        sql, columns = _insert_statement(type(record))
        data = record.__data__
        stored = [field.db_value(data.get(field.name)) for field in columns]  # type: ignore[no-untyped-call]
        self.change(sql, stored)
        if isinstance(record._meta.primary_key, peewee.AutoField):
            record.__data__[record._meta.primary_key.name] = self.connection().last_insert_rowid()

    def select(self, query: peewee.ModelSelect[M]) -> list[M]:
        """The model instances that a peewee query finds, all of them."""
        sql, params = query.sql()
        return instances(query.model, self.rows(sql, params), [node.name for node in query.selected_columns])

    def _execute(self, sql: str, params: Params) -> Any:
        conn = self.connection()
        try:
            return conn.execute(sql, params)
        except (
            UnicodeEncodeError,
            OverflowError,
        ):  # half an emoji, a number of over 64 bits: SQLite has neither
            return conn.execute(sql, _storable(params))

    # -- life of the connections ------------------------------------------------------------------------------

    def close_all(self) -> None:
        """Close every connection of this process, of whatever thread; the next statement opens a new one."""
        with forks.guard.alone():
            self._drop_connections()
            self.gate.close()

    def close_inherited(self) -> None:
        """In a forked child: really close what the parent's threads had opened."""
        self._drop_connections()
        self._local = _Local()

    def _drop_connections(self) -> None:
        opened, self._opened = self._opened, []
        for _, conn in opened:
            conn.close()
        self._lock = threading.Lock()
        self._state = peewee._ConnectionLocal()

    def _connect(self) -> Any:
        self._close_orphaned_connections()
        while True:
            named = _inode(self.path)
            conn = self._opened_file()
            if _inode(self.path) == named:
                break
            conn.close()  # a restore has replaced the file while we waited for it: what we opened is the old one
        self._local.synchronous = 0
        self._opened.append((threading.current_thread(), conn))
        return conn

    def _opened_file(self) -> Any:
        """A connection that holds SQLite's shared lock on the file: from here on nobody can replace it."""
        conn = cysqlite.connect(  # type: ignore[attr-defined]  # cysqlite names no exports
            str(self.path), flags=_OPEN_READWRITE, timeout=BUSY_TIMEOUT_S
        )
        try:
            for pragma, value in CONNECTION_PRAGMAS:
                conn.pragma(pragma, value)
            conn.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except BaseException:
            conn.close()
            raise
        return conn

    def _close_orphaned_connections(self) -> None:
        gone = [entry for entry in self._opened if not entry[0].is_alive()]
        for entry in gone:
            self._opened.remove(entry)
            entry[1].close()

    def _begin(self, durability: int) -> Any:
        try:
            conn = self.connection()
            if self._local.synchronous != durability:
                conn.pragma("synchronous", durability)
                self._local.synchronous = durability
            conn.begin("immediate")
        except (cysqlite.SqliteError, peewee.PeeweeException) as error:
            raise translated(error, self.path) from error
        return conn

    def _roll_back(self) -> None:
        """End the transaction if there is one (SQLite has ended it already on a full disk), keeping the first error.

        What raises may be an interrupt between two lines, so nothing is taken for granted about how far it came.
        """
        conn = self._state.conn
        if conn is not None and conn.in_transaction:
            conn.rollback()

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        name = f"s{uuid.uuid4().hex}"
        conn = self.connection()
        conn.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if conn.in_transaction:
                conn.execute(f"ROLLBACK TO {name}")
                conn.execute(f"RELEASE {name}")
            raise
        conn.execute(f"RELEASE {name}")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


class _Local(threading.local):
    topics: set[str] | None = None
    synchronous: int = 0


def instances(model: type[M], rows: list[tuple[Any, ...]], names: Sequence[str]) -> list[M]:
    """Model instances of a page of rows whose columns are the fields called `names`."""
    converters = [model._meta.fields[name].python_value for name in names]
    return [_instance(model, names, converters, row) for row in rows]


def _instance(model: type[M], names: Sequence[str], converters: list[Any], row: tuple[Any, ...]) -> M:
    """One instance with its data set at once: field by field would take several times as long."""
    made = model(__no_default__=True)
    made.__data__ = {
        name: convert(value) for name, convert, value in zip(names, converters, row, strict=True)
    }
    return made


def field_names(model: type[peewee.Model]) -> list[str]:
    """The fields of a model in the order of its columns: what `RETURNING *` and `SELECT *` give."""
    return [field.name for field in model._meta.sorted_fields]


def translated(error: BaseException, path: Path) -> BaseException:
    """Our error for one of SQLite's; anything else comes back unchanged."""
    if isinstance(error, RelightError) or not isinstance(
        error, (cysqlite.SqliteError, peewee.PeeweeException)
    ):
        return error
    cause = error.args[0] if error.args and isinstance(error.args[0], cysqlite.SqliteError) else error
    if isinstance(cause, (cysqlite.IntegrityError, peewee.IntegrityError)):
        return error
    for kinds, ours, what in _TRANSLATIONS:
        if isinstance(cause, kinds):
            return ours(f"{path}: {what} ({cause})")
    text = str(cause)
    if "ext=4874" in text:  # SQLITE_IOERR_SHMSIZE: no room for the index of the log
        return StorageFullError(f"{path}: no space is left on the disk ({cause})")
    if "unable to open" in text or "I/O error" in text or "code=10" in text or "code=14" in text:
        return StorageUnreadableError(f"{path}: cannot be opened or read ({cause})")
    if "code=11" in text or "code=26" in text:  # CORRUPT, NOTADB: not always raised as DatabaseCorruptError
        return StorageUnreadableError(f"{path}: the file is damaged or not a database ({cause})")
    if "out of memory" in text or "interrupted" in text:
        return StorageError(f"{path}: {cause}")
    return error


_TRANSLATIONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[StorageError], str], ...] = (
    (cysqlite.DatabaseLockedError, StorageLockedError, "another process holds the write lock"),
    (cysqlite.DiskFullError, StorageFullError, "no space is left on the disk"),
    (cysqlite.ReadOnlyError, StorageUnreadableError, "the file or its folder is read-only"),
    (cysqlite.AuthorizationError, StorageUnreadableError, "access is not permitted"),
    (cysqlite.DatabaseCorruptError, StorageUnreadableError, "the file is damaged or not a database"),
)

CONNECTION_PRAGMAS: tuple[tuple[str, int], ...] = (
    ("foreign_keys", 1),
    ("journal_size_limit", _JOURNAL_LIMIT),
    ("temp_store", 2),  # MEMORY: batched claims were measured 1.6–3 times cheaper
    *((("fullfsync", 1), ("checkpoint_fullfsync", 1)) if sys.platform == "darwin" else ()),
)


def _storable(params: Params) -> list[Any]:
    """The parameters with lone surrogates replaced and integers clamped."""
    return [
        clean_text(value) if isinstance(value, str) else clamped(value) if isinstance(value, int) else value
        for value in params
    ]


@cache
def _insert_statement(model: type[peewee.Model]) -> tuple[str, list[peewee.Field]]:
    """The INSERT of every column of a model but an assigned id, as peewee writes it."""
    fields = [f for f in model._meta.sorted_fields if not isinstance(f, peewee.AutoField)]
    sql, _ = model.insert({field: None for field in fields}).sql()
    return sql, fields
