"""The wall clock, or the file that stands in for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from relight.models.errors import SettingError
from relight.workers import clock


def test_the_wall_clock_is_read_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms() <= time.time_ns() // 1_000_000


def test_a_test_clock_replaces_the_wall_clock(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    file.write_text("1700000000000\n")
    assert clock.now_ms(file) == 1_700_000_000_000


def test_a_test_clock_that_is_being_rewritten_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    file.touch()
    threading.Timer(0.02, file.write_text, ["42"]).start()
    assert clock.now_ms(file) == 42


@pytest.mark.parametrize("content", ["yesterday", "1.5", None, ""])
def test_a_test_clock_that_cannot_be_read_is_refused_with_its_path(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "clock"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingError, match=str(file)):
        clock.now_ms(file)
