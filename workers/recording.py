"""What every run does about its record: opening steps, replaying, storing intents, outcomes and values.

Invariants: a step's intent is stored before its body runs, its outcome before the agent sees it; the agent sees the
decoded outcome, live as in replay. Control flow is sticky: once raised, every later call on the run raises it again,
whatever agent code does with it.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..models import encoding, journal
from ..models.errors import (
    Asked,
    ControlFlow,
    Diverged,
    MisuseError,
    SealedStepError,
    StepNotAwaited,
    Unreadable,
)
from ..models.events import AgentEvent
from ..models.journal import Claim, StepCall
from ..models.tasks import AgentTask
from ..recovery.replay import History, RecordedStep, StepState
from . import outcomes, scopes, step_events, steps, storing
from .calling import Raised, Returned
from .handles import TaskHandle
from .home import Home
from .pulses import Pulses
from .scopes import Scope
from .steps import Effect, Step, StepContext

if TYPE_CHECKING:
    from .agents import Bound

T = TypeVar("T")


@dataclass
class Opened:
    """A step call whose key and digest are taken."""

    step: Step[..., Any]
    call: StepCall
    canonical: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    recorded: RecordedStep | None


@dataclass
class Failure:
    """An exception that a step gave to the agent, and whether the step may run again without asking."""

    error: BaseException
    call: StepCall
    repeatable: bool


@dataclass
class Circumstances:
    """What a run stands on."""

    home: Home
    claim: Claim
    task: AgentTask
    side: Effect
    history: History
    pulses: Pulses


class Recorder:
    """One attempt of one task, seen as its record; `Run` and `AsyncRun` are its two forms."""

    def __init__(self, on: Circumstances) -> None:
        self._on = on
        self._root = Scope(self)
        self._stop: ControlFlow | None = None
        self._asked: set[str] = set()
        self._failures: list[Failure] = []
        self._not_awaited: dict[str, Coroutine[Any, Any, Any]] = {}
        self._open_writes: set[str] = set()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self._on.claim.task_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._on.claim.attempt

    @property
    def session(self) -> str:
        """The session of the task."""
        return str(self._on.task.parent_session_id)

    @contextmanager
    def branch(self, name: str) -> Iterator[Recorder]:
        """Open a scope by hand; required around steps that are called in a thread of their own."""
        self._check()
        scope = self._scope().branch(name)
        token = scopes.current.set(scope)
        try:
            yield self
        finally:
            scopes.current.reset(token)

    # -- opening a step ---------------------------------------------------------------------------------------

    def _called(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _spawned(self, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _scope(self) -> Scope:
        scope = scopes.current.get()
        return scope if scope is not None and scope.run is self else self._root

    def _check(self) -> None:
        if self._stop is not None:
            raise self._stop

    def _halt(self, flow: ControlFlow) -> NoReturn:
        self._stop = self._stop or flow
        raise self._stop

    def _open(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Opened:
        key = self._key(step.declared.name)
        canonical = encoding.canonical(step.arguments(args, kwargs))
        call = StepCall(key, encoding.digest(canonical), step.declared.effect or self._on.side)
        return Opened(step, call, canonical, args, kwargs, self._on.history.steps.get(key))

    def _open_value(self, name: str) -> tuple[StepCall, RecordedStep | None]:
        key = self._key(name)
        return StepCall(key, "", "read"), self._on.history.steps.get(key)

    def _key(self, name: str) -> str:
        self._check()
        if steps.in_step():
            raise MisuseError(
                f"{name} was called inside a step's body: what is called there belongs to that step"
            )
        key = self._scope().key(name)
        self._asked.add(key)
        return key

    # -- replay -----------------------------------------------------------------------------------------------

    def _replayed(self, opened: Opened) -> Returned | Raised | None:
        """The recorded outcome of a step, or None where its body has to run."""
        recorded = opened.recorded
        if recorded is None:
            return None
        if recorded.digest and recorded.digest != opened.call.digest:
            asked = f"input {step_events.shown(opened.canonical)}"
            self._halt(Diverged(opened.call.key, step_events.recorded_input(recorded), asked))
        if recorded.state is not StepState.DONE or recorded.outcome_json is None:
            return None
        result = json.loads(recorded.outcome_json)["result"]
        if result["status"] == "success":
            text = json.dumps(result["output"], ensure_ascii=False)
            return Returned(self._loaded(recorded, text, opened.step.returns))
        return Raised(
            encoding.rebuild_error(result.get("raised") or {"type": "Exception", "text": result["error"]})
        )

    def _loaded(self, recorded: RecordedStep, text: str, annotation: Any = None) -> Any:
        try:
            return outcomes.load(self._on.home, text, annotation)
        except SealedStepError as error:
            self._halt(Unreadable(recorded.key, error))

    def _given(self, opened: Opened, outcome: Returned | Raised) -> Any:
        """Hand an outcome to the agent: as its value, or by raising it."""
        if isinstance(outcome, Returned):
            return outcome.value
        repeatable = opened.step.may_repeat(opened.call.effect, outcome.error)  # type: ignore[arg-type]
        self._failures.append(Failure(outcome.error, opened.call, repeatable))
        raise outcome.error

    # -- the record -------------------------------------------------------------------------------------------

    def _intend(self, opened: Opened) -> None:
        """Store the intent, after the pulses that came before it."""
        on, call = self._on, opened.call
        event = step_events.intent(self.attempt, call, opened.step.declared.name, opened.canonical)
        told = {"step": call.key, "effect": call.effect, "attempt": self.attempt}
        on.pulses.flush(self.task_id)
        self._write(
            lambda: journal.accept_intent(on.home.db, on.claim, call, event, told=told, now=on.home.now())
        )
        if call.effect == "write":
            self._open_writes.add(call.key)

    def _conclude(self, opened: Opened, outcome: Returned | Raised, began: float) -> Returned | Raised:
        """Store an outcome and give back what a replay would; the effect has happened, so this is not skipped."""
        on, call = self._on, opened.call
        stored, decoded, lossy = self._write(lambda: self._encoded(opened, outcome))
        took = round((time.monotonic() - began) * 1000)
        event = step_events.outcome(self.attempt, call, opened.step.declared.name, stored, duration_ms=took)
        failed = isinstance(outcome, Raised)
        told: dict[str, Any] = {"step": call.key, "status": "error" if failed else "success"}
        told |= {"attempt": self.attempt, **({"lossy": True} if lossy else {})}
        on.pulses.flush(self.task_id)
        late = self._write(
            lambda: journal.record_outcome(on.home.db, on.claim, call, event, told=told, now=on.home.now())
        )
        self._open_writes.discard(call.key)
        if late is not None:
            self._halt(late)
        if failed and opened.step.declared.retries and not opened.step.may_repeat(call.effect, outcome.error):  # type: ignore[arg-type, union-attr]
            self._halt(Asked(call.key, f"it raised {outcome.error!r}, and repeating it is not declared safe"))  # type: ignore[union-attr]
        return decoded

    def _encoded(self, opened: Opened, outcome: Returned | Raised) -> tuple[str, Returned | Raised, bool]:
        """The result as JSON text, what a replay would give, and whether something of it is lost."""
        if isinstance(outcome, Raised):
            record = encoding.describe_error(outcome.error)
            repeatable = opened.step.may_repeat(opened.call.effect, outcome.error)  # type: ignore[arg-type]
            result = {"status": "error", "error": record["text"], "retryable": repeatable, "raised": record}
            return json.dumps(result, ensure_ascii=False), Raised(encoding.rebuild_error(record)), False
        stored = outcomes.store(self._on.home, outcome.value)
        value = stored.decoded(opened.step.returns)
        lossy = ',"lossy":true' if stored.lossy else ""
        outcomes.warn_of_loss(opened.step.declared.name, stored)
        return f'{{"status":"success","output":{stored.text}{lossy}}}', Returned(value), stored.lossy

    def _valued(
        self,
        call: StepCall,
        recorded: RecordedStep | None,
        make: Callable[[], Any],
        *,
        event_type: str | None = None,
        told: dict[str, Any] | None = None,
    ) -> Any:
        """The recorded value of a call, or a new one that is recorded now."""
        known = self._recorded_value(recorded)
        return known.value if known else self._record_value(call, make(), event_type=event_type, told=told)

    def _record_value(
        self, call: StepCall, value: Any, *, event_type: str | None = None, told: dict[str, Any] | None = None
    ) -> Any:
        """Store a value as an outcome without an intent, and give back what a replay would."""
        on = self._on
        stored = self._write(lambda: outcomes.store(on.home, value))
        event = step_events.value(self.attempt, call, stored.text)
        self._write(
            lambda: journal.record_value(
                on.home.db, on.claim, call, event, now=on.home.now(), event_type=event_type, told=told
            )
        )
        return stored.decoded()

    def _recorded_value(self, recorded: RecordedStep | None) -> Returned | None:
        if recorded is None or recorded.state is not StepState.DONE or recorded.outcome_json is None:
            return None
        output = outcomes.part(recorded.outcome_json, "output")
        return Returned(self._loaded(recorded, json.dumps(output, ensure_ascii=False)))

    def _write(self, change: Callable[[], T]) -> T:
        """Store something of this run; where that is impossible the run stops, and agent code cannot catch it."""
        try:
            return storing.persistently(change)
        except ControlFlow as flow:
            self._halt(flow)

    def _artifact(self, call: StepCall, recorded: RecordedStep | None, name: str, content: Any) -> Any:
        return self._valued(
            call,
            recorded,
            lambda: {"name": name, "content": content},
            event_type=AgentEvent.TYPE_ARTIFACT_CREATED,
            told={"step": call.key, "name": name},
        )

    def _spawn(
        self,
        call: StepCall,
        recorded: RecordedStep | None,
        bound: Bound,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> TaskHandle:
        """The recorded child of a call, or a new one that is stored with its step in one transaction."""
        known = self._recorded_value(recorded)
        return TaskHandle(
            self._on.home, known.value if known else self._record_spawn(call, bound, args, kwargs)
        )

    def _record_spawn(
        self, call: StepCall, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        on, now = self._on, self._on.home.now()
        chosen = bound.options(key=f"{self.task_id}/{call.key}", session=bound.chosen.session or self.session)
        child = chosen.call(*args, **kwargs).task(on.home, now=now)
        child.with_parent_task(self.task_id, on.task.recursion_depth)
        event = step_events.value(self.attempt, call, json.dumps(child.id))
        self._write(lambda: journal.record_spawn(on.home.db, on.claim, call, event, [child], now=now))
        return str(child.id)

    def _still_ours(self) -> None:
        if not journal.owns(self._on.home.db, self._on.claim):
            self._halt(journal.lost(self._on.home.db, self._on.claim))

    def _context(self, opened: Opened) -> StepContext:
        return StepContext(self.task_id, opened.call.key, self.attempt, self._on.pulses)

    def _may_try_again(self, opened: Opened, outcome: Returned | Raised, tries: int) -> bool:
        return (
            isinstance(outcome, Raised)
            and tries <= opened.step.declared.retries
            and opened.step.may_repeat(opened.call.effect, outcome.error)  # type: ignore[arg-type]
        )

    def _unfinished(self) -> None:
        """At the agent's end: a step that was created and never awaited never ran; raises StepNotAwaited."""
        for coroutine in self._not_awaited.values():
            coroutine.close()
        if self._not_awaited:
            names = ", ".join(self._not_awaited)
            raise StepNotAwaited(f"created and never awaited, so it never ran: {names}; write await")

    def _not_asked_for(self) -> list[RecordedStep]:
        """Recorded steps that this run never came to: the code has changed, or it is not deterministic."""
        return [step for step in self._on.history.steps.values() if step.key not in self._asked]
