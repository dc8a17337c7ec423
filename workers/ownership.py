"""Who owns running tasks, and the proof that an owner is dead.

Invariants: an owner holds the kernel lock on `locks/<id>` for life, so that *taking the lock proves death* and nothing
else does; only a prober removes a lock file, after the death is committed and while it holds the lock. A process is one
owner, made at its first claim; a forked child is never its parent.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..models import forks, transitions, workers
from ..models.database import Database
from ..models.errors import RelightError, StaleMove
from ..models.fields import new_id
from . import calling
from .calling import Raised
from .lock_files import FOLDER, NONCE_DIGITS, HeldLock, SeenLock

log = logging.getLogger("relight.ownership")

_LOST_AFTER_MS = 1_000  # a claim is in memory microseconds after its commit; beats may be as short as 10 ms
_ID_LENGTH = 36  # of a UUID; the other files in the folder are the gate's, the migration's and the sweep's


class Owner:
    """The identity of one process that runs tasks: its lock, its lease and the claims it remembers."""

    def __init__(self, db: Database, lane: str, *, clock: Callable[[], int], lease_ms: int) -> None:
        self.db, self.lane, self.clock, self.lease_ms = db, lane, clock, lease_ms
        self.id = new_id()
        self.pid = os.getpid()
        self._lock: HeldLock | None = None
        self._thread: threading.Thread | None = None
        self._reset()
        forks.guard.register(self)

    @classmethod
    def start(cls, db: Database, home: Path, lane: str, *, clock: Callable[[], int], lease_ms: int) -> Owner:
        """Take a new lock, then become known, then keep the lease."""
        owner = cls(db, lane, clock=clock, lease_ms=lease_ms)
        owner._lock = HeldLock.create(home / FOLDER / owner.id, secrets.token_hex(NONCE_DIGITS // 2))
        try:
            owner._become_known(owner._lock)
        except BaseException:
            owner.close()
            raise
        owner._thread = threading.Thread(target=owner._keep_lease, name="relight-lease", daemon=True)
        owner._thread.start()
        return owner

    @property
    def alive(self) -> bool:
        """Whether this process still is this owner; false in a forked child and after the end."""
        return self._lock is not None and self._lock.held

    @property
    def claims(self) -> frozenset[tuple[str, int]]:
        """The (task id, attempt) that this process knows to be its own."""
        with self._mutex:
            return frozenset(self._claims)

    def take(self, task_id: str, attempt: int) -> None:
        """Remember a claim, right after its commit."""
        with self._mutex:
            self._claims.add((task_id, attempt))

    def drop(self, task_id: str, attempt: int) -> None:
        """Forget a claim, once its row says that it ended."""
        with self._mutex:
            self._claims.discard((task_id, attempt))

    def retire(self) -> None:
        """End; with nothing left running, say so: nobody has to find out that this owner is gone."""
        if self.alive and not self.claims:
            try:
                workers.mark_dead(self.db, self.id, now=self.clock())
            except RelightError as error:
                log.warning("could not sign off", extra={"worker": self.id, "error": str(error)})
        self.close()

    def close(self) -> None:
        """Stop the lease and give the lock up: from now on any sweep can prove this owner dead."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1)
        if self._lock is not None:
            self._lock.close()

    def close_inherited(self) -> None:
        """In a forked child: own nothing."""
        self._lock = self._thread = None
        self._reset()

    def _reset(self) -> None:
        self._claims = set[tuple[str, int]]()
        self._missing = dict[tuple[str, int], int]()
        self._renewed = 0
        self._mutex = threading.Lock()
        self._stopped = threading.Event()

    def _become_known(self, lock: HeldLock) -> None:
        workers.insert(
            self.db,
            id=self.id,
            lane=self.lane,
            pid=self.pid,
            host=socket.gethostname(),
            lock_inode=lock.inode,
            nonce=lock.nonce,
            now=self.clock(),
        )

    def _keep_lease(self) -> None:
        """Count in the lock file as long as this process runs; nobody's clock is involved."""
        beat_ms = max(10, min(1_000, self.lease_ms // 10))
        self._renewed = _monotonic_ms()
        while not self._stopped.wait(beat_ms / 1000):
            self._count()
            looked = calling.call(self._look)  # a beat that cannot look is followed by the next one
            if isinstance(looked, Raised) and not isinstance(looked.error, RelightError):
                log.error("a look at the own claims failed", extra={"worker": self.id}, exc_info=looked.error)

    def _look(self) -> None:
        self._interrupt_lost_claims()
        if _monotonic_ms() - self._renewed >= self.lease_ms / 3:
            self._renewed = _monotonic_ms()
            workers.renew(self.db, self.id, now=self.clock())

    def _count(self) -> None:
        try:
            if self._lock is not None:
                self._lock.count()
        except OSError as error:
            log.warning("could not renew the lease", extra={"worker": self.id, "error": str(error)})

    def _interrupt_lost_claims(self) -> None:
        """Interrupt what runs under this name and is missing from memory at two beats with the same attempt."""
        missing = set(workers.running_claims(self.db, self.id)) - self.claims
        now = _monotonic_ms()
        self._missing = {claim: self._missing.get(claim, now) for claim in missing}
        for (task_id, attempt), since in self._missing.items():
            if now - since >= _LOST_AFTER_MS:
                self._interrupt_lost(task_id, attempt)

    def _interrupt_lost(self, task_id: str, attempt: int) -> None:
        with suppress(StaleMove):
            transitions.interrupt(
                self.db,
                task_id,
                reason="lost",
                now=self.clock(),
                attempt=attempt,
                worker_id=self.id,
                keep_owner=False,
            )
            log.error("a claim was lost from memory", extra={"task": task_id, "attempt": attempt})


@dataclass(frozen=True)
class Proofs:
    """What a probe found: owners that are proved dead, and owners whose lease ran out without such a proof."""

    dead: frozenset[str] = frozenset()
    lease_out: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Watch:
    """A counter as this process saw it, and for how much of its own time it was seen unchanged."""

    counter: bytes | None
    looked_at: int
    unchanged_ms: int


class Prober:
    """Looks at the locks of all owners that are not proved dead; it belongs to one thread at a time."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER
        self._watched: dict[str, _Watch] = {}

    def probe(self, db: Database, *, now: int, monotonic: int, lease_ms: int) -> Proofs:
        """Commit every death that can be proved; `monotonic` is this process's own time in ms."""
        watched: dict[str, _Watch] = {}
        dead: set[str] = set()
        for worker in workers.alive(db):
            with SeenLock(self.folder / worker.id) as lock:
                theirs = lock.belongs_to(inode=worker.lock_inode, nonce=worker.nonce)
                if theirs and lock.take():
                    _bury(db, worker, lock, now=now)
                    dead.add(worker.id)
                else:
                    counter = lock.read() if theirs else None
                    watched[worker.id] = self._watch(worker.id, counter, monotonic, lease_ms)
        self._watched = watched
        self._remove_unknown(watched.keys())
        out = frozenset(name for name, watch in watched.items() if watch.unchanged_ms >= lease_ms)
        return Proofs(dead=frozenset(dead), lease_out=out)

    def forget(self) -> None:
        """Begin to watch anew: what was seen while our own writes failed says nothing about others."""
        self._watched = {}

    def _watch(self, worker_id: str, counter: bytes | None, monotonic: int, lease_ms: int) -> _Watch:
        """Time counts only while we look: a gap longer than a third of a lease counts as that third, for what
        stopped this process may have stopped the owner too. A file that cannot be read counts as unchanged."""
        before = self._watched.get(worker_id)
        if before is None or (counter is not None and counter != before.counter):
            return _Watch(counter, looked_at=monotonic, unchanged_ms=0)
        gap = min(monotonic - before.looked_at, math.ceil(lease_ms / 3))
        return _Watch(before.counter, looked_at=monotonic, unchanged_ms=before.unchanged_ms + gap)

    def _remove_unknown(self, alive: Collection[str]) -> None:
        """Remove the lock files that no living row names and nobody holds: left by a death between two writes.

        An owner locks before it writes, so a file with content that can be locked has no owner any more.
        """
        for name in os.listdir(self.folder) if self.folder.is_dir() else ():
            if len(name.removeprefix(".")) == _ID_LENGTH and name not in alive:
                with SeenLock(self.folder / name) as lock:
                    if lock.read() and lock.take():
                        lock.remove()


def _bury(db: Database, worker: workers.Worker, lock: SeenLock, *, now: int) -> None:
    """Commit the proof, then take the file away; the lock is ours all the while."""
    workers.mark_dead(db, worker.id, now=now)
    lock.remove()
    log.info("a worker is dead", extra={"worker": worker.id, "pid": worker.pid})


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
