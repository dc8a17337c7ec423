"""A person has a task tried again: what it recorded stays, but for the errors that ended it.

Invariant: a step whose error ended the task runs again where that does no harm (a read, or a write that was declared
safe to repeat); any other write is in doubt from then on, so that a person is asked before it runs again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from . import tasks, traces, transitions
from .database import Database
from .tasks import AgentTask


@dataclass(frozen=True)
class Retried:
    """A task that goes on, the steps that run again, and those that a person will be asked about first."""

    task: AgentTask
    again: list[str]
    in_doubt: list[str]


def by_person(db: Database, task_id: str, *, by: str, now: int) -> Retried:
    """failed | interrupted (skipped, diverged) → pending; raises StaleMove for any other task."""
    with db.write():
        again, in_doubt = _ended_by(db, tasks.find(db, task_id))
        told = {name: keys for name, keys in (("again", again), ("in_doubt", in_doubt)) if keys}
        task = transitions.retry_by_person(db, task_id, by=by, now=now, told=told)
        traces.supersede(db, task_id, again)
        traces.take_back(db, task_id, in_doubt)
        return Retried(task, again, in_doubt)


def _ended_by(db: Database, task: AgentTask) -> tuple[list[str], list[str]]:
    """The steps whose errors ended a task: those that may run again by themselves, and the others."""
    again: list[str] = []
    in_doubt: list[str] = []
    for key in json.loads(task.error_json or "{}").get("steps", []):
        outcome = traces.outcome_of(db, task.id, key)
        if outcome is not None:
            harmless = outcome.effect == "read" or json.loads(outcome.event_json)["result"].get("retryable")
            (again if harmless else in_doubt).append(key)
    return again, in_doubt
