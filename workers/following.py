"""The one reader of a task's events as they come: what `relight events --follow` and every later door look through.

Invariant: only committed events are given, each once, in the order of `seq`. Where the order cannot be continued an
explicit `Gap` stands, never silence and never the whole history again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from ..models import events, tasks
from ..models.errors import InputError
from ..models.events import AgentEvent
from .home import Home


@dataclass(frozen=True)
class Gap:
    """Events after `since` that cannot be given; the reading goes on at `next`.

    `reason`: trimmed (they were removed for their age), ahead (the cursor was never given out), lost (the file is damaged).
    """

    since: int
    next: int
    reason: str


def stored(home: Home, task_id: str, since: int) -> Iterator[AgentEvent | Gap]:
    """Give what is stored after `since`, then end; raises InputError where that is no cursor."""
    since = yield from _start(home, task_id, since)
    yield from _given(home, task_id, since)


def follow(home: Home, task_id: str, since: int) -> Iterator[AgentEvent | Gap]:
    """Give what is stored after `since` and what comes, until the task has ended and everything was given."""
    since = yield from _start(home, task_id, since)
    bell = home.bell("watch", "follow")
    while True:
        heard = bell.generation
        ended = tasks.find(home.db, task_id).status.is_terminal()
        since = yield from _given(home, task_id, since)
        if ended:
            return
        bell.wait(heard, home.settings.poll_ms / 1000 or None)


def _start(home: Home, task_id: str, since: int) -> Generator[Gap, None, int]:
    """The cursor to read from: an impossible one is answered, and reading goes on with what is new."""
    if not isinstance(since, int) or isinstance(since, bool) or since < 0:
        raise InputError(f"since={since!r} is no cursor: give the seq of the last event that was read, or 0")
    newest = max(events.latest_seq(home.db, task_id) or 0, events.trimmed_below(home.db, task_id) - 1)
    if since <= newest:
        return since
    yield Gap(since, newest + 1, "ahead")
    return newest


def _given(home: Home, task_id: str, since: int) -> Generator[AgentEvent | Gap, None, int]:
    """Everything that is stored after `since`, with a gap at each hole; the cursor behind it."""
    while page := events.after(home.db, task_id, since):
        for event in page:
            if event.seq > since + 1:
                trimmed = since + 1 < events.trimmed_below(home.db, task_id)
                yield Gap(since, event.seq, "trimmed" if trimmed else "lost")
            yield event
            since = event.seq
    below = events.trimmed_below(home.db, task_id)
    if since + 1 < below:
        yield Gap(since, below, "trimmed")
        return below - 1
    return since
