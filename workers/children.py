"""Worker processes forked by a consumer: each is an owner of its own, and none outlives its consumer for long.

Invariants: the parent has no open connection when it forks. A child stops taking work when its consumer says so, or
dies; after the grace time it marks what it still runs and ends by itself.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from huey.consumer import BaseProcess, ForkSafeFlag, ProcessEnvironment, Worker

from ..models import forks
from . import leaving
from .sweeper import Sweeper

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess as Child

    from .lanes import LaneHuey

log = logging.getLogger("relight.children")


class ForkedWorkers(ProcessEnvironment):  # type: ignore[misc]  # huey is untyped
    """Huey's process environment, with children that may have children and that stop when their parent dies."""

    def __init__(self, lane: LaneHuey, grace_s: float) -> None:
        super().__init__(signal.SIGTERM, signal.SIGINT)
        self.lane, self.grace_s = lane, grace_s
        self.stop_flag = ForkSafeFlag()
        self.tie = ParentTie()
        self._keeper: Keeper | None = None
        self._sweeper: Sweeper | None = None
        self._gone_by: float | None = None

    def get_stop_flag(self) -> ForkSafeFlag:
        return self.stop_flag

    def create_process(self, runnable: Callable[[], None], name: str) -> Child:
        child: Child = self.mp.Process(target=self._live, args=(runnable,), name=name)
        child.daemon = False  # a daemon may not have children, so no step could use a pool
        return child

    def init_child(self, process: BaseProcess) -> None:
        """In the child, before it does anything: its signals and its keeper; for a worker, recovery."""
        self._keeper = Keeper(self, is_worker=isinstance(process, Worker))
        self._keeper.start()
        if self._keeper.is_worker:
            self._sweeper = Sweeper(self.lane.home)
            self._sweeper.start()

    def stop_within_grace(self) -> None:
        """Children count from now, each by itself; by when the last of them has to be gone."""
        if self._gone_by is None:
            self._gone_by = time.monotonic() + self.grace_s + leaving.CHILD_KILLED_S

    def begin_no_more(self) -> None:
        """In the child: no further task, no further recovery pass."""
        self.lane.halt()
        if self._sweeper is not None:
            self._sweeper.begin_no_more()

    def interrupt_workers(self, procs: list[Child]) -> None:
        """Children end by themselves once the grace time is over; one that does not is killed."""
        deadline = self._gone_by or 0.0
        for child in procs:
            child.join(max(0.0, deadline - time.monotonic()))
            if child.is_alive():
                log.error("a worker process did not end and is killed", extra={"pid": child.pid})
                child.kill()
                child.join()

    def _live(self, runnable: Callable[[], None]) -> None:
        with suppress(KeyboardInterrupt):
            runnable()
            self.lane.wait_until_idle(None)
        if self._keeper is not None and self._keeper.interrupting:
            self._keeper.join()  # it ends what the interrupted step has started, and then this process
        if self._sweeper is None or self._sweeper.stop():
            self.lane.home.close()


class ParentTie:
    """A pipe whose writing end only the parent has: children find it closed as soon as the parent is dead."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        forks.guard.register(self)

    def close_inherited(self) -> None:
        """In a forked child: let the parent be the only one that holds it."""
        writing, self._writing = self._writing, -1
        if writing >= 0:
            os.close(writing)


class Keeper(threading.Thread):
    """The thread of a child that waits for the end, and sees to it that it comes in time."""

    def __init__(self, environment: ForkedWorkers, *, is_worker: bool) -> None:
        super().__init__(name="relight-keeper", daemon=True)
        self.environment, self.lane, self.is_worker = environment, environment.lane, is_worker
        self._reading, self._told = os.pipe()
        self.interrupting = False
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: os.write(self._told, b"x"))
        signal.signal(signal.SIGINT, self._on_interrupt)

    def run(self) -> None:
        self._wait_for_the_end()
        self.environment.begin_no_more()
        leaving.at_latest(self.environment.grace_s + leaving.CHILD_AFTER_GRACE_S, 0)
        if not self.lane.wait_until_idle(self.environment.grace_s):
            self._interrupt()
        leaving.at_latest(leaving.LINGER_S, 0)

    def _wait_for_the_end(self) -> None:
        poller = select.poll()
        tie, flag = self.environment.tie.reading, self.environment.stop_flag
        for fd in (flag._r, tie, self._reading):
            poller.register(fd, select.POLLIN)
        if any(fd == tie for fd, _ in poller.poll()):
            log.warning("the consumer is dead, its worker processes stop", extra={"pid": os.getpid()})
            flag.set()
        elif not self.is_worker:
            flag.wait()  # a scheduler has no work to finish: it ends with the others

    def _interrupt(self) -> None:
        """Give the code that runs a KeyboardInterrupt and a moment, then mark and leave without it."""
        self.interrupting = True
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, signal.SIGINT)
        if not self.lane.wait_until_idle(leaving.UNWIND_S):
            leaving.mark_interrupted(self.lane.home)
            self.lane.notify_interrupted_tasks()
        leaving.at_once(0)

    def _on_interrupt(self, *_: Any) -> None:
        """A terminal's own INT goes to the consumer too, which decides; ours ends the task of the main thread."""
        if self.interrupting and threading.main_thread().ident in self.lane.inside:
            raise KeyboardInterrupt
