"""Retention and space: the pass that removes what is old and gives the room back.

Invariants: no write transaction of a pass lasts longer than a few milliseconds, and between two of them others have their
turn; a pass may be killed anywhere and the next one goes on; one pass runs at a time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from ..models import copies, retention, space, unnamed_blobs, workers
from ..models.database import Durability
from ..models.errors import ConflictError
from ..models.retention import GRAIN, Place
from .exclusive import Exclusive
from .home import Home

log = logging.getLogger("relight.upkeep")

T = TypeVar("T")

DAY_MS = 24 * 3_600_000
LOCK = "tidy"
_BITE_S = 0.0015  # of write lock; its commit and a last grain come on top
_REST_S = 0.002  # at least; as long as the bite took, if that was longer
_CHECKPOINT_EVERY = 50  # bites: about as many pages as SQLite itself lets the log grow
_WAL_BYTES = 16 << 20  # four times what the log has while checkpoints keep up


@dataclass
class Tidied:
    """What a pass removed, in rows, and the room before and after; `finished` is false where its time was over.

    `records` are the traces and events of ended tasks, `runs` recovery passes, `results` those of plain Huey tasks,
    `pages` the calls that gave pages back.
    """

    pulses: int = 0
    records: int = 0
    tasks: int = 0
    runs: int = 0
    results: int = 0
    workers: int = 0
    pages: int = 0
    blobs: unnamed_blobs.Swept = field(default_factory=unnamed_blobs.Swept)
    before: space.Size | None = None
    after: space.Size | None = None
    finished: bool = True

    def document(self) -> dict[str, Any]:
        """The same as JSON's own types."""
        return asdict(self)


class OutOfTime(Exception):
    """The pass has no time left, or its process is stopping; what is done stays done."""


def tidy(
    home: Home,
    *,
    budget_s: float = math.inf,
    stopped: Callable[[], bool] = lambda: False,
    told: Callable[[str, int], object] = lambda what, count: None,
) -> Tidied:
    """Run a pass now, for at most about `budget_s`; `told` hears what is being removed and how much of it so far.

    Raises ConflictError while another pass runs, StorageError where the storage is in trouble.
    """
    with copies.storage_errors(home.db.path), Exclusive(home.path, LOCK) as lock:
        if not lock.take():
            raise ConflictError(f"another process (pid {lock.holder()}) tidies {home.path} already")
        tidying = _Tidying(home, time.monotonic() + budget_s, stopped, told)
        with space.own_checkpoints(home.db):
            return tidying.run()


def due(home: Home) -> Tidied:
    """What a pass would remove now; nothing is changed."""
    days = home.settings
    cutoffs = {
        "pulses": days.pulse_retention_days,
        "records": min(days.trace_retention_days, days.retention_days),
        "tasks": days.retention_days,
    }
    now = home.now()
    counts = retention.due(home.db, **{name: now - kept * DAY_MS for name, kept in cutoffs.items()})
    swept = unnamed_blobs.sweep(home.db, home.path / "blobs", now=now, dry_run=True)
    size = space.size(home.db)
    return Tidied(**counts, blobs=swept, before=size, after=size, finished=False)


