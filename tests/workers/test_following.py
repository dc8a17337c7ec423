"""Whoever comes back with a cursor gets what came after it, each event once, or is told what cannot be given."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from relight.models import events, retention, tasks, transitions
from relight.models.errors import InputError, NotFoundError
from relight.models.events import AgentEvent
from relight.models.retention import Pulse
from relight.models.tasks import AgentTask, RiskLevel
from relight.workers import following, settings
from relight.workers.following import Gap
from relight.workers.home import Home
from tests.conftest import wait_until

LAST = 12


@pytest.fixture
def opened(home: Any) -> Any:
    made = Home.open(settings.load())
    yield made
    made.close()


@pytest.fixture
def task_id(opened: Home) -> str:
    """A task with the events 1 … 12, of which 3 … 8 are pulses."""
    now = opened.now()
    task = AgentTask.new("t1", "s1", "elsewhere", "go", RiskLevel.LOW, now=now)
    tasks.submit(opened.db, task, now=now)
    record(opened)
    events.record_pulses(opened.db, "t1", [({"token": number}, now) for number in range(6)])
    for _ in range(4):
        record(opened)
    return "t1"


def record(opened: Home) -> None:
    with opened.db.write():
        events.record(opened.db, "t1", "artifact_created", {}, now=opened.now())


def shown(found: Any) -> list[int | Gap]:
    return [one if isinstance(one, Gap) else one.seq for one in found]


def stored(opened: Home, since: Any) -> list[int | Gap]:
    return shown(following.stored(opened, "t1", since))


def trim(opened: Home, *seqs: int) -> None:
    """Remove events, as retention does."""
    found = [Pulse(e.id, e.task_id, e.seq) for e in events.by_task(opened.db, "t1") if e.seq in seqs]
    with opened.db.write():
        retention.remove_pulses(opened.db, found)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (5, list(range(6, LAST + 1))),
        (LAST, []),
        (0, list(range(1, LAST + 1))),
        (LAST + 1, [Gap(LAST + 1, LAST + 1, "ahead")]),
        (99, [Gap(99, LAST + 1, "ahead")]),
        (2**80, [Gap(2**80, LAST + 1, "ahead")]),
    ],
    ids=["middle", "end", "0", "one beyond", "beyond", "huge"],
)
def test_a_cursor_is_answered_with_what_came_after_it(
    opened: Home, task_id: str, since: int, expected: list[int | Gap]
) -> None:
    assert stored(opened, since) == expected


@pytest.mark.parametrize("since", [-1, "5", None, 1.0, True], ids=repr)
def test_what_is_no_cursor_is_refused(opened: Home, task_id: str, since: Any) -> None:
    with pytest.raises(InputError, match="since="):
        stored(opened, since)


def test_removed_events_are_a_gap_and_what_is_left_is_given(opened: Home, task_id: str) -> None:
    trim(opened, *range(3, 9))
    assert stored(opened, 0) == [1, 2, Gap(2, 9, "trimmed"), 9, 10, 11, 12]
    assert stored(opened, 5) == [Gap(5, 9, "trimmed"), 9, 10, 11, 12]
    assert stored(opened, 8) == [9, 10, 11, 12]


def test_where_everything_was_removed_the_gap_says_from_where_reading_goes_on(
    opened: Home, task_id: str
) -> None:
    trim(opened, *range(1, LAST + 1))
    assert stored(opened, 0) == [Gap(0, LAST + 1, "trimmed")]
    assert stored(opened, LAST) == []
    record(opened)
    assert stored(opened, LAST) == [LAST + 1]


def test_a_hole_that_no_retention_made_is_told_as_a_loss(opened: Home, task_id: str) -> None:
    opened.db.change("DELETE FROM agent_events WHERE seq = 6")
    assert stored(opened, 4) == [5, Gap(5, 7, "lost"), *range(7, LAST + 1)]


def test_events_that_are_removed_while_they_are_read_are_a_gap_too(
    opened: Home, task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.after, "__kwdefaults__", {"limit": 4})
    reader = following.stored(opened, "t1", 0)
    first = [next(reader) for _ in range(4)]
    trim(opened, 5, 6)
    assert shown([*first, *reader]) == [1, 2, 3, 4, Gap(4, 7, "trimmed"), *range(7, LAST + 1)]


def test_an_empty_answer_keeps_the_cursor_through_any_number_of_reconnections(
    opened: Home, task_id: str
) -> None:
    """A client that drops twice before anything new comes goes on with the cursor that it had."""
    assert [stored(opened, LAST) for _ in range(3)] == [[], [], []]
    record(opened)
    assert stored(opened, LAST) == [LAST + 1]


def test_a_follower_with_a_cursor_from_the_future_is_told_and_then_gets_what_comes(
    opened: Home, task_id: str
) -> None:
    seen: list[int | Gap] = []
    reading = threading.Thread(target=lambda: seen.extend(shown(following.follow(opened, "t1", 99))))
    reading.start()
    transitions.cancel(opened.db, "t1", by="ann", detail="{}", now=opened.now())
    wait_until(lambda: not reading.is_alive())
    assert seen[0] in (Gap(99, LAST + 1, "ahead"), Gap(99, LAST + 2, "ahead"))
    assert seen[1:] in ([LAST + 1], [])


def test_an_unknown_task_has_no_events_to_read(opened: Home) -> None:
    with pytest.raises(NotFoundError):
        list(following.stored(opened, "nobody", 0))


def test_every_event_is_given_once_whatever_the_page(opened: Home, task_id: str) -> None:
    page = [AgentEvent.pulse("t1", LAST + n, "ai_streaming", {}, now=1) for n in range(1, 1200)]
    events.bulk_insert(opened.db, page)
    assert stored(opened, 0) == list(range(1, LAST + 1200))
