"""Every moment at which the tasks of agents_life.py are struck, and what is to be expected of each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.crash.agents_life import STEPS

EVENTS = (
    ("task_started", (1,)),
    ("tool_call_started", STEPS),
    ("tool_call_completed", STEPS),
    ("task_completed", (1,)),
)
PLACES = (("between", (*STEPS, 4)), ("body", STEPS), ("effect", STEPS))
AFTER_EFFECT = ("effect", "before-next effect", "uncommitted tool_call_completed")
IN_DOUBT = (*AFTER_EFFECT, "body", "committed tool_call_started")
# In the order of a step's life.
PHASES = (
    "between",
    "before-next between",
    "uncommitted tool_call_started",
    "committed tool_call_started",
    "body",
    "effect",
    "before-next effect",
    "uncommitted tool_call_completed",
    "committed tool_call_completed",
)


@dataclass(frozen=True)
class Moment:
    """A prompt: one moment, or several in a row."""

    text: str

    @property
    def parts(self) -> list[tuple[str, int]]:
        return [(kind, int(n)) for kind, _, n in (part.rpartition(" ") for part in self.text.split(";"))]

    @property
    def after_effect(self) -> set[int]:
        """The steps that had happened and were not recorded."""
        return {n for kind, n in self.parts if kind in AFTER_EFFECT}

    @property
    def in_doubt(self) -> set[int]:
        """The steps that were begun and not recorded."""
        return {n for kind, n in self.parts if kind in IN_DOUBT}

    @property
    def deaths(self) -> int:
        """How many of its moments leave the task without its worker."""
        return sum(
            kind not in ("uncommitted task_started", "committed task_completed") for kind, _ in self.parts
        )

    def is_before_intent(self, number: int) -> bool:
        """Whether its first moment comes before the intent of a step is stored."""
        kind, n = self.parts[0]
        if kind.endswith("task_started"):
            return True
        if kind.endswith("task_completed") or n > number:
            return False
        return n < number or PHASES.index(kind) < PHASES.index("committed tool_call_started")


MOMENTS = tuple(
    map(
        Moment,
        (
            *(f"{place} {n}" for place, numbers in PLACES for n in numbers),
            *(f"before-next {place} {n}" for place, numbers in PLACES[::2] for n in numbers),
            *(
                f"{when} {event} {n}"
                for when in ("uncommitted", "committed")
                for event, ns in EVENTS
                for n in ns
            ),
            # the second life is struck too
            *(f"effect 2;{when} task_started 2" for when in ("uncommitted", "committed")),
            "effect 2;effect 3",
        ),
    )
)
