"""Which pending task a worker gets: the best ready one of its lane, once, with a trace."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from relight.models import claims, events, journal, tasks, traces, transitions
from relight.models.database import Database
from relight.models.errors import StaleMove
from relight.models.tasks import AgentTask, Lane, TaskStatus
from relight.models.trace_events import TurnStarted
from tests.conftest import environment
from tests.models.conftest import AGENT, NOW, Claim, Submit, fail_after, new_task

KNOWN = frozenset({AGENT})


def take(
    db: Database,
    lane: str = "subagent",
    *,
    now: int = NOW,
    worker: str = "w1",
    known: frozenset[str] = KNOWN,
    without: frozenset[str] = frozenset(),
) -> AgentTask | None:
    return claims.claim(db, lane, worker_id=worker, now=now, known=known, without=without)


def order(db: Database, now: int = NOW) -> list[str]:
    found = []
    while (task := take(db, now=now)) is not None:
        found.append(task.id)
    return found


def test_a_claim_is_the_move_its_trace_and_its_event_together(db: Database, submit: Submit) -> None:
    submit("t1")
    task = take(db, now=NOW + 7)
    assert task is not None
    assert (task.status, task.attempt, task.worker_id, task.started_at) == (
        TaskStatus.RUNNING,
        1,
        "w1",
        NOW + 7,
    )
    [trace] = traces.by_task(db, "t1")
    assert (trace.step_index, trace.attempt, trace.timestamp) == (0, 1, NOW + 7)
    assert trace.event == TurnStarted(iteration=1, attempt=1, worker_id="w1")
    assert [event.event_type for event in events.by_task(db, "t1")] == ["task_enqueued", "task_started"]


@pytest.mark.parametrize("worker", ['it\'s "w"\\', "né"])
def test_the_trace_of_a_claim_is_valid_json_whatever_the_worker_is_called(
    db: Database, submit: Submit, worker: str
) -> None:
    submit("t1")
    take(db, worker=worker)
    assert json.loads(traces.by_task(db, "t1")[0].event_json)["worker_id"] == worker


def test_an_empty_lane_gives_nothing_and_stores_nothing(db: Database, submit: Submit) -> None:
    submit("t1", lane=Lane.MAIN)
    assert take(db, "subagent") is None
    assert events.count(db) == 1


def test_a_second_claim_keeps_the_first_start_and_takes_the_next_step(db: Database, submit: Submit) -> None:
    submit("t1")
    take(db, now=NOW + 1)
    claims.unclaim(db, "t1", attempt=1, worker_id="w1", now=NOW + 2)
    task = take(db, now=NOW + 3)
    assert task is not None
    assert (task.attempt, task.started_at) == (2, NOW + 1)
    assert [trace.step_index for trace in traces.by_task(db, "t1")] == [0, 1]


def test_tasks_are_claimed_by_priority_then_by_age(db: Database, submit: Submit) -> None:
    for id, age, priority in [
        ("old", 0, 0),
        ("new", 1, 0),
        ("urgent", 2, 10),
        ("urgent too", 3, 10),
        ("idle", 0, -5),
    ]:
        tasks.submit(db, new_task(id, now=NOW + age).with_order(priority=priority), now=NOW)
    assert order(db) == ["urgent", "urgent too", "old", "new", "idle"]


def test_a_low_priority_task_is_not_starved(db: Database) -> None:
    tasks.submit(db, new_task("patient").with_order(priority=0), now=NOW)
    minute = 60_000
    tasks.submit(db, new_task("urgent", now=NOW + 5 * minute + 1).with_order(priority=5), now=NOW)
    assert order(db, now=NOW + 6 * minute) == ["patient", "urgent"]


def test_a_delayed_task_is_claimed_at_its_time_and_not_before(db: Database) -> None:
    tasks.submit(db, new_task().with_order(due_at=NOW + 100), now=NOW)
    assert take(db, now=NOW + 99) is None
    assert take(db, now=NOW + 100) is not None


def test_due_tasks_are_released_a_page_at_a_time_and_all_get_their_turn(db: Database) -> None:
    tasks.submit_many(
        db, [new_task(f"t{n:03}").with_order(due_at=NOW + 1) for n in range(claims.PAGE + 50)], now=NOW
    )
    assert take(db, now=NOW + 1) is not None
    assert claims.ready_count(db, "subagent") == claims.PAGE - 1
    assert len(order(db, now=NOW + 1)) == claims.PAGE + 49


def test_due_tasks_of_the_other_lane_are_released_too_and_that_lane_is_rung(db: Database) -> None:
    tasks.submit(db, new_task(lane=Lane.MAIN).with_order(due_at=NOW + 1), now=NOW)
    heard: set[str] = set()
    db.ring = heard.update
    assert take(db, "subagent", now=NOW + 1) is None
    assert "main" in heard
    assert claims.ready(db, "main")


def test_a_task_of_an_unknown_agent_is_held_and_the_next_one_claimed(db: Database, submit: Submit) -> None:
    submit("t1", agent="stranger")
    submit("t2", now=NOW + 1)
    task = take(db)
    assert task is not None
    assert task.id == "t2"
    held = tasks.find(db, "t1")
    assert (held.status, held.hold, held.attempt) == (TaskStatus.PENDING, "unknown_agent", 0)
    assert take(db) is None


def test_a_worker_that_knows_the_agent_releases_what_waited_for_it(db: Database, submit: Submit) -> None:
    submit("t1", agent="stranger")
    submit("t2", agent="other stranger")
    take(db)
    assert claims.release_unknown(db, known=frozenset({"stranger"}), now=NOW) == 1
    assert claims.release_unknown(db, known=frozenset({"stranger"}), now=NOW) == 0
    task = take(db, known=frozenset({"stranger"}))
    assert task is not None
    assert task.id == "t1"
    assert tasks.find(db, "t2").hold == "unknown_agent"


def test_agents_that_are_busy_are_passed_over_and_not_held(db: Database, submit: Submit) -> None:
    submit("t1", agent="busy")
    submit("t2", now=NOW + 1)
    known = frozenset({"busy", AGENT})
    task = take(db, known=known, without=frozenset({"busy"}))
    assert task is not None
    assert task.id == "t2"
    assert take(db, known=known, without=frozenset({"busy"})) is None
    assert tasks.find(db, "t1").hold is None


def test_an_expired_task_is_not_claimed_unless_it_was_begun(
    db: Database, submit: Submit, claim: Claim
) -> None:
    claim("begun", expires_at=NOW + 5)
    claims.unclaim(db, "begun", attempt=1, worker_id="w1", now=NOW)
    submit("late", expires_at=NOW + 5)
    assert order(db, now=NOW + 6) == ["begun"]


@pytest.mark.parametrize("hold", ["paused", "axis:cloud", "blocked"])
def test_a_held_task_is_not_claimed_until_it_is_released(db: Database, submit: Submit, hold: str) -> None:
    submit("t1")
    assert claims.hold(db, "t1", hold=hold, now=NOW).hold == hold
    assert take(db, now=NOW + 10**9) is None
    claims.release(db, "t1", now=NOW)
    assert take(db) is not None


def test_a_running_task_can_be_neither_held_nor_released(db: Database, claim: Claim) -> None:
    claim("t1")
    for verb in (
        lambda: claims.hold(db, "t1", hold="paused", now=NOW),
        lambda: claims.release(db, "t1", now=NOW),
    ):
        with pytest.raises(StaleMove):
            verb()


WORKER = """
import sys
from pathlib import Path
from relight.models import claims, schema, transitions
db = schema.open_database(Path(sys.argv[1]), now=1)
name, known = sys.argv[2], frozenset({"explorer"})
while (task := claims.claim(db, "subagent", worker_id=name, now=2, known=known)) is not None:
    print(task.id, task.attempt, flush=True)
    transitions.complete(db, task.id, attempt=task.attempt, worker_id=name, result_json="1", now=3)
