"""What a person has paused is not claimed, however many processes look, until a person says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.models import claims, events, pauses, schema, tasks, transitions
from relight.models.database import Database
from relight.models.errors import NotFoundError, StaleMove
from relight.models.tasks import AgentTask, Lane, TaskStatus
from tests.models.conftest import AGENT, NOW, Claim, Submit, new_task


def claim_from(db: Database, lane: str, *, now: int = NOW) -> AgentTask | None:
    return claims.claim(db, lane, worker_id="w1", now=now, known=frozenset({AGENT}))


def test_nothing_is_claimed_from_a_paused_lane_and_the_others_go_on(
    db: Database, path: Path, submit: Submit
) -> None:
    submit("main", lane=Lane.MAIN)
    submit("sub")
    assert pauses.pause_lane(db, "main", by="ann", now=NOW)
    assert not claims.ready(db, "main")
    assert claim_from(db, "main") is None
    assert claims.ready(db, "subagent")
    assert claim_from(db, "subagent") is not None
    other = schema.open_database(path, now=NOW)
    assert claim_from(other, "main") is None, "another process sees it too, and after a restart"
    other.close_all()
    assert tasks.find(db, "main").status is TaskStatus.PENDING
    assert pauses.unpause_lane(db, "main")
    assert claims.ready(db, "main")
    assert claim_from(db, "main") is not None


def test_a_pause_is_told_with_its_time_and_person_and_stays_the_first_one(db: Database) -> None:
    assert pauses.lanes(db) == {}
    assert pauses.pause_lane(db, "main", by="ann", now=NOW)
    assert not pauses.pause_lane(db, "main", by="bob", now=NOW + 5)
    [pause] = pauses.lanes(db).values()
    assert (pause.lane, pause.paused_by, pause.paused_at) == ("main", "ann", NOW)
    assert pauses.unpause_lane(db, "main")
    assert not pauses.unpause_lane(db, "main")
    assert pauses.lanes(db) == {}


def test_what_waits_in_a_paused_lane_is_rung_for_when_it_goes_on(db: Database) -> None:
    rung: list[frozenset[str]] = []
    pauses.pause_lane(db, "main", by="ann", now=NOW)
    db.ring = rung.append
    pauses.unpause_lane(db, "main")
    assert rung == [frozenset({"main"})]


def test_a_look_at_a_paused_lane_reads_no_row_that_waits_in_it(db: Database) -> None:
    """However much waits there, a look costs the same: the lane is looked up first, in a table of a few rows."""
    plan = " / ".join(row[3] for row in db.rows(f"EXPLAIN QUERY PLAN {claims._BEST}", ("main", NOW, 2, "w1")))
    assert "agent_tasks_ready (lane=?)" in plan
    assert "SCAN agent_tasks" not in plan
    assert "TEMP B-TREE" not in plan


def test_a_task_that_ran_when_its_lane_was_paused_runs_to_its_end(db: Database, claim: Claim) -> None:
    task = claim("t1")
    pauses.pause_lane(db, "subagent", by="ann", now=NOW)
    done = transitions.complete(db, "t1", attempt=task.attempt, worker_id="w1", result_json="1", now=NOW)
    assert done.status is TaskStatus.COMPLETED


# -- one task -----------------------------------------------------------------------------------------------------


def test_a_paused_task_is_passed_over_until_it_is_let_go_on(db: Database, submit: Submit) -> None:
    before = submit("t1")
    submit("t2", now=NOW + 1)
    assert pauses.pause_task(db, "t1", by="ann", now=NOW + 2).hold == "paused"
    found = claim_from(db, "subagent", now=NOW + 90_000)
    assert found is not None
    assert found.id == "t2"
    assert claim_from(db, "subagent", now=NOW + 90_000) is None
    after = pauses.unpause_task(db, "t1", by="bob", now=NOW + 3)
    assert (after.hold, after.rank, after.lane) == (None, before.rank, before.lane)
    assert claim_from(db, "subagent") is not None


def test_a_pause_is_an_event_that_names_the_person(db: Database, submit: Submit) -> None:
    submit("t1")
    pauses.pause_task(db, "t1", by="ann", now=NOW)
    pauses.pause_task(db, "t1", by="bob", now=NOW)
    pauses.unpause_task(db, "t1", by="bob", now=NOW)
    pauses.unpause_task(db, "t1", by="ann", now=NOW)
    told = [(event.event_type, '"by":"ann"' in event.payload_json) for event in events.by_task(db, "t1")]
    assert told == [("task_enqueued", False), ("task_held", True), ("task_released", False)]


@pytest.mark.parametrize(("now", "hold"), [(NOW + 1, "due"), (NOW + 60_000, None)])
def test_a_delayed_task_that_was_paused_still_waits_for_its_time(
    db: Database, now: int, hold: str | None
) -> None:
    task = new_task("t1")
    tasks.submit(db, task.with_order(due_at=NOW + 60_000), now=NOW)
    pauses.pause_task(db, "t1", by="ann", now=NOW)
    claims.release_due(db, now=NOW + 90_000)
    assert tasks.find(db, "t1").hold == "paused", "its time does not undo the pause"
    assert pauses.unpause_task(db, "t1", by="ann", now=now).hold == hold


def test_going_on_changes_no_other_hold(db: Database, submit: Submit) -> None:
    submit("t1")
    claims.hold(db, "t1", hold="unknown_agent", now=NOW)
    assert pauses.unpause_task(db, "t1", by="ann", now=NOW).hold == "unknown_agent"


def test_only_a_pending_task_can_be_paused(db: Database, claim: Claim) -> None:
    claim("t1")
    with pytest.raises(StaleMove, match="running"):
        pauses.pause_task(db, "t1", by="ann", now=NOW)
    with pytest.raises(NotFoundError):
        pauses.pause_task(db, "nobody", by="ann", now=NOW)


def test_a_paused_task_still_expires_and_can_be_cancelled(db: Database, submit: Submit) -> None:
    submit("t1", expires_at=NOW + 5)
    submit("t2")
    for name in ("t1", "t2"):
        pauses.pause_task(db, name, by="ann", now=NOW)
    assert claims.expired_ids(db, now=NOW + 5) == ["t1"]
    assert transitions.expire(db, "t1", now=NOW + 5).hold is None
    assert transitions.cancel(db, "t2", by="ann", detail="{}", now=NOW).hold is None
