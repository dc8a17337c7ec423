"""The column types that our tables share: words, milliseconds and counts, ids.

Invariant: what is stored fits its column: an integer never wraps, a word is stored as its text.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypeVar

import peewee

log = logging.getLogger("relight.models")

W = TypeVar("W", bound="Word")

INT64_MAX = 2**63 - 1


def clamped(number: int) -> int:
    """The nearest integer that a column can hold: it never wraps (ruling 43)."""
    return max(-INT64_MAX - 1, min(number, INT64_MAX))


class Word(StrEnum):
    """A closed set of words stored as text; each names the member that an unknown text stands for."""

    @classmethod
    def fallback(cls) -> Self:
        """The member to assume for a stored text that is none of the words."""
        raise NotImplementedError

    @classmethod
    def parse(cls, text: object) -> Self:
        """The word for a stored text, in any case; unknown text is reported and becomes the fallback."""
        try:
            return cls(str(text).lower())
        except ValueError:
            log.warning(
                "unknown word", extra={"kind": cls.__name__, "text": str(text), "taken_as": cls.fallback()}
            )
            return cls.fallback()


def _stored(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a field whose default the table knows too, so that a row written by plain SQL gets it."""
    default = options.get("default")
    if isinstance(default, (int, str)):
        literal = str(default) if isinstance(default, int) else "'" + default.replace("'", "''") + "'"
        options["constraints"] = [peewee.SQL(f"DEFAULT {literal}")]
    return options


class StoredText(peewee.TextField):
    """A TEXT column whose default stands in the table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_stored(options))


class WordField(peewee.TextField):
    """A column that holds one word of a closed set."""

    if TYPE_CHECKING:  # peewee's own overloads say that every TextField holds a str

        def __new__(cls, words: type[W], **options: Any) -> peewee.Field[W]: ...  # type: ignore[misc]

    def __init__(self, words: type[Word], **options: Any) -> None:
        self.words = words
        super().__init__(**_stored(options))

    def db_value(self, value: object) -> str | None:
        return None if value is None else str(value)

    def python_value(self, value: object) -> Word | None:
        return None if value is None else self.words.parse(value)


class Int64Field(peewee.IntegerField):
    """An INTEGER column; a larger value is clamped to 2⁶³−1, since SQLite's integers end there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_stored(options))

    def db_value(self, value: int | None) -> int | None:
        return None if value is None else clamped(int(value))


def new_id() -> str:
    """A new UUIDv7: sorts by creation time, so that new rows land at the end of the index."""
    import uuid_utils

    return str(uuid_utils.uuid7())


TASK_REF = peewee.SQL("FOREIGN KEY (task_id) REFERENCES agent_tasks (id) ON DELETE RESTRICT")
