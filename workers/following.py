"""The one reader of a task's events as they come: what `relight events --follow` and every later door look through.

Invariant: only committed events are given, each once, in the order of `seq`. Where the order cannot be continued an
explicit `Gap` stands, never silence and never the whole history again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..models import events, tasks
from ..models.errors import InputError
from ..models.events import AgentEvent
from .home import Home


@dataclass(frozen=True)
class Gap:
    """Events after `since` and before `next` that cannot be given.

    `reason`: trimmed, retention removed them; ahead, the cursor is beyond what was ever written; lost, neither.
    """

    since: int
    next: int
    reason: str


@dataclass
class _Cursor:
    """The seq of what was given last."""

    seq: int


def stored(home: Home, task_id: str, since: int) -> Iterator[AgentEvent | Gap]:
    """Give what is stored after `since`, then end; raises InputError where that is no cursor."""
    cursor = _Cursor(since)
    yield from _begin(home, task_id, cursor)
    yield from _rest(home, task_id, cursor)


def follow(home: Home, task_id: str, since: int) -> Iterator[AgentEvent | Gap]:
    """Give what is stored after `since` and what comes, until the task has ended and everything was given."""
    cursor = _Cursor(since)
    yield from _begin(home, task_id, cursor)
    bell = home.bell("watch", "follow")
    while True:
        heard = bell.generation
        ended = tasks.find(home.db, task_id).status.is_terminal()
        yield from _rest(home, task_id, cursor)
        if ended:
            return
        bell.wait(heard, home.settings.poll_ms / 1000 or None)


def _begin(home: Home, task_id: str, cursor: _Cursor) -> Iterator[Gap]:
    """What is no cursor is refused; one that was never given out goes on at the end."""
    if not isinstance(cursor.seq, int) or isinstance(cursor.seq, bool) or cursor.seq < 0:
        raise InputError(f"since={cursor.seq!r}: give the seq of the last event that was read, or 0")
    latest = max(events.latest_seq(home.db, task_id) or 0, events.trimmed_below(home.db, task_id) - 1)
    if cursor.seq > latest:
        yield Gap(cursor.seq, latest + 1, "ahead")
        cursor.seq = latest


def _rest(home: Home, task_id: str, cursor: _Cursor) -> Iterator[AgentEvent | Gap]:
    """What is stored after the cursor, with a gap in the place of each hole."""
    below = events.trimmed_below(
        home.db, task_id
    )  # before the page: what is missing below it then is gone for good
    while page := events.after(home.db, task_id, cursor.seq):
        for event in page:
            if event.seq > cursor.seq + 1:
                trimmed = event.seq <= events.trimmed_below(home.db, task_id)
                yield Gap(cursor.seq, event.seq, "trimmed" if trimmed else "lost")
            cursor.seq = event.seq
            yield event
        below = events.trimmed_below(home.db, task_id)
    if cursor.seq + 1 < below:
        yield Gap(cursor.seq, below, "trimmed")
        cursor.seq = below - 1
