"""Writing what must not be lost through short troubles of the storage.

Invariant: a locked or full disk is waited for, with a bound; then the run stops by control flow, which agent code
cannot mistake for an outcome of its step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ..models.errors import LeaseLost, StorageError, StorageFullError, StorageLockedError

log = logging.getLogger("relight.storing")

T = TypeVar("T")

PATIENCE_S = 30.0  # one default lease: by then another worker may have the task
_PAUSE_S = 0.5


def persistently(change: Callable[[], T]) -> T:
    """Do a storage change, again and again while the storage is locked or full; LeaseLost when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    told = False
    while True:
        try:
            return change()
        except (StorageLockedError, StorageFullError) as error:
            if time.monotonic() >= deadline:
                raise LeaseLost(f"the storage did not take a step's record: {error}") from error
            if not told:
                told = True
                log.warning("the storage is in trouble, waiting", extra={"error": str(error)})
            time.sleep(_PAUSE_S)
        except StorageError as error:
            raise LeaseLost(f"the storage did not take a step's record: {error}") from error
