"""The one reader of a task's events as they come: what `relight events --follow` and every later door look through.

Invariant: only committed events are given, each once, in the order of `seq`. A cursor that cannot be continued from
gives an explicit `Gap` first, never silence and never the whole history again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..models import events, tasks
from ..models.events import AgentEvent
from .home import Home


@dataclass(frozen=True)
class Gap:
    """Events after `since` that cannot be given: removed by pruning, or never written (`reason` trimmed or ahead)."""

    since: int
    next: int
    reason: str


def stored(home: Home, task_id: str, since: int) -> Iterator[AgentEvent | Gap]:
    """Give what is stored after `since`, then end."""
    since, gap = _start(home, task_id, since)
    if gap is not None:
        yield gap
    while page := events.after(home.db, task_id, since):
        yield from page
        since = page[-1].seq


def follow(home: Home, task_id: str, since: int) -> Iterator[AgentEvent | Gap]:
    """Give what is stored after `since` and what comes, until the task has ended and everything was given."""
    since, gap = _start(home, task_id, since)
    if gap is not None:
        yield gap
    bell = home.bell("watch", "follow")
    while True:
        heard = bell.generation
        ended = tasks.find(home.db, task_id).status.is_terminal()
        while page := events.after(home.db, task_id, since):
            yield from page
            since = page[-1].seq
        if ended:
            return
        bell.wait(heard, home.settings.poll_ms / 1000 or None)


def _start(home: Home, task_id: str, since: int) -> tuple[int, Gap | None]:
    latest = events.latest_seq(home.db, task_id) or 0
    trimmed_below = tasks.find(home.db, task_id).trimmed_below
    if since > max(latest, trimmed_below - 1):
        return latest, Gap(since, latest + 1, "ahead")
    if since + 1 < trimmed_below:
        return trimmed_below - 1, Gap(since, trimmed_below, "trimmed")
    return since, None
