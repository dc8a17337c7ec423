"""What a check found: how bad it is, in words, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad: a fault stops work or endangers it, a warning will or may."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """One line of an examination; `advice` says what to do where it is not ok."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """Something to look after."""
    return Finding(check, Level.WARNING, text, advice)


def fault(check: str, text: str, advice: str) -> Finding:
    """Something to repair."""
    return Finding(check, Level.FAULT, text, advice)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of all."""
    levels = [finding.level for finding in findings]
    return next((level for level in (Level.FAULT, Level.WARNING) if level in levels), Level.OK)
