"""The task row: its words and columns, submission, order in the queue, and the reads."""

from __future__ import annotations

import logging

import peewee
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.models import claims, events, journal, orphans, tasks, transitions
from relight.models.database import Database
from relight.models.errors import DuplicateTaskError, KeyConflictError, NotFoundError
from relight.models.fields import INT64_MAX
from relight.models.tasks import AgentTask, Lane, RiskLevel, TaskStatus
from tests.models.conftest import AGENT, NOW, Claim, Submit, new_task

SPECIFIED = [
    *("id", "parent_session_id", "agent_id", "task_prompt", "status", "risk_level", "lane"),
    *("checkpoint_snapshot_path", "last_tool_call_id", "recursion_depth", "parent_task_id"),
    *("created_at", "updated_at", "started_at", "completed_at", "metadata_json"),
]
QUOTED = 'it\'s "x"; DROP TABLE agent_tasks; -- ?:@$1 %_\\'


# Words


@pytest.mark.spec(1)
@pytest.mark.spec(2)
@pytest.mark.spec(3)
def test_the_words_are_exactly_these_and_round_trip() -> None:
    assert [str(status) for status in TaskStatus] == [
        *("pending", "running", "completed", "failed", "interrupted", "idle", "swapped")
    ]
    assert [str(risk) for risk in RiskLevel] == ["low", "high"]
    assert [str(lane) for lane in Lane] == ["main", "subagent"]
    for words in (TaskStatus, RiskLevel, Lane):
        assert [words.parse(str(word)) for word in words] == list(words)
        assert [words.parse(str(word).upper()) for word in words] == list(words)


@pytest.mark.spec(1)
def test_only_running_and_interrupted_are_recoverable() -> None:
    assert [status for status in TaskStatus if status.is_recoverable()] == [
        TaskStatus.RUNNING,
        TaskStatus.INTERRUPTED,
    ]
    assert [status for status in TaskStatus if status.is_terminal()] == [
        TaskStatus.COMPLETED,
        TaskStatus.FAILED,
    ]


@pytest.mark.parametrize("text", ["", "lo", "none", None, 3, "low "], ids=repr)
def test_an_unknown_word_is_reported_and_taken_for_the_careful_one(
    text: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "relight.models"):
        assert RiskLevel.parse(text) is RiskLevel.HIGH
        assert TaskStatus.parse(text) is TaskStatus.PENDING
        assert Lane.parse(text) is Lane.SUBAGENT
    assert len(caplog.records) == 3


@pytest.mark.spec(2)
def test_an_unknown_stored_risk_never_enables_auto_resume(db: Database, claim: Claim) -> None:
    claim("t1")
    with db.write():
        db.change("UPDATE agent_tasks SET risk_level = 'lo'")
    task = tasks.find(db, "t1")
    assert not task.should_auto_resume()
    assert task.needs_resume_confirmation()


# The model


def test_the_specified_columns_come_first_and_in_order() -> None:
    assert [field.name for field in AgentTask._meta.sorted_fields][:16] == SPECIFIED


@pytest.mark.spec(3)
@pytest.mark.spec(4)
def test_a_new_task_is_pending_in_the_subagent_lane_at_depth_0() -> None:
    task = AgentTask.new("t", "s", "a", "p", RiskLevel.LOW, now=NOW)
    assert (task.status, task.lane, task.recursion_depth) == (TaskStatus.PENDING, Lane.SUBAGENT, 0)
    assert (task.created_at, task.updated_at, task.rank) == (NOW, NOW, NOW)
    absent = [name for name in SPECIFIED if getattr(task, name) is None]
    assert absent == [
        *(
            "checkpoint_snapshot_path",
            "last_tool_call_id",
            "parent_task_id",
            "started_at",
            "completed_at",
            "metadata_json",
        )
    ]


@pytest.mark.spec(5)
def test_a_child_is_one_level_deeper_than_its_parent() -> None:
    task = new_task().with_parent_task("parent", 1)
    assert (task.parent_task_id, task.recursion_depth) == ("parent", 2)


@pytest.mark.spec(65)
def test_a_depth_beyond_the_column_does_not_wrap(db: Database) -> None:
    tasks.submit(db, new_task().with_parent_task("parent", INT64_MAX), now=NOW)
    assert tasks.find(db, "t1").recursion_depth == INT64_MAX


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.spec(5)
def test_resume_helpers_follow_status_and_risk(status: TaskStatus) -> None:
    low, high = new_task(risk=RiskLevel.LOW, status=status), new_task(risk=RiskLevel.HIGH, status=status)
    recoverable = status.is_recoverable()
    assert (low.should_auto_resume(), low.needs_resume_confirmation()) == (recoverable, False)
    assert (high.should_auto_resume(), high.needs_resume_confirmation()) == (False, recoverable)


