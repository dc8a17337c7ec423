"""What really happened to each step, kept beside the database by whoever made it happen.

The ledger never reads the tables: what it says and what they say must agree, and where a step is begun against the law
it says so at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from relight.models.journal import StepCall

Hand = tuple[str, int]  # a worker and the attempt in which it executes


@dataclass
class Step:
    """One step of one task as the world outside knows it."""

    effect: str
    digest: str
    intents: int = 0
    in_doubt: bool = False  # begun, and nobody was told how it ended
    finished_at: int | None = None  # the ledger's own time of the outcome that counts
    failed: bool = False
    grants: Counter[str] = field(default_factory=Counter)  # unused, by digest
    hands: set[Hand] = field(default_factory=set)  # who executes its body now

    @property
    def finished(self) -> bool:
        return self.finished_at is not None


class Ledger:
    """The steps of all tasks by (task, key)."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], Step] = {}
        self.time = 0

    def tick(self) -> int:
        self.time += 1
        return self.time

    def step(self, task_id: str, call: StepCall) -> Step:
        return self.steps.setdefault((task_id, call.key), Step(call.effect, call.digest))

    def of(self, task_id: str) -> dict[str, Step]:
        return {key: step for (owner, key), step in self.steps.items() if owner == task_id}

    def hands(self, task_id: str) -> set[Hand]:
        """Who is executing a write of a task now."""
        return {hand for step in self.of(task_id).values() if step.effect == "write" for hand in step.hands}

    def unsettled_writes(self, task_id: str) -> set[str]:
        """The writes that may have happened and that nobody allowed to happen again."""
        return {
            key
            for key, step in self.of(task_id).items()
            if step.effect == "write" and step.in_doubt and not step.grants[step.digest]
        }

    def may_begin(self, task_id: str, call: StepCall, *, claimed_at: int) -> str | None:
        """Why this intent must not be accepted; None where it may."""
        step = self.step(task_id, call)
        if step.finished and (call.effect == "write" or (step.finished_at or 0) < claimed_at):
            return "the step has finished"
        if call.effect == "write" and step.in_doubt and not step.grants[call.digest]:
            return "the write may have happened, and nobody allowed it again"
        if call.effect == "write" and step.hands:
            return f"the write is being executed by {step.hands}"
        return None

    def begun(self, task_id: str, call: StepCall, hand: Hand) -> int:
        """A step begins; how many grants its intent has to use up."""
        step = self.step(task_id, call)
        used = int(call.effect == "write" and step.grants[call.digest] > 0)
        step.grants[call.digest] -= used
        step.digest, step.intents = call.digest, step.intents + 1
        step.in_doubt = not step.finished  # a read may have been ended late, after its next attempt began
        step.hands.add(hand)
        return used

    def ended(self, task_id: str, call: StepCall, hand: Hand, *, failed: bool, late: bool) -> None:
        """The outcome of a step was stored; a late one counts where there is no other."""
        step = self.step(task_id, call)
        step.hands.discard(hand)
        if not (late and step.finished):
            step.failed, step.finished_at = failed, self.tick()
        step.in_doubt = False

    def answered(self, task_id: str, call: StepCall, decision: str) -> None:
        """A person said what became of a step in doubt."""
        step = self.step(task_id, call)
        if decision == "again":
            step.grants[call.digest] += 1
            step.finished_at = None
            return
        step.in_doubt, step.finished_at, step.failed = False, self.tick(), decision == "abandon"
        step.hands.clear()  # whoever may still be executing it: a person has spoken, and what comes is beside the point

    def superseded(self, task_id: str, key: str) -> None:
        """A retry lets a step that has failed run again."""
        self.steps[task_id, key].finished_at = None

    def taken_back(self, task_id: str, key: str) -> None:
        """The error of a write is no answer any more: it may have happened."""
        self.steps[task_id, key].finished_at, self.steps[task_id, key].in_doubt = None, True

    def died(self, worker_id: str) -> None:
        """Nobody executes anything under this name any more."""
        for step in self.steps.values():
            step.hands = {hand for hand in step.hands if hand[0] != worker_id}
