"""What a step's `verify` says about a write that is in doubt.

Invariant: evidence is shown to a person and decides nothing. It is looked for outside of any transaction, bounded in
time; a verify that fails or does not answer is evidence of just that.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from typing import Any

from ..models import encoding
from ..models.tasks import AgentTask
from ..recovery.replay import RecordedStep
from . import calling, functions, steps
from .calling import Raised

LIMIT_S = 5.0


def look(task: AgentTask, step: RecordedStep) -> dict[str, Any] | None:
    """Call the step's `verify` with the recorded arguments; None where there is none or the step is unknown here."""
    call = step.intent_call()
    declared = steps.called(call.get("tool_name", ""))
    if declared is None or declared.declared.verify is None:
        return None
    arguments = call.get("input")
    if not isinstance(arguments, dict) or "$clipped" in arguments:
        return {"status": "not asked", "text": "the arguments are too large to be kept"}
    return _within_limit(declared, arguments)


def _within_limit(step: steps.Step[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(calling.call(_ask, step, arguments)), name="relight-verify", daemon=True
    )
    asking.start()
    asking.join(LIMIT_S)
    if not answers:
        return {"status": "no answer", "text": f"verify did not answer within {LIMIT_S:g} s"}
    answer = answers[0]
    if isinstance(answer, Raised):
        return {"status": "failed", "text": repr(answer.error)}
    return {
        "status": "answered",
        "landed": bool(answer.value),
        "text": encoding.clip(str(answer.value), 1000),
    }


def _ask(step: steps.Step[..., Any], arguments: dict[str, Any]) -> Any:
    hints = functions.hints_of(step.fn).known
    typed = {name: encoding.revive(value, hints.get(name)) for name, value in arguments.items()}
    verify = step.declared.verify
    assert verify is not None
    args, kwargs = _as_called(step.signature, typed)
    answer = verify(*args, **kwargs)
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


def _as_called(
    signature: inspect.Signature, arguments: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By name, so that `verify` may order its parameters; spread ones as the step itself got them."""
    if all(signature.parameters[name].kind in _BY_NAME for name in arguments):
        return (), arguments
    bound = inspect.BoundArguments(signature, OrderedDict(arguments))
    return bound.args, bound.kwargs


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
