"""Traces are numbered per task without a double, and read back in step order."""

from __future__ import annotations

import threading

import pytest
from cysqlite import IntegrityError

from relight.models import errors, traces
from relight.models.database import Database
from relight.models.trace_events import TextEmitted, ToolCallStarted, TurnStarted
from relight.models.traces import TaskTrace
from tests.models.conftest import NOW, Submit


def text(number: int) -> TextEmitted:
    return TextEmitted(iteration=0, stream="final", text=f"text {number}")


def steps(found: list[TaskTrace]) -> list[int]:
    return [trace.step_index for trace in found]


@pytest.mark.spec(7)
def test_a_trace_that_is_not_stored_has_id_0_and_the_kind_of_its_event() -> None:
    trace = TaskTrace.new("t1", 3, text(0), now=NOW)
    assert (trace.id, trace.event_kind, trace.event) == (0, "text_emitted", text(0))


@pytest.mark.spec(7)
def test_with_timestamp_changes_the_stamp_only() -> None:
    trace = TaskTrace.new("t1", 3, text(0), now=NOW)
    later = trace.with_timestamp(NOW + 5)
    assert (trace.timestamp, later.timestamp) == (NOW, NOW + 5)
    assert {**later.__data__, "timestamp": NOW} == trace.__data__
    assert (later.id, later.event_kind) == (0, trace.event_kind)


def test_a_stored_trace_reads_back_whole(db: Database, submit: Submit) -> None:
    submit("t1")
    row_id = traces.insert(db, TaskTrace.new("t1", 0, TurnStarted(iteration=1, attempt=1), now=NOW))
    found = traces.by_id(db, row_id)
    assert found is not None
    assert (found.id, found.task_id, found.step_index, found.timestamp) == (row_id, "t1", 0, NOW)
    assert found.event_kind == found.event.kind == "turn_started"
    assert traces.by_id(db, row_id + 1) is None


@pytest.mark.spec(17)
def test_steps_read_back_ascending_whatever_the_order_of_their_insertion(
    db: Database, submit: Submit
) -> None:
    submit("t1")
    for number in (4, 0, 2):
        traces.insert(db, TaskTrace.new("t1", number, text(number), now=NOW))
    assert steps(traces.by_task(db, "t1")) == [0, 2, 4]
    assert steps(traces.from_step(db, "t1", 2)) == [2, 4]
    last = traces.last(db, "t1")
    assert last is not None
    assert last.step_index == 4
    assert traces.by_task(db, "t1", kind="turn_started") == []
    assert steps(traces.by_task(db, "t1", kind="text_emitted")) == [0, 2, 4]


@pytest.mark.spec(17)
def test_a_step_of_a_task_is_stored_once(db: Database, submit: Submit) -> None:
    submit("t1")
    submit("t2")
    traces.insert(db, TaskTrace.new("t1", 0, text(0), now=NOW))
    with pytest.raises(IntegrityError):
        traces.insert(db, TaskTrace.new("t1", 0, text(1), now=NOW))
    traces.insert(db, TaskTrace.new("t2", 0, text(2), now=NOW))
    assert [trace.event for trace in traces.by_task(db, "t1")] == [text(0)]


def test_a_negative_step_and_an_unknown_task_are_refused(db: Database, submit: Submit) -> None:
    submit("t1")
    with pytest.raises(IntegrityError, match="CHECK"):
        traces.insert(db, TaskTrace.new("t1", -1, text(0), now=NOW))
    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        traces.insert(db, TaskTrace.new("nobody", 0, text(0), now=NOW))


def test_a_task_with_traces_cannot_be_deleted(db: Database, submit: Submit) -> None:
    submit("t1")
    traces.insert(db, TaskTrace.new("t1", 0, text(0), now=NOW))
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), db.write():
        db.change("DELETE FROM agent_tasks")


