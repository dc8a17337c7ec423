"""Whatever a follower is shown was committed first: it may kill the worker at once, and the record is there."""

from __future__ import annotations

import json
import threading
import time
from itertools import cycle

import pytest

from relight.models import tasks
from relight.models.events import AgentEvent
from relight.models.schema import open_database
from relight.workers import following
from tests.conftest import wait_until
from tests.crash import agents_chain, agents_work
from tests.crash.conftest import Stage

ROUNDS = 100
SEEN = ("task_started", "tool_call_started", "tool_call_completed", "task_completed")


def test_an_event_that_a_follower_received_is_stored_when_the_worker_is_killed_on_it(stage: Stage) -> None:
    """A hundred rounds: another kind of event each time, and each time a further one of its kind."""
    rounds = zip(range(ROUNDS), cycle(SEEN), strict=False)
    followed: list[str] = []
    for number, wanted in rounds:
        task_id = stage.enqueue(agents_chain.chain).id
        followed.append(task_id)
        worker = stage.start(agents_chain, "--concurrency", "2")
        left = number // len(SEEN) % 5 if wanted.startswith("tool") else 0
        for event in following.follow(stage.home, task_id, 0):
            assert isinstance(event, AgentEvent)
            if event.event_type == wanted and not left:
                worker.kill()
                check_stored(stage, event)
                break
            left -= event.event_type == wanted
    stage.start(agents_chain)
    wait_until(lambda: stage.states() == {("completed", None): len(followed)}, 30)
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


def check_stored(stage: Stage, event: AgentEvent) -> None:
    """The event, and what it tells about, as a process that has just come finds them."""
    db = open_database(stage.home.path / "state.db", now=stage.home.now(), create=False)
    try:
        statement = "SELECT event_type, payload_json FROM agent_events WHERE task_id = ? AND seq = ?"
        assert db.rows(statement, (event.task_id, event.seq)) == [(event.event_type, event.payload_json)]
        task, told = tasks.find(db, event.task_id), json.loads(event.payload_json)
        if event.event_type == "task_completed":
            assert (task.status, bool(task.result_json)) == ("completed", True)
        if event.event_type == "task_started":
            assert task.attempt >= told["attempt"]
            assert db.row(
                "SELECT 1 FROM task_traces WHERE task_id = ? AND event_kind = 'turn_started'", (task.id,)
            )
        if event.event_type.startswith("tool"):
            trace = "SELECT 1 FROM task_traces WHERE task_id = ? AND event_kind = ? AND step_key = ?"
            assert db.row(trace, (task.id, event.event_type, told["step"]))
    finally:
        db.close_all()


def test_nothing_is_shown_and_no_step_begins_while_nothing_can_be_stored(stage: Stage) -> None:
    task_id = stage.enqueue(agents_work.holding).id
    stage.start(agents_work)
    stage.wait_for_lines(1)
    shown: list[str] = []

    def follow() -> None:
        for event in following.follow(stage.home, task_id, 0):
            shown.append(getattr(event, "event_type", "gap"))

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    wait_until(lambda: shown[-1:] == ["tool_call_started"])
    with stage.home.db.write():
        stage.open_barrier("hold")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1)
        assert shown[-1:] == ["tool_call_started"]
        assert [line[1] for line in stage.lines()] == ["hold"]
    follower.join(10)
    assert shown == stage.events(task_id)
    assert shown[-1] == "task_completed"
    assert [line[1] for line in stage.lines()] == ["hold", "after"]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_cursor_goes_on_over_the_death_of_a_worker_without_a_gap_or_a_double(
    stage: Stage, kind: str
) -> None:
    task_id = stage.enqueue(agents_chain.chain, 3).id
    worker = stage.start(agents_chain, "--kind", kind)
    stage.wait_for_lines(3)
    worker.kill()
    stage.open_barrier("hold 3")
    stage.start(agents_chain, "--kind", kind)
    seen = [event.seq for event in following.follow(stage.home, task_id, 0) if isinstance(event, AgentEvent)]
    assert seen == list(range(1, len(seen) + 1))
    assert seen[-1] == len(stage.events(task_id))
