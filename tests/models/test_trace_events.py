"""Every kind of trace event round-trips, old rows stay readable, and nothing unknown is read as a blank."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pydantic
import pytest

from relight.models import errors, trace_events
from relight.models.trace_events import KINDS, TERMINATE_TOKENS, AgentTraceEvent
from tests.conftest import ROOT

CALL = {"tool_id": "t7/read#0", "tool_name": "read", "input": {"args": ["a.py"], "kwargs": {}}}
METRICS = {"requested_tool_calls": 2, "executed_tool_calls": 1, "productive": True, "total_tokens": 90}
OLD_SESSION = {
    "kind": "session_completed",
    "outcome": "completed",
    "iterations": 3,
    "tool_calls_made": 2,
    "total_tokens": 100,
    "hit_limit": False,
}
SAMPLES: list[dict[str, Any]] = [
    {"kind": "turn_started", "iteration": 0},
    {"kind": "turn_started", "iteration": 1, "attempt": 2, "worker_id": "w"},
    {"kind": "turn_state_entered", "iteration": 1, "state": "thinking"},
    {"kind": "text_emitted", "iteration": 1, "stream": "final", "text": "né 😀"},
    {"kind": "text_emitted", "iteration": 1, "stream": "intermediate", "text": ""},
    {"kind": "tool_call_started", "iteration": 1, "call": CALL},
    {"kind": "tool_call_started", "iteration": 1, "call": {**CALL, "input": None}},
    {
        "kind": "tool_call_completed",
        "iteration": 1,
        "call": CALL,
        "duration_ms": 12,
        "result": {"status": "success", "output": {"a": [1, None, {"$bytes": "AA=="}]}},
    },
    {
        "kind": "tool_call_completed",
        "iteration": 1,
        "call": CALL,
        "duration_ms": 0,
        "result": {"status": "success", "output": None, "lossy": True, "by_person": True},
    },
    {
        "kind": "tool_call_completed",
        "iteration": 1,
        "call": CALL,
        "duration_ms": 0,
        "result": {
            "status": "success",
            "output": "[1, 2…",
            "blob": {"sha256": "0" * 64, "size": 99, "path": "00/" + "0" * 64},
        },
    },
    {
        "kind": "tool_call_completed",
        "iteration": 1,
        "call": CALL,
        "duration_ms": 12,
        "result": {
            "status": "error",
            "error": "bad",
            "retryable": False,
            "error_type": "ValueError",
            "error_module": "builtins",
        },
    },
    {"kind": "tool_summary", "iteration": 1, "text": "read three files", "tool_name": "read"},
    {"kind": "turn_completed", "iteration": 1, "outcome": "hit_limit", "metrics": METRICS},
    OLD_SESSION,
    {
        **OLD_SESSION,
        "final_text": "done",
        "terminate_reason": {"kind": "verifier_veto", "count": 2},
        "duration_ms": 5,
        "token_breakdown": {"input": 1, "output": 2},
        "tool_timeline": [{"tool_name": "read", "success": True}],
    },
    {"kind": "worktree_created", "path": "wt", "branch": "b"},
    {"kind": "worktree_cleaned_up", "path": "wt"},
    {"kind": "mcp_scope_attached", "scope": "s", "servers": ["a"]},
    {"kind": "mcp_scope_cleaned", "scope": "s"},
    {"kind": "provider_usage", "agent_id": "a", "input": 1, "output": 2, "cache_read": 3, "thinking": 0},
    {"kind": "reactive_compaction_attempted", "iteration": 1, "succeeded": False, "tokens_before": 9},
    {"kind": "verifier_veto", "iteration": 1, "count": 1, "reason": "no test"},
]
NAMES = [f"{number}-{sample['kind']}" for number, sample in enumerate(SAMPLES)]


def parse(document: object) -> AgentTraceEvent:
    return AgentTraceEvent.parse(json.dumps(document))


REQUIRED = {
    "turn_started": "iteration",
    "turn_state_entered": "iteration state",
    "text_emitted": "iteration stream text",
    "tool_call_started": "iteration call call.tool_id call.tool_name call.input",
    "tool_call_completed": "iteration call call.tool_id duration_ms result result.status",
    "tool_summary": "iteration text",
    "turn_completed": "iteration outcome metrics metrics.requested_tool_calls metrics.executed_tool_calls"
    " metrics.productive metrics.total_tokens",
    "session_completed": "outcome iterations tool_calls_made total_tokens hit_limit",
    "worktree_created": "path",
    "worktree_cleaned_up": "path",
    "mcp_scope_attached": "scope",
    "mcp_scope_cleaned": "scope",
    "provider_usage": "agent_id input output",
    "reactive_compaction_attempted": "iteration succeeded",
    "verifier_veto": "iteration count",
}
REQUIRED_OF_A_RESULT = {"success": "result.output", "error": "result.error result.retryable"}


def required(sample: dict[str, Any]) -> list[str]:
    result = sample.get("result", {}).get("status")
    return ["kind", *REQUIRED[sample["kind"]].split(), *REQUIRED_OF_A_RESULT.get(result, "").split()]


def test_there_are_the_fifteen_kinds_and_each_has_a_sample() -> None:
    assert set(KINDS) == {sample["kind"] for sample in SAMPLES}
    assert len(KINDS) == 15
    assert len(set(TERMINATE_TOKENS)) == 15


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
@pytest.mark.spec(8)
def test_every_kind_round_trips_through_json(sample: dict[str, Any]) -> None:
    event = parse(sample)
    assert event.kind == sample["kind"]
    assert isinstance(event, KINDS[event.kind])
    assert json.loads(event.to_json()) == sample
    assert AgentTraceEvent.parse(event.to_json()) == event


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_unknown_extra_keys_are_ignored_at_any_depth(sample: dict[str, Any]) -> None:
    more = json.loads(json.dumps(sample))
    for part in (
        more,
        *(more[key] for key in ("call", "result", "metrics", "token_breakdown") if key in more),
    ):
        part["later"] = {"x": 1}
    assert parse(more) == parse(sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_a_missing_required_key_fails_and_is_named(sample: dict[str, Any]) -> None:
    for path in required(sample):
        broken = part = json.loads(json.dumps(sample))
        *above, last = path.split(".")
        for key in above:
            part = part[key]
        del part[last]
        with pytest.raises(errors.UnreadableTraceError, match=last):
            parse(broken)


@pytest.mark.spec(8)
def test_an_old_session_completed_without_its_optional_fields_parses() -> None:
    event = parse(OLD_SESSION)
    assert isinstance(event, trace_events.SessionCompleted)
    assert (event.final_text, event.terminate_reason, event.duration_ms, event.token_breakdown) == (None,) * 4
    assert event.tool_timeline == []


@pytest.mark.parametrize("token", TERMINATE_TOKENS)
def test_every_terminate_token_is_a_tagged_object(token: str) -> None:
    reason = {"kind": token, "count": 2} if token == "verifier_veto" else {"kind": token}
    document = {**OLD_SESSION, "terminate_reason": reason}
    assert json.loads(parse(document).to_json()) == document


@pytest.mark.parametrize("reason", [{"kind": "bored"}, {"kind": "verifier_veto"}, "completed", {}])
def test_an_unknown_terminate_reason_fails(reason: object) -> None:
    with pytest.raises(errors.UnreadableTraceError, match="terminate_reason"):
        parse({**OLD_SESSION, "terminate_reason": reason})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "{}", '{"kind":null}', '{"kind":"nope","iteration":1}']
)
def test_an_unknown_kind_is_a_typed_error(text: str) -> None:
    with pytest.raises(errors.UnreadableTraceError):
        AgentTraceEvent.parse(text)


@pytest.mark.parametrize(
    "change",
    [
        {"iteration": -1},
        {"iteration": "one"},
        {"duration_ms": -1},
        {"result": {"status": "maybe"}},
        {"result": {"output": 1}},
        {"result": {"status": "error", "error": "x"}},
    ],
    ids=str,
)
def test_a_value_out_of_its_range_fails(change: dict[str, Any]) -> None:
    [completed] = [sample for sample in SAMPLES if sample.get("result", {}).get("error") == "bad"]
    with pytest.raises(errors.UnreadableTraceError):
        parse({**completed, **change})


def test_provider_usage_is_read_under_its_longer_names_too() -> None:
    long = {
        "kind": "provider_usage",
        "agent_id": "a",
        "input_tokens": 1,
        "output_tokens": 2,
        "thinking_tokens": 3,
    }
    assert parse(long) == parse(
        {"kind": "provider_usage", "agent_id": "a", "input": 1, "output": 2, "thinking": 3}
    )


def test_an_event_cannot_be_changed() -> None:
    event = trace_events.TurnStarted(iteration=1)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        event.iteration = 2


def test_an_event_of_any_content_is_written_as_valid_json() -> None:
    call = trace_events.ToolCall(
        tool_id="t", tool_name="n", input={"\ud83d": float("nan"), "s": {2, 1}, "o": object()}
    )
    text = trace_events.ToolCallStarted(iteration=0, call=call).to_json()
    json.loads(text.encode(), parse_constant=lambda word: pytest.fail(word))
    assert AgentTraceEvent.parse(text).kind == "tool_call_started"


def test_the_table_module_does_not_load_pydantic() -> None:
    script = "import sys, relight.models.traces; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(ROOT)})
