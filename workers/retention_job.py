"""The periodic upkeep of the state: once an hour in the upkeep lane, in slices that leave the lane to others.

Invariant: a slice ends within its budget or when its lane is told to stop; what is left goes on behind whatever else waits
in the lane, and nothing is lost when that does not happen: the next hour begins where this one ended.
"""

from __future__ import annotations

import logging

from huey import crontab

from ..models.errors import RelightError
from . import tidying
from .lanes import upkeep

log = logging.getLogger("relight.upkeep")

SLICE_S = 20.0


@upkeep.periodic_task(crontab(minute="23"))  # type: ignore[untyped-decorator]  # huey is untyped
def tidy_up() -> None:
    """Begin a pass."""
    _slice()


@upkeep.task()  # type: ignore[untyped-decorator]  # huey is untyped
def go_on_tidying() -> None:
    """Go on with a pass whose time was over."""
    _slice()


def _slice() -> None:
    try:
        done = tidying.tidy(upkeep.home, budget_s=SLICE_S, stopped=lambda: upkeep.halted)
    except (
        RelightError
    ) as error:  # another pass runs, or the storage is in trouble: the next hour tries again
        log.warning("not tidied now", extra={"reason": str(error)})
        return
    if done.pulses or done.records or done.tasks or done.blobs.removed:
        told = {"pulses": done.pulses, "records": done.records, "tasks": done.tasks}
        log.info("tidied", extra={**told, "blobs": done.blobs.removed, "finished": done.finished})
    if not done.finished and not upkeep.halted:
        go_on_tidying()
