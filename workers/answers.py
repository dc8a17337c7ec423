"""A person's answer about a step in doubt, as the outcome that replay will give to the agent.

Invariant: the answer is stored in the transaction that records who gave it.
"""

from __future__ import annotations

import json
from typing import Any

from ..models import confirmations, encoding
from ..models.errors import StepAbandoned
from ..models.tasks import AgentTask
from . import outcomes
from .home import Home


def ran(home: Home, confirmation_id: str, step_key: str | None, value: Any, *, by: str) -> AgentTask | None:
    """The step did happen and gave this value; the task, where it goes on now. Raises ConflictError."""
    step = confirmations.undecided_step(home.db, confirmation_id, step_key)
    stored = outcomes.store(home, value)
    result = f'{{"status":"success","output":{stored.text},"by_person":true}}'
    return confirmations.answer_ran(
        home.db, confirmation_id, step.step_key, outcome_json=_event(step, result), by=by, now=home.now()
    )


def again(home: Home, confirmation_id: str, step_key: str | None, *, by: str) -> AgentTask | None:
    """The step may run again, once; the task, where it goes on now. Raises ConflictError."""
    return confirmations.answer_again(home.db, confirmation_id, step_key, by=by, now=home.now())


def abandon(home: Home, confirmation_id: str, step_key: str | None, *, by: str) -> AgentTask | None:
    """The step is given up: the agent receives StepAbandoned; the task, where it goes on now. Raises ConflictError."""
    step = confirmations.undecided_step(home.db, confirmation_id, step_key)
    record = encoding.describe_error(StepAbandoned(f"step {step.step_key} was abandoned by {by}"))
    error = {
        "status": "error",
        "error": record["text"],
        "retryable": False,
        "raised": record,
        "by_person": True,
    }
    return confirmations.answer_abandon(
        home.db,
        confirmation_id,
        step.step_key,
        outcome_json=_event(step, json.dumps(error, ensure_ascii=False)),
        by=by,
        now=home.now(),
    )


def _event(step: confirmations.ConfirmationStep, result: str) -> str:
    name = json.loads(step.shown_json)["name"]
    call = json.dumps({"tool_id": step.step_key, "tool_name": name, "input": None})
    return f'{{"kind":"tool_call_completed","iteration":{step.attempt},"call":{call},"duration_ms":0,"result":{result}}}'
