"""Times, spans and recorded errors in the words that people read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models.tasks import AgentTask

_PLAIN = ("Cancelled", "Rejected", "Skipped", "Interrupted")  # our own: the text says it all


def moment(ms: int | None) -> str:
    """A time, in UTC."""
    try:
        return datetime.fromtimestamp((ms or 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def span(ms: int) -> str:
    """A length of time."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * length:
            return f"{ms // length} {unit}"
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms // 1000} s"


def processes(count: int) -> str:
    """How many processes serve."""
    return "one process serves" if count == 1 else f"{count} processes serve"


def error_of(task: AgentTask) -> str:
    """The error that a task's row holds, with its type where that says something."""
    error = _stored(task)
    kind, text = str(error.get("type", "an unknown error")), str(error.get("text", ""))
    return text if kind in _PLAIN else f"{kind}: {text}"


def reason_of(task: AgentTask) -> str:
    """The text of a task's error, without its type."""
    return str(_stored(task).get("text", "left no word"))


def _stored(task: AgentTask) -> dict[str, Any]:
    try:
        found = json.loads(task.error_json or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