@pytest.mark.spec(17)
def test_a_hundred_traces_are_one_transaction(db: Database, submit: Submit) -> None:
    submit("t1")
    page = [TaskTrace.new("t1", number, text(number), now=NOW) for number in range(100)]
    with pytest.raises(IntegrityError):
        traces.bulk_insert(db, [*page, TaskTrace.new("t1", 7, text(7), now=NOW)])
    assert traces.count(db, "t1") == 0
    traces.bulk_insert(db, page)
    assert traces.count(db, "t1") == 100
    assert steps(traces.by_task(db, "t1")) == list(range(100))


def test_storing_no_traces_takes_no_transaction(db: Database) -> None:
    with db.write():
        threading.Thread(target=lambda: traces.bulk_insert(db, [])).start()
    assert traces.last(db, "t1") is None


def test_deleting_the_traces_of_one_task_leaves_the_others(db: Database, submit: Submit) -> None:
    for id in ("t1", "t2"):
        submit(id)
        traces.bulk_insert(db, [TaskTrace.new(id, number, text(number), now=NOW) for number in range(3)])
    assert traces.delete_for_task(db, "t1") == 3
    assert traces.delete_for_task(db, "t1") == 0
    assert (traces.count(db, "t1"), traces.count(db, "t2")) == (0, 3)


def test_an_event_that_cannot_be_read_is_an_error_and_never_a_blank(db: Database, submit: Submit) -> None:
    submit("t1")
    traces.insert(db, TaskTrace.new("t1", 0, text(0), now=NOW))
    with db.write():
        db.change('UPDATE task_traces SET event_json = \'{"kind":"text_emitted"}\'')
    [trace] = traces.by_task(db, "t1")
    with pytest.raises(errors.UnreadableTraceError, match="stream"):
        _ = trace.event


def test_appended_traces_take_the_next_free_step(db: Database, submit: Submit) -> None:
    submit("t1")
    with db.write():
        for number in range(3):
            traces.append(db, "t1", "text_emitted", text(number).to_json(), attempt=1, now=NOW + number)
    traces.insert(db, TaskTrace.new("t1", 9, text(9), now=NOW))
    with db.write():
        traces.append(db, "t1", "text_emitted", text(3).to_json(), attempt=2, now=NOW, late=True)
    found = traces.by_task(db, "t1")
    assert steps(found) == [0, 1, 2, 9, 10]
    assert [(trace.attempt, trace.late) for trace in found] == [(1, 0), (1, 0), (1, 0), (0, 0), (2, 1)]


def test_step_records_are_intents_and_outcomes_in_step_order(db: Database, submit: Submit) -> None:
    submit("t1")
    call = {"tool_id": "a#0", "tool_name": "a", "input": None}
    event = ToolCallStarted.model_validate({"iteration": 1, "call": call}).to_json()
    with db.write():
        traces.append(db, "t1", "turn_started", "{}", attempt=1, now=NOW)
        for kind in (traces.INTENT, traces.OUTCOME):
            traces.append(
                db, "t1", kind, event, attempt=1, now=NOW, step_key="a#0", digest="d", effect="write"
            )
    records = traces.step_records(db, "t1")
    assert records == [
        (1, "tool_call_started", event, "a#0", "d", 1, "write", 0, 0, NOW),
        (2, "tool_call_completed", event, "a#0", "d", 1, "write", 0, 0, NOW),
    ]


def test_superseding_marks_the_outcomes_of_the_named_steps_alone(db: Database, submit: Submit) -> None:
    submit("t1")
    submit("t2")
    with db.write():
        for id, key in (("t1", "a#0"), ("t1", "b#0"), ("t2", "a#0")):
            for kind in (traces.INTENT, traces.OUTCOME):
                traces.append(db, id, kind, "{}", attempt=1, now=NOW, step_key=key, digest="d", effect="read")
        traces.supersede(db, "t1", ["a#0"])
    marked = db.rows("SELECT task_id, step_key, event_kind FROM task_traces WHERE superseded = 1")
    assert marked == [("t1", "a#0", "tool_call_completed")]
