"""The one place that reads the wall clock.

Leases never use it: they count on the monotonic time of whoever watches.
"""

from __future__ import annotations

import time
from pathlib import Path

from ..models.errors import SettingError

_TRIES = 200  # 0.2 s: a test that rewrites its clock in place leaves it empty for some microseconds


def now_ms(test_clock: Path | None = None) -> int:
    """Return the time in epoch milliseconds: of the wall clock, or what the test clock holds."""
    return time.time_ns() // 1_000_000 if test_clock is None else _held(test_clock)


def _held(file: Path) -> int:
    try:
        for _ in range(_TRIES):
            if text := file.read_text(encoding="ascii").strip():
                return int(text)
            time.sleep(0.001)
        raise ValueError("it is empty")
    except (OSError, ValueError) as error:
        raise SettingError(f"test_clock = {str(file)!r} holds no epoch milliseconds: {error}") from error
