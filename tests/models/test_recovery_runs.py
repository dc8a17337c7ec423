"""Recovery passes are kept as long as they say something."""

from __future__ import annotations

import json

from relight.models import recovery_runs
from relight.models.database import Database
from tests.models.conftest import NOW

NOTHING: dict[str, list[str]] = {"resumed": [], "asked": [], "skipped": [], "quarantined": [], "errors": []}


def test_a_pass_is_counted_by_verdict_and_names_its_tasks(db: Database) -> None:
    verdicts = {**NOTHING, "resumed": ["t1", "t2"], "errors": ["t3"]}
    recovery_runs.record(db, started_at=NOW, finished_at=NOW + 2, pid=7, verdicts=verdicts)
    [run] = recovery_runs.recent(db)
    assert (run.started_at, run.finished_at, run.pid) == (NOW, NOW + 2, 7)
    assert (run.resumed, run.asked, run.skipped, run.quarantined, run.errors) == (2, 0, 0, 0, 1)
    assert json.loads(run.detail_json) == {"resumed": ["t1", "t2"], "errors": ["t3"]}


def test_the_last_pass_gives_the_period(db: Database) -> None:
    assert recovery_runs.last_started_at(db) is None
    for moment in (NOW + 5, NOW):
        recovery_runs.record(db, started_at=moment, finished_at=moment, pid=1, verdicts=NOTHING)
    assert recovery_runs.last_started_at(db) == NOW + 5
    assert [run.started_at for run in recovery_runs.recent(db, limit=1)] == [NOW + 5]


def test_passes_that_found_nothing_do_not_pile_up(db: Database) -> None:
    found = {**NOTHING, "asked": ["t1"]}
    recovery_runs.record(db, started_at=NOW, finished_at=NOW, pid=1, verdicts=found)
    for minute in range(200):
        moment = NOW + minute * 60_000
        recovery_runs.record(db, started_at=moment, finished_at=moment, pid=1, verdicts=NOTHING)
    runs = recovery_runs.recent(db, limit=500)
    assert len(runs) <= 62
    assert any(run.asked for run in runs)
