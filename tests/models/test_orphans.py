"""Which tasks recovery looks at: those whose worker is gone, and never one because it is old."""

from __future__ import annotations

import pytest

from relight.models import orphans, transitions, workers
from relight.models.database import Database
from relight.models.orphans import Orphan
from relight.models.tasks import RiskLevel, TaskStatus
from tests.models.conftest import NOW, Claim, Submit
from tests.models.test_transitions import put

ANCIENT = 1


def ids(found: list[Orphan]) -> list[str]:
    return [orphan.task.id for orphan in found]


def page(db: Database, *, lease_out: frozenset[str] = frozenset()) -> list[Orphan]:
    return orphans.page(db, lease_out=lease_out, after=None)


def worker(db: Database, id: str, *, dead: bool) -> None:
    workers.insert(db, id=id, lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    if dead:
        workers.mark_dead(db, id, now=NOW)


def test_a_running_task_is_an_orphan_when_its_worker_is_gone(db: Database, claim: Claim) -> None:
    for id, name in (
        ("alive", "w1"),
        ("dead", "w2"),
        ("leased out", "w3"),
        ("unknown", "w4"),
        ("nobody", "w5"),
    ):
        claim(id, worker=name)
    for name, dead in (("w1", False), ("w2", True), ("w3", False), ("w5", False)):
        worker(db, name, dead=dead)
    put(db, TaskStatus.RUNNING, "nobody", worker_id=None)
    found = page(db, lease_out=frozenset({"w3"}))
    assert set(ids(found)) == {"dead", "leased out", "unknown", "nobody"}
    assert {orphan.task.id for orphan in found if orphan.owner_gone} == {"dead", "nobody"}
    assert set(ids(page(db))) == {"dead", "unknown", "nobody"}


def test_age_makes_no_orphan(db: Database, claim: Claim) -> None:
    claim("t1", now=ANCIENT)
    worker(db, "w1", dead=False)
    put(db, TaskStatus.RUNNING, started_at=ANCIENT, updated_at=ANCIENT)
    assert page(db) == []


@pytest.mark.parametrize("status", [status for status in TaskStatus if not status.is_recoverable()])
def test_a_task_in_any_other_status_is_none_however_old(
    db: Database, submit: Submit, status: TaskStatus
) -> None:
    submit("t1", now=ANCIENT)
    put(db, status, worker_id="gone", updated_at=ANCIENT)
    assert page(db) == []


@pytest.mark.parametrize("reason", ["shutdown", "lost", "asked", "diverged", "skipped"])
def test_an_interrupted_task_is_one_unless_it_waits_for_a_person(
    db: Database, submit: Submit, reason: str
) -> None:
    submit("t1")
    put(db, TaskStatus.INTERRUPTED, reason=reason)
    assert ids(page(db)) == (["t1"] if reason in ("shutdown", "lost") else [])


def test_low_risk_comes_first_then_high_then_anything_else_and_the_oldest_first(
    db: Database, claim: Claim
) -> None:
    for id, risk, age in [
        ("h", RiskLevel.HIGH, 9),
        ("l2", RiskLevel.LOW, 1),
        ("l1", RiskLevel.LOW, 2),
        ("x", RiskLevel.LOW, 8),
    ]:
        claim(id, risk=risk, now=NOW - age)
    put(db, TaskStatus.RUNNING, "x", risk_level="odd")
    found = page(db)
    assert ids(found) == ["l1", "l2", "h", "x"]
    assert [orphan.risk_text for orphan in found] == ["low", "low", "high", "odd"]
    assert [orphan.trace_count for orphan in found] == [1, 1, 1, 1]


def test_pages_reach_the_end_of_the_list_and_visit_each_once(db: Database, claim: Claim) -> None:
    for number in range(25):
        claim(f"t{number:02}", risk=RiskLevel.HIGH if number < 20 else RiskLevel.LOW)
    seen: list[str] = []
    after = None
    while found := orphans.page(db, lease_out=frozenset(), after=after, limit=4):
        seen += ids(found)
        after = found[-1].order
        for orphan in found[:2]:  # moving some meanwhile skips none of the others
            transitions.quarantine(db, orphan.task, detail="{}", now=NOW)
    assert seen == [f"t{number:02}" for number in [*range(20, 25), *range(20)]]


def test_a_task_without_traces_is_found_with_none(db: Database, submit: Submit) -> None:
    submit("t1")
    put(db, TaskStatus.RUNNING)
    [orphan] = page(db)
    assert orphan.trace_count == 0
