"""Pages visit every row once, in both directions, also where all rows have one time stamp and rows come in meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relight.models import events, paging, tasks, traces
from relight.models.database import Database
from relight.models.errors import InputError
from relight.models.events import AgentEvent
from relight.models.paging import Cursor, Order
from relight.models.tasks import TaskStatus
from relight.models.traces import TaskTrace
from tests.models.conftest import NOW, Submit, new_task
from tests.models.test_traces import text

ROWS, SIZE = 1000, 7
BOTH = [Order.NEWEST, Order.OLDEST]


def ids(prefix: str, count: int = ROWS) -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


def visited(
    page: Callable[[Any], tuple[list[Any], Any]],
    name: Callable[[Any], Any],
    meanwhile: Callable[[int], object] = lambda number: None,
) -> list[Any]:
    """What all pages show, one after the other; `meanwhile` runs after each."""
    seen: list[Any] = []
    cursor = None
    while True:
        found, cursor = page(cursor)
        assert len(found) <= SIZE
        seen += [name(row) for row in found]
        if cursor is None:
            return seen
        meanwhile(len(seen) // SIZE)


@pytest.fixture
def many(db: Database) -> list[str]:
    """A thousand tasks of one time stamp, each with one trace and one event of that stamp."""
    names = ids("t")
    with db.write():
        for name in names:
            tasks.submit(db, new_task(name), now=NOW)
            traces.append(db, name, "text_emitted", text(0).to_json(), attempt=0, now=NOW)
    return names


def comes_first(order: Order) -> str:
    """An id that sorts before every page that is still to come."""
    return "u" if order is Order.NEWEST else "a"


@pytest.mark.spec(16)
@pytest.mark.parametrize("order", BOTH)
def test_every_task_is_listed_once(db: Database, many: list[str], order: Order) -> None:
    def insert(number: int) -> None:
        tasks.submit(db, new_task(f"{comes_first(order)}{number}"), now=NOW)

    seen = visited(
        lambda cursor: tasks.listing(db, limit=SIZE, cursor=cursor, order=order), lambda task: task.id, insert
    )
    assert seen == (many[::-1] if order is Order.NEWEST else many)


@pytest.mark.parametrize("order", BOTH)
def test_every_task_with_a_filter_is_listed_once(db: Database, many: list[str], order: Order) -> None:
    for name in many[::3]:
        db.change("UPDATE agent_tasks SET parent_session_id = 'other' WHERE id = ?", (name,))
    seen = visited(
        lambda cursor: tasks.listing(
            db, session="other", status=TaskStatus.PENDING, limit=SIZE, cursor=cursor, order=order
        ),
        lambda task: task.id,
    )
    assert sorted(seen) == many[::3]


@pytest.mark.spec(19)
@pytest.mark.parametrize("order", BOTH)
def test_every_event_of_a_time_range_is_listed_once(db: Database, many: list[str], order: Order) -> None:
    """The range includes both its ends; newer rows of the same range come in during paging."""

    def insert(number: int) -> None:
        events.insert(db, AgentEvent.pulse("t0000", 10 + number, "ai_streaming", {}, now=NOW))

    events.insert(db, AgentEvent.pulse("t0000", 2, "ai_streaming", {}, now=NOW - 1))
    events.insert(db, AgentEvent.pulse("t0000", 3, "ai_streaming", {}, now=NOW + 1))
    before = [
        row[0] for row in db.rows("SELECT id FROM agent_events WHERE timestamp = ? ORDER BY id", (NOW,))
    ]
    meanwhile = insert if order is Order.NEWEST else lambda number: None
    seen = visited(
        lambda cursor: events.in_time_range(db, NOW, NOW, limit=SIZE, cursor=cursor, order=order),
        lambda event: event.id,
        meanwhile,
    )
    assert seen == (before[::-1] if order is Order.NEWEST else before)
    assert len(events.in_time_range(db, NOW - 1, NOW + 1, limit=5000)[0]) >= ROWS + 2


def test_events_that_come_in_during_paging_are_seen_at_the_end_and_once(db: Database, submit: Submit) -> None:
    submit("t1")
    events.bulk_insert(db, [AgentEvent.pulse("t1", n, "ai_streaming", {}, now=NOW) for n in range(2, 31)])
    seen = visited(
        lambda cursor: events.in_time_range(db, 0, NOW, limit=SIZE, cursor=cursor),
        lambda event: event.seq,
        lambda n: (
            events.insert(db, AgentEvent.pulse("t1", 30 + n, "ai_streaming", {}, now=NOW)) if n < 5 else None
        ),
    )
    assert seen == list(range(1, 35))


@pytest.mark.spec(17)
@pytest.mark.parametrize("order", BOTH)
def test_every_trace_of_a_kind_is_listed_once(db: Database, many: list[str], order: Order) -> None:
    traces.append(db, "t0000", "turn_started", "{}", attempt=0, now=NOW)
    seen: list[str] = []
    after: int | None = None
    while found := traces.by_kind(db, "text_emitted", limit=SIZE, after=after, order=order):
        seen += [trace.task_id for trace in found]
        after = found[-1].id
        if order is Order.NEWEST:
            traces.append(db, "t0000", "text_emitted", text(1).to_json(), attempt=0, now=NOW)
    assert seen == (many[::-1] if order is Order.NEWEST else many)


# -- the tasks that have traces -----------------------------------------------------------------------------------


@pytest.mark.spec(18)
@pytest.mark.parametrize("order", BOTH)
def test_every_task_with_traces_is_listed_once_though_all_share_one_stamp(
    db: Database, many: list[str], order: Order
) -> None:
    def insert(number: int) -> None:
        name = f"{comes_first(order)}{number}"
        tasks.submit(db, new_task(name), now=NOW)
        traces.append(db, name, "text_emitted", text(0).to_json(), attempt=0, now=NOW)

    seen = visited(
        lambda cursor: traces.list_trace_tasks_paged(db, SIZE, cursor=cursor, order=order),
        lambda info: info.task_id,
        insert,
    )
    assert seen == (many[::-1] if order is Order.NEWEST else many)


@pytest.mark.spec(18)
def test_a_plain_time_stamp_gives_only_what_is_strictly_older(db: Database, submit: Submit) -> None:
    for number in range(5):
        submit(f"t{number}")
        traces.append(db, f"t{number}", "text_emitted", text(0).to_json(), attempt=0, now=NOW + number // 2)
    assert [info.last_timestamp - NOW for info in traces.list_trace_tasks_paged(db, 3)[0]] == [2, 1, 1]
    page, cursor = traces.list_trace_tasks_paged(db, 2, NOW + 1)
    assert ([info.task_id for info in page], cursor) == (["t1", "t0"], None)
    assert traces.list_trace_tasks_paged(db, 9, NOW) == ([], None)


@pytest.mark.spec(18)
def test_pages_of_two_visit_five_tasks_of_one_stamp_once(db: Database, submit: Submit) -> None:
    for number in range(5):
        submit(f"t{number}")
        traces.append(db, f"t{number}", "text_emitted", text(0).to_json(), attempt=0, now=NOW)
    seen = visited(
        lambda cursor: traces.list_trace_tasks_paged(db, 2, cursor=cursor), lambda info: info.task_id
    )
    assert seen == ["t4", "t3", "t2", "t1", "t0"]


@pytest.mark.parametrize(("asked", "given"), [(9999, 200), (0, 1), (-5, 1), (3, 3)])
def test_a_page_of_tasks_with_traces_has_one_to_two_hundred(
    db: Database, many: list[str], asked: int, given: int
) -> None:
    assert len(traces.list_trace_tasks_paged(db, asked)[0]) == given


def test_what_is_told_of_a_task_with_traces(db: Database, submit: Submit) -> None:
    task = submit("t1")
    task_prompt = "long " * 100
    db.change(
        "UPDATE agent_tasks SET task_prompt = ?, started_at = ? WHERE id = 't1'", (task_prompt, NOW + 1)
    )
    traces.bulk_insert(db, [TaskTrace.new("t1", n, text(n), now=NOW + 9 - n) for n in range(4)])
    submit("without")
    [info] = traces.list_trace_tasks_paged(db)[0]
    assert (info.task_id, info.event_count, info.last_timestamp) == ("t1", 4, NOW + 9), "the last by time"
    assert (info.status, info.started_at) == (task.status, NOW + 1)
    assert info.prompt_preview == task_prompt[:200]


# -- cursors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [Cursor(NOW, "t1"), Cursor(-5, "a:b"), Cursor(0, "ü")])
def test_a_cursor_survives_its_text(cursor: Cursor) -> None:
    assert paging.parse(str(cursor)) == cursor


@pytest.mark.parametrize("given", ["", "x", ":", "5", "5:", ":t1", "1.5:t1", "٣:t1", "--5:t1", " 5:t1"])
def test_a_text_that_is_no_cursor_is_refused_and_named(given: str) -> None:
    with pytest.raises(InputError, match="next_cursor"):
        paging.parse(given)


@pytest.mark.spec(65)
@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**80, -(2**63), -(2**80)])
def test_a_limit_a_cursor_or_a_bound_beyond_the_column_is_clamped(
    db: Database, submit: Submit, number: int
) -> None:
    submit("t1")
    traces.append(db, "t1", "text_emitted", text(0).to_json(), attempt=0, now=NOW)
    ahead = number > 0
    assert len(tasks.listing(db, cursor=(number, "t1"))[0]) == ahead
    assert len(events.after(db, "t1", number)) == (not ahead)
    assert len(events.in_time_range(db, -number, number)[0]) == ahead
    assert len(traces.list_trace_tasks_paged(db, number, number)[0]) == ahead
    assert len(traces.from_step(db, "t1", number)) == (not ahead)
    if ahead:
        assert len(tasks.listing(db, limit=number)[0]) == len(events.after(db, "t1", 0, limit=number)) == 1
