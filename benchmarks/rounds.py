"""Interleaved rounds: each contender once a round, so that whatever else the machine does hits them all.

Invariant: figures are compared within one run only, as ratios of medians.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Figures:
    """What one contender reached, round by round; larger is better unless `smaller_is_better`."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> str:
        """The least and the greatest."""
        return f"{_short(min(self.values))}–{_short(max(self.values))}"

    def row(self, scenario: str, base: Figures | None) -> str:
        """One line of the table."""
        ratio = "" if base is None or base is self or not base.median else f"{self.median / base.median:.2f}"
        return f"| {scenario} | {self.name} | {_short(self.median)} {self.unit} | {self.spread} | {ratio} |"


Contender = Callable[[Path], float]


def interleaved(contenders: dict[str, tuple[str, Contender]], *, rounds: int) -> list[Figures]:
    """Run every contender once a round, each in a folder of its own."""
    found = {name: Figures(name, unit) for name, (unit, _) in contenders.items()}
    for _ in range(rounds):
        for name, (_, measure) in contenders.items():
            with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
                found[name].values.append(measure(Path(folder)))
    return list(found.values())


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
