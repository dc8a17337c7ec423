"""An attempt: one claimed task in the hands of this process, and how it ended.

Invariant: what it writes is fenced by its number and its worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..models.journal import Claim
from ..models.tasks import AgentTask
from .home import Home
from .ownership import Owner


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: completed, failed, retrying, asked, interrupted, cancelled or lost."""

    kind: str
    error: BaseException | None = None
    value: Any = None


@dataclass(frozen=True)
class Attempt:
    """One claimed task in the hands of this process."""

    home: Home
    owner: Owner
    task: AgentTask

    @property
    def claim(self) -> Claim:
        """What fences this attempt."""
        return Claim(self.task.id, self.task.attempt, self.owner.id)

    @property
    def fence(self) -> dict[str, Any]:
        """The claim as transitions take it."""
        return {"attempt": self.task.attempt, "worker_id": self.owner.id}
