"""The event loop of the asynchronous agents of a process: one thread, with the pools that keep it free.

Invariants: a run's tasks end with the run, and the run not before the bodies that it has in threads; nothing that agent
code raises ends the loop; a loop that is blocked for a second is reported with the tasks and steps that were running on
it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import scopes

if TYPE_CHECKING:
    from .run import AsyncRun

log = logging.getLogger("relight.loops")

BLOCKED_S = 1.0  # design §7
_LOOK_S = 0.5
BODIES, STORAGE = (
    32,
    4,
)  # threads: synchronous step bodies; database work, which the write lock serialises anyway


class AgentLoop:
    """A loop in a daemon thread; started with the first asynchronous agent."""

    def __init__(self) -> None:
        self.bodies = ThreadPoolExecutor(BODIES, thread_name_prefix="relight-body")
        self.storage = ThreadPoolExecutor(STORAGE, thread_name_prefix="relight-storage")
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(scopes.task_factory)
        self._runs: set[AsyncRun] = set()
        self._answered = time.monotonic()
        threading.Thread(target=self._run_for_ever, name="relight-loop", daemon=True).start()
        threading.Thread(target=self._watch, name="relight-loop-watch", daemon=True).start()

    def start(self, run: AsyncRun, agent: Coroutine[Any, Any, Any], done: Callable[[Any], None]) -> None:
        """Run an agent on the loop; `done` gets its outcome in a storage thread."""

        async def whole() -> None:
            self._runs.add(run)
            try:
                outcome = await agent
                await _end_of(run)
                await run.quiet()
                await self._loop.run_in_executor(self.storage, done, outcome)
            finally:
                self._runs.discard(run)

        asyncio.run_coroutine_threadsafe(whole(), self._loop)

    def _run_for_ever(self) -> None:
        while True:
            try:
                self._loop.run_forever()
                return
            except (
                SystemExit,
                KeyboardInterrupt,
            ) as error:  # raised in a task of agent code, outside of any step
                log.warning("agent code tried to end the process", extra={"error": repr(error)})

    def _watch(self) -> None:
        told = False
        while True:
            time.sleep(_LOOK_S)
            if not self._runs:
                self._answered = time.monotonic()
                continue
            self._loop.call_soon_threadsafe(self._answer)
            blocked = time.monotonic() - self._answered
            if blocked >= BLOCKED_S + _LOOK_S and not told:
                log.warning(
                    "the event loop is blocked", extra={"seconds": round(blocked, 1), "runs": self._names()}
                )
            told = blocked >= BLOCKED_S + _LOOK_S

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _names(self) -> list[str]:
        return [f"{run.task_id} at {run.at_step or 'no step'}" for run in list(self._runs)]


async def _end_of(run: AsyncRun) -> None:
    """Cancel what the run's code left running, and wait for it: its steps would have no run."""
    left = [task for task in run.tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=BLOCKED_S)
