"""Events are numbered without a gap, exist once committed, and are read by cursor."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from cysqlite import IntegrityError

from relight.models import events
from relight.models.database import Database
from relight.models.events import AgentEvent
from tests.conftest import environment
from tests.models.conftest import NOW, Submit, fail_after


def seqs(found: list[AgentEvent]) -> list[int]:
    return [event.seq for event in found]


def store(db: Database, *numbers: int, task: str = "t1") -> None:
    events.bulk_insert(
        db, [AgentEvent.new(task, number, "note", {"n": number}, now=NOW) for number in numbers]
    )


@pytest.fixture(autouse=True)
def a_task_without_events(db: Database, submit: Submit) -> None:
    submit("t1")
    events.delete_for_task(db, "t1")


@pytest.mark.spec(9)
def test_the_specified_types_have_these_names() -> None:
    assert [
        AgentEvent.TYPE_TASK_STARTED,
        AgentEvent.TYPE_TOOL_CALL_STARTED,
        AgentEvent.TYPE_TOOL_CALL_COMPLETED,
        AgentEvent.TYPE_ARTIFACT_CREATED,
        AgentEvent.TYPE_TASK_COMPLETED,
        AgentEvent.TYPE_TASK_FAILED,
        AgentEvent.TYPE_AI_STREAMING,
    ] == [
        *("task_started", "tool_call_started", "tool_call_completed", "artifact_created", "task_completed"),
        *("task_failed", "ai_streaming"),
    ]


@pytest.mark.spec(9)
def test_structural_and_pulse_set_the_flag() -> None:
    made = [
        make("t1", 1, "x", {}, now=NOW) for make in (AgentEvent.new, AgentEvent.structural, AgentEvent.pulse)
    ]
    assert [event.is_structural for event in made] == [0, 1, 0]


def test_an_event_survives_the_database(db: Database) -> None:
    event = AgentEvent.structural("t1", 4, AgentEvent.TYPE_TASK_STARTED, {"né": [1, None]}, now=NOW)
    row_id = events.insert(db, event)
    [found] = events.by_task(db, "t1")
    assert found.id == row_id
    assert json.loads(found.payload_json) == {"né": [1, None]}
    assert (found.seq, found.event_type, found.is_structural, found.timestamp) == (4, "task_started", 1, NOW)


@pytest.mark.spec(19)
def test_reading_since_a_cursor_excludes_it_and_a_range_includes_both_ends(db: Database) -> None:
    store(db, 5, 1, 2)
    assert seqs(events.by_task(db, "t1")) == [1, 2, 5]
    assert events.latest_seq(db, "t1") == 5
    assert seqs(events.after(db, "t1", 2)) == [5]
    assert seqs(events.in_range(db, "t1", 2, 3)) == [2]
    assert seqs(events.in_range(db, "t1", 1, 5)) == [1, 2, 5]
    assert events.latest_seq(db, "nobody") is None


def test_pages_of_events_give_each_once(db: Database) -> None:
    store(db, *range(1, 101))
    seen: list[int] = []
    while page := events.after(db, "t1", seen[-1] if seen else 0, limit=7):
        assert len(page) <= 7
        seen += seqs(page)
    assert seen == list(range(1, 101))


@pytest.mark.spec(19)
def test_the_structural_filter_count_and_delete_agree_with_what_was_stored(
    db: Database, submit: Submit
) -> None:
    submit("t2")
    before = events.count(db)
    for number in range(1, 7):
        make = AgentEvent.structural if number % 2 else AgentEvent.pulse
        events.insert(db, make("t1", number, "x", {}, now=NOW))
    assert seqs(events.structural(db, "t1")) == [1, 3, 5]
    assert events.count(db) == before + 6
    assert events.delete_for_task(db, "t1") == 6
    assert events.count(db) == before
    assert len(events.by_task(db, "t2")) == 1


def test_many_events_are_stored_in_one_transaction_and_none_is_nothing(db: Database) -> None:
    with pytest.raises(IntegrityError):
        store(db, 1, 2, 3, 2)
    assert events.by_task(db, "t1") == []
    events.bulk_insert(db, [])
    assert events.by_task(db, "t1") == []


def test_a_number_of_a_task_is_taken_once_and_a_task_must_exist(db: Database) -> None:
    store(db, 1)
    with pytest.raises(IntegrityError, match="UNIQUE"):
        store(db, 1)
    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        store(db, 1, task="nobody")


def test_recorded_events_are_numbered_without_a_gap(db: Database) -> None:
    for number in range(3):
        with db.write():
            events.record(db, "t1", "step", {"n": number}, now=NOW)
    events.record_pulses(db, "t1", [("a", NOW), ("b", NOW + 1)])
    with pytest.raises(ValueError, match="x"):
        fail_after(db, lambda: events.record(db, "t1", "undone", {}, now=NOW))
    with db.write():
        events.record(db, "t1", "step", {}, now=NOW)
    found = events.by_task(db, "t1")
    assert seqs(found) == [1, 2, 3, 4, 5, 6]
    assert [event.is_structural for event in found] == [1, 1, 1, 0, 0, 1]


def test_numbers_go_on_after_pruning_has_removed_the_rows(db: Database) -> None:
    with db.write():
        for _ in range(4):
            events.record(db, "t1", "step", {}, now=NOW)
        db.change("DELETE FROM agent_events")
        db.change("UPDATE agent_tasks SET trimmed_below = 5 WHERE id = 't1'")
        events.record(db, "t1", "step", {}, now=NOW)
    assert seqs(events.by_task(db, "t1")) == [5]


def test_concurrent_recorders_never_share_a_number(db: Database) -> None:
    def work() -> None:
        for _ in range(25):
            with db.write():
                events.record(db, "t1", "step", {}, now=NOW)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seqs(events.by_task(db, "t1")) == list(range(1, 101))


def test_an_event_is_rung_for_those_who_watch_only_once_it_is_committed(db: Database) -> None:
    heard: list[int] = []
    db.ring = lambda topics: heard.append(len(events.by_task(db, "t1"))) if "watch" in topics else None
    with db.write():
        events.record(db, "t1", "step", {}, now=NOW)
        assert heard == []
    events.record_pulses(db, "t1", [("a", NOW)])
    assert heard == [1, 2]


@pytest.mark.spec(10)
def test_a_skeleton_is_in_the_file_when_its_write_returns(db: Database) -> None:
    script = (
        "import os, sys; from pathlib import Path; from relight.models import events, schema\n"
        "db = schema.open_database(Path(sys.argv[1]), now=1)\n"
        "with db.write():\n    events.record(db, 't1', 'step', {}, now=5)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(db.path)], env=environment(), check=False)
    assert killed.returncode == -9
    assert seqs(events.structural(db, "t1")) == [1]


@pytest.mark.parametrize(
    "payload",
    ["\ud83d", {"k\ud83d": "v"}, {"x": object()}, {"x": float("nan")}, {1, 2}, {3: b"\xff"}],
    ids=str,
)
def test_a_payload_of_any_content_is_stored_as_valid_json(db: Database, payload: object) -> None:
    with db.write():
        events.record(db, "t1", "step", payload, now=NOW)
    events.record_pulses(db, "t1", [(payload, NOW)])
    events.insert(db, AgentEvent.new("t1", 9, "step", payload, now=NOW))
    for event in events.by_task(db, "t1"):
        json.loads(event.payload_json.encode(), parse_constant=lambda word: pytest.fail(word))
        assert " at 0x" not in event.payload_json
