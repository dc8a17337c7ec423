"""`TaskHandle`: a stored task seen from outside, to wait for, read and cancel.

Invariant: waiting sleeps on a bell that is rung after each commit; the slow poll only covers a bell that was lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from ..models import tasks, transitions
from ..models.errors import MisuseError, TaskFailedError, WaitTimeoutError
from ..models.tasks import AgentTask, TaskStatus
from . import outcomes, person, scopes
from .home import Home

if TYPE_CHECKING:
    from ..models.events import AgentEvent
    from .following import Gap


class TaskHandle:
    """One task of one state directory."""

    def __init__(self, home: Home, task_id: str) -> None:
        self.home, self.id = home, task_id

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def __await__(self) -> Generator[Any, None, Any]:
        _refuse_inside_run(self.id)
        return self._awaited().__await__()

    def task(self) -> AgentTask:
        """The row as it is now; raises NotFoundError."""
        return tasks.find(self.home.db, self.id)

    @property
    def status(self) -> TaskStatus:
        """The status as it is now."""
        return TaskStatus(self.task().status)

    def wait(self, timeout: float | None = None) -> AgentTask:
        """Block until the task has ended, at most `timeout` seconds; raises WaitTimeoutError."""
        _refuse_inside_run(self.id)
        return self._ended(timeout, threading.Event())

    def _ended(self, timeout: float | None, given_up: threading.Event) -> AgentTask:
        bell = self.home.bell("watch")
        deadline = None if timeout is None else time.monotonic() + timeout
        bell.start()
        while True:
            seen = bell.generation
            task = self.task()
            if task.status.is_terminal() or given_up.is_set():
                return task
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeoutError(self.id, str(task.status), timeout or 0, _why(self.home, task))
            bell.wait(seen, _shorter(left, self.home.settings.poll_ms / 1000 or None))

    def result(self, timeout: float | None = None) -> Any:
        """What the agent returned, typed by its annotation where the agent is importable here.

        Blocks at most `timeout` seconds. Raises TaskFailedError, WaitTimeoutError, SealedStepError.
        """
        return result_of(self.home, self.wait(timeout))

    async def _awaited(self) -> Any:
        """The result, waited for in a thread that ends when it is not waited for any more."""
        import asyncio  # not above: verbs that only answer would pay for it

        given_up = threading.Event()
        try:
            return result_of(self.home, await asyncio.to_thread(self._ended, None, given_up))
        finally:
            given_up.set()
            self.home.bell("watch").poke()

    def cancel(self, *, reason: str = "") -> AgentTask:
        """End the task; a running attempt stops at its next step boundary. Raises StaleMove where it has ended."""
        by = person.name()
        detail = json.dumps({"type": "Cancelled", "text": reason or f"cancelled by {by}"}, ensure_ascii=False)
        return transitions.cancel(self.home.db, self.id, by=by, detail=detail, now=self.home.now())

    def events(self, after: int = 0) -> Iterator[AgentEvent | Gap]:
        """The events with a greater seq, as they come, until the task has ended."""
        from .following import follow

        return follow(self.home, self.id, after)


def result_of(home: Home, task: AgentTask) -> Any:
    """The result of an ended task; raises TaskFailedError where it failed."""
    from .agents import known

    refuse_failed(task)
    agent = known().get(task.agent_id)
    return outcomes.load(home, task.result_json or "null", agent.returns if agent else None)


def refuse_failed(task: AgentTask) -> None:
    """Raise TaskFailedError where a task has failed."""
    if task.status == TaskStatus.FAILED:
        raise TaskFailedError(task.id, task.reason or "error", error_of(task))


def error_of(task: AgentTask) -> str:
    """The recorded error of a failed task."""
    error = json.loads(task.error_json or "{}")
    return f"{error.get('type', 'Error')}: {error.get('text', '')}"


def _why(home: Home, task: AgentTask) -> str:
    """Why a task has not ended, and what a person can do; nothing where it just runs."""
    from ..recovery import why  # not above: who waits seldom needs it
    from . import situation

    answer = why.why(situation.look(home, task))
    if answer.code == "running":
        return answer.sentence
    return " ".join([answer.sentence, *(f"[relight {words}]" for words in answer.next)])


def _refuse_inside_run(task_id: str) -> None:
    if scopes.current.get() is not None:
        raise MisuseError(
            f"waiting for task {task_id} inside a run would hold a worker while another one is needed; "
            "return the handle's id, and wait for it outside"
        )


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
