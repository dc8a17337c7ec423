"""Where a page ended, and how the next one goes on.

Invariant: a cursor is a time *and* an id, so that rows of one time stamp are never lost or shown twice at the edge of a
page, however many there are and whatever is inserted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import peewee

from .database import Database
from .errors import InputError

M = TypeVar("M", bound=peewee.Model)
T = TypeVar("T")


class Order(StrEnum):
    """Which end a listing begins at."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Cursor(NamedTuple):
    """The last row of a page: its time in ms, and its id."""

    stamp: int
    id: Any

    def __str__(self) -> str:
        return f"{self.stamp}:{self.id}"


def parse(text: str) -> Cursor:
    """The cursor that a page gave as text; raises InputError."""
    stamp, separator, ident = text.partition(":")
    if not (separator and ident and stamp.isascii() and stamp.removeprefix("-").isdecimal()):
        raise InputError(f"cursor {text!r} is none; give back what next_cursor said")
    return Cursor(int(stamp), ident)


def page(
    db: Database,
    query: peewee.ModelSelect[M],
    stamp: peewee.Field[Any],
    ident: peewee.Field[Any],
    *,
    order: Order,
    limit: int,
    cursor: tuple[int, Any] | None,
) -> tuple[list[M], Cursor | None]:
    """A page of a query in the order of two of its columns, and the cursor of the next one where there is more."""
    place = peewee.Tuple(stamp, ident)
    if cursor is not None:
        query = query.where(place < cursor if order is Order.NEWEST else place > cursor)
    by = (stamp.desc(), ident.desc()) if order is Order.NEWEST else (stamp, ident)
    found: list[M] = db.select(query.order_by(*by).limit(limit + 1))
    return cut(found, limit, lambda row: Cursor(getattr(row, stamp.name), getattr(row, ident.name)))


def cut(found: list[T], limit: int, cursor_of: Callable[[T], Cursor]) -> tuple[list[T], Cursor | None]:
    """A page of at most `limit` of what was found, which is one more where there is more; and the next cursor."""
    kept = found[:limit]
    return kept, cursor_of(kept[-1]) if kept and len(found) > limit else None
