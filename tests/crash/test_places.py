"""A task keeps its place: lane, priority, rank, expiry and budget are those of its first run, however it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from relight import enqueue_many
from relight.models.tasks import AgentTask
from tests.conftest import wait_until
from tests.crash import agents_poison, agents_work
from tests.crash.conftest import Stage

BACKGROUND = 500
PLACE = ("lane", "priority", "rank", "expires_at", "risk_level", "created_at", "input_json")
ONE_EACH = {"RELIGHT_CONCURRENCY": "1"}


def place(task: AgentTask) -> dict[str, Any]:
    return {name: getattr(task, name) for name in PLACE}


def started(stage: Stage) -> list[tuple[str, str]]:
    """The (task, lane) of every start, in order."""
    statement = """
        SELECT e.task_id, t.lane FROM agent_events e JOIN agent_tasks t ON t.id = e.task_id
        WHERE e.event_type = 'task_started' ORDER BY e.id
    """
    return [(row[0], row[1]) for row in stage.rows(statement)]


@pytest.mark.parametrize("lane", ["main", "subagent"])
def test_a_retried_task_keeps_its_place_and_has_one_try_less(stage: Stage, lane: str) -> None:
    options = {"lane": lane, "priority": 7, "expires": 3600}
    task_id = stage.enqueue(agents_poison.flaky, options=options).id
    before = stage.task(task_id)
    assert before.retries_left == 3
    stage.start(agents_poison, lane=lane)
    after = stage.wait_for_status(task_id, "completed")
    assert place(after) == place(before)
    assert (after.retries_left, after.attempt) == (2, 2)
    assert [name for name in stage.events(task_id) if name == "task_retrying"] == ["task_retrying"]


@pytest.mark.parametrize("lane", ["main", "subagent"])
def test_a_recovered_task_starts_before_everything_that_was_queued_behind_it(stage: Stage, lane: str) -> None:
    """Killed while it runs, with five hundred Subagent tasks waiting; one slot in each lane."""
    options = {"lane": lane, "expires": 3600, "retries": 2}
    task_id = stage.enqueue(agents_work.holding, "first", options=options).id
    before = stage.task(task_id)
    worker = stage.start(agents_work, lane="all", env=ONE_EACH)
    stage.wait_for_lines(1)
    background = agents_work.quick.options(home=stage.home)
    enqueue_many([background.call("background") for _ in range(BACKGROUND)])
    worker.kill()
    ran = len(started(stage))
    stage.start(agents_work, lane="all", env=ONE_EACH)
    wait_until(lambda: sum(line[1] == "first" for line in stage.lines()) == 2)
    after = stage.task(task_id)
    assert place(after) == place(before)
    assert (after.retries_left, after.attempt, after.losses) == (2, 2, 1)
    in_its_lane = [one for one, its_lane in started(stage)[ran:] if its_lane == lane]
    ahead = in_its_lane.index(task_id)  # what a worker takes before its first recovery pass has begun
    assert ahead == 0 if lane == "main" else ahead < BACKGROUND / 5
    stage.open_barrier("first")
    stage.wait_for_status(task_id, "completed")


def test_background_work_goes_on_in_its_order_after_a_crash(stage: Stage) -> None:
    """The others keep the order in which they were enqueued; what was running comes in as soon as it is recovered."""
    background = agents_work.quick.options(home=stage.home)
    first = stage.enqueue(agents_work.holding, "first").id
    rest = [handle.id for handle in enqueue_many([background.call(f"{n}") for n in range(20)])]
    worker = stage.start(agents_work, env=ONE_EACH)
    stage.wait_for_lines(1)
    worker.kill()
    stage.open_barrier("first")
    stage.start(agents_work, env=ONE_EACH)
    wait_until(lambda: stage.states() == {("completed", None): 21})
    order = [one for one, _ in started(stage)]
    assert order[0] == first
    assert order.count(first) == 2
    assert [one for one in order if one != first] == rest


def test_a_delay_is_kept_through_a_crash_and_a_restart(stage: Stage) -> None:
    task_id = stage.enqueue(agents_work.quick, options={"delay": 1.5}).id
    due_at = stage.task(task_id).due_at or 0
    stage.start(agents_work).kill()
    stage.start(agents_work)
    begun = stage.wait_for_status(task_id, "completed").started_at or 0
    assert 0 <= begun - due_at < 1_000
