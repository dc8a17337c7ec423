"""How a process that runs tasks leaves: by itself, in time, whatever its tasks do.

Invariant: once the grace time is over nothing here waits for agent code. What still runs is marked interrupted if the
store can be written at once; if not, this process's death is proof enough for a sweep.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from .home import Home

log = logging.getLogger("relight.leaving")

MARK_S = 0.8  # the longest that marking may take on a locked store
UNWIND_S = 0.25  # for interrupted code to notice, and for the processes it started to end on TERM
LINGER_S = 1.0  # after a clean end: what agent code left behind keeps the interpreter up no longer
# Who has to interrupt its tasks is gone 2 s after the grace time: a child by 1.55 s, or killed by its parent at 1.6 s.
CHILD_AFTER_GRACE_S = UNWIND_S + MARK_S + UNWIND_S
CHILD_KILLED_S = CHILD_AFTER_GRACE_S + UNWIND_S + 0.05
AFTER_GRACE_S = CHILD_KILLED_S + 0.15


def mark_interrupted(home: Home) -> None:
    """Mark what this process still runs as interrupted, and go on soon, whether or not that is done."""
    marking = threading.Thread(target=_mark, args=(home,), name="relight-mark", daemon=True)
    marking.start()
    marking.join(MARK_S)
    if marking.is_alive():
        log.warning("the store is locked: what still runs is left for recovery")


def at_once(code: int) -> NoReturn:
    """End this process, and every process that its steps have started, without waiting for agent code."""
    try:
        end_children()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    finally:  # an interpreter that is half-way through its own end may fail at anything above
        os._exit(code)


def at_latest(seconds: float, code: int) -> None:
    """End this process in so many seconds if it has not ended by then: a blocked stderr can stop all the rest."""
    timer = threading.Timer(seconds, _cut, (code,))
    timer.daemon = True
    timer.start()


def end_children() -> None:
    """End every process below this one: asked first, then killed, with the group that it leads."""
    import psutil

    with suppress(psutil.Error):
        below = psutil.Process().children(recursive=True)
        for child in below:
            with suppress(psutil.Error):
                child.terminate()
        _, stubborn = psutil.wait_procs(below, timeout=UNWIND_S)
        for child in stubborn:
            _kill(child.pid)


def _cut(code: int) -> None:
    try:
        end_children()
    finally:
        os._exit(code)


def _mark(home: Home) -> None:
    from . import execution

    if (owner := home.claimant) is not None:
        execution.interrupt_all(home, owner)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
