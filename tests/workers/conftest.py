"""One process that runs tasks, in the hands of a test: it claims, works, dies and is relit at the test's word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.models import claims, confirmations, events, traces
from relight.models.confirmations import Confirmation
from relight.models.database import Database
from relight.models.tasks import AgentTask
from relight.recovery import replay
from relight.recovery.sweep import Report
from relight.workers import agents, execution, recovery_job, serving, settings, steps
from relight.workers.attempts import Outcome
from relight.workers.home import Home
from relight.workers.loops import AgentLoop
from relight.workers.ownership import Owner


class Crew:
    """A state directory and the one process that serves it."""

    def __init__(self, home: Home) -> None:
        self.home = home

    @property
    def db(self) -> Database:
        return self.home.db

    @property
    def owner(self) -> Owner:
        return self.home.owner("subagent")

    def claim(self, lane: str = "subagent") -> AgentTask | None:
        """Take the next task, as a lane does; None where nothing is ready."""
        known = frozenset(agents.known())
        task = claims.claim(self.db, lane, worker_id=self.owner.id, now=self.home.now(), known=known)
        if task is not None:
            self.owner.take(task.id, task.attempt)
        return task

    def work(self, lane: str = "subagent") -> Outcome:
        """Run one attempt of the next task to its end."""
        task = self.claim(lane)
        assert task is not None, "nothing is ready"
        return execution.execute(self.home, self.owner, task)

    def work_off(self) -> list[Outcome]:
        """Run attempts until nothing is ready."""
        done = []
        while (task := self.claim()) is not None:
            done.append(execution.execute(self.home, self.owner, task))
        return done

    def interrupt(self) -> None:
        """What a process does with running tasks when it has to end: mark them. Called by agent code in tests."""
        execution.interrupt_all(self.home, self.owner)

    def die(self) -> None:
        """What SIGKILL does to the identity of a process: its lock is free, and nothing is signed off."""
        self.owner.close()

    def recover(self) -> Report:
        return recovery_job.recover(self.home)

    def relight(self) -> Report:
        """Die, and let a sweep find it."""
        self.die()
        return self.recover()

    # -- looking at the record --------------------------------------------------------------------------------

    def outcomes(self, task_id: str) -> list[str]:
        """The keys of the outcomes of a task, in the order of their commits."""
        return [str(trace.step_key) for trace in traces.by_task(self.db, task_id, kind=traces.OUTCOME)]

    def intents(self, task_id: str) -> list[str]:
        return [str(trace.step_key) for trace in traces.by_task(self.db, task_id, kind=traces.INTENT)]

    def results(self, task_id: str) -> list[dict[str, Any]]:
        """What the outcomes of a task say, in the order of their commits."""
        found = traces.by_task(self.db, task_id, kind=traces.OUTCOME)
        return [json.loads(trace.event_json)["result"] for trace in found]

    def history(self, task_id: str) -> replay.History:
        return replay.history(traces.step_records(self.db, task_id))

    def events(self, task_id: str) -> list[str]:
        return [event.event_type for event in events.by_task(self.db, task_id)]

    def asked(self) -> list[Confirmation]:
        return confirmations.listing(self.db)


_loop: list[AgentLoop] = []  # one for all tests: an agent loop serves a process for life


@pytest.fixture
def crew(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """A crew with a new state directory, which knows only the agents and steps that the test declares."""
    monkeypatch.setattr(agents, "_registry", {})
    monkeypatch.setattr(steps, "_declared", {})
    opened = Home.open(settings.load())
    opened.adopt()
    _loop[:] = _loop or [AgentLoop()]
    serving._shared.loops[str(opened.path)] = _loop[0]
    yield Crew(opened)
    opened.close()
    monkeypatch.setattr("relight.workers.home._adopted", None)
    serving._shared.begun = False
