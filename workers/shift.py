"""One run of a process as a worker: its consumers, its signals, and its end.

Invariant: the first TERM or INT stops the taking of work, and the process ends with 0 at the latest when the grace time
is over, stuck threads or not; a second signal ends it at once. HUP does the same and starts the program again.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from . import announcing, filesystems, leaving, settings
from .home import Home
from .sweeper import Sweeper

if TYPE_CHECKING:
    from .consumer import LaneConsumer

log = logging.getLogger("relight.shift")

LOOK_S = 1.0  # how long a dead worker stays unreplaced at most
_SAME_REQUEST_S = 0.5  # Ctrl-C reaches a whole group, and a manager in it passes it on as TERM


class Shift:
    """Runs consumers until a signal; one signal owner for all lanes of the process."""

    def __init__(self, home: Home, consumers: Sequence[LaneConsumer]) -> None:
        self.home, self.consumers = home, consumers
        self._forks = any(consumer.environment.forks for consumer in consumers)
        self._sweeper = None if self._forks else Sweeper(home)

    def run(self) -> int:
        """Run until told to stop; the exit code. Does not return where threads are stuck.

        Raises RefusedError on a file system where locks prove nothing.
        """
        filesystems.refuse_remote(self.home.settings)
        with _Signals() as signals:
            self._begin()
            while not signals.wait(LOOK_S):
                self._look_after_workers()
            ended = self._end()
            if signals.restart:
                _start_again()
            if not ended:
                leaving.at_once(0)
        leaving.at_latest(leaving.LINGER_S, 0)
        return 0

    def _begin(self) -> None:
        self._close_before_forks()
        for consumer in self.consumers:
            consumer.start()
        if self._sweeper is not None:
            self._sweeper.start()
        lanes = [consumer.huey.name for consumer in self.consumers]
        # In a thread: the one that waits for signals must not wait for somebody to read its stderr.
        threading.Thread(target=announcing.serving, args=(self.home, lanes), daemon=True).start()

    def _look_after_workers(self) -> None:
        self._close_before_forks()
        for consumer in self.consumers:
            consumer.check_worker_health()

    def _close_before_forks(self) -> None:
        if self._forks:
            self.home.db.close_all()

    def _end(self) -> bool:
        """Stop all lanes at the same time; whether everything that ran has ended."""
        deadline = time.monotonic() + max(consumer.grace_s for consumer in self.consumers)
        leaving.at_latest(deadline - time.monotonic() + leaving.AFTER_GRACE_S, 0)
        log.info("stopping", extra={"grace_ms": round((deadline - time.monotonic()) * 1000)})
        if self._sweeper is not None:
            self._sweeper.begin_no_more()
        for consumer in self.consumers:
            consumer.stop_taking()
        for consumer in self.consumers:
            consumer.shutdown_timeout = round(max(0.0, deadline - time.monotonic()), 1)  # Huey prints it
            consumer.stop(graceful=True)
        swept = self._sweeper is None or self._sweeper.stop()
        if not swept or not all(consumer.ended for consumer in self.consumers):
            return False
        self.home.close()
        return True


class _Signals:
    """The signals of this process while a shift lasts; only a main thread can have them."""

    def __init__(self) -> None:
        self.restart = False
        self._first: tuple[int, float] | None = None
        self._reading, self._writing = os.pipe()

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, timeout: float) -> bool:
        """Whether a signal has come, at the latest after `timeout` seconds."""
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def _on_signal(self, number: int, _frame: Any) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (number, now)
            # A closed terminal sends HUP as well; there nobody would see the program started again.
            self.restart = number == signal.SIGHUP and not sys.stdin.isatty()
            os.write(self._writing, b"x")
        elif number == self._first[0] or now - self._first[1] > _SAME_REQUEST_S:
            leaving.at_once(128 + number)


def _start_again() -> None:
    leaving.end_children()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], settings.unpinned())
