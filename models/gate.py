"""The fair queue of writing processes: two kernel locks in front of SQLite's own.

SQLite's busy handler lets a third writer starve beside two busy ones (waits of seconds were measured); taking
`locks/write.turn`, then `locks/write`, then giving the turn back makes writers pass one by one. The gate gives
fairness only: SQLite's lock stays the guard, so a writer that cannot pass within `gate_ms` goes on without it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from . import forks

log = logging.getLogger("relight.gate")

_WAIT_S, _LATER_WAIT_S, _PATIENT_S = 0.000_1, 0.001, 0.02  # a transaction takes 0.02–0.4 ms
_COURTESY_S = (
    0.000_3  # long enough for a waiting process to look again; the gate itself does not stand idle meanwhile
)
_CROWDED_S = 0.05
_REPORT_EVERY_S = 10.0  # a stopped holder is reported once, not by every write


class WriteGate:
    """The gate of one state file in one process; threads of the process queue on a mutex first."""

    def __init__(self, folder: Path, *, gate_ms: int) -> None:
        self.folder, self.gate_ms = folder, gate_ms
        self.passed_without = 0
        self._reset()
        self._reported_at = -_REPORT_EVERY_S
        forks.guard.register(self)

    def acquire(self) -> bool:
        """Pass the gate; False when it stayed shut for `gate_ms` and the caller goes on without it."""
        deadline = time.monotonic() + self.gate_ms / 1000
        self._let_others_queue()
        if not self._mutex.acquire(timeout=self.gate_ms / 1000):
            return self._go_on_without()
        if self._pass(deadline):
            return True
        self._mutex.release()
        return self._go_on_without()

    def release(self) -> None:
        """Open the gate for the next writer."""
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._mutex.release()

    def holder(self) -> int | None:
        """The pid that passed last, and may still be inside."""
        try:
            return int((self.folder / "write").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def close_inherited(self) -> None:
        """Drop the parent's descriptors; its locks stay its own."""
        for fd in (self._gate, self._turn):
            if fd >= 0:
                os.close(fd)
        self._reset()

    close = close_inherited

    def _let_others_queue(self) -> None:
        """Who has just waited comes back a moment later: whoever looks again only now and then would never get in."""
        if time.monotonic() < self._crowded_until:
            time.sleep(_COURTESY_S)

    def _reset(self) -> None:
        self._crowded_until = 0.0
        self._mutex = threading.Lock()
        self._gate = self._turn = -1

    def _pass(self, deadline: float) -> bool:
        if self._gate < 0:
            self._turn = _open(self.folder / "write.turn")
            self._gate = _open(self.folder / "write")
        if not self._locked(self._turn, deadline):
            return False
        passed = self._locked(self._gate, deadline)
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        if passed:
            with suppress(OSError):  # on a full disk nobody learns the pid, and that is all
                os.pwrite(self._gate, b"%-10d\n" % os.getpid(), 0)
        return passed

    def _locked(self, fd: int, deadline: float) -> bool:
        """Take a lock by the deadline; looking again costs little as long as waits are short."""
        if _try(fd):
            return True
        began = time.monotonic()
        while (now := time.monotonic()) < deadline:
            time.sleep(_WAIT_S if now - began < _PATIENT_S else _LATER_WAIT_S)
            if _try(fd):
                self._crowded_until = time.monotonic() + _CROWDED_S
                return True
        return False

    def _go_on_without(self) -> bool:
        self.passed_without += 1
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            log.warning(
                "the write gate stayed shut, going on without it",
                extra={
                    "gate_ms": self.gate_ms,
                    "holder_pid": self.holder(),
                    "gate": str(self.folder / "write"),
                },
            )
        return False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
