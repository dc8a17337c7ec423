"""What long work shows while it lasts: a bar or a count on stderr, for a person at a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Told = Callable[[str, int, int], object]


@contextmanager
def shown(*, quiet: bool) -> Iterator[Told]:
    """In the block, what is told as (what, done, total) is shown; a total of 0 means that it is not known."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        rows = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in rows:
                rows[what] = progress.add_task(what, total=None)
            progress.update(rows[what], completed=done, total=total or None)

        yield told
