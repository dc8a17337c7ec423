"""The law of a task's life: every edge there is, as data.

Invariant: this enum is the only list of edges. `transitions.py` applies it, the table's CHECKs repeat it, the diagram in
the docs is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .tasks import TaskStatus

P, R, C, F, I, D, S = (  # the seven statuses, short enough to read the table below
    TaskStatus.PENDING,
    TaskStatus.RUNNING,
    TaskStatus.COMPLETED,
    TaskStatus.FAILED,
    TaskStatus.INTERRUPTED,
    TaskStatus.IDLE,
    TaskStatus.SWAPPED,
)
LIVE = (P, R, I, D, S)


@dataclass(frozen=True)
class Edge:
    """A move: where it may start, where it ends, and the skeleton event it leaves."""

    name: str
    sources: tuple[TaskStatus, ...]
    target: TaskStatus
    event: str


class Move(Enum):
    """Every edge of a task's life; there is no other."""

    CLAIM = Edge("claim", (P,), R, "task_started")
    UNCLAIM = Edge("unclaim", (R,), P, "task_unclaimed")
    HOLD = Edge("hold", (P,), P, "task_held")
    RELEASE = Edge("release", (P,), P, "task_released")
    EXPIRE = Edge("expire", (P,), F, "task_failed")
    COMPLETE = Edge("complete", (R,), C, "task_completed")
    FAIL = Edge("fail", (R,), F, "task_failed")
    RETRY = Edge("retry", (R,), P, "task_retrying")
    INTERRUPT = Edge("interrupt", (R,), I, "task_interrupted")
    ASK = Edge("ask", (I,), I, "task_interrupted")
    SUSPEND = Edge("suspend", (R,), D, "task_suspended")
    WAKE = Edge("wake", (D, S), P, "task_woken")
    SWAP_OUT = Edge("swap_out", (D,), S, "task_swapped")
    RESUME = Edge("resume", (R, I), P, "task_recovered")
    DECIDE = Edge("decide", (I,), P, "task_resumed")
    REJECT = Edge("reject", LIVE, F, "task_failed")
    QUARANTINE = Edge("quarantine", LIVE, F, "task_failed")
    CANCEL = Edge("cancel", LIVE, F, "task_failed")
    RETRY_BY_PERSON = Edge("retry_by_person", (F, I), P, "task_retried")
