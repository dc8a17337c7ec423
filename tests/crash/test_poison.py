"""A task that takes down every worker that runs it is given up, and nobody else is kept from working."""

from __future__ import annotations

import json
import re

from relight import ref
from relight.models import events
from tests.conftest import wait_until
from tests.crash import agents_poison
from tests.crash.conftest import Stage

LIMIT, BESIDE = 3, 20


def supervise(stage: Stage, task_id: str, beside: list[str]) -> int:
    """Start a worker again and again, as a process manager does, until nothing is left to do; how many died."""
    deaths = 0
    env = {"RELIGHT_MAX_LOSSES": str(LIMIT)}
    worker = stage.start(agents_poison, env=env)

    def is_done() -> bool:
        nonlocal worker, deaths
        if worker.has_ended():
            deaths += 1
            worker = stage.start(agents_poison, env=env)
        return all(stage.task(one).status.is_terminal() for one in (task_id, *beside))

    wait_until(is_done, 60)
    return deaths


def test_a_poison_task_is_given_up_and_twenty_tasks_beside_it_are_done(stage: Stage) -> None:
    task_id = stage.enqueue(agents_poison.poison).id
    beside = [stage.enqueue(agents_poison.harmless).id for _ in range(BESIDE)]
    deaths = supervise(stage, task_id, beside)
    assert deaths <= LIMIT + 1
    task = stage.task(task_id)
    assert (task.status, task.reason, task.losses) == ("failed", "crash_loop", LIMIT)
    assert re.search(rf"{LIMIT} times in a row.*burn#1", str(task.error_json))
    assert [stage.task(one).status for one in beside] == ["completed"] * BESIDE
    assert sum(line[1] == "burn" for line in stage.lines()) == LIMIT
    assert sum(line[:2] == [task_id, "1"] for line in stage.lines()) == 1, "a finished step ran again"
    stage.check_storage()


def test_it_waits_longer_each_time_and_the_wait_and_the_count_can_be_seen(stage: Stage) -> None:
    """The first loss costs nothing, then 1 s, then 2 s; `why` and `show` tell while it waits."""
    task_id = stage.enqueue(agents_poison.poison).id
    env = {"RELIGHT_MAX_LOSSES": "4"}
    for losses in (1, 2):
        assert stage.start(agents_poison, env=env).wait() < 0
        if losses == 1:
            continue
        assert json.loads(stage.cli("recover", env=env).stdout)["resumed"]
    why = json.loads(stage.cli("why", task_id).stdout)
    assert (why["code"], why["facts"]["losses"], why["facts"]["suspect"]) == ("backing_off", 2, ["burn#1"])
    shown = json.loads(stage.cli("show", task_id).stdout)
    assert (shown["losses"], shown["hold"], shown["status"]) == (2, "due", "pending")
    for _ in range(2):
        assert stage.start(agents_poison, env=env).wait() < 0
    stage.start(agents_poison, env=env)
    stage.wait_for_status(task_id, "failed")
    told = events.by_task(stage.home.db, task_id)
    put_back = [event.timestamp for event in told if event.event_type == "task_recovered"]
    started = [event.timestamp for event in told if event.event_type == "task_started"]
    waits = [begun - back for back, begun in zip(put_back, started[1:], strict=True)]
    assert len(waits) == 3
    assert waits[1] >= 1_000
    assert waits[2] >= 2_000


def test_a_person_sets_the_count_back_and_it_begins_anew(stage: Stage) -> None:
    task_id = stage.enqueue(agents_poison.poison).id
    supervise(stage, task_id, [])
    for worker in stage.started:
        worker.kill()
    retried = json.loads(stage.cli("retry", task_id).stdout)
    assert (retried["status"], retried["losses"], retried["hold"]) == ("pending", 0, None)
    assert stage.start(agents_poison).wait() < 0
    assert json.loads(stage.cli("recover").stdout)["resumed"]
    assert stage.task(task_id).losses == 1


def test_what_never_ran_waits_for_a_worker_that_knows_it(stage: Stage) -> None:
    """A worker that does not know an agent takes nothing down with it and leaves the task alone."""
    task_id = ref("elsewhere").options(home=stage.home).enqueue().id
    other = stage.enqueue(agents_poison.harmless).id
    stage.start(agents_poison)
    stage.wait_for_status(other, "completed")
    assert (stage.task(task_id).hold, stage.task(task_id).attempt) == ("unknown_agent", 0)
