"""Pulse events on their way to the store: buffered per process, written in batches, dropped and counted when they must be.

Invariant: a pulse never blocks or fails a step. The buffer is bounded; what does not fit, or cannot be written, is
dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..models import events, forks
from ..models.database import Database
from ..models.errors import StorageError
from . import bells
from .clock import now_ms

log = logging.getLogger("relight.pulses")

BATCH, FLUSH_S = 50, 0.5  # spec A3: 50 events or 500 ms
FOLLOWED_FLUSH_S = 0.02  # design §9: while someone follows
CAPACITY = 10_000  # a locked database for 2 s at 5,000 pulses a second


class Pulses:
    """The pulse buffer of one process."""

    def __init__(self, db: Database, home: Path, test_clock: Path | None = None) -> None:
        self.db, self.home, self.test_clock = db, home, test_clock
        self.dropped = 0
        self._reset()
        forks.guard.register(self)

    def add(self, task_id: str, payload: dict[str, Any]) -> None:
        """Take a pulse; it is stored within the flush time or dropped."""
        with self._mutex:
            if self._count >= CAPACITY:
                self.dropped += 1
                return
            self._held[task_id].append((payload, now_ms(self.test_clock)))
            self._count += 1
            self._start_thread()
            if self._count >= BATCH:
                self._due.set()

    def flush(self, task_id: str) -> None:
        """Store what is held of one task now: called before each of its skeleton events."""
        with self._storing:  # whoever comes second waits: what is on its way comes before a skeleton too
            with self._mutex:
                held = self._held.pop(task_id, None)
                self._count -= len(held or ())
            if held:
                self._store(task_id, held)

    def flush_all(self) -> None:
        """Store what is held of every task."""
        for task_id in list(self._held):
            self.flush(task_id)

    def close_inherited(self) -> None:
        """In a forked child: hold nothing; the parent stores its own."""
        self._reset()

    def _reset(self) -> None:
        self._held: dict[str, list[tuple[dict[str, Any], int]]] = defaultdict(list)
        self._count = 0
        self._mutex, self._storing = threading.Lock(), threading.Lock()
        self._due = threading.Event()
        self._thread: threading.Thread | None = None

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_flushing, name="relight-pulses", daemon=True)
            self._thread.start()

    def _keep_flushing(self) -> None:
        while True:
            followed = bells.listeners(self.home, "follow") > 0
            self._due.wait(FOLLOWED_FLUSH_S if followed else FLUSH_S)
            self._due.clear()
            self.flush_all()
            with self._mutex:
                if not self._count:  # the next pulse starts a new thread: an idle process has none
                    self._thread = None
                    return

    def _store(self, task_id: str, held: list[tuple[dict[str, Any], int]]) -> None:
        try:
            events.record_pulses(self.db, task_id, held)
        except StorageError as error:
            self.dropped += len(held)
            log.warning(
                "pulses were dropped", extra={"task": task_id, "count": len(held), "error": str(error)}
            )
