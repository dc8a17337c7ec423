"""What a person or a script sees: JSON documents, plain lines, tables.

Invariant: text that came from a task never reaches the terminal as control codes, and JSON is pure ASCII.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from ...recovery import wording

SHORT_ID = 8


def json_text(document: Any) -> str:
    """Return one JSON document on one line."""
    return json.dumps(document, default=str)


def line(text: str) -> None:
    """Write a line to stdout at once, so that who follows it sees it."""
    print(text, flush=True)  # noqa: T201  # this is the one place that prints


def lines(texts: Iterable[str]) -> str:
    """Return several lines as one text, each of them harmless."""
    return "\n".join(map(shown, texts))


def complain(text: str) -> None:
    """Write what went wrong to stderr."""
    print(f"relight: {shown(text)}", file=sys.stderr, flush=True)  # noqa: T201  # this is the one place that prints


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as wide as the terminal; into a pipe, as wide as it needs to be."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        drawn.add_column(column, overflow="ellipsis", no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 100_000, highlight=False).print(drawn)


def shown(value: object) -> str:
    """Return a value as one line of harmless text; nothing for None."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def short(ident: str | None) -> str:
    """Return the end of an id, which is what tells ids apart that were made together."""
    return (ident or "")[-SHORT_ID:]


def moment(ms: int | None) -> str:
    """Return a time for people, in UTC; nothing for None."""
    return "" if ms is None else wording.moment(ms)


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question for the nearest known word, or nothing."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
