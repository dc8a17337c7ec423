"""A short storm, with the blows of a fixed seed; `make chaos` is the long one."""

from __future__ import annotations

from tests.chaos.run import run


def test_nothing_is_lost_or_doubled_in_a_short_storm() -> None:
    result = run(seed=20, kills=40, seconds=8, pace_s=0.1, patience_s=30, few=True)
    assert result.faults == [], result.text()
    assert result.tally.kills > 0
