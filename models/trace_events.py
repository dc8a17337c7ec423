"""The structured events of a trace, one frozen class per kind, tagged by `kind` in JSON.

Invariant: a stored event stays readable. A field is added only as optional, a kind is never removed; unknown keys are
ignored, a missing required key or an unknown kind is an UnreadableTraceError, never a blank. Importing this loads
pydantic: modules that only store text import it inside the function that needs it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, reduce
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from . import errors
from .encoding import splice

Count = Annotated[int, Field(ge=0)]

_TAGS = ("kind", "status")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_serializer(mode="wrap")
    def _sparse(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Leave out what says no more than its absence; a tag, and `None` in a required field, say something."""
        fields = type(self).model_fields
        kept = {name for name, field in fields.items() if name in _TAGS or field.is_required()}
        written = write(self).items()
        return {name: value for name, value in written if name in kept or value != fields[name].default}


class AgentTraceEvent(_Record):
    """What every kind has in common: `kind`, `parse` and `to_json`."""

    kind: str

    @classmethod
    def parse(cls, text: str) -> AgentTraceEvent:
        """Read a stored event as the class of its kind."""
        try:
            return _any_kind().validate_json(text)
        except ValidationError as cause:
            raise errors.UnreadableTraceError(_complaint(cause)) from cause

    def to_json(self) -> str:
        """Write this event as valid UTF-8 JSON; inputs and outputs in it are what `encoding.encode` gave."""
        return splice(self.model_dump())


class ToolCall(_Record):
    """A step that is asked for: its id (the idempotency key), its name and its input."""

    tool_id: str
    tool_name: str
    input: Any


class BlobPlace(_Record):
    """Where an output lies that is too large for its row."""

    sha256: str
    size: Count
    path: str


class Success(_Record):
    """A step ended; `output` is its value as JSON, or a preview beside `blob`."""

    status: Literal["success"] = "success"
    output: Any
    lossy: bool = False
    blob: BlobPlace | None = None
    by_person: bool = False


class Error(_Record):
    """A step raised; the text, and what is needed to raise the same again."""

    status: Literal["error"] = "error"
    error: str
    retryable: bool
    lossy: bool = False
    blob: BlobPlace | None = None
    error_type: str | None = None
    error_module: str | None = None
    error_args: list[Any] | None = None
    error_notes: list[str] | None = None
    by_person: bool = False


TerminateToken = Literal[
    "completed",
    "hit_max_iterations",
    "context_budget_exhausted",
    "max_output_tokens_exhausted",
    "budget_exhausted_partial_result",
    "consecutive_failure_cap",
    "empty_response_exhausted",
    "reactive_compact_exhausted",
    "stall_timeout",
    "turn_timeout",
    "verifier_veto",
    "stop_hook_halt",
    "cancelled",
    "failed",
    "diminishing_returns",  # no producer any more: read in old records only
]
TERMINATE_TOKENS: tuple[str, ...] = get_args(TerminateToken)


class TerminateReason(_Record):
    """Why a session stopped, tagged by its token; a verifier's veto says how many there were."""

    kind: TerminateToken
    count: Count | None = None

    @model_validator(mode="after")
    def _veto_is_counted(self) -> Self:
        if self.kind == "verifier_veto" and self.count is None:
            raise ValueError("verifier_veto needs its count")
        return self


class TurnMetrics(_Record):
    """What a turn did."""

    requested_tool_calls: Count
    executed_tool_calls: Count
    productive: bool
    total_tokens: Count


class TokenBreakdown(_Record):
    """Tokens by use."""

    input: Count
    output: Count
    cache_read: Count = 0
    cache_creation: Count = 0
    reasoning: Count = 0


class ToolInvocation(_Record):
    """One line of a session's timeline."""

    tool_name: str
    success: bool
    tool_id: str | None = None
    duration_ms: Count | None = None
    iteration: Count | None = None


class TurnStarted(AgentTraceEvent):
    kind: Literal["turn_started"] = "turn_started"
    iteration: Count
    attempt: Count | None = None
    worker_id: str | None = None


