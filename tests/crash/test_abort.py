"""A task that is called off while it runs stops before its next step, stays called off, and gives its slot back."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from relight import enqueue_many
from relight.models import traces
from tests.conftest import wait_until
from tests.crash import agents_poison, agents_work
from tests.crash.conftest import Stage

AT, QUEUED = 4, 500


def steps(stage: Stage, task_id: str) -> list[str]:
    return [line[1] for line in stage.lines() if line[0] == task_id]


def late(stage: Stage, task_id: str) -> list[bool]:
    return [bool(trace.late) for trace in traces.by_task(stage.home.db, task_id, kind=traces.OUTCOME)]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_running_task_stops_before_its_next_step_and_stays_cancelled(stage: Stage, kind: str) -> None:
    task_id = stage.enqueue(agents_poison.long, AT, options={"lane": "main"}).id
    worker = stage.start(agents_poison, "--kind", kind, lane="main", env={"RELIGHT_CONCURRENCY": "1"})
    wait_until(lambda: len(steps(stage, task_id)) == AT)
    began = time.monotonic()
    assert json.loads(stage.cli("cancel", task_id).stdout)["reason"] == "cancelled"
    assert time.monotonic() - began < 2, "nobody waits for the step that runs"
    following = stage.enqueue(agents_poison.harmless, options={"lane": "main"}).id
    stage.open_barrier("go on")
    stage.wait_for_status(following, "completed", deadline=5)
    task = stage.task(task_id)
    assert (task.status, task.reason, task.result_json) == ("failed", "cancelled", None)
    assert steps(stage, task_id) == [str(number) for number in range(1, AT + 1)]
    assert late(stage, task_id) == [False] * (AT - 1) + [True]
    assert stage.events(task_id).count("task_failed") == 1
    assert worker.poll() is None
    worker.kill()
    stage.start(agents_poison, lane="main")
    passes = stage.rows("SELECT count(*) FROM recovery_runs")[0][0]
    wait_until(lambda: stage.rows("SELECT count(*) FROM recovery_runs")[0][0] >= passes + 2)
    assert stage.task(task_id).status == "failed", "no recovery brings it back"
    assert len(steps(stage, task_id)) == AT


def test_it_works_while_the_lane_of_the_worker_is_full(stage: Stage) -> None:
    """Calling off needs no worker: the row says so, and the run finds it at its next step."""
    task_id = stage.enqueue(agents_poison.long, AT).id
    stage.start(agents_poison, env={"RELIGHT_CONCURRENCY": "1"})
    wait_until(lambda: len(steps(stage, task_id)) == AT)
    behind = agents_poison.harmless.options(home=stage.home)
    enqueue_many([behind.call() for _ in range(QUEUED)])
    assert stage.cli("cancel", task_id).returncode == 0
    stage.open_barrier("go on")
    began = time.monotonic()
    wait_until(lambda: stage.rows("SELECT count(*) FROM agent_tasks WHERE status = 'completed'")[0][0] > 0)
    assert time.monotonic() - began < 2, "the slot is free as soon as the step has ended"
    assert stage.task(task_id).reason == "cancelled"


def test_a_task_in_a_tool_of_half_a_minute_is_called_off_at_once_and_its_result_is_dropped(
    stage: Stage,
) -> None:
    """The tool belongs to the step, which ends it; what it then gives back changes nothing any more."""
    task_id = stage.enqueue(agents_poison.toolsmith).id
    stage.start(agents_poison, env={"RELIGHT_CONCURRENCY": "1"})
    stage.wait_for_lines(1, file="tools")
    assert stage.cli("cancel", task_id).returncode == 0
    assert stage.task(task_id).status == "failed"
    why = json.loads(stage.cli("why", task_id).stdout)
    assert (why["code"], bool(why["facts"]["by"])) == ("cancelled", True)
    stage.open_barrier("tool is done")
    wait_until(lambda: late(stage, task_id) == [True])
    assert steps(stage, task_id) == ["tool"]
    task = stage.task(task_id)
    assert (task.status, task.reason, task.result_json) == ("failed", "cancelled", None)
    following = stage.enqueue(agents_poison.harmless).id
    stage.wait_for_status(following, "completed", deadline=5)


def test_a_worker_that_is_told_to_stop_ends_the_tools_of_cancelled_tasks_too(stage: Stage) -> None:
    task_id = stage.enqueue(agents_poison.toolsmith).id
    worker = stage.start(agents_poison, env={"RELIGHT_GRACE_MS": "300"})
    [[pid]] = stage.wait_for_lines(1, file="tools")
    stage.cli("cancel", task_id)
    worker.signal(15)
    assert worker.wait() == 0
    wait_until(lambda: not is_running(int(pid)))
    assert stage.task(task_id).reason == "cancelled"


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_task_that_waits_is_called_off_without_ever_running(stage: Stage) -> None:
    task_id = stage.enqueue(agents_work.quick).id
    assert stage.cli("cancel", task_id).returncode == 0
    stage.start(agents_work)
    following = stage.enqueue(agents_work.quick, "following").id
    stage.wait_for_status(following, "completed")
    assert stage.task(task_id).attempt == 0