@pytest.mark.spec(4)
def test_every_column_survives_the_database(db: Database) -> None:
    task = new_task(lane=Lane.MAIN, risk=RiskLevel.HIGH)
    texts = [
        "checkpoint_snapshot_path",
        "last_tool_call_id",
        "parent_task_id",
        "metadata_json",
        "reason",
        "key",
    ]
    texts += ["input_json", "handler_version", "needs", "swap_path", "worker_id", "result_json", "error_json"]
    numbers = ["recursion_depth", "started_at", "losses", "priority", "rank", "due_at", "expires_at"]
    numbers += ["retries_left", "cancel_requested_at", "trimmed_below"]
    values = {name: f"a {name}" for name in texts} | {name: place + 2 for place, name in enumerate(numbers)}
    values |= {"hold": "due", "completed_at": None, "attempt": 0}
    for name, value in values.items():
        setattr(task, name, value)
    tasks.submit(db, task, now=NOW)
    found = tasks.find(db, "t1")
    assert found.__data__ == task.__data__
    assert set(task.__data__) == {field.name for field in AgentTask._meta.sorted_fields}
    assert (type(found.status), type(found.risk_level), type(found.lane)) == (TaskStatus, RiskLevel, Lane)


@pytest.mark.spec(65)
@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**70, -(2**63), -(2**70)])
def test_a_number_beyond_the_column_is_clamped_and_never_wraps(db: Database, number: int) -> None:
    tasks.submit(db, new_task(priority=0, rank=number), now=NOW)
    assert tasks.find(db, "t1").rank == max(-(2**63), min(number, 2**63 - 1))


@pytest.mark.parametrize(
    "change",
    [
        "status = 'sleeping'",
        "status = 'completed'",
        "status = 'failed'",
        "completed_at = 5",
        "status = 'running', hold = 'due'",
        "hold = 'due'",
        "attempt = -1",
        "losses = -1",
        "retries_left = -1",
    ],
)
def test_the_table_itself_refuses_what_no_move_may_write(db: Database, submit: Submit, change: str) -> None:
    submit("t1")
    with pytest.raises(Exception, match="CHECK constraint failed"), db.write():
        db.change(f"UPDATE agent_tasks SET {change}")


# Submission


def test_a_submitted_task_and_its_first_event_are_there_together(db: Database, submit: Submit) -> None:
    submit("t1")
    [event] = events.by_task(db, "t1")
    assert (event.seq, event.event_type, event.is_structural, event.timestamp) == (1, "task_enqueued", 1, NOW)


@pytest.mark.spec(16)
def test_a_known_id_is_refused_and_changes_nothing(db: Database, submit: Submit) -> None:
    submit("t1", agent="first")
    with pytest.raises(DuplicateTaskError, match="t1"):
        submit("t1", agent="second")
    assert tasks.find(db, "t1").agent_id == "first"
    assert len(events.by_task(db, "t1")) == 1


def test_insert_if_absent_says_whether_it_inserted(db: Database) -> None:
    assert tasks.submit_if_absent(db, new_task(), now=NOW)
    assert not tasks.submit_if_absent(db, new_task(agent="other"), now=NOW)
    assert tasks.find(db, "t1").agent_id == AGENT


def test_many_tasks_are_stored_all_or_none(db: Database) -> None:
    page = [new_task(f"t{number}") for number in range(5)]
    with pytest.raises(DuplicateTaskError):
        tasks.submit_many(db, [*page, new_task("t3")], now=NOW)
    assert tasks.counts(db)["pending"] == 0
    assert [task.id for task in tasks.submit_many(db, page, now=NOW)] == ["t0", "t1", "t2", "t3", "t4"]
    assert tasks.submit_many(db, [], now=NOW) == []


def test_the_same_key_gives_the_same_task_and_a_different_input_is_refused(db: Database) -> None:
    first = tasks.submit(db, new_task("t1", key="q-42"), now=NOW)
    again = tasks.submit(db, new_task("t2", key="q-42"), now=NOW)
    assert again.id == first.id
    with pytest.raises(KeyConflictError, match="q-42"):
        tasks.submit(db, new_task("t3", key="q-42", input_json='{"args":[9],"kwargs":{}}'), now=NOW)
    assert tasks.submit(db, new_task("t4", key="q-42", agent="another"), now=NOW).id == "t4"
    found = tasks.find_by_key(db, AGENT, "q-42")
    assert found is not None
    assert found.id == "t1"
    assert tasks.find_by_key(db, AGENT, "other") is None


