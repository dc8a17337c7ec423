"""A real state file in a folder of the test, and the tasks to put into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.models import claims, schema, tasks
from relight.models.database import Database
from relight.models.tasks import AgentTask, Lane, RiskLevel

NOW = 1_700_000_000_000
AGENT = "explorer"

Submit = Callable[..., AgentTask]
Claim = Callable[..., AgentTask]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a state file may be made."""
    folder = tmp_path / "state"
    folder.mkdir()
    return folder / "state.db"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    opened = schema.open_database(path, now=NOW)
    yield opened
    opened.close_all()


def new_task(
    id: str = "t1", *, lane: Lane = Lane.SUBAGENT, risk: RiskLevel = RiskLevel.LOW, **changes: Any
) -> AgentTask:
    now = changes.pop("now", NOW)
    task = AgentTask.new(
        id, changes.pop("session", "s1"), changes.pop("agent", AGENT), "a prompt", risk, now=now
    )
    task = task.with_lane(lane)
    for name, value in changes.items():
        setattr(task, name, value)
    return task


def fail_after(db: Database, work: Callable[[], object], error: BaseException | None = None) -> None:
    """Do something in a write transaction that then raises (a ValueError, "x")."""
    with db.write():
        work()
        raise error or ValueError("x")


@pytest.fixture
def submit(db: Database) -> Submit:
    """Store a new task and return it."""
    return lambda id="t1", **changes: tasks.submit(db, new_task(id, **changes), now=changes.get("now", NOW))


@pytest.fixture
def claim(db: Database, submit: Submit) -> Claim:
    """Store a new task and claim it for a worker."""

    def run(id: str = "t1", *, worker: str = "w1", **changes: Any) -> AgentTask:
        task = submit(id, **changes)
        found = claims.claim(db, task.lane, worker_id=worker, now=NOW + 1, known=frozenset({task.agent_id}))
        assert found is not None
        assert found.id == id
        return found

    return run
