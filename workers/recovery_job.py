"""The periodic recovery job: the same pass, whoever starts it.

Huey's scheduler enqueues `recover_tasks` once a minute in the upkeep lane; every worker process also runs a pass at its
start and each SWEEP_MS. Invariant: `locks/sweep`, a kernel lock, admits one pass at a time, and the last pass in
`recovery_runs` gives the period, so nothing depends on one process, a killed pass blocks nobody, and a stopped one for a
lease at most.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huey import crontab

from ..models import claims, forks, orphans, recovery_runs, workers
from ..models.errors import RelightError, StorageError
from ..recovery import sweep
from ..recovery.sweep import Report, Rules
from . import agents, calling, evidence, policy_file
from .calling import Raised
from .clock import now_ms
from .home import Home
from .lanes import upkeep
from .ownership import Prober, Proofs

log = logging.getLogger("relight.recovery")

FORGET_DEAD_MS = 24 * 3_600_000  # the rows of dead workers are kept for a day, for people to look at
_LOOK_S = 0.01  # between two tries for the lock
NAMED = 20  # resumed tasks that a log line names
_DID = {"quarantined": "gave up", "asked": "asks about"}


@upkeep.periodic_task(crontab())  # type: ignore[untyped-decorator]  # huey is untyped
def recover_tasks() -> None:
    """Run a pass, unless one just ran."""
    sweep_tick(upkeep.home)


def recover(home: Home, *, dry_run: bool = False) -> Report:
    """Run a pass now, whenever the last one was; waits a lease for one that is running. `dry_run` moves nothing."""
    with _alone(home, wait_ms=home.settings.lease_ms):
        return _pass(home, Prober(home.path), dry_run=dry_run)


def sweep_tick(home: Home) -> Report | None:
    """Run a pass unless one runs or the last one began less than SWEEP_MS ago; None where there was none to run.

    What a dead worker left is acted on at once: at the start of this process, and when it has just proved a death.
    Every process watches the leases at each tick, so that whichever comes to a pass knows who stopped counting.
    """
    watcher = _watchers.of(home)
    with watcher.mutex:
        _release_known(home)
        news = watcher.has_news(home)
        if not (news or _is_time(home)):
            return None
        with _alone(home, wait_ms=0) as admitted:
            if not watcher.may_go_on(home, admitted) or not (news or _is_time(home)):
                return None
            return watcher.run_pass(home)


def keep_sweeping(home: Home, stopped: threading.Event) -> None:
    """Run a pass at once and then each SWEEP_MS until stopped: what the sweep thread of a worker process does."""
    while True:
        ticked = calling.call(sweep_tick, home)
        if isinstance(ticked, Raised):
            unforeseen = None if isinstance(ticked.error, RelightError) else ticked.error
            log.warning(
                "a recovery pass failed, the next one tries again",
                extra={"error": str(ticked.error)},
                exc_info=unforeseen,
            )
        if stopped.wait(home.settings.sweep_ms / 1000):
            return


def _pass(home: Home, prober: Prober, *, dry_run: bool) -> Report:
    began, started = now_ms(), home.now()
    proofs = _probe(home, prober)
    rules = Rules(policy_file.load(home.path), home.settings.max_losses, proofs.lease_out)
    report = sweep.sweep(home.db, rules, now=started, evidence=evidence.look, dry_run=dry_run)
    if not dry_run:
        recovery_runs.record(
            home.db, started_at=began, finished_at=now_ms(), pid=os.getpid(), verdicts=report.ids()
        )
        if proofs.dead:
            workers.forget_dead(home.db, before=started - FORGET_DEAD_MS)
        if not report.is_empty():
            _tell(report)
    return report


def _tell(report: Report) -> None:
    """Log what a pass did: a line for each task that needs a person, one for all that go on."""
    for verdict in ("quarantined", "asked"):
        for entry in getattr(report, verdict):
            about = {"task": entry["id"], "agent": entry["agent"]}
            log.warning("recovery %s a task: %s", _DID[verdict], entry["reason"], extra=about)
    ids = [entry["id"] for entry in report.resumed]
    named = {"tasks": ",".join(ids[:NAMED]) + ("…" if len(ids) > NAMED else "")} if ids else {}
    counts = {name: len(found) for name, found in report.ids().items()}
    log.info("recovered", extra={**counts, **named})


def _probe(home: Home, prober: Prober) -> Proofs:
    return prober.probe(home.db, now=home.now(), monotonic=_monotonic_ms(), lease_ms=home.settings.lease_ms)


def _is_time(home: Home) -> bool:
    """By the machine's clock, for a test clock may stand still; a last pass in the future counts as none."""
    last = recovery_runs.last_started_at(home.db)
    return last is None or not 0 <= now_ms() - last < home.settings.sweep_ms


def _release_known(home: Home) -> None:
    claims.release_unknown(home.db, known=frozenset(agents.known()), now=home.now())


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@contextmanager
def _alone(home: Home, *, wait_ms: int) -> Iterator[bool]:
    lock = _SweepLock()
    lock.open(home.path / "locks" / "sweep")
    try:
        yield lock.take(wait_ms=wait_ms)
    finally:
        lock.close_inherited()


class _SweepLock:
    """The lock of one pass; a child that is forked meanwhile must not keep it."""

    def __init__(self) -> None:
        self._fd = -1
        forks.guard.register(self)

    def open(self, path: Path) -> None:
        with forks.guard:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, *, wait_ms: int) -> bool:
        deadline = _monotonic_ms() + wait_ms
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if _monotonic_ms() >= deadline:
                    return False
                time.sleep(_LOOK_S)

    def close_inherited(self) -> None:
        with forks.guard:  # a fork between the two would leave the child a descriptor that nobody closes
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class _Watcher:
    """The prober of one process for one state directory, used by one thread at a time."""

    def __init__(self, home: Home) -> None:
        self.mutex = threading.Lock()
        self.prober = Prober(home.path)
        self._news = True  # at the start, what was left behind may be proved dead already
        self._refused_at: int | None = None

    def may_go_on(self, home: Home, admitted: bool) -> bool:
        """Whether to run a pass: admitted, or kept out for a lease, for a holder that is stopped must not stop recovery.

        The lock saves work; passes may overlap.
        """
        if admitted:
            self._refused_at = None
            return True
        now = _monotonic_ms()
        if self._refused_at is None:
            self._refused_at = now
        return now - self._refused_at >= home.settings.lease_ms

    def has_news(self, home: Home) -> bool:
        """Prove what deaths can be proved, watch the leases of the others; whether there is something to act on now."""
        died = bool(_probe(home, self.prober).dead)
        self._news = (died or self._news) and bool(
            orphans.page(home.db, lease_out=frozenset(), after=None, limit=1)
        )
        return self._news

    def run_pass(self, home: Home) -> Report:
        """Run a pass with what was watched."""
        try:
            report = _pass(home, self.prober, dry_run=False)
        except StorageError:
            self.prober.forget()  # our own writes failed: what stood still meanwhile says nothing
            raise
        self._news = False
        return report


class _Watchers:
    def __init__(self) -> None:
        self._by_home: dict[str, _Watcher] = {}
        forks.guard.register(self)

    def of(self, home: Home) -> _Watcher:
        return self._by_home.setdefault(str(home.path), _Watcher(home))

    def close_inherited(self) -> None:
        """In a forked child: what the parent's threads watched, and held, is not ours."""
        self._by_home = {}


_watchers = _Watchers()
