"""TERM, as every deploy sends it: what can end in time ends, the rest is put down and goes on after the restart."""

from __future__ import annotations

import signal
import time

import pytest

from tests.conftest import wait_until
from tests.crash import agents_work
from tests.crash.conftest import Forked, Stage

WAYS = ("up", "thread", "process")
ALONE = {"RELIGHT_CONCURRENCY": "1", "RELIGHT_APP": agents_work.__name__}


def start(stage: Stage, way: str, *, grace_ms: int) -> Forked:
    """The lines of the Procfile under `relight up`, or one worker."""
    env = {**ALONE, "RELIGHT_GRACE_MS": str(grace_ms)}
    if way == "up":
        return stage.spawn("up", env=env)
    return stage.start(agents_work, "--kind", way, env=env)


def end(worker: Forked) -> float:
    """TERM to the parent alone; how long it took to end with 0, in seconds."""
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    return time.monotonic() - began


@pytest.mark.parametrize("way", WAYS)
def test_a_running_task_ends_within_the_grace_time_and_no_new_one_is_taken(stage: Stage, way: str) -> None:
    running = stage.enqueue(agents_work.holding).id
    worker = start(stage, way, grace_ms=10_000)
    stage.wait_for_lines(1)
    waiting = stage.enqueue(agents_work.quick).id
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: time.monotonic() - began > 0.5)
    assert worker.poll() is None
    assert stage.task(running).status == "running"
    stage.open_barrier("hold")
    assert worker.wait() == 0
    assert time.monotonic() - began < 4
    assert stage.task(running).status == "completed"
    assert (stage.task(waiting).status, stage.task(waiting).attempt) == ("pending", 0)
    assert [line[1] for line in stage.lines()] == ["hold", "after"]
    assert stage.rows("SELECT count(*) FROM workers WHERE dead_at IS NULL") == [(0,)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.spec(28)
def test_a_task_that_does_not_end_in_time_is_interrupted_and_goes_on_after_the_restart(
    stage: Stage, way: str
) -> None:
    task_id = stage.enqueue(agents_work.holding).id
    worker = start(stage, way, grace_ms=500)
    stage.wait_for_lines(1)
    took = end(worker)
    assert 0.5 <= took < 3.5, f"ended after {took:.2f} s"
    task = stage.task(task_id)
    assert (task.status, task.reason, task.losses) == ("interrupted", "shutdown", 0)
    stage.open_barrier("hold")
    start(stage, way, grace_ms=500)
    stage.wait_for_status(task_id, "completed")
    assert stage.task(task_id).losses == 0
    assert [line[1] for line in stage.lines()] == ["hold", "hold", "after"]
    stage.check_storage()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_write_that_does_not_end_in_time_is_asked_about(stage: Stage, kind: str) -> None:
    task_id = stage.enqueue(agents_work.holding_write).id
    worker = start(stage, kind, grace_ms=300)
    stage.wait_for_lines(2)
    end(worker)
    assert stage.task(task_id).reason == "shutdown"
    start(stage, kind, grace_ms=300)
    assert stage.in_doubt(stage.question(task_id).id) == ["held_write#1"]
    assert [line[1] for line in stage.lines()] == ["before", "hold"]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_second_signal_ends_a_worker_at_once(stage: Stage, kind: str) -> None:
    task_id = stage.enqueue(agents_work.holding).id
    worker = start(stage, kind, grace_ms=60_000)
    stage.wait_for_lines(1)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in worker.text())
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began < 2
    stage.open_barrier("hold")
    start(stage, kind, grace_ms=60_000)
    stage.wait_for_status(task_id, "completed")
