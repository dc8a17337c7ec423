"""What the record of a task says about each of its steps. Pure: rows in, values out.

Invariant: a step is in doubt exactly when its last intent has no outcome of any kind behind it, but for one that was
taken back. Of several outcomes
the owner's own counts before a late one, and the first late one before later ones, so that every replay sees what the
first reader of the outcome saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

INTENT, OUTCOME = "tool_call_started", "tool_call_completed"
TAKEN_BACK = 2  # the mark of `traces.take_back`


class StepState(Enum):
    """Where a recorded step stands."""

    DONE = "done"  # it has an outcome: replay gives it back
    IN_DOUBT = "in doubt"  # it was begun, and nobody knows how it ended
    OPEN = "open"  # its outcome was superseded by a retry or an answer: it runs again


@dataclass(frozen=True)
class RecordedStep:
    """One step of one task as the record has it; the JSON texts are trace events."""

    key: str
    effect: str
    digest: str
    state: StepState
    attempt: int
    started_at: int
    intent_json: str | None
    outcome_json: str | None

    def intent_call(self) -> dict[str, Any]:
        """The call that the intent names (`tool_name`, `input`); empty where it cannot be read."""
        try:
            call = json.loads(self.intent_json or "{}").get("call")
        except (ValueError, AttributeError):
            return {}
        return call if isinstance(call, dict) else {}


@dataclass
class History:
    """The recorded steps of a task by key, in the order in which they began."""

    steps: dict[str, RecordedStep] = field(default_factory=dict)

    def finished(self) -> list[RecordedStep]:
        """The steps that have an outcome."""
        return [step for step in self.steps.values() if step.state is StepState.DONE]

    def in_doubt(self) -> list[RecordedStep]:
        """The steps that were begun and have no outcome."""
        return [step for step in self.steps.values() if step.state is StepState.IN_DOUBT]

    def finished_in(self, attempt: int) -> bool:
        """Whether a step ended in this attempt, so that a loss of it is the first in a row."""
        return any(step.attempt == attempt for step in self.finished())


@dataclass
class _Marks:
    intent: tuple[Any, ...] | None = None
    own: tuple[Any, ...] | None = None
    late: tuple[Any, ...] | None = None
    last_outcome_at: int = -1


def history(records: Iterable[tuple[Any, ...]]) -> History:
    """Read the rows of `traces.step_records` (in step order) into the state of each step."""
    marks: dict[str, _Marks] = {}
    for row in records:
        _note(marks.setdefault(row[3], _Marks()), row)
    return History({key: _step(key, found) for key, found in marks.items()})


def _note(found: _Marks, row: tuple[Any, ...]) -> None:
    index, kind, late, superseded = row[0], row[1], row[7], row[8]
    if kind == INTENT:
        found.intent = row
        return
    if superseded == TAKEN_BACK:
        return
    found.last_outcome_at = index
    if superseded:
        return
    if late:
        found.late = found.late or row
    else:
        found.own = row


def _step(key: str, found: _Marks) -> RecordedStep:
    outcome = found.own or found.late
    begun = found.intent or outcome
    if begun is None:  # only superseded outcomes: a recorded value that a retry replaced
        return RecordedStep(key, "read", "", StepState.OPEN, 0, 0, None, None)
    return RecordedStep(
        key=key,
        effect=begun[6] or "write",
        digest=(outcome or begun)[4] or "",
        state=_state(found, outcome),
        attempt=(outcome or begun)[5],
        started_at=begun[9],
        intent_json=found.intent[2] if found.intent else None,
        outcome_json=outcome[2] if outcome else None,
    )


def _state(found: _Marks, outcome: tuple[Any, ...] | None) -> StepState:
    if outcome is not None:
        return StepState.DONE
    if found.intent is not None and found.intent[0] > found.last_outcome_at:
        return StepState.IN_DOUBT
    return StepState.OPEN
