"""Branches that run at the same time, killed anywhere: replay never diverges, and no step gets another one's key."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pytest

from relight.models import confirmations
from relight.workers import answers
from tests.conftest import wait_until
from tests.crash import agents_branches
from tests.crash.agents_branches import BRANCHES, DEPTH
from tests.crash.conftest import Stage

EXPECTED = ["".join([f"{b}", *(f">{b}.{d}" for d in range(DEPTH))]) for b in range(BRANCHES)]
TASKS_AT_A_TIME = 2


@pytest.mark.parametrize(
    ("name", "kills"), [("gathered", 20), ("grouped", 10), ("threaded", 10), ("writing", 10)]
)
def test_parallel_branches_never_diverge_and_keys_never_swap(stage: Stage, name: str, kills: int) -> None:
    agent = getattr(agents_branches, name)
    chance = random.Random(f"{name} {kills}")
    tasks: list[str] = []
    struck = 0  # kills that took a task down half-way
    while struck < kills:
        fill_up(stage, agent, tasks)
        worker = stage.start(agents_branches, "--concurrency", str(TASKS_AT_A_TIME))
        wanted = len(stage.lines()) + chance.randint(1, BRANCHES * DEPTH)
        wait_until(lambda wanted=wanted: answer_all(stage) and has_come(stage, tasks, wanted))
        worker.kill()
        struck += any(is_half_way(stage, task_id) for task_id in tasks)
    stage.start(agents_branches)
    wait_until(lambda: answer_all(stage) and not unfinished(stage, tasks), 30)

    for task_id in tasks:
        task = stage.task(task_id)
        assert (task.status, json.loads(task.result_json or "")) == ("completed", EXPECTED), task.error_json
    check_keys(stage)
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


def fill_up(stage: Stage, agent: object, tasks: list[str]) -> None:
    for _ in range(TASKS_AT_A_TIME - len(unfinished(stage, tasks))):
        tasks.append(stage.enqueue(agent).id)


def has_come(stage: Stage, tasks: list[str], wanted: int) -> bool:
    return len(stage.lines()) >= wanted or not unfinished(stage, tasks)


def is_half_way(stage: Stage, task_id: str) -> bool:
    return stage.task(task_id).status == "running" and any(line[0] == task_id for line in stage.lines())


def unfinished(stage: Stage, tasks: list[str]) -> list[str]:
    return [task_id for task_id in tasks if not stage.task(task_id).status.is_terminal()]


def answer_all(stage: Stage) -> bool:
    """Allow every write in doubt to run again; nothing else is ever asked."""
    for asked in confirmations.listing(stage.home.db):
        assert stage.task(asked.task_id).reason == "asked", asked.request
        steps = confirmations.steps(stage.home.db, asked.id)
        for step in steps:
            answers.again(stage.home, asked.id, step.step_key, by="test")
        if not steps:
            confirmations.approve(stage.home.db, asked.id, by="test", now=stage.home.now())
    return True


def check_keys(stage: Stage) -> None:
    """Each (branch, depth) of a task had one idempotency key in all its executions, and no other step had it."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    places: dict[str, set[str]] = defaultdict(set)
    for task_id, place, _, key in stage.lines():
        keys[task_id, place].add(key)
        places[key].add(place)
    assert all(len(found) == 1 for found in keys.values()), keys
    assert all(len(found) == 1 for found in places.values()), places
