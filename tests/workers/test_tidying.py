"""A pass of upkeep removes what is old, gives the room back, disturbs nobody, and goes on where it was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from relight.models import blobs, claims, events, retention, space, tasks, transitions
from relight.models.database import Database
from relight.models.errors import ConflictError
from relight.models.tasks import AgentTask, Lane, RiskLevel
from relight.workers import lanes, retention_job, settings, tidying
from relight.workers.exclusive import Exclusive
from relight.workers.home import Home
from relight.workers.tidying import DAY_MS
from tests.conftest import environment

OLD = 40 * DAY_MS  # older than every default

WRITER = """
import sys, time
from pathlib import Path
from relight.workers import settings
from relight.workers.home import Home
db = Home.open(settings.load()).db
waits = []
while not Path(sys.argv[1]).exists():
    began = time.monotonic()
    with db.write():
        db.change("INSERT INTO kv (queue, key, value) VALUES ('w', hex(randomblob(8)), 1)")
    waits.append(time.monotonic() - began)
    if len(waits) == 20:
        print("ready", flush=True)
    time.sleep(0.002)
waits.sort()
print(waits[len(waits) // 2], waits[len(waits) * 99 // 100], flush=True)
"""


@pytest.fixture
def opened(home: Path) -> Iterator[Home]:
    made = Home.open(settings.load())
    yield made
    made.close()


def fill(db: Database, count: int, *, ended_at: int) -> None:
    """Finished tasks as workers leave them: three traces, four skeleton events, four pulses each."""
    with db.write():
        db.change(
            """
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
            INSERT INTO agent_tasks (id, parent_session_id, agent_id, task_prompt, status, risk_level,
                created_at, updated_at, started_at, completed_at, attempt, result_json)
            SELECT printf('01900000-0000-7000-8000-%012d', i), 's', 'explorer', 'a prompt ' || i,
                CASE WHEN i % 10 THEN 'completed' ELSE 'failed' END, 'low', ?, ?, ?, ? + i, 1, '"done"' FROM n
            """,
            (count, ended_at, ended_at, ended_at, ended_at),
        )
        db.change(
            """
            WITH k (j) AS (VALUES (0), (1), (2))
            INSERT INTO task_traces (task_id, step_index, event_kind, event_json, timestamp, attempt)
            SELECT id, j, 'some_kind', '{"pad":"' || hex(zeroblob(60)) || '"}', created_at, 1 FROM agent_tasks, k
            """
        )
        db.change(
            """
            WITH k (j) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8))
            INSERT INTO agent_events (task_id, seq, event_type, payload_json, is_structural, timestamp)
            SELECT id, j, CASE WHEN j BETWEEN 3 AND 6 THEN 'ai_streaming' ELSE 'note' END,
                '{"text":"some words that were streamed"}', j NOT BETWEEN 3 AND 6, created_at FROM agent_tasks, k
            """
        )


def count(db: Database, table: str) -> int:
    row = db.row(f"SELECT count(*) FROM {table}")
    return int(row[0]) if row else -1


def claimed(home: Home, id: str, *, now: int, **changes: Any) -> AgentTask:
    task = AgentTask.new(id, "s", "explorer", "a prompt", RiskLevel.LOW, now=now).with_lane(Lane.SUBAGENT)
    for name, value in changes.items():
        setattr(task, name, value)
    tasks.submit(home.db, task, now=now)
    found = claims.claim(home.db, "subagent", worker_id="w1", now=now, known=frozenset({"explorer"}))
    assert found is not None
    return found


def complete(home: Home, task: AgentTask, *, now: int, result: str = "1") -> None:
    transitions.complete(
        home.db, task.id, attempt=task.attempt, worker_id=str(task.worker_id), result_json=result, now=now
    )


def test_a_file_of_old_finished_tasks_shrinks_while_another_writer_hardly_waits(
    opened: Home, home: Path, tmp_path: Path
) -> None:
    fill(opened.db, 4_000, ended_at=opened.now() - OLD)
    space.truncate_wal(opened.db)
    before = space.size(opened.db)
    stop = tmp_path / "stop"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(stop)], stdout=subprocess.PIPE, text=True, env=environment()
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        done = tidying.tidy(opened)
        stop.touch()
        median, p99 = map(float, writer.stdout.readline().split())
    assert (done.tasks, done.pulses, done.records) == (4_000, 16_000, 28_000)
    assert count(opened.db, "agent_tasks") == count(opened.db, "agent_events") == 0
    assert done.after is not None
    assert done.after.file_bytes < before.file_bytes / 4
    assert median < 0.1
    assert p99 < 1.0
    assert opened.db.rows("PRAGMA quick_check") == [("ok",)]


def test_no_write_transaction_of_a_pass_is_long(opened: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(opened.db, 2_000, ended_at=opened.now() - OLD)
    held, gate = [], opened.db.gate
    acquire, release = gate.acquire, gate.release
    began = [0.0]

    def acquired() -> bool:
        passed = acquire()
        began[0] = time.monotonic()
        return passed

    def released() -> None:
        held.append(time.monotonic() - began[0])
        release()

    monkeypatch.setattr(gate, "acquire", acquired)
    monkeypatch.setattr(gate, "release", released)
    tidying.tidy(opened)
    held.sort()
    assert len(held) > 20
    assert held[len(held) // 2] < 0.005


def test_what_recovery_and_readers_need_stays(opened: Home) -> None:
    """Old as they are: an unfinished task, and the child that its replay will ask for."""
    then = opened.now() - OLD
    parent = claimed(opened, "parent", now=then)
    complete(opened, claimed(opened, "child", now=then, parent_task_id="parent"), now=then)
    complete(opened, claimed(opened, "done", now=then), now=then)
    tidying.tidy(opened)
    assert tasks.find(opened.db, "child").result_json == "1"
    assert [event.event_type for event in events.by_task(opened.db, parent.id)] == [
        "task_enqueued",
        "task_started",
    ]
    assert {row[0] for row in opened.db.rows("SELECT id FROM agent_tasks")} == {"parent", "child"}


def test_each_kind_goes_by_its_own_age(opened: Home) -> None:
    told = replace(opened.settings, retention_days=30, trace_retention_days=10, pulse_retention_days=2)
    for age in (1, 5, 20, 40):
        now = opened.now() - age * DAY_MS
        task = claimed(opened, f"t{age}", now=now)
        events.record_pulses(opened.db, task.id, [({"text": "word"}, now)])
        complete(opened, task, now=now)
    tidying.tidy(Home(told, opened.db))
    kinds = {
        task.id: sorted({event.is_structural for event in events.by_task(opened.db, task.id)})
        for task in tasks.listing(opened.db)[0]
    }
    assert kinds == {"t1": [0, 1], "t5": [1], "t20": []}


def test_the_blob_of_a_removed_task_leaves_in_the_end(opened: Home) -> None:
    then = opened.now() - OLD
    ref = blobs.store(opened.path / "blobs", b"large", limit=99)
    os.utime(opened.path / "blobs" / ref.path, (then / 1000, then / 1000))
    named = json.dumps({"$blob": {"sha256": ref.sha256, "size": ref.size}})
    complete(opened, claimed(opened, "t1", now=then), now=then, result=named)
    assert tidying.tidy(opened).blobs.set_aside == 1
    assert blobs.load(opened.path / "blobs", ref) == b"large"


def test_a_pass_that_ran_out_of_time_goes_on_where_it_was(opened: Home) -> None:
    fill(opened.db, 300, ended_at=opened.now() - OLD)
    passes = [tidying.tidy(opened, budget_s=0.01)]
    assert not passes[0].finished
    while not passes[-1].finished:
        passes.append(tidying.tidy(opened, budget_s=0.05))
    assert sum(one.tasks for one in passes) == 300
    assert sum(one.pulses for one in passes) == 1_200


def test_a_pass_stops_when_its_worker_does(opened: Home) -> None:
    fill(opened.db, 300, ended_at=opened.now() - OLD)
    assert not tidying.tidy(opened, stopped=lambda: True).finished
    assert count(opened.db, "agent_tasks") == 300


def test_pulses_that_were_looked_at_are_not_read_again(opened: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SCAN", 100)
    fill(opened.db, 50, ended_at=opened.now() - 10 * DAY_MS)
    assert tidying.tidy(opened).pulses == 200
    place = retention.Place(retention.mark(opened.db, "pulses"), 0)
    assert retention.old_pulses(opened.db, after=place, before=opened.now()) == ([], None)


def test_one_pass_at_a_time(opened: Home) -> None:
    with Exclusive(opened.path, tidying.LOCK) as lock:
        assert lock.take()
        with pytest.raises(ConflictError, match=str(os.getpid())):
            tidying.tidy(opened)
    assert tidying.tidy(opened).finished


def test_looking_beforehand_counts_and_removes_nothing(opened: Home) -> None:
    fill(opened.db, 20, ended_at=opened.now() - OLD)
    due = tidying.due(opened)
    assert (due.tasks, due.pulses, due.records) == (20, 80, 140)
    done = tidying.tidy(opened)
    assert (done.tasks, done.pulses, done.records) == (20, 80, 140)


# -- the job --------------------------------------------------------------------------------------------------


@pytest.fixture
def lane(opened: Home, monkeypatch: pytest.MonkeyPatch) -> lanes.LaneHuey:
    monkeypatch.setattr(lanes.upkeep, "_home", opened)
    return lanes.upkeep


def test_the_job_runs_once_an_hour_in_the_upkeep_lane() -> None:
    registered = lanes.upkeep._registry.periodic_tasks
    (job,) = [task for task in registered if type(task) is retention_job.tidy_up.task_class]
    minutes = [
        minute for minute in range(60) if job.validate_datetime(datetime(2026, 1, 1, 5, minute, tzinfo=UTC))
    ]
    assert len(minutes) == 1


def test_a_job_whose_time_was_over_goes_on_behind_what_else_waits(
    opened: Home, lane: lanes.LaneHuey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_job, "SLICE_S", 0.01)
    fill(opened.db, 300, ended_at=opened.now() - OLD)
    retention_job.tidy_up.call_local()
    slices = 0
    while (task := lane.dequeue()) is not None:
        monkeypatch.setattr(retention_job, "SLICE_S", 0.1)
        lane.execute(task)
        slices += 1
    assert slices >= 1
    assert count(opened.db, "agent_tasks") == 0


def test_a_job_that_finds_another_at_work_leaves_it_alone(opened: Home, lane: lanes.LaneHuey) -> None:
    fill(opened.db, 5, ended_at=opened.now() - OLD)
    with Exclusive(opened.path, tidying.LOCK) as lock:
        assert lock.take()
        retention_job.tidy_up.call_local()
    assert lane.pending_count() == 0
    assert count(opened.db, "agent_tasks") == 5
