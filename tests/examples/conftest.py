"""What the tests of the examples share: a state directory to enqueue into, and a look at what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.models import tasks, traces
from relight.workers import settings
from relight.workers.home import Home


class Records:
    """The records of one state directory."""

    def __init__(self, home: Home) -> None:
        self.home, self.db = home, home.db

    def status(self, task_id: str) -> str:
        return str(tasks.find(self.db, task_id).status)

    def finished(self, task_id: str) -> list[str]:
        """The keys of the steps that have an outcome."""
        found = traces.by_task(self.db, task_id, kind=traces.OUTCOME)
        return [str(trace.step_key) for trace in found]

    def open_write(self, task_id: str) -> str | None:
        """The key of the write step that is being executed."""
        last = traces.last(self.db, task_id)
        return last.step_key if last and last.event_kind == traces.INTENT and last.effect == "write" else None


@pytest.fixture
def records(home: Path) -> Iterator[Records]:
    opened = Home.open(settings.load(home=home))
    yield Records(opened)
    opened.close()
