"""`StateDatabase`: the state file as one object, with the specified reads and writes by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cysqlite import IntegrityError

from relight.models import confirmations, errors
from relight.models.events import AgentEvent
from relight.models.state import StateDatabase
from relight.models.tasks import RiskLevel, TaskStatus
from relight.models.trace_events import TextEmitted
from relight.models.traces import TaskTrace
from tests.models.conftest import NOW, new_task


@pytest.fixture
def state(tmp_path: Path) -> StateDatabase:
    return StateDatabase(tmp_path / "deep" / "state.db", now=NOW)


def trace(step: int, task: str = "t1") -> TaskTrace:
    return TaskTrace.new(task, step, TextEmitted(iteration=0, stream="final", text=str(step)), now=NOW)


def test_it_makes_the_folder_and_opens_again_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.db"
    with StateDatabase(path) as state:
        state.insert_task(new_task(), now=NOW)
    before = path.read_bytes()
    with StateDatabase(path) as state:
        assert state.get_task("t1").agent_id == "explorer"
    assert path.read_bytes() == before


def test_where_nothing_may_be_created_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageUnreadableError):
        StateDatabase(tmp_path / "deep" / "state.db", create=False)
    assert not (tmp_path / "deep").exists()


def test_tasks_are_inserted_found_and_refused(state: StateDatabase) -> None:
    state.insert_task(new_task("t1"), now=NOW)
    with pytest.raises(errors.DuplicateTaskError):
        state.insert_task(new_task("t1"), now=NOW)
    assert not state.insert_task_if_absent(new_task("t1"), now=NOW)
    assert state.insert_task_if_absent(new_task("t2", now=NOW + 1), now=NOW)
    assert [task.id for task in state.get_tasks_by_session("s1")] == ["t2", "t1"]
    with pytest.raises(errors.NotFoundError):
        state.get_task("t3")
    state.close()


@pytest.mark.spec(16)
def test_a_status_update_stamps_the_start_and_the_end_once(state: StateDatabase) -> None:
    state.insert_task(new_task(), now=NOW)
    running = state.update_task_status("t1", TaskStatus.RUNNING, now=NOW + 1)
    assert (running.started_at, running.updated_at, running.completed_at) == (NOW + 1, NOW + 1, None)
    state.update_task_status("t1", TaskStatus.INTERRUPTED, now=NOW + 2)
    state.update_task_status("t1", TaskStatus.PENDING, now=NOW + 3)
    again = state.update_task_status("t1", TaskStatus.RUNNING, now=NOW + 4)
    assert again.started_at == NOW + 1
    done = state.update_task_status("t1", TaskStatus.COMPLETED, now=NOW + 5)
    assert (done.completed_at, done.started_at) == (NOW + 5, NOW + 1)
    with pytest.raises(errors.StaleMove):
        state.update_task_status("t1", TaskStatus.COMPLETED, now=NOW + 6)
    assert state.get_task("t1").completed_at == NOW + 5
    state.close()


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        (TaskStatus.PENDING, TaskStatus.COMPLETED),
        (TaskStatus.PENDING, TaskStatus.IDLE),
        (TaskStatus.COMPLETED, TaskStatus.RUNNING),
        (TaskStatus.COMPLETED, TaskStatus.PENDING),
        (TaskStatus.FAILED, TaskStatus.RUNNING),
        (TaskStatus.FAILED, TaskStatus.COMPLETED),
        (TaskStatus.IDLE, TaskStatus.COMPLETED),
    ],
)
@pytest.mark.spec(27)
def test_an_illegal_status_update_is_refused(
    state: StateDatabase, status: TaskStatus, refused: TaskStatus
) -> None:
    state.insert_task(new_task(), now=NOW)
    if status is not TaskStatus.PENDING:
        state.update_task_status("t1", TaskStatus.RUNNING, now=NOW)
        state.update_task_status("t1", status, now=NOW)
    with pytest.raises(errors.StaleMove):
        state.update_task_status("t1", refused, now=NOW)
    assert state.get_task("t1").status is status
    state.close()


@pytest.mark.spec(16)
def test_an_unknown_task_cannot_be_updated(state: StateDatabase) -> None:
    for status in TaskStatus:
        with pytest.raises(errors.NotFoundError, match="nobody"):
            state.update_task_status("nobody", status, now=NOW)
    with pytest.raises(errors.NotFoundError):
        state.update_task_checkpoint("nobody", "x", None, now=NOW)
    state.close()


def test_a_status_update_does_not_answer_a_question_that_was_put_to_a_person(state: StateDatabase) -> None:
    state.insert_task(new_task(), now=NOW)
    task = state.update_task_status("t1", TaskStatus.RUNNING, now=NOW)
    confirmations.ask(state.db, task, reason="asked", request={}, steps=[], now=NOW)
    with pytest.raises(errors.StaleMove):
        state.update_task_status("t1", TaskStatus.PENDING, now=NOW)
    assert state.get_task("t1").status is TaskStatus.INTERRUPTED
    state.close()


@pytest.mark.spec(16)
def test_the_orphan_pass_is_idempotent_and_leaves_the_others_alone(state: StateDatabase) -> None:
    for id in ("a", "b", "done", "waiting"):
        state.insert_task(new_task(id), now=NOW)
    for id in ("a", "b", "done"):
        state.update_task_status(id, TaskStatus.RUNNING, now=NOW)
    state.update_task_status("done", TaskStatus.COMPLETED, now=NOW)
    assert state.mark_running_as_interrupted(now=NOW + 9) == 2
    assert state.mark_running_as_interrupted(now=NOW + 10) == 0
    assert {id: str(state.get_task(id).status) for id in ("a", "b", "done", "waiting")} == {
        "a": "interrupted",
        "b": "interrupted",
        "done": "completed",
        "waiting": "pending",
    }
    assert state.get_task("a").updated_at == NOW + 9
    state.close()


def test_recoverable_tasks_come_low_risk_first(state: StateDatabase) -> None:
    for id, risk in (("h", RiskLevel.HIGH), ("l", RiskLevel.LOW)):
        state.insert_task(new_task(id, risk=risk), now=NOW)
        state.update_task_status(id, TaskStatus.RUNNING, now=NOW)
    state.insert_task(new_task("p"), now=NOW)
    state.update_task_status("l", TaskStatus.INTERRUPTED, now=NOW)
    assert [task.id for task in state.get_recoverable_tasks()] == ["l", "h"]
    state.close()


def test_a_checkpoint_reads_back_after_reopening(tmp_path: Path) -> None:
    with StateDatabase(tmp_path / "state.db") as state:
        state.insert_task(new_task(), now=NOW)
        state.update_task_checkpoint("t1", "snap", "read#2", now=NOW + 1)
    with StateDatabase(tmp_path / "state.db") as state:
        task = state.get_task("t1")
        assert (task.checkpoint_snapshot_path, task.last_tool_call_id, task.updated_at) == (
            "snap",
            "read#2",
            NOW + 1,
        )


def test_traces_by_name(state: StateDatabase) -> None:
    state.insert_task(new_task(), now=NOW)
    assert state.insert_trace(trace(0)) > 0
    state.bulk_insert_traces([trace(number) for number in range(1, 101)])
    state.bulk_insert_traces([])
    with pytest.raises(IntegrityError):
        state.insert_trace(trace(7))
    assert [found.step_index for found in state.get_traces_by_task("t1")] == list(range(101))
    assert [found.step_index for found in state.get_traces_from_step("t1", 99)] == [99, 100]
    last = state.get_last_trace("t1")
    assert last is not None
    assert (last.step_index, state.count_traces("t1")) == (100, 101)
    assert state.delete_traces("t1") == 101
    assert state.get_last_trace("t1") is None
    state.close()


def test_events_by_name(state: StateDatabase) -> None:
    state.insert_task(new_task(), now=NOW)
    state.delete_events("t1")
    assert state.insert_event(AgentEvent.structural("t1", 1, "x", {}, now=NOW)) > 0
    state.bulk_insert_events([AgentEvent.pulse("t1", number, "x", {}, now=NOW) for number in (2, 5)])
    state.bulk_insert_events([])
    assert [event.seq for event in state.get_events_by_task("t1")] == [1, 2, 5]
    assert [event.seq for event in state.get_events_since("t1", 2)] == [5]
    assert [event.seq for event in state.get_events_since("t1", 2**70)] == []
    assert [event.seq for event in state.get_events_in_range("t1", 2, 3)] == [2]
    assert [event.seq for event in state.get_structural_events("t1")] == [1]
    assert (state.get_latest_seq("t1"), state.count_events()) == (5, 3)
    assert state.delete_events("t1") == 3
    assert (state.get_latest_seq("t1"), state.count_events()) == (None, 0)
    state.close()


@pytest.mark.spec(68)
def test_two_of_them_do_not_touch(tmp_path: Path) -> None:
    one, two = StateDatabase(tmp_path / "one" / "state.db"), StateDatabase(tmp_path / "two" / "state.db")
    one.insert_task(new_task("a"), now=NOW)
    two.insert_task(new_task("b"), now=NOW)
    one.close()
    assert [task.id for task in two.get_tasks_by_session("s1")] == ["b"]
    with pytest.raises(errors.NotFoundError):
        two.get_task("a")
    two.close()


@pytest.mark.spec(66)
def test_an_error_inside_a_call_leaves_the_next_one_working(state: StateDatabase) -> None:
    with pytest.raises(IntegrityError):
        state.insert_trace(trace(0, task="nobody"))
    state.insert_task(new_task(), now=NOW)
    assert state.get_task("t1").id == "t1"
    state.close()
