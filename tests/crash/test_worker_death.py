"""What a person sees after a worker has died: the work goes on by itself, or one question waits, and nothing is done
that was done before.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from relight.models import claims, confirmations
from relight.workers.ownership import Owner
from tests.conftest import wait_until
from tests.crash import agents_chain
from tests.crash.agents_chain import LENGTH
from tests.crash.conftest import Forked, Stage


def ran(stage: Stage, task_id: str) -> Counter[str]:
    return Counter(line[1] for line in stage.lines() if line[0] == task_id)


def kill_at(stage: Stage, task_id: str, line: int, worker: Forked) -> None:
    """SIGKILL the worker and all it started when the task has left so many lines."""
    wait_until(lambda: sum(ran(stage, task_id).values()) >= line)
    worker.kill()


def statuses_told(stage: Stage, task_id: str) -> list[str]:
    return [name for name in stage.events(task_id) if name.startswith("task_")]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_killed_task_goes_on_where_it_stopped(stage: Stage, kind: str) -> None:
    task_id = stage.enqueue(agents_chain.chain, 3).id
    kill_at(stage, task_id, 3, stage.start(agents_chain, "--kind", kind))
    assert stage.task(task_id).status == "running"
    began = time.monotonic()
    stage.start(agents_chain, "--kind", kind)
    wait_until(lambda: ran(stage, task_id)["3"] == 2)
    assert time.monotonic() - began < 2
    stage.open_barrier("hold 3")
    stage.wait_for_status(task_id, "completed")
    assert ran(stage, task_id) == {"1": 1, "2": 1, "3": 2, "4": 1, "5": 1, "digest": 1}
    told = ["task_enqueued", "task_started", "task_recovered", "task_started", "task_completed"]
    assert statuses_told(stage, task_id) == told
    stage.check_storage()


@pytest.mark.parametrize("hold_at", [2, LENGTH - 1])
def test_a_resumed_task_is_given_the_stored_results_byte_for_byte(stage: Stage, hold_at: int) -> None:
    """The results are different each time they are made, so any second execution would show in the digest."""
    task_id = stage.enqueue(agents_chain.chain, hold_at).id
    kill_at(stage, task_id, hold_at, stage.start(agents_chain))
    before = outcomes(stage, task_id)
    assert len(before) == hold_at - 1
    stage.open_barrier(f"hold {hold_at}")
    stage.start(agents_chain)
    result = json.loads(stage.wait_for_status(task_id, "completed").result_json or "")
    after = outcomes(stage, task_id)
    assert {key: after[key] for key in before} == before
    assert result["digest"] == hashlib.sha256(repr(result["parts"]).encode()).hexdigest()
    assert [json.loads(text)["result"]["output"] for key, text in after.items() if "link" in key] == result[
        "parts"
    ]
    assert ran(stage, task_id) == {**{str(n): 1 for n in range(1, LENGTH)}, str(hold_at): 2, "digest": 1}


def outcomes(stage: Stage, task_id: str) -> dict[str, str]:
    statement = """
        SELECT step_key, event_json FROM task_traces WHERE task_id = ? AND event_kind = 'tool_call_completed'
        ORDER BY step_index
    """
    return dict(stage.rows(statement, task_id))


def test_a_task_is_recovered_under_another_host_name_and_blocks_nobody(stage: Stage) -> None:
    """The owner's name never comes back, and neither does its folder."""
    folders = [Path(stage.folder, name) for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    session = {"session": "s1"}
    dead = stage.enqueue(agents_chain.chain, 3, options=session).id
    kill_at(stage, dead, 3, stage.start(agents_chain, env={"HOSTNAME": "a"}, cwd=folders[0]))
    assert stage.rows("SELECT host FROM workers") == [("a",)]
    behind = stage.enqueue(agents_chain.chain, 0, options=session).id
    stage.start(agents_chain, env={"HOSTNAME": "b"}, cwd=folders[1])
    stage.wait_for_status(behind, "completed")
    stage.open_barrier("hold 3")
    stage.wait_for_status(dead, "completed")
    assert ran(stage, dead)["3"] == 2
    assert set(ran(stage, behind).values()) == {1}


def test_a_worker_process_whose_consumer_was_killed_ends_its_task_and_takes_no_other(stage: Stage) -> None:
    task_id = stage.enqueue(agents_chain.chain, 1).id
    worker = stage.start(agents_chain, "--kind", "process", "--concurrency", "1")
    wait_until(lambda: ran(stage, task_id))
    children = worker.family()[1:]
    worker.kill_alone()
    waiting = stage.enqueue(agents_chain.chain).id
    stage.open_barrier("hold 1")
    stage.wait_for_status(task_id, "completed")
    psutil.wait_procs(children, timeout=5)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert stage.task(waiting).status == "pending"
    assert set(ran(stage, task_id).values()) == {1}
    stage.start(agents_chain)
    stage.wait_for_status(waiting, "completed")


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_task_that_calls_sys_exit_fails_at_once_and_its_worker_lives(stage: Stage, kind: str) -> None:
    worker = stage.start(agents_chain, "--kind", kind, "--concurrency", "1")
    task_id = stage.enqueue(agents_chain.leaver, "exit").id
    following = stage.enqueue(agents_chain.chain).id
    failed = stage.wait_for_status(task_id, "failed", deadline=5)
    assert failed.reason == "error"
    assert json.loads(failed.error_json or "{}")["type"] == "SystemExit"
    stage.wait_for_status(following, "completed", deadline=2)
    assert worker.poll() is None
    assert len({line[4] for line in stage.lines()}) == 1, "the same process ran both"


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_task_that_raises_a_keyboard_interrupt_ends_nobody_else(stage: Stage, kind: str) -> None:
    worker = stage.start(agents_chain, "--kind", kind, "--concurrency", "2")
    other = stage.enqueue(agents_chain.chain, 1).id
    wait_until(lambda: ran(stage, other))
    task_id = stage.enqueue(agents_chain.leaver, "interrupt").id
    stage.wait_for_status(task_id, "failed", "completed", deadline=5)
    stage.open_barrier("hold 1")
    stage.wait_for_status(other, "completed")
    assert set(ran(stage, other).values()) == {1}
    assert worker.poll() is None


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_task_that_ends_its_process_is_treated_as_killed(stage: Stage, kind: str) -> None:
    task_id = stage.enqueue(agents_chain.leaver, "_exit").id
    worker = stage.start(agents_chain, "--kind", kind, "--concurrency", "1")
    if kind == "thread":
        assert worker.wait() == 3
        stage.start(agents_chain)
    stage.wait_for_status(task_id, "completed")
    assert statuses_told(stage, task_id).count("task_recovered") == 1
    assert ran(stage, task_id) == {"_exit": 2}


def test_a_task_that_always_ends_its_process_is_given_up_and_others_go_on(stage: Stage) -> None:
    losses = {"RELIGHT_MAX_LOSSES": "3"}
    poison = stage.enqueue(agents_chain.leaver, "poison").id
    worker = stage.start(agents_chain, "--kind", "process", "--concurrency", "2", env=losses)
    others = [stage.enqueue(agents_chain.chain).id for _ in range(20)]
    task = stage.wait_for_status(poison, "failed", deadline=20)
    assert (task.reason, task.losses) == ("crash_loop", 3)
    assert re.search(r"3 times in a row.*leave#1", task.error_json or "")
    wait_until(lambda: all(stage.task(task_id).status == "completed" for task_id in others), 20)
    assert ran(stage, poison) == {"poison": 3}
    assert worker.poll() is None


# -- what is asked ------------------------------------------------------------------------------------------------


def test_a_write_that_may_have_happened_is_asked_about_and_not_repeated(stage: Stage) -> None:
    """Killed between the effect and its record; a read that was killed there runs again under the same key."""
    write = stage.enqueue(agents_chain.sender, 1).id
    read = stage.enqueue(agents_chain.chain, 1).id
    worker = stage.start(agents_chain)
    wait_until(lambda: len(stage.lines()) >= 2)
    worker.kill()
    stage.open_barrier("hold 1")
    stage.start(agents_chain)
    asked = stage.question(write)
    assert stage.in_doubt(asked.id) == ["send#1"]
    assert "send#1" in asked.request["why"]
    stage.wait_for_status(read, "completed")
    assert ran(stage, write) == {"1": 1}
    keys = [line[3] for line in stage.lines() if line[:2] == [read, "1"]]
    assert keys == [f"{read}:link#1"] * 2


def test_a_question_outlives_every_restart_and_nothing_runs_before_its_answer(stage: Stage) -> None:
    task_id = stage.enqueue(agents_chain.sender, 2).id
    kill_at(stage, task_id, 2, stage.start(agents_chain))
    worker = stage.start(agents_chain)
    asked = stage.question(task_id)
    listed = stage.cli("confirmations").stdout
    worker.kill()
    for _ in range(3):
        worker = stage.start(agents_chain)
        passes = stage.rows("SELECT count(*) FROM recovery_runs")[0][0]
        wait_until(lambda passes=passes: stage.rows("SELECT count(*) FROM recovery_runs")[0][0] >= passes + 2)
        worker.kill()
    assert stage.cli("confirmations").stdout == listed
    assert stage.questions(task_id) == [(asked.id, "open")]
    assert stage.events(task_id).count("confirmation_requested") == 1
    assert ran(stage, task_id) == {"1": 1, "2": 1}
    stage.start(agents_chain)
    assert stage.cli("resolve", asked.id, "--ran", '"sent 2"').returncode == 0
    stage.wait_for_status(task_id, "completed")
    assert ran(stage, task_id) == {"1": 1, "2": 1, "3": 1}


def test_an_old_yes_is_not_used_again_after_the_next_crash(stage: Stage) -> None:
    """Each of the writes holds after its effect, and each is killed there: a question for each, and each yes is used once."""
    task_id = stage.enqueue(agents_chain.sender, -1).id
    kill_at(stage, task_id, 1, stage.start(agents_chain))
    worker = stage.start(agents_chain)
    first = stage.question(task_id)
    assert stage.in_doubt(first.id) == ["send#1"]
    assert stage.cli("resolve", first.id, "--again").returncode == 0
    stage.open_barrier("hold 1")
    kill_at(stage, task_id, 3, worker)  # send 1 again, then send 2

    worker = stage.start(agents_chain)
    second = stage.question(task_id)
    assert stage.in_doubt(second.id) == ["send#2"]
    digests = [
        step.digest for cid in (first.id, second.id) for step in confirmations.steps(stage.home.db, cid)
    ]
    assert len(set(digests)) == 2
    assert confirmations.steps(stage.home.db, first.id)[0].consumed_at is not None
    assert stage.questions(task_id) == [(first.id, "resolved"), (second.id, "open")]
    assert stage.cli("resolve", first.id, "--again").returncode == 4
    assert ran(stage, task_id) == {"1": 2, "2": 1}

    assert stage.cli("resolve", second.id, "--ran", '"sent 2"').returncode == 0
    stage.open_barrier("hold 3")
    stage.wait_for_status(task_id, "completed")
    assert ran(stage, task_id) == {"1": 2, "2": 1, "3": 1}
    assert len(stage.questions(task_id)) == 2
    assert worker.poll() is None


def test_a_yes_that_was_not_used_is_good_for_the_next_attempt(stage: Stage) -> None:
    """Killed after the yes and before the step began again: the step is not asked about a second time."""
    task_id = stage.enqueue(agents_chain.sender, 1).id
    kill_at(stage, task_id, 1, stage.start(agents_chain))
    worker = stage.start(agents_chain)
    asked = stage.question(task_id)
    worker.kill()
    assert stage.cli("resolve", asked.id, "--again").returncode == 0
    home = stage.home
    owner = Owner.start(home.db, home.path, "subagent", clock=home.now, lease_ms=30_000)
    claims.claim(home.db, "subagent", worker_id=owner.id, now=home.now(), known=frozenset({"sender"}))
    owner.close()
    stage.open_barrier("hold 1")
    worker = stage.start(agents_chain)
    again = stage.question(task_id)
    assert stage.in_doubt(again.id) == []
    assert stage.cli("approve", again.id).returncode == 0
    stage.wait_for_status(task_id, "completed")
    assert ran(stage, task_id) == {"1": 2, "2": 1, "3": 1}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
