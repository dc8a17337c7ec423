"""A worker that is stopped for longer than its lease: work moves on, or asks where that could double an effect; and
when the worker wakes it finds that its task is not its own any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections import Counter
from typing import IO

import psutil
import pytest

from relight.models import confirmations
from tests.conftest import wait_until
from tests.crash import agents_life, agents_work
from tests.crash.conftest import Forked, Stage

LEASE = {"RELIGHT_LEASE_MS": "500", "RELIGHT_GATE_MS": "100"}


def start(stage: Stage, app: object = agents_work, *args: str) -> Forked:
    return stage.start(app, "--concurrency", "1", *args, env=LEASE)  # type: ignore[arg-type]


def stop_inside(stage: Stage, agent: object) -> tuple[str, Forked]:
    """A task whose worker is stopped while it holds in a step; the barrier is open for whoever comes next."""
    task_id = stage.enqueue(agent).id
    sleeper = start(stage)
    wait_until(lambda: any(line[1] == "hold" for line in stage.lines()))
    start(stage)
    stop(stage, sleeper.pid)
    stage.open_barrier("hold")
    return task_id, sleeper


def stop(stage: Stage, pid: int) -> None:
    """Stop a process, but not as another of its threads is inside a transaction: see the last test."""

    def is_stopped_outside() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        with (stage.home.path / "locks" / "write").open() as gate:
            if is_taken(gate):
                return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(is_stopped_outside)


def is_taken(lock: IO[str]) -> bool:
    """Take a kernel lock, if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ran(stage: Stage) -> Counter[str]:
    return Counter(line[1] for line in stage.lines())


def late_outcomes(stage: Stage, task_id: str) -> list[tuple[str, int]]:
    statement = "SELECT step_key, attempt FROM task_traces WHERE task_id = ? AND late = 1"
    return [(row[0], row[1]) for row in stage.rows(statement, task_id)]


def wake(stage: Stage, sleeper: Forked, task_id: str) -> list[tuple[str, int]]:
    """Continue a stopped worker; the late outcomes, once there is one."""
    sleeper.signal(signal.SIGCONT)
    wait_until(lambda: late_outcomes(stage, task_id))
    return late_outcomes(stage, task_id)


def check_works_again(stage: Stage, sleeper: Forked) -> None:
    """The worker that woke is alive, and takes tasks."""
    tasks = [stage.enqueue(agents_work.quick, "more").id for _ in range(2)]
    wait_until(lambda: all(stage.task(task_id).status == "completed" for task_id in tasks))
    assert sleeper.poll() is None


def test_work_moves_on_from_a_worker_that_is_stopped_inside_a_read(stage: Stage) -> None:
    task_id, sleeper = stop_inside(stage, agents_work.holding)
    began = time.monotonic()
    assert stage.wait_for_status(task_id, "completed").attempt == 2
    assert time.monotonic() - began < 3
    result = stage.task(task_id).result_json
    assert wake(stage, sleeper, task_id) == [("held#1", 1)]
    check_works_again(stage, sleeper)
    assert ran(stage) == {"hold": 2, "after": 1, "more": 2}
    assert (stage.task(task_id).status, stage.task(task_id).result_json) == ("completed", result)
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


def test_work_moves_on_from_a_worker_process_that_is_stopped_inside_a_read(stage: Stage) -> None:
    """One of several forked workers is stopped; its siblings notice."""
    task_id = stage.enqueue(agents_work.holding).id
    worker = stage.start(agents_work, "--kind", "process", "--concurrency", "2", env=LEASE)
    child = psutil.Process(int(stage.wait_for_lines(1)[0][4]))
    assert child.pid in {below.pid for below in psutil.Process(worker.pid).children()}
    stop(stage, child.pid)
    stage.open_barrier("hold")
    stage.wait_for_status(task_id, "completed")
    child.resume()
    wait_until(lambda: late_outcomes(stage, task_id) == [("held#1", 1)])
    assert ran(stage) == {"hold": 2, "after": 1}
    stage.check_storage()


def test_a_write_of_a_stopped_worker_is_asked_about_and_settled_when_it_wakes(stage: Stage) -> None:
    task_id, sleeper = stop_inside(stage, agents_work.holding_write)
    asked = stage.question(task_id)
    assert "not proved dead" in asked.request["owner"]
    assert stage.in_doubt(asked.id) == ["held_write#1"]
    for refused in (["resolve", asked.id, "--again"], ["approve", asked.id]):
        assert stage.cli(*refused).returncode == 4, refused
    assert ran(stage) == {"before": 1, "hold": 1}

    assert wake(stage, sleeper, task_id) == [("held_write#1", 1)]
    assert [step.decision for step in confirmations.steps(stage.home.db, asked.id)] == ["settled_late"]
    assert (stage.task(task_id).status, stage.task(task_id).reason) == ("interrupted", "asked")
    assert stage.questions(task_id) == [(asked.id, "open")]
    assert stage.cli("approve", asked.id).returncode == 0
    assert json.loads(stage.wait_for_status(task_id, "completed").result_json or "")[1] == "hold"
    check_works_again(stage, sleeper)
    assert ran(stage) == {"before": 1, "hold": 1, "after": 1, "more": 2}
    stage.check_storage()


