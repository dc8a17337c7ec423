"""Our Huey consumer: the workers and the scheduler of one lane, and how several lanes share a process.

Invariant: a consumer that stops takes nothing more, lets what runs finish within its grace time, and says in `ended`
whether everything has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from huey.constants import WORKER_PROCESS, WORKER_THREAD
from huey.consumer import Consumer, Environment, Scheduler, ThreadEnvironment, Worker
from huey.exceptions import ConfigurationError

from . import apps, lanes, leaving
from .children import ForkedWorkers
from .home import Home
from .lanes import LaneHuey
from .shift import LOOK_S, Shift

log = logging.getLogger("relight.consumer")

MAX_THREADS = 64  # slots beyond are for async agents, which share one loop thread
ERROR_BACK_OFF_MOST_S = 1.0  # after an error of the store only: an idle lane waits for its bell


def run_lanes(home: Home, names: Sequence[str], *, kind: str = WORKER_THREAD) -> int:
    """Serve these lanes of a state directory in this process until a signal; the exit code."""
    chosen = [lanes.LANES[name] for name in names]
    for lane in chosen:
        lane.home = home
    return Shift(home, [LaneConsumer(lane, worker_type=kind) for lane in chosen]).run()


class LaneWorker(Worker):  # type: ignore[misc]  # huey is untyped
    """Huey's worker; it ends when its lane is halted."""

    def loop(self, now: datetime | None = None) -> None:
        super().loop(now)
        if self.huey.halted:
            raise KeyboardInterrupt  # how Huey's own loop is left without a complaint


class LaneScheduler(Scheduler):  # type: ignore[misc]  # huey is untyped
    """Huey's scheduler, which looks at each minute of the clock once, as soon as it begins."""

    periodic: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._serves_periodic, self.periodic = self.periodic, False  # Huey's own look drifts over the minutes
        self._minute = -1

    def loop(self, now: datetime | None = None) -> None:
        if self._serves_periodic:
            self.enqueue_periodic_tasks(now)
        super().loop(now)

    def enqueue_periodic_tasks(self, now: datetime | None) -> None:
        try:
            self._enqueue_minute(self.huey.home.now() if now is None else int(now.timestamp() * 1000))
        except lanes.LANE_ERRORS as error:
            log.warning("periodic tasks could not be enqueued", extra={"error": str(error)})

    def _enqueue_minute(self, now_ms: int) -> None:
        if now_ms // 60_000 == self._minute:
            return
        for task in self.huey.due_periodic(now_ms):
            if self.huey.enqueue_periodic(task, now_ms):
                log.debug("periodic task enqueued", extra={"task": task.name})
        self._minute = now_ms // 60_000


class LaneConsumer(Consumer):  # type: ignore[misc]  # huey is untyped
    """The workers and the scheduler of one lane."""

    worker_class = LaneWorker
    scheduler_class = LaneScheduler
    huey: LaneHuey

    def __init__(
        self,
        huey: LaneHuey,
        workers: int | None = None,
        *,
        worker_type: str = WORKER_THREAD,
        shutdown_timeout: float | None = None,
        health_check_interval: float = LOOK_S,
        max_delay: float = ERROR_BACK_OFF_MOST_S,
        **options: Any,
    ) -> None:
        self.slots = workers or huey.concurrency
        self.grace_s = huey.home.settings.grace_ms / 1000 if shutdown_timeout is None else shutdown_timeout
        self.ended = False
        limits = {
            "health_check_interval": min(health_check_interval, LOOK_S),
            "max_delay": min(max_delay, ERROR_BACK_OFF_MOST_S),
            "shutdown_timeout": self.grace_s,
        }
        options.pop("graceful_signal", None)  # both TERM and INT are
        threads = min(self.slots, MAX_THREADS)
        super().__init__(
            huey,
            workers=threads if worker_type == WORKER_THREAD else self.slots,
            worker_type=worker_type,
            **limits,
            **options,
        )

    def get_environment(self, worker_type: str) -> Environment:
        if worker_type == WORKER_PROCESS:
            return ForkedWorkers(self.huey, self.grace_s)
        if worker_type == WORKER_THREAD:
            return ThreadEnvironment()
        raise ConfigurationError(f"a lane runs its tasks in threads or processes, not as {worker_type}")

    def run(self) -> int:
        """Serve the lane in this process until a signal; the exit code."""
        return Shift(self.huey.home, [self]).run()

    def start(self) -> None:
        """Start the workers and the scheduler; signals are the business of whoever runs this process."""
        from . import recovery_job, retention_job  # noqa: F401  # they register the periodic jobs

        apps.load(self.huey.home.settings.app)
        self.huey.serve(1 if self.environment.forks else self.slots)
        super().start()

    def stop_taking(self) -> None:
        """Tell workers and scheduler to take nothing more."""
        if self.environment.forks:
            self.environment.stop_within_grace()
        self.stop_flag.set()
        self.huey.halt()

    def stop(self, graceful: bool = False) -> None:
        """Stop; with `graceful`, wait for what runs until the grace time is over, then interrupt it."""
        self.stop_taking()
        super().stop(graceful)
        self.huey.notify_interrupted_tasks()

    def _join_workers(self) -> bool:
        deadline = time.monotonic() + (self.shutdown_timeout or 0.0)
        self.ended = super()._join_workers() and self.huey.wait_until_idle(deadline - time.monotonic())
        return self.ended

    def _interrupt_workers(self) -> None:
        if self.environment.forks:
            super()._interrupt_workers()
            self.ended = True
        elif not self.ended:
            leaving.mark_interrupted(self.huey.home)

    def _set_signal_handlers(self) -> None:
        """None of ours: see Shift."""