def test_a_key_is_kept_after_its_task_has_ended(db: Database, claim: Claim) -> None:
    task = claim("t1", key="k")
    transitions.complete(db, "t1", attempt=task.attempt, worker_id="w1", result_json="1", now=NOW)
    assert tasks.submit(db, new_task("t2", key="k"), now=NOW).status is TaskStatus.COMPLETED


def test_the_lane_of_a_submitted_task_is_rung(db: Database) -> None:
    heard: list[frozenset[str]] = []
    db.ring = heard.append
    tasks.submit(db, new_task(lane=Lane.MAIN), now=NOW)
    assert "main" in heard[0]
    assert "subagent" not in heard[0]


# Text


@pytest.mark.parametrize(
    "column", ["id", "parent_session_id", "agent_id", "task_prompt", "key", "metadata_json"]
)
@pytest.mark.spec(67)
def test_quotes_and_sql_in_any_text_are_text(db: Database, column: str) -> None:
    task = new_task(**({"id": QUOTED} if column == "id" else {}))
    setattr(task, column, QUOTED)
    tasks.submit(db, task, now=NOW)
    found = tasks.find(db, task.id)
    assert getattr(found, column) == QUOTED
    assert tasks.counts(db)["pending"] == 1
    assert [event.task_id for event in events.by_task(db, task.id)] == [task.id]


@pytest.mark.spec(67)
def test_a_task_whose_id_is_sql_goes_through_its_whole_life(db: Database, claim: Claim) -> None:
    task = claim(QUOTED)
    transitions.complete(db, QUOTED, attempt=1, worker_id="w1", result_json="1", now=NOW)
    assert tasks.find(db, QUOTED).status is TaskStatus.COMPLETED
    assert [event.event_type for event in events.by_task(db, QUOTED)] == [
        "task_enqueued",
        "task_started",
        "task_completed",
    ]
    assert tasks.listing(db, session=task.parent_session_id)[0][0].id == QUOTED


@pytest.mark.parametrize("column", ["parent_session_id", "agent_id", "task_prompt", "metadata_json"])
def test_half_an_emoji_in_a_text_is_stored_with_a_replacement(db: Database, column: str) -> None:
    task = new_task()
    setattr(task, column, "a\ud83d!")
    tasks.submit(db, task, now=NOW)
    assert getattr(tasks.find(db, "t1"), column) == "a\ufffd!"
    assert len(events.by_task(db, "t1")) == 1


def test_a_nul_in_a_prompt_survives(db: Database) -> None:
    tasks.submit(db, new_task(task_prompt="a\x00b"), now=NOW)
    assert tasks.find(db, "t1").task_prompt == "a\x00b"


# Order


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-100, 100)), min_size=2, max_size=2))
def test_a_priority_point_is_worth_a_minute_of_waiting(pairs: list[tuple[int, int]]) -> None:
    one, two = (new_task(now=now).with_order(priority=priority) for now, priority in pairs)
    sooner = pairs[0][0] - pairs[1][0] - (pairs[0][1] - pairs[1][1]) * 60_000
    assert (one.rank < two.rank) == (sooner < 0)


def test_a_person_s_lane_has_the_higher_priority() -> None:
    assert new_task(lane=Lane.MAIN).priority > new_task(lane=Lane.SUBAGENT).priority


def test_a_delayed_task_is_held_and_ranked_by_its_due_time() -> None:
    task = new_task().with_order(due_at=NOW + 5000)
    assert (task.hold, task.due_at, task.rank) == ("due", NOW + 5000, NOW + 5000 - task.priority * 60_000)
    assert new_task().with_order(due_at=NOW - 1).hold is None


def test_ready_rows_are_told_in_the_order_of_their_claim(db: Database) -> None:
    for number, priority in enumerate([0, 5, -3, 5]):
        tasks.submit(db, new_task(f"t{number}").with_order(priority=priority), now=NOW)
    tasks.submit(db, new_task("late").with_order(due_at=NOW + 9), now=NOW)
    tasks.submit(db, new_task("main", lane=Lane.MAIN), now=NOW)
    assert claims.ready_ids(db, "subagent") == ["t1", "t3", "t0", "t2"]
    assert claims.ready_ids(db, "subagent", limit=2) == ["t1", "t3"]
    assert claims.ready_count(db, "subagent") == 4
    assert (claims.ready(db, "main"), claims.ready(db, "other")) == (True, False)
    assert claims.next_due(db) == NOW + 9