@pytest.mark.parametrize(("answer", "given"), [(["--ran", '"said"'], "said"), (["--abandon"], "abandoned")])
def test_an_answer_stays_when_the_stopped_worker_wakes(stage: Stage, answer: list[str], given: str) -> None:
    task_id, sleeper = stop_inside(stage, agents_work.holding_write)
    asked = stage.question(task_id)
    assert stage.cli("resolve", asked.id, *answer).returncode == 0
    assert json.loads(stage.wait_for_status(task_id, "completed").result_json or "")[1] == given
    assert wake(stage, sleeper, task_id) == [("held_write#1", 1)]
    check_works_again(stage, sleeper)
    assert json.loads(stage.task(task_id).result_json or "")[1] == given
    assert ran(stage) == {"before": 1, "hold": 1, "after": 1, "more": 2}
    stage.check_storage()


def test_a_write_may_run_again_once_its_stopped_worker_was_killed(stage: Stage) -> None:
    task_id, sleeper = stop_inside(stage, agents_work.holding_write)
    asked = stage.question(task_id)
    assert stage.cli("resolve", asked.id, "--again").returncode == 4
    sleeper.kill()
    wait_until(lambda: stage.rows("SELECT count(*) FROM workers WHERE dead_at IS NOT NULL") == [(1,)])
    assert stage.cli("resolve", asked.id, "--again").returncode == 0
    stage.wait_for_status(task_id, "completed")
    assert ran(stage) == {"before": 1, "hold": 2, "after": 1}
    assert stage.questions(task_id) == [(asked.id, "resolved")]
    stage.check_storage()


# -- in the queue of the writers ----------------------------------------------------------------------------------


def stop_at_the_gate(stage: Stage, agent: object, how: str) -> tuple[str, Forked]:
    """A task whose worker stops as it begins to store that step 2 has ended, while the effect has happened."""
    task_id = stage.enqueue(agent, f"{how}:effect 2").id
    sleeper = start(stage, agents_life)
    wait_until(lambda: len(stage.lines("strikes")) == 1)
    wait_until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED)
    start(stage, agents_life)
    return task_id, sleeper


def steps_run(stage: Stage) -> Counter[str]:
    return Counter(f"{line[1]}@{line[2]}" for line in stage.lines())


@pytest.mark.parametrize("how", ["gate", "turn"])
def test_work_moves_on_from_a_worker_that_is_stopped_in_the_write_gate(stage: Stage, how: str) -> None:
    """Holding the gate, or waiting at it with the turn in its hand: the others write without the gate."""
    task_id, sleeper = stop_at_the_gate(stage, agents_life.reader, how)
    began = time.monotonic()
    assert stage.wait_for_status(task_id, "completed").attempt == 2
    assert time.monotonic() - began < 6
    assert wake(stage, sleeper, task_id) == [("look#2", 1)]
    assert steps_run(stage) == {"1@1": 1, "2@1": 1, "2@2": 1, "3@2": 1}
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


@pytest.mark.parametrize("how", ["gate", "turn"])
def test_a_write_of_a_worker_that_is_stopped_in_the_write_gate_is_asked_about(stage: Stage, how: str) -> None:
    task_id, sleeper = stop_at_the_gate(stage, agents_life.writer, how)
    asked = stage.question(task_id)
    assert stage.in_doubt(asked.id) == ["put#2"]
    assert stage.cli("resolve", asked.id, "--again").returncode == 4
    assert wake(stage, sleeper, task_id) == [("put#2", 1)]
    assert stage.cli("approve", asked.id).returncode == 0
    stage.wait_for_status(task_id, "completed")
    assert steps_run(stage) == {"1@1": 1, "2@1": 1, "3@2": 1}
    stage.check_storage()


@pytest.mark.parametrize("end", ["continued", "killed"])
def test_a_worker_that_is_stopped_inside_a_transaction_holds_up_writes_and_loses_none(
    stage: Stage, end: str
) -> None:
    task_id, sleeper = stop_at_the_gate(stage, agents_life.reader, "inside")
    assert stage.rows("SELECT worker_id IS NOT NULL FROM agent_tasks WHERE id = ?", task_id) == [(1,)]
    assert stage.events(task_id).count("tool_call_completed") == 1
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1)  # longer than its lease
    assert stage.events(task_id).count("task_recovered") == 0
    assert str(sleeper.pid) == (stage.home.path / "locks" / "write").read_text().strip()
    if end == "killed":
        sleeper.kill()
    else:
        sleeper.signal(signal.SIGCONT)
    assert stage.wait_for_status(task_id, "completed").attempt <= 2
    assert steps_run(stage)["2@1"] == 1
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


def test_a_recovery_pass_that_is_stopped_holds_up_the_others_for_a_lease_at_most(stage: Stage) -> None:
    """Whoever is stopped in a pass keeps its lock; so does this test."""
    task_id = stage.enqueue(agents_work.holding).id
    first = start(stage)
    stage.wait_for_lines(1)
    with (stage.home.path / "locks" / "sweep").open() as lock:
        wait_until(lambda: is_taken(lock))
        first.kill()
        stage.open_barrier("hold")
        began = time.monotonic()
        start(stage)
        stage.wait_for_status(task_id, "completed")
        assert time.monotonic() - began < 3
        assert stage.cli("recover", env=LEASE).returncode == 0
    assert ran(stage) == {"hold": 2, "after": 1}
