"""How a task is to run, as its caller says it, and the checks of what is declared in code.

Invariant: a value that cannot be used is an InputError that names it, where it is said; nothing is stored then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict

from ..models.errors import InputError
from ..models.tasks import Lane, RiskLevel
from .home import Home


class Chosen(TypedDict, total=False):
    """The keywords of `options(…)`, as editors and checkers see them; see Options."""

    lane: Lane | str
    session: str | None
    key: str | None
    priority: int | None
    delay: float | None
    at: datetime | int | None
    expires: float | None
    risk: RiskLevel | str | None
    retries: int | None
    parent: str | None
    home: Home | None


@dataclass(frozen=True)
class Options:
    """How a task is to run. `delay` in seconds from now, `at` an aware datetime or epoch ms, `expires` in seconds."""

    lane: Lane | str = Lane.SUBAGENT
    session: str | None = None
    key: str | None = None
    priority: int | None = None
    delay: float | None = None
    at: datetime | int | None = None
    expires: float | None = None
    risk: RiskLevel | str | None = None
    retries: int | None = None
    parent: str | None = None
    home: Home | None = None

    def __post_init__(self) -> None:
        for name in ("session", "key", "parent"):
            _text(name, getattr(self, name))
        for name in ("delay", "expires"):
            seconds(name, getattr(self, name), least=0)
        if self.home is not None and not isinstance(self.home, Home):
            raise InputError(f"home={self.home!r}: give a Home, or set RELIGHT_HOME to a folder")
        whole("priority", self.priority)
        whole("retries", self.retries, least=0)
        word(Lane, self.lane)
        word(RiskLevel, self.risk or RiskLevel.HIGH)
        if self.at is not None and self.delay is not None:
            raise InputError("give delay= or at=, not both")
        if isinstance(self.at, datetime):
            if self.at.tzinfo is None:
                raise InputError("at= needs a datetime with a time zone")
        else:
            whole("at", self.at, instead="an aware datetime or epoch milliseconds")

    def but(self, chosen: Mapping[str, Any]) -> Options:
        """These options with others in place of some."""
        if unknown := [name for name in chosen if name not in self.__dataclass_fields__]:
            names = ", ".join(self.__dataclass_fields__)
            raise InputError(f"options: there is no {', '.join(unknown)}; there are: {names}")
        return replace(self, **chosen)

    def due_at(self, now: int) -> int | None:
        """When the task may start, in ms; None for now."""
        if self.delay is not None:
            return now + round(self.delay * 1000)
        return round(self.at.timestamp() * 1000) if isinstance(self.at, datetime) else self.at

    def expires_at(self, now: int) -> int | None:
        """When the task is not wanted any more, in ms."""
        return None if self.expires is None else now + round(self.expires * 1000)


def word(words: Any, value: Any) -> Any:
    """The word of a closed set that a value means."""
    try:
        return words(str(value).lower())
    except ValueError:
        raise InputError(f"{value!r} is not one of {', '.join(words)}") from None


def whole(name: str, value: Any, *, least: int | None = None, instead: str = "a whole number") -> None:
    """Refuse what is no whole number, or less than `least`."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name}={value!r}: give {instead}")
    if least is not None and value < least:
        raise InputError(f"{name}={value!r}: give {least} or more")


def seconds(name: str, value: Any, *, least: float | None = None) -> None:
    """Refuse what is no number of seconds, or less than `least`."""
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name}={value!r}: give a number of seconds")
    if least is not None and value < least:
        raise InputError(f"{name}={value!r}: give {least:g} or more")


def key_part(what: str, name: str) -> None:
    """Refuse a name that could be taken for another part of a step key."""
    if not isinstance(name, str):
        raise InputError(f"{what} name {name!r}: give a text")
    if not name or set(name) & set("/#"):
        raise InputError(f"{what} name {name!r}: / and # separate the parts of a step key")


def _text(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, str) or (name == "key" and not value)):
        raise InputError(f"{name}={value!r}: give a text")