"""


def test_four_processes_claim_each_task_once(db: Database) -> None:
    tasks.submit_many(db, [new_task(f"t{number:03}") for number in range(400)], now=NOW)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(db.path), f"w{number}"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for number in range(4)
    ]
    taken = [line for process in started for line in process.communicate(timeout=120)[0].splitlines()]
    assert [process.returncode for process in started] == [0] * 4
    assert sorted(taken) == [f"t{number:03} 1" for number in range(400)]
    assert tasks.counts(db)["completed"] == 400


@pytest.mark.parametrize("without", [frozenset(), frozenset({"busy"})], ids=["all agents", "some busy"])
def test_finished_and_delayed_tasks_cost_a_claim_nothing(db: Database, without: frozenset[str]) -> None:
    sql, params = claims._best(without, "subagent", NOW, 2, "w1")
    plan = [row[3] for row in db.rows(f"EXPLAIN QUERY PLAN {sql}", params)]
    assert "SEARCH agent_tasks USING INDEX agent_tasks_ready (lane=?)" in plan
    assert not any("TEMP B-TREE" in line for line in plan)


def test_tasks_that_may_take_their_worker_down_are_run_one_at_a_time(db: Database, submit: Submit) -> None:
    """Until it has finished a step; those that have lost less pass by, and so does another worker."""

    def take(worker: str = "w1") -> str | None:
        known, told = frozenset({AGENT}), {"worker_id": worker, "now": NOW + 9}
        found = claims.claim(db, "subagent", known=known, suspect_from=2, **told)
        return found and found.id

    for number, losses in enumerate((2, 3, 2, 1, 0)):
        submit(f"t{number}", losses=losses, now=NOW + number)
    assert [take(), take(), take(), take()] == ["t0", "t3", "t4", None]
    assert [take("w2"), take("w2")] == ["t1", None]
    call = journal.StepCall("look#1", "d1", "read")
    journal.accept_intent(db, journal.Claim("t0", 1, "w1"), call, "{}", told={}, now=NOW)
    assert take() is None, "a step that was only begun says nothing"
    journal.record_outcome(db, journal.Claim("t0", 1, "w1"), call, "{}", told={}, now=NOW)
    assert take() == "t2"


def test_a_claim_lost_to_a_roll_back_is_free_again(db: Database, submit: Submit) -> None:
    submit("t1")
    with pytest.raises(ValueError, match="x"):
        fail_after(db, lambda: take(db))
    assert traces.count(db, "t1") == 0
    task = take(db)
    assert task is not None
    assert task.attempt == 1
    transitions.complete(db, "t1", attempt=1, worker_id="w1", result_json="1", now=NOW)
