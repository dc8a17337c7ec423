"""What the record says about a step, as the JSON text of trace events: its intent, its outcome, a recorded value.

Invariant: the value in an outcome is text that was encoded before (`outcomes.py`) and stands here unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from ..models import encoding
from ..models.journal import StepCall
from ..recovery.replay import RecordedStep

SHOWN_INPUT_BYTES = 16_384  # an intent names its arguments for people; replay compares digests
_SHOWN_BYTES = 300


def intent(attempt: int, call: StepCall, name: str, canonical: str) -> str:
    """The `tool_call_started` of a call with these canonical arguments."""
    tool = {"tool_id": call.key, "tool_name": name, "input": _input(canonical)}
    event = {"kind": "tool_call_started", "iteration": attempt, "call": tool}
    return json.dumps(event, ensure_ascii=False)


def outcome(attempt: int, call: StepCall, name: str, result: str, *, duration_ms: int = 0) -> str:
    """The `tool_call_completed` of a call with this result."""
    tool = json.dumps({"tool_id": call.key, "tool_name": name, "input": None}, ensure_ascii=False)
    return (
        f'{{"kind":"tool_call_completed","iteration":{attempt},"call":{tool},'
        f'"duration_ms":{duration_ms},"result":{result}}}'
    )


def value(attempt: int, call: StepCall, output: str) -> str:
    """The `tool_call_completed` of a value that is recorded without an intent."""
    name = call.key.rpartition("/")[2].partition("#")[0]
    return outcome(attempt, call, name, f'{{"status":"success","output":{output}}}')


def recorded_input(recorded: RecordedStep) -> str:
    """The arguments of a recorded step, for people."""
    if recorded.intent_json is None:
        return f"arguments with digest {recorded.digest[:12]}"
    found = json.loads(recorded.intent_json)["call"]["input"]
    return f"input {shown(json.dumps(found, ensure_ascii=False))}"


def shown(text: str) -> str:
    """The beginning of a text, for people."""
    return encoding.clip(text, _SHOWN_BYTES)


def _input(canonical: str) -> Any:
    if len(canonical) <= SHOWN_INPUT_BYTES:
        return json.loads(canonical)
    return {"$clipped": encoding.clip(canonical, SHOWN_INPUT_BYTES)}