class TurnStateEntered(AgentTraceEvent):
    kind: Literal["turn_state_entered"] = "turn_state_entered"
    iteration: Count
    state: str


class TextEmitted(AgentTraceEvent):
    kind: Literal["text_emitted"] = "text_emitted"
    iteration: Count
    stream: Literal["final", "intermediate"]
    text: str


class ToolCallStarted(AgentTraceEvent):
    kind: Literal["tool_call_started"] = "tool_call_started"
    iteration: Count
    call: ToolCall


class ToolCallCompleted(AgentTraceEvent):
    kind: Literal["tool_call_completed"] = "tool_call_completed"
    iteration: Count
    call: ToolCall
    duration_ms: Count
    result: Annotated[Success | Error, Field(discriminator="status")]


class ToolSummary(AgentTraceEvent):
    kind: Literal["tool_summary"] = "tool_summary"
    iteration: Count
    text: str
    tool_id: str | None = None
    tool_name: str | None = None


class TurnCompleted(AgentTraceEvent):
    kind: Literal["turn_completed"] = "turn_completed"
    iteration: Count
    outcome: Literal["continue", "stop", "hit_limit", "cancelled"]
    metrics: TurnMetrics


class SessionCompleted(AgentTraceEvent):
    kind: Literal["session_completed"] = "session_completed"
    outcome: Literal["completed", "hit_limit", "cancelled"]
    iterations: Count
    tool_calls_made: Count
    total_tokens: Count
    hit_limit: bool
    final_text: str | None = None
    terminate_reason: TerminateReason | None = None
    duration_ms: Count | None = None
    token_breakdown: TokenBreakdown | None = None
    tool_timeline: list[ToolInvocation] = []


class WorktreeCreated(AgentTraceEvent):
    kind: Literal["worktree_created"] = "worktree_created"
    path: str
    branch: str | None = None


class WorktreeCleanedUp(AgentTraceEvent):
    kind: Literal["worktree_cleaned_up"] = "worktree_cleaned_up"
    path: str
    removed: bool = True


class McpScopeAttached(AgentTraceEvent):
    kind: Literal["mcp_scope_attached"] = "mcp_scope_attached"
    scope: str
    servers: list[str] = []


class McpScopeCleaned(AgentTraceEvent):
    kind: Literal["mcp_scope_cleaned"] = "mcp_scope_cleaned"
    scope: str


class ProviderUsage(AgentTraceEvent):
    kind: Literal["provider_usage"] = "provider_usage"
    agent_id: str
    input: Count = Field(validation_alias=AliasChoices("input", "input_tokens"))
    output: Count = Field(validation_alias=AliasChoices("output", "output_tokens"))
    cache_read: Count | None = Field(None, validation_alias=AliasChoices("cache_read", "cache_read_tokens"))
    cache_creation: Count | None = Field(
        None, validation_alias=AliasChoices("cache_creation", "cache_creation_tokens")
    )
    thinking: Count | None = Field(None, validation_alias=AliasChoices("thinking", "thinking_tokens"))


class ReactiveCompactionAttempted(AgentTraceEvent):
    kind: Literal["reactive_compaction_attempted"] = "reactive_compaction_attempted"
    iteration: Count
    succeeded: bool
    tokens_before: Count | None = None
    tokens_after: Count | None = None


class VerifierVeto(AgentTraceEvent):
    kind: Literal["verifier_veto"] = "verifier_veto"
    iteration: Count
    count: Count
    reason: str | None = None


KINDS: dict[str, type[AgentTraceEvent]] = {
    event.model_fields["kind"].default: event for event in AgentTraceEvent.__subclasses__()
}


@cache
def _any_kind() -> TypeAdapter[AgentTraceEvent]:
    union: Any = reduce(operator.or_, KINDS.values())
    kinds: Any = Annotated[union, Field(discriminator="kind")]  # pyright: ignore[reportInvalidTypeForm]  # made from KINDS
    return TypeAdapter(kinds)


def _complaint(cause: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'event'}: {fault['msg']}"
        for fault in cause.errors(include_url=False, include_input=False)
    )
