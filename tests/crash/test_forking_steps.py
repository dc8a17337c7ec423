"""Forks of every kind around the state file: no commit is lost, and no child keeps a dead worker's lock alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest

from relight import enqueue_many
from tests.conftest import wait_until
from tests.crash import agents_forking
from tests.crash.agents_forking import LEAVING, WIDTH
from tests.crash.conftest import Stage

CALLS = 12
TASKS = 600


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_what_is_committed_around_forks_inside_steps_stays(stage: Stage, kind: str) -> None:
    """Pools and bare forks in several workers at a time, whose children read and write the state file too."""
    calls = [
        agent.options(home=stage.home).call(number)
        for number in range(CALLS)
        for agent in (agents_forking.pooling, agents_forking.forking)
    ]
    calls += [agents_forking.counted.options(home=stage.home).call(number) for number in range(100)]
    handles = enqueue_many(calls)
    stage.start(agents_forking, "--kind", kind, "--concurrency", "4")
    wait_until(lambda: stage.states()["completed", None] == len(handles), 40)
    stored = {row[0] for row in stage.rows("SELECT id FROM agent_tasks WHERE agent_id = 'nobody'")}
    told = [json.loads(stage.task(handle.id).result_json or "") for handle in handles[: 2 * CALLS]]
    assert {task_id for answer in told for task_id in answer} == stored
    assert len(stored) == CALLS * WIDTH
    stage.check_storage()


def test_process_workers_lose_no_commit_of_what_was_opened_before_they_were_forked(stage: Stage) -> None:
    """The agents' module has used the state file when the workers are forked from its process."""
    handles = enqueue_many([agents_forking.counted.options(home=stage.home).call(n) for n in range(TASKS)])
    worker = stage.start(agents_forking, "--kind", "process", "--concurrency", "4")
    wait_until(lambda: stage.states() == {("completed", None): TASKS}, 60)
    lines = stage.lines()
    assert Counter(line[0] for line in lines) == {handle.id: 1 for handle in handles}
    assert {json.loads(row[0]) for row in stage.rows("SELECT result_json FROM agent_tasks")} == set(
        range(TASKS)
    )
    used = {int(line[4]) for line in lines}
    assert len(used) > 1
    assert used <= {child.pid for child in psutil.Process(worker.pid).children()}
    assert stage.rows("SELECT count(*) FROM task_traces") == [(3 * TASKS,)]
    stage.check_storage()


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_child_that_outlives_a_killed_worker_keeps_nothing_of_it_alive(
    stage: Stage, kind: str, how: str
) -> None:
    task_id = stage.enqueue(agents_forking.leaving, how).id
    worker = stage.start(agents_forking, "--kind", kind, "--concurrency", "2")
    children = [int(line[0]) for line in stage.wait_for_lines(WIDTH if how == "pool" else 1, file="children")]
    stage.start(agents_forking, "--kind", kind)
    wait_until(lambda: listening(stage) >= 2)
    killed = int(stage.lines()[0][4])
    began = time.monotonic()
    if kind == "thread":
        assert killed == worker.pid
        worker.kill_alone()
    else:
        os.kill(killed, 9)
    stage.wait_for_status(task_id, "completed")
    took = time.monotonic() - began
    assert all(is_running(pid) for pid in children)
    assert took < 2, f"the work moved on after {took:.2f} s"
    stage.check_storage()


def test_a_child_inherits_no_lock_at_whatever_moment_it_is_forked(stage: Stage) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.crash.racers",
        "fork",
        str(stage.home.path),
        str(stage.folder / "end"),
    ]
    racer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=stage.env())
    try:
        wait_until(lambda: stage.rows("SELECT count(*) >= 300 FROM recovery_runs") == [(1,)], 30)
        (stage.folder / "end").touch()
        assert racer.communicate(timeout=30)[0].strip() == "[]"
    finally:
        racer.kill()
        racer.wait()


def listening(stage: Stage) -> int:
    """How many processes wait for work of the lane."""
    return len([name for name in os.listdir(stage.home.path / "bells") if name.startswith("subagent")])


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