# Reads


@pytest.mark.spec(16)
def test_an_unknown_id_is_an_error_that_names_it(db: Database) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        tasks.find(db, "nobody")


def test_pages_of_tasks_with_one_time_stamp_visit_each_once(db: Database, submit: Submit) -> None:
    for number in range(50):
        submit(f"t{number:02}")
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = tasks.listing(db, limit=7, cursor=cursor)
        seen += [task.id for task in page]
        if cursor is None:
            break
        if len(seen) == 14:
            submit("t99")  # a new task during paging comes before the first page, and moves none
    assert seen == [f"t{number:02}" for number in reversed(range(50))]


def test_a_listing_is_filtered_newest_first_and_carries_no_payload(
    db: Database, submit: Submit, claim: Claim
) -> None:
    for number in range(3):
        submit(
            f"t{number}",
            session=f"s{number % 2}",
            now=NOW + number,
            input_json='{"args":["big"],"kwargs":{}}',
        )
    claim("m1", lane=Lane.MAIN, now=NOW + 9)
    assert [task.id for task in tasks.listing(db)[0]] == ["m1", "t2", "t1", "t0"]
    assert [task.id for task in tasks.listing(db, session="s0")[0]] == ["t2", "t0"]
    assert [task.id for task in tasks.listing(db, lane=Lane.MAIN)[0]] == ["m1"]
    assert [task.id for task in tasks.listing(db, status=TaskStatus.RUNNING)[0]] == ["m1"]
    page, cursor = tasks.listing(db, status=TaskStatus.PENDING, limit=3)
    assert (len(page), cursor) == (3, None)
    assert "input_json" not in page[0].__data__


def test_counts_name_every_status(db: Database, submit: Submit, claim: Claim) -> None:
    claim("t1")
    submit("t2")
    expected = {str(status): 0 for status in TaskStatus} | {"pending": 1, "running": 1}
    assert tasks.counts(db) == expected


def test_recoverable_tasks_come_low_risk_first_and_oldest_first(db: Database, claim: Claim) -> None:
    for id, risk, age in [
        ("a", RiskLevel.HIGH, 1),
        ("b", RiskLevel.LOW, 3),
        ("c", RiskLevel.LOW, 2),
        ("d", RiskLevel.HIGH, 4),
    ]:
        claim(id, risk=risk, now=NOW - age)
    with db.write():
        db.change("UPDATE agent_tasks SET risk_level = 'odd' WHERE id = 'd'")
    transitions.interrupt(db, "b", reason="shutdown", now=NOW, attempt=1)
    assert [task.id for task in orphans.recoverable(db)] == ["b", "c", "a", "d"]


def test_a_checkpoint_is_written_and_read_after_reopening(db: Database, submit: Submit) -> None:
    submit("t1")
    journal.update_checkpoint(db, "t1", path="snap/1", last_tool_call_id="read#3", now=NOW + 7)
    db.close_all()
    task = tasks.find(db, "t1")
    assert (task.checkpoint_snapshot_path, task.last_tool_call_id, task.updated_at) == (
        "snap/1",
        "read#3",
        NOW + 7,
    )
    with pytest.raises(NotFoundError):
        journal.update_checkpoint(db, "nobody", path="x", last_tool_call_id=None, now=NOW)


def test_expired_tasks_are_those_never_claimed_and_past_their_time(
    db: Database, submit: Submit, claim: Claim
) -> None:
    submit("past", expires_at=NOW - 1)
    submit("now", expires_at=NOW)
    submit("future", expires_at=NOW + 1)
    submit("never")
    task = claim("ran", expires_at=NOW + 2, lane=Lane.MAIN)
    claims.unclaim(db, "ran", attempt=task.attempt, worker_id="w1", now=NOW)
    assert set(claims.expired_ids(db, now=NOW)) == {"past", "now"}
    assert set(claims.expired_ids(db, now=NOW + 9)) == {"past", "now", "future"}


def test_the_model_cannot_be_used_without_a_database() -> None:
    with pytest.raises((peewee.PeeweeException, AttributeError)):
        AgentTask.select().execute()
