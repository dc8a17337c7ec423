"""What to do about one task that lost its worker.

Invariant: pure. The order of the questions is the order of the rules in `decide`; the first that applies decides.
Whatever is unknown or unreadable ends in a question to a person, never in a resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..models.tasks import RiskLevel, TaskStatus
from .policy import PolicyFault, RecoveryPolicy

NO_TRACES = "no execution traces available"
FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 60_000


class Verdict(StrEnum):
    """What recovery does: put it back, ask a person, leave it and show why, or give it up."""

    RESUME = "resume"
    ASK = "ask"
    SKIP = "skip"
    QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Facts:
    """What is known about one recoverable task.

    `losses` counts losses in a row and includes the one that is decided on now; a shutdown is none (`lost` is false
    then). `risk_text` is the stored text, unparsed. `in_doubt_writes` are the keys of write steps with an intent and no
    outcome.
    """

    status: str
    risk_text: str | None
    agent_id: str
    trace_count: int
    losses: int = 0
    in_doubt_writes: tuple[str, ...] = ()
    suspect_step: str | None = None
    lost: bool = True


@dataclass(frozen=True)
class Decision:
    """The verdict, its reason as a person reads it, and how long a task that resumes has to wait first."""

    verdict: Verdict
    reason: str
    wait_ms: int = 0


def decide(facts: Facts, policy: RecoveryPolicy | PolicyFault, *, max_losses: int) -> Decision:
    """Decide about one task; a task that recovery must not touch is a ValueError.

    The task is given up when its `max_losses`-th loss in a row is recorded: with 3, the third worker that it takes
    down is the last one.
    """
    if facts.status not in _RECOVERABLE:
        raise ValueError(f"a task that is {facts.status} is not recoverable")
    if facts.trace_count < 1:
        return Decision(Verdict.SKIP, NO_TRACES)
    if facts.losses >= max(max_losses, 1):
        return Decision(Verdict.QUARANTINE, _crash_loop(facts))
    if isinstance(policy, PolicyFault):
        return Decision(Verdict.ASK, str(policy))
    if facts.risk_text not in _KNOWN_RISKS:
        return Decision(Verdict.ASK, f"unknown risk level {facts.risk_text!r}")
    if facts.in_doubt_writes:
        return Decision(Verdict.ASK, f"may have happened: {', '.join(facts.in_doubt_writes)}")
    return _by_risk(facts, policy)


_RECOVERABLE = frozenset(str(status) for status in TaskStatus if status.is_recoverable())
_KNOWN_RISKS = frozenset(str(risk) for risk in RiskLevel)


def back_off_ms(losses: int) -> int:
    """How long a task waits before it is tried again, by its losses in a row: the first one costs nothing.

    Then 1 s, 2 s, 4 s, up to a minute, so that a task that takes its workers down leaves the others time to work.
    """
    return 0 if losses < 2 else min(FIRST_WAIT_MS << min(losses - 2, 6), LONGEST_WAIT_MS)


def suspect_from(max_losses: int) -> int:
    """From how many losses in a row a task is not run beside another such: one more, and it is given up."""
    return max(1, max_losses - 1)


def _crash_loop(facts: Facts) -> str:
    where = f"in step {facts.suspect_step}" if facts.suspect_step else "with no step open"
    return f"lost its worker {facts.losses} times in a row, the last time {where}"


def _by_risk(facts: Facts, policy: RecoveryPolicy) -> Decision:
    if facts.risk_text == RiskLevel.LOW:
        if policy.low == "resume":
            return _resumed(facts, "low risk")
        return Decision(Verdict.ASK, f"low risk, and policy {policy.path} asks")
    if facts.agent_id in policy.exempt:
        return _resumed(facts, f"high risk, and policy {policy.path} exempts {facts.agent_id}")
    return Decision(Verdict.ASK, "high risk")


def _resumed(facts: Facts, reason: str) -> Decision:
    wait_ms = back_off_ms(facts.losses) if facts.lost else 0
    told = f"; lost {facts.losses} times in a row, so it waits {wait_ms / 1000:g} s first" if wait_ms else ""
    return Decision(Verdict.RESUME, f"{reason}{told}", wait_ms)
