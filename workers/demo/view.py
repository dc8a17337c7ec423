"""What the demo sees of its tasks: rows, traces and workers of the state file, and the board made from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ...models import tasks, traces, workers
from ...models.errors import RelightError
from ...models.tasks import AgentTask, TaskStatus
from ...models.traces import TaskTrace
from ..home import Home
from .crew import Crew
from .screen import Row, Screen

T = TypeVar("T")

ACT_S = 20.0  # an act takes about a second; a loaded machine may need more
_LOOK_S = 0.005
_DRAW_S = 0.1


class ActFailed(RelightError):
    """An act of the demo did not come to its end; the message says which and why."""


@dataclass(frozen=True)
class Steps:
    """How far a task has come: finished steps, all it will have, and whether it is inside a write now."""

    done: int
    total: int
    writing: bool


@dataclass
class View:
    """Looks, never writes."""

    home: Home
    crew: Crew
    screen: Screen
    cast: dict[str, str] = field(default_factory=dict)  # name on the board → task id
    totals: dict[str, int] = field(default_factory=dict)  # name → how many steps the task will have
    _names: dict[str, str] = field(default_factory=dict)  # worker id → name
    _drawn: float = 0.0

    def until(self, what: str, answer: Callable[[], T | None]) -> T:
        """The first true answer; an ActFailed when there is none in time, or when a worker falls meanwhile."""
        end = time.monotonic() + ACT_S
        while not (found := answer()):
            if fallen := self.crew.fallen():
                raise ActFailed(f"{'; '.join(fallen)} (waiting until {what})")
            if time.monotonic() > end:
                raise ActFailed("; ".join([f"waited {ACT_S:g} s in vain until {what}", *self._clues()]))
            if time.monotonic() - self._drawn >= _DRAW_S:
                self.draw()
            time.sleep(_LOOK_S)
        return found

    def draw(self) -> None:
        """Put what is so now on the board."""
        self._drawn = time.monotonic()
        self.screen.show([self._row(name) for name in self.cast])

    def task(self, name: str) -> AgentTask:
        """The row of a task."""
        return tasks.find(self.home.db, self.cast[name])

    def history(self, name: str) -> list[TaskTrace]:
        """The traces of a task."""
        return traces.by_task(self.home.db, self.cast[name])

    def steps(self, name: str) -> Steps:
        """How far a task has come, from its traces."""
        recorded = [trace for trace in self.history(name) if trace.step_key is not None]
        done = {trace.step_key for trace in recorded if trace.event_kind == traces.OUTCOME}
        last = recorded[-1] if recorded else None
        writing = last is not None and last.event_kind == traces.INTENT and last.effect == "write"
        return Steps(len(done), self.totals.get(name, 1), writing)

    def running(self, name: str) -> bool:
        """Whether a worker executes the task."""
        return TaskStatus(self.task(name).status) is TaskStatus.RUNNING

    def has_ended(self, name: str) -> bool:
        """Whether the task is completed or failed."""
        return TaskStatus(self.task(name).status).is_terminal()

    def owner(self, name: str) -> workers.Worker:
        """The worker that runs a task, from the workers table; it must be one of the crew."""
        task = self.task(name)
        for worker in workers.alive(self.home.db):
            if worker.id == task.worker_id and self.crew.name_of(worker.pid):
                return worker
        raise ActFailed(f"no worker of the demo runs the {name}: it is {task.status}")

    def _row(self, name: str) -> Row:
        task, steps = self.task(name), self.steps(name)
        worker = self._name(task.worker_id) if task.status == TaskStatus.RUNNING else ""
        return Row(name, task.lane, task.status, task.attempt, worker, steps.done, steps.total)

    def _name(self, worker_id: str | None) -> str:
        if worker_id not in self._names:
            found = {
                worker.id: self.crew.name_of(worker.pid) or "?" for worker in workers.alive(self.home.db)
            }
            self._names.update(found)
        return self._names.get(worker_id or "", "?")

    def _clues(self) -> list[str]:
        """What may explain that something did not happen."""
        return [*(f"{name} is {self.task(name).status}" for name in self.cast), *self.crew.troubles()]
