"""A write that raises after its effect is never repeated unasked, whatever is to be retried; one that is declared safe
to repeat is repeated as often as was said.
"""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from relight.models import confirmations
from relight.workers import answers
from tests.conftest import wait_until
from tests.crash import agents_raising
from tests.crash.agents_raising import AGENTS, CASES, RETRIES
from tests.crash.conftest import Stage

Case = tuple[str, int, int, str]


def expected(case: Case) -> tuple[str, int]:
    """How the task stands without anybody's answer, and how often the write ran."""
    declared, step_retries, task_retries, met = case
    if declared == "plain":
        if step_retries or (task_retries and met != "caught"):
            return "interrupted", 1  # a configured retry becomes a question
        return "completed" if met == "caught" else "failed", 1
    tries = step_retries + 1
    return ("completed", tries) if met == "caught" else ("failed", tries * (task_retries + 1))


def enqueue_all(stage: Stage) -> dict[str, Case]:
    return {stage.enqueue(made).id: case for case in CASES for made in AGENTS[case].values()}


def is_settled(stage: Stage) -> bool:
    return all(status in ("completed", "failed", "interrupted") for status, _ in stage.states())


def writes(stage: Stage) -> Counter[str]:
    return Counter(line[0] for line in stage.lines() if line[1] == "write")


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_write_that_raised_is_repeated_only_where_that_is_declared_safe(stage: Stage, kind: str) -> None:
    cases = enqueue_all(stage)
    stage.start(agents_raising, "--kind", kind)
    wait_until(lambda: is_settled(stage), 60)
    ran = writes(stage)
    found = {case: (str(stage.task(task_id).status), ran[task_id]) for task_id, case in cases.items()}
    assert found == {case: expected(case) for case in CASES}
    for task_id, case in cases.items():
        wanted = ("asked", 1) if expected(case)[0] == "interrupted" else (stage.task(task_id).reason, 0)
        assert (stage.task(task_id).reason, len(stage.questions(task_id))) == wanted, case


@pytest.mark.parametrize("step_retries", [0, RETRIES])
def test_an_answer_decides_about_a_write_that_raised(stage: Stage, step_retries: int) -> None:
    """Again runs it once more, and asks again; ran and abandon let the agent go on without it, whatever retries are left."""
    case = ("plain", step_retries, RETRIES, "passed")
    worker = stage.start(agents_raising)
    for made in AGENTS[case].values():
        ran, abandoned = (stage.enqueue(made).id for _ in range(2))
        for task_id in (ran, abandoned):
            answers.again(stage.home, stage.question(task_id).id, None, by="test")
            wait_until(
                lambda task_id=task_id: writes(stage)[task_id] == 2 and len(stage.questions(task_id)) == 2
            )
        answers.ran(stage.home, stage.question(ran).id, None, None, by="test")
        stage.wait_for_status(ran, "completed")
        answers.abandon(stage.home, stage.question(abandoned).id, None, by="test")
        stage.wait_for_status(abandoned, "failed")
        assert json.loads(stage.task(abandoned).error_json or "{}")["type"] == "StepAbandoned"
        assert (writes(stage)[ran], writes(stage)[abandoned]) == (2, 2)
    assert confirmations.listing(stage.home.db) == []
    assert worker.poll() is None


def test_an_error_that_the_agent_dealt_with_is_replayed_by_a_retry(stage: Stage) -> None:
    task_id = stage.enqueue(agents_raising.caught_then_failed).id
    stage.start(agents_raising)
    assert stage.wait_for_status(task_id, "failed").attempt == RETRIES + 1
    assert writes(stage) == {task_id: 1}
    assert [line[2] for line in stage.lines() if line[1] == "failed"] == ["1", "2", "3"]
    assert stage.questions(task_id) == []


def test_a_worker_that_dies_amid_safe_retries_leaves_a_question(stage: Stage) -> None:
    """What is declared safe is a retry after an exception; a death says nothing about the effect, and a no is a no."""
    task_id = stage.enqueue(agents_raising.stuck).id
    worker = stage.start(agents_raising)
    stage.wait_for_lines(2)
    worker.kill()
    stage.start(agents_raising)
    assert stage.in_doubt(stage.question(task_id).id) == ["stuck_write#1"]
    assert len(stage.lines()) == 2
    answers.abandon(stage.home, stage.question(task_id).id, None, by="test")
    assert stage.wait_for_status(task_id, "failed").retries_left == RETRIES
    assert len(stage.lines()) == 2


def test_a_write_that_timed_out_is_in_doubt(stage: Stage) -> None:
    """Whether the task fails by it, or goes on and is killed later: it is asked about, never repeated."""
    passed = stage.enqueue(agents_raising.impatient, False, False).id
    caught = stage.enqueue(agents_raising.impatient, False, True).id
    worker = stage.start(agents_raising)
    assert len(stage.in_doubt(stage.question(passed).id)) == 1
    wait_until(lambda: any(line[:2] == [caught, "on"] for line in stage.lines()))
    worker.kill()
    stage.start(agents_raising)
    assert len(stage.in_doubt(stage.question(caught).id)) == 1
    assert writes(stage) == {passed: 1, caught: 1}
    stage.open_barrier("go")
    answers.abandon(stage.home, stage.question(passed).id, None, by="test")
    answers.ran(stage.home, stage.question(caught).id, None, None, by="test")
    stage.wait_for_status(passed, "failed")
    stage.wait_for_status(caught, "completed")
    assert writes(stage) == {passed: 1, caught: 1}


@pytest.mark.parametrize("caught", [False, True])
def test_a_write_in_a_thread_that_timed_out_is_waited_for(stage: Stage, caught: bool) -> None:
    """A thread cannot be ended: no other attempt begins beside it, and when it ends its outcome counts."""
    task_id = stage.enqueue(agents_raising.impatient, True, caught).id
    stage.start(agents_raising)
    stage.open_barrier("go")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 0.5)
    assert (stage.task(task_id).status, stage.task(task_id).attempt) == ("running", 1)
    stage.open_barrier("late")
    stage.wait_for_status(task_id, "completed")
    assert writes(stage) == {task_id: 1}
    assert stage.questions(task_id) == []


def test_a_write_in_a_thread_that_timed_out_is_in_doubt_when_its_worker_dies(stage: Stage) -> None:
    task_id = stage.enqueue(agents_raising.impatient, True, True).id
    worker = stage.start(agents_raising)
    wait_until(lambda: any(line[1] == "on" for line in stage.lines()))
    worker.kill()
    stage.start(agents_raising)
    assert len(stage.in_doubt(stage.question(task_id).id)) == 1
    assert writes(stage) == {task_id: 1}
