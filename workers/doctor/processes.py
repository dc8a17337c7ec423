"""Who works here: whether somebody blocks the writers, and which workers live, died or stand still."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...models import claims, workers
from ...models.errors import StorageError
from ...models.inspection import LookOnly
from ...models.workers import Worker
from .. import lock_holders
from ..home import STATE_FILE
from ..lock_files import FOLDER, SeenLock
from ..settings import Settings
from . import findings
from .findings import Finding

_STUCK_S = 1.0  # a transaction takes a millisecond; upkeep and migrations end theirs, too
_LOOK_S = 0.05
_BEATS = 2.5  # a living worker counts at each beat


def write_lock(settings: Settings) -> Finding:
    """Nobody holds the write gate, or stays in a write transaction, for longer than a transaction takes."""
    state, gate = settings.home / STATE_FILE, settings.home / FOLDER / "write"
    inside = _stuck(lambda: lock_holders.writer(state))
    if inside is not None:
        advice = f"nobody can write until it goes on (kill -CONT {inside}) or ends (kill -9 {inside}; what it ran is recovered)"
        return findings.fault(
            "write lock", f"{_described(inside)} is inside a write transaction and stays there", advice
        )
    waiting = _stuck(lambda: lock_holders.flocked(gate) or lock_holders.flocked(gate.with_name("write.turn")))
    if waiting is not None:
        advice = f"every writer waits {settings.gate_ms} ms for it; let it go on (kill -CONT {waiting}) or end it (kill -9 {waiting})"
        return findings.warning(
            "write lock", f"{_described(waiting)} holds the write gate and does not write", advice
        )
    return findings.ok("write lock", "free, or moving on")


def _stuck(holder: Callable[[], int | None]) -> int | None:
    """The pid that holds something at every look for a while; -1 where it is not known."""
    first, deadline = holder(), time.monotonic() + _STUCK_S
    while first is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        if holder() != first:
            return None
    return first


def _described(pid: int) -> str:
    import psutil

    if pid <= 0:
        return "a process that cannot be seen from here (another container?)"
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.name()}, {process.status()})"
    except psutil.Error:
        return f"process {pid}"


@dataclass
class _Seen:
    """A worker that is not proved dead, as its lock file tells it."""

    row: Worker
    is_theirs: bool
    is_free: bool
    counter: bytes


def living(settings: Settings, db: LookOnly) -> Iterator[Finding]:
    """The workers: alive, dead and not noticed yet, or standing still."""
    seen = [_look(settings.home / FOLDER / row.id, row) for row in workers.alive(db)]
    deadline = time.monotonic() + _BEATS * max(0.01, min(1.0, settings.lease_ms / 10_000))
    told = [_judged(settings.home, one, deadline) for one in seen]
    yield from told
    alive = sum(finding.level == findings.Level.OK for finding in told)
    waiting = {lane: claims.ready_count(db, lane) for lane in ("main", "subagent")}
    if not alive and any(waiting.values()):
        lanes = ", ".join(f"{count} in {lane}" for lane, count in waiting.items() if count)
        yield findings.warning("workers", f"no worker runs, and tasks wait: {lanes}", "start one: relight up")
    elif not told:
        yield findings.ok("workers", "none runs, and nothing waits")


def _look(file: Path, row: Worker) -> _Seen:
    with SeenLock(file) as lock:
        theirs = lock.belongs_to(inode=row.lock_inode, nonce=row.nonce)
        return _Seen(row, theirs, theirs and lock.take(), lock.read())


def _judged(home: Path, seen: _Seen, deadline: float) -> Finding:
    row = seen.row
    who = f"{row.lane} {row.id[-8:]}, pid {row.pid} on {row.host}"
    if not seen.is_theirs:
        advice = "its tasks move on when a lease has passed, but for a write that was under way; end the process if it still runs"
        return findings.warning(
            "workers", f"{who}: its lock file is gone or another's, so its death cannot be proved", advice
        )
    if seen.is_free:
        advice = "the next recovery pass finds it: any worker runs one, and so does relight recover"
        return findings.warning("workers", f"{who}: died, and nobody has noticed yet", advice)
    if _counts_on(home / FOLDER / row.id, seen, deadline):
        return findings.ok("workers", f"{who}: alive")
    status = _status(row)
    advice = f"let it go on (kill -CONT {row.pid}) or end it (kill -9 {row.pid}): what it ran is recovered"
    return findings.fault(
        "workers", f"{who}: alive, but its lease does not move (the process is {status})", advice
    )


def _counts_on(file: Path, seen: _Seen, deadline: float) -> bool:
    while _look(file, seen.row).counter == seen.counter:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _status(row: Worker) -> str:
    import psutil

    try:
        return (
            str(psutil.Process(row.pid).status()) if row.host == socket.gethostname() else "on another host"
        )
    except psutil.Error:
        return "not visible from here"


def unreadable(check: str, error: StorageError) -> Finding:
    """Workers cannot be looked for where the state cannot be read."""
    return findings.warning(check, f"not looked at: {error}", "repair the state file first")