class _Tidying:
    """One pass: its time, its bites and its count."""

    def __init__(
        self,
        home: Home,
        deadline: float,
        stopped: Callable[[], bool],
        told: Callable[[str, int], object],
    ) -> None:
        self.home, self.db, self.settings = home, home.db, home.settings
        self.now = home.now()
        self._deadline, self._stopped, self._told = deadline, stopped, told
        self._bites = 0
        self.done = Tidied(before=space.size(home.db))

    def run(self) -> Tidied:
        space.checkpoint(self.db)  # so that the log has room for what is removed, also on a full disk
        steps = (self._pulses, self._records, self._tasks, self._rest_of_the_rows, self._blobs, self._room)
        try:
            for step in steps:
                step()
        except OutOfTime:
            self.done.finished = False
        self.done.after = space.size(self.db)
        return self.done

    # -- what goes, in this order -----------------------------------------------------------------------------

    def _pulses(self) -> None:
        before = self._cutoff(self.settings.pulse_retention_days)
        place: Place | None = Place(retention.mark(self.db, "pulses"), 0)
        while place is not None:
            page, place = retention.old_pulses(self.db, after=place, before=before)
            self._in_bites(
                "pulses", _parts(page), lambda part: (retention.remove_pulses(self.db, part), True)
            )
            self._move_mark("pulses", place.stamp if place else before)

    def _records(self) -> None:
        """Traces, events and decided questions of tasks that have ended; the mark is where all of them are trimmed."""
        before = self._cutoff(min(self.settings.trace_retention_days, self.settings.retention_days))
        after = Place(retention.mark(self.db, "records"), 0)
        while page := retention.ended(self.db, after=after, before=before):
            self._in_bites("records", page, lambda task: self._trimmed(task, before))
            after = page[-1].place
            self._move_mark("records", after.stamp)

    def _tasks(self) -> None:
        """Rows of tasks; a child that was kept for its parent's sake goes when that is gone, so look again."""
        before = self._cutoff(self.settings.retention_days)
        known = -1
        while self.done.tasks != known:
            known, after = self.done.tasks, Place(0, 0)
            while page := retention.ended(self.db, after=after, before=before):
                self._in_bites("tasks", page, lambda task: self._removed(task, before))
                after = page[-1].place

    def _trimmed(self, task: retention.Ended, before: int) -> tuple[int, bool]:
        gone = retention.trim(self.db, task.task_id, before=before)
        return gone, gone < GRAIN

    def _removed(self, task: retention.Ended, before: int) -> tuple[int, bool]:
        """A late outcome may have come after the records were trimmed, so look for them again."""
        gone, is_bare = self._trimmed(task, before)
        self.done.records += gone
        return int(is_bare and retention.remove(self.db, task.task_id, before=before)), is_bare

    def _rest_of_the_rows(self) -> None:
        before = self._cutoff(self.settings.retention_days)
        self._until_none("runs", lambda: retention.remove_runs(self.db, before=before))
        self._until_none("results", lambda: retention.remove_plain_results(self.db, before=before))
        self.done.workers = workers.forget_dead(self.db, before=self.now - DAY_MS)

    def _blobs(self) -> None:
        self.done.blobs = unnamed_blobs.sweep(self.db, self.home.path / "blobs", now=self.now)

    def _room(self) -> None:
        while space.free_pages(self.db):
            self._in_bites("pages", range(64), lambda _: (space.give_back(self.db), True))
        space.checkpoint(self.db)
        if space.size(self.db).wal_bytes > _WAL_BYTES:
            space.truncate_wal(self.db)

    # -- bites ------------------------------------------------------------------------------------------------

    def _in_bites(self, what: str, items: Iterable[T], work: Callable[[T], tuple[int, bool]]) -> None:
        """Work through items, each to its end, in write transactions of a bounded time; count what work says."""
        todo = deque(items)
        while todo:
            count = 0
            with self.db.write(Durability.NORMAL):
                began = time.monotonic()
                while todo and time.monotonic() - began < _BITE_S:
                    some, is_done = work(todo[0])
                    count += some
                    if is_done:
                        todo.popleft()
            setattr(self.done, what, getattr(self.done, what) + count)
            self._told(what, getattr(self.done, what))
            self._rest(time.monotonic() - began)

    def _until_none(self, what: str, work: Callable[[], int]) -> None:
        def once(_: None) -> tuple[int, bool]:
            some = work()
            return some, some < GRAIN

        self._in_bites(what, [None], once)

    def _rest(self, took: float) -> None:
        """Let others have their turn; raises OutOfTime."""
        self._bites += 1
        if self._bites % _CHECKPOINT_EVERY == 0:
            space.checkpoint(self.db)
        if self._stopped() or time.monotonic() >= self._deadline:
            raise OutOfTime
        time.sleep(max(took, _REST_S))

    def _move_mark(self, name: str, value: int) -> None:
        with self.db.write(Durability.NORMAL):
            retention.set_mark(self.db, name, value)

    def _cutoff(self, days: int) -> int:
        return self.now - days * DAY_MS


def _parts(page: Sequence[T]) -> list[Sequence[T]]:
    return [page[at : at + GRAIN] for at in range(0, len(page), GRAIN)]
