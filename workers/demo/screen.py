"""What the demo shows: a live table at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Row:
    """One task on the board."""

    name: str
    lane: str
    status: str
    attempt: int
    worker: str
    done: int
    total: int


class Screen:
    """Plain lines, each with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        seconds = f"{time.monotonic() - self._started:5.1f} s  "
        self.console.print(Text.assemble((seconds, "dim"), (text, style)))

    def print(self, text: str, style: str = "") -> None:
        """Print a line as it is."""
        self.console.print(Text(text, style))

    def show(self, board: Sequence[Row]) -> None:
        """Plain lines have no board."""

    def ask(self, question: str) -> bool:
        """Ask at the terminal; the answer is no unless a person says yes."""
        return click.confirm(question, default=False)

    def close(self) -> None:
        """Nothing to put away."""


class LiveScreen(Screen):
    """The same lines, above a table of the tasks that follows them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._board: Sequence[Row] = ()
        self._live = Live(console=console, refresh_per_second=10, transient=True, get_renderable=self._table)
        self._live.start()

    def show(self, board: Sequence[Row]) -> None:
        """Have the table show this at its next refresh."""
        self._board = board

    def ask(self, question: str) -> bool:
        """Put the table away while the person reads and types."""
        self._live.stop()
        try:
            return super().ask(question)
        finally:
            self._live.start()

    def close(self) -> None:
        """Leave the terminal as it was; the last table stays. A second time there is nothing left to do."""
        if self._live.is_started:
            self._live.stop()
            self.console.print(self._table())

    def _table(self) -> Table:
        table = Table("task", "lane", "status", "attempt", "worker", "steps", "")
        for row in self._board:
            bar = ProgressBar(total=max(row.total, 1), completed=row.done, width=24)
            steps = f"{row.done}/{row.total}"
            status = Text(row.status, _STYLES.get(row.status, ""))
            table.add_row(row.name, row.lane, status, str(row.attempt), row.worker, steps, bar)
        return table


_STYLES = {"running": "cyan", "completed": "green", "failed": "red", "interrupted": "yellow"}


def screen() -> Screen:
    """The screen that fits where standard output goes."""
    if sys.stdout.isatty():
        return LiveScreen(Console())
    return Screen(Console(width=10_000, highlight=False))
