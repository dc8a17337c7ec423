"""A worker that is alive keeps its task, however long it takes."""

from __future__ import annotations

import time

import pytest

from tests.conftest import wait_until
from tests.crash import agents_work
from tests.crash.conftest import Stage

LEASE_MS = 800
LONG_S = 3 * LEASE_MS / 1000
LEASE = {"RELIGHT_LEASE_MS": str(LEASE_MS)}


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_task_that_outlasts_the_lease_three_times_runs_once(stage: Stage, kind: str) -> None:
    """One step waits, another computes without a pause; recovery passes run all the while, in two processes."""
    waiting = stage.enqueue(agents_work.holding).id
    computing = stage.enqueue(agents_work.spinning, LONG_S).id
    first = stage.start(agents_work, "--kind", kind, env=LEASE)
    stage.wait_for_lines(2)
    began = time.monotonic()
    second = stage.start(agents_work, "--kind", kind, env=LEASE)
    wait_until(lambda: time.monotonic() - began > LONG_S)
    stage.open_barrier("hold")
    for task_id in (waiting, computing):
        assert stage.wait_for_status(task_id, "completed").attempt == 1
        assert "task_recovered" not in stage.events(task_id)
    assert sorted(line[1] for line in stage.lines()) == ["after", "hold", "spin"]
    assert stage.rows("SELECT count(*) >= 8 FROM recovery_runs") == [(1,)]
    assert (first.poll(), second.poll()) == (None, None)
