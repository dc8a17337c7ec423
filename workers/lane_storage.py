"""Where a lane's plain Huey messages, results and locks lie: Huey's own four tables, in the state file.

Invariant: every statement runs through `Database`; there is no second way to the file, so the pragmas, the write gate
and the rules of forking hold for Huey too. The tables are made by our migration, never by Huey.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from huey.storage import CySqliteStorage

from ..models import claims, plain_messages
from ..models.database import Database
from .bells import Bell

Listed = Callable[[int | None], list[bytes]]


class LaneStorage(CySqliteStorage):  # type: ignore[misc]  # huey is untyped
    """Huey's storage over our database; making one opens nothing."""

    blocking = True  # a lane waits in its `dequeue`; a consumer that slept as well would add its back-off

    def __init__(
        self,
        name: str,
        *,
        database: Callable[[], Database],
        watch: Callable[[], Bell],
        agent_tasks: Listed,
        now: Callable[[], int],
    ) -> None:
        super().__init__(name, filename="", create_tables=False)
        self._database, self._watch, self._agent_tasks, self._now = database, watch, agent_tasks, now

    @contextmanager
    def db(self, commit: bool = False, close: bool = False) -> Iterator[_Statements]:
        """What Huey's statements run on: a write transaction of ours, or single reads."""
        database = self._database()
        if not commit:
            yield _Statements(database)
            return
        with database.write():
            yield _Statements(database)

    def close(self) -> bool:
        """Close this process's connections, as before a fork; each is opened again when it is needed."""
        self._database().close_all()
        return True

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Store a message and wake the lane once it is committed."""
        database = self._database()
        with database.write():
            super().enqueue(data, priority)
            database.touch(self.name)

    def enqueue_periodic(self, name: str, minute: int, data: bytes, priority: float | None) -> bool:
        """Store the message of a periodic task, unless any process has done so for this minute or a later one."""
        database = self._database()
        with database.write():
            first = plain_messages.take_minute(database, self.name, name, minute)
            if first:
                self.enqueue(data, priority)
        return first

    def queue_size(self) -> int:
        """Plain messages, and the agent tasks that could be claimed."""
        return int(super().queue_size()) + claims.ready_count(self._database(), self.name)

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """Agent tasks in the order of their claims, then plain messages."""
        found = self._agent_tasks(limit)
        rest = None if limit is None else limit - len(found)
        return found + list(super().enqueued_items(rest))

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        """Huey's times are UTC without saying so; read as local time they would shift between two time zones."""
        super().add_to_schedule(data, _as_utc(ts))

    def read_schedule(self, ts: datetime) -> list[bytes]:
        """Look first: once a second for nothing is too often for the write lock."""
        ts = _as_utc(ts)
        due = plain_messages.is_due(self._database(), self.name, now_s=ts.timestamp())
        return list(super().read_schedule(ts)) if due else []

    def put_data(self, key: str, value: bytes, is_result: bool = False) -> None:
        """Store a value; whoever waits for a result is woken."""
        if is_result:
            plain_messages.put_result(self._database(), self.name, key, value, now=self._now())
        else:
            super().put_data(key, value)

    def wait_result(
        self, key: str, timeout: float | None = None, backoff: float = 1.15, max_delay: float = 1.0
    ) -> bool:
        """Whether a result came, at the latest after `timeout` seconds; the bell tells, `max_delay` covers a lost one."""
        bell = self._watch()
        bell.start()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = bell.generation
            if self.has_data_for_key(key):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            bell.wait(seen, min(left, max_delay))

    def put_if_empty(self, key: str, value: bytes, ttl: float | None = None) -> bool:
        """Store a value unless there is one."""
        if ttl is not None:
            raise NotImplementedError("ttl is not supported by this storage.")
        return plain_messages.put_if_absent(self._database(), self.name, key, value)


class _Statements:
    """The little of a cursor that Huey uses; a read is fetched whole, so nothing stays open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: list[tuple[Any, ...]] = []
        self.rowcount = -1

    def execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        if sql.lstrip()[:6].lower() == "select":
            self._rows = self._database.rows(sql, params)
        else:
            self.rowcount = self._database.change(sql, params)

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        return rows


def _as_utc(ts: datetime) -> datetime:
    return ts if ts.tzinfo else ts.replace(tzinfo=UTC)
