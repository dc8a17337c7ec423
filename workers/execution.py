"""The life of one attempt: from a claimed row to the move that ends it.

Invariants: whatever agent code does, the attempt ends in exactly one of the moves below, or finds that the task is not
its own any more; control flow ends here and never reaches Huey.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..models import claims, confirmations, journal, traces, transitions
from ..models.confirmations import StepInDoubt
from ..models.errors import (
    Asked,
    Cancelled,
    ControlFlow,
    Diverged,
    InputError,
    LeaseLost,
    StaleMove,
    StepAbandoned,
    StorageError,
    Unreadable,
)
from ..models.tasks import AgentTask, RiskLevel
from ..recovery import replay, sweep
from . import agents, announcing, calling, evidence, logs, outcomes, scopes, serving, storing
from .agents import Agent
from .attempts import Attempt, Outcome
from .calling import Raised, Returned
from .home import Home
from .ownership import Owner
from .recording import Circumstances, Recorder
from .run import AsyncRun, Run

log = logging.getLogger("relight.execution")

T = TypeVar("T")


def execute(home: Home, owner: Owner, task: AgentTask) -> Outcome:
    """Run one attempt in this thread, to its end; never raises but for the end of the process."""
    ended: list[Outcome] = []
    done = threading.Event()

    def note(outcome: Outcome) -> None:
        ended.append(outcome)
        done.set()

    launch(home, owner, task, note)
    done.wait()
    return ended[0]


def launch(home: Home, owner: Owner, task: AgentTask, done: Callable[[Outcome], None]) -> None:
    """Run one attempt: a synchronous agent in this thread, an asynchronous one on the loop, which calls `done` later."""
    with logs.fields(task=task.id, attempt=task.attempt, worker=owner.id):  # in the agent's own lines too
        _launch(Attempt(home, owner, task), done)


def _launch(attempt: Attempt, done: Callable[[Outcome], None]) -> None:
    serving.begin()
    prepared = _stored(attempt, lambda: _prepared(attempt))
    if isinstance(prepared, Outcome):
        done(_finish(attempt, prepared))
        return
    agent, arguments, run = prepared
    if isinstance(run, AsyncRun):
        loop = serving.loop(attempt.home)
        loop.start(
            run, _driven(run, agent, arguments), lambda result: done(_ended(attempt, agent, run, result))
        )
    else:
        done(_ended(attempt, agent, run, _called(run, agent, arguments)))


def interrupt_all(home: Home, owner: Owner) -> int:
    """Mark what still runs here as interrupted by a shutdown: the process is about to end. How many."""
    marked = 0
    for task_id, number in owner.claims:
        try:
            end: dict[str, Any] = {"attempt": number, "worker_id": owner.id, "now": home.now()}
            transitions.interrupt(home.db, task_id, reason="shutdown", keep_owner=True, **end)
            marked += 1
        except (StaleMove, StorageError) as error:
            log.info("not interrupted", extra={"task": task_id, "attempt": number, "error": str(error)})
    return marked


# -- the attempt, step by step --------------------------------------------------------------------------------


def _prepared(attempt: Attempt) -> tuple[Agent[Any, Any], dict[str, Any], Recorder] | Outcome:
    """Find the agent, read the history, check version and input; the outcome where the attempt ends here."""
    agent = agents.known().get(attempt.task.agent_id)
    if agent is None:
        return _given_back(attempt)
    history = replay.history(traces.step_records(attempt.home.db, attempt.task.id))
    if (changed := _version_changed(attempt, agent, history)) is not None:
        return _diverged(attempt, changed)
    try:
        arguments = agent.form.arguments(attempt.task.input_json)
    except InputError as error:
        return _failed(attempt, error)
    side = "read" if agent.risk == RiskLevel.LOW else "write"
    on = Circumstances(attempt.home, attempt.claim, attempt.task, side, history, serving.pulses(attempt.home))  # type: ignore[arg-type]
    if agent.is_async:
        loop = serving.loop(attempt.home)
        return agent, arguments, AsyncRun(on, bodies=loop.bodies, storage=loop.storage)
    return agent, arguments, Run(on)


def _version_changed(attempt: Attempt, agent: Agent[Any, Any], history: replay.History) -> Diverged | None:
    """Why steps that another version of the agent recorded must not be replayed; without steps it is ours from now on."""
    stored, ours = attempt.task.handler_version, agent.handler_version
    if stored == ours:
        return None
    if stored is None or not history.steps:
        journal.stamp_version(attempt.home.db, attempt.task.id, ours, **attempt.fence)
        return None
    if stored.partition("+")[0] == ours.partition("+")[0]:
        log.warning("the agent's source has changed", extra={"task": attempt.task.id, "agent": agent.name})
        return None
    return Diverged("(the agent)", f"version {stored.partition('+')[0]}", f"version {agent.version}")


def _called(
    run: Recorder, agent: Agent[Any, Any], arguments: dict[str, Any]
) -> Returned | Raised | ControlFlow:
    token = scopes.current.set(run._root)
    try:
        return calling.call(agent.fn, run, **arguments)
    except ControlFlow as flow:
        return flow
    finally:
        scopes.current.reset(token)


async def _driven(
    run: AsyncRun, agent: Agent[Any, Any], arguments: dict[str, Any]
) -> Returned | Raised | ControlFlow:
    run.enter_loop()
    scopes.current.set(run._root)
    try:
        return await calling.acall(agent.fn, run, **arguments)
    except ControlFlow as flow:
        return flow
    except asyncio.CancelledError as error:  # of what the agent awaited: nobody cancels the run itself
        return Raised(error)


def _ended(
    attempt: Attempt, agent: Agent[Any, Any], run: Recorder, result: Returned | Raised | ControlFlow
) -> Outcome:
    """From what came back to the move that ends the attempt; control flow that was raised once takes precedence."""
    serving.pulses(attempt.home).flush(attempt.task.id)
    return _finish(attempt, _stored(attempt, lambda: _moved(attempt, agent, run, run._stop or result)))


def _stored(attempt: Attempt, part: Callable[[], T]) -> T | Outcome:
    """Do a part of an attempt; where it cannot be stored, or the task is not ours any more, the attempt ends as lost.

    Nothing else may get out either: the claim is dropped then, and the lease thread interrupts the task as lost.
    """
    try:
        done = calling.call(part)
    except LeaseLost as flow:  # the store did not take it in time
        done = Raised(flow)
    if isinstance(done, Returned):
        return done.value  # type: ignore[no-any-return]
    about = {"task": attempt.task.id, "error": str(done.error)}
    if isinstance(done.error, StaleMove):
        log.info("the attempt lost its task", extra=about)
        calling.call(_lost, attempt, LeaseLost(str(done.error)))
    else:
        log.error("a part of an attempt was not stored", extra=about, exc_info=done.error)
    return Outcome("lost", done.error)


def _moved(
    attempt: Attempt, agent: Agent[Any, Any], run: Recorder, result: Returned | Raised | ControlFlow
) -> Outcome:
    match result:
        case Asked() as asked:
            return _asked(attempt, asked)
        case Unreadable(cause=error):
            return _failed(attempt, error)
        case Diverged() as flow:
            return _diverged(attempt, flow)
        case ControlFlow() as flow:
            return _lost(attempt, flow)
        case Returned(value):
            return _returned(attempt, run, value)
        case Raised(error):
            return _raised(attempt, agent, run, error)


def _returned(attempt: Attempt, run: Recorder, value: Any) -> Outcome:
    forgotten = calling.call(run._unfinished)
    if isinstance(forgotten, Raised):
        return _failed(attempt, forgotten.error)
    if run._open_writes:  # cancelled when the agent ended: the result does not say whether they happened
        why = "the agent ended while this write was still running"
        return _asked(attempt, *(Asked(key, why) for key in sorted(run._open_writes)))
    missed = [step for step in run._not_asked_for() if step.effect == "write"]
    if missed:
        flow = Diverged(missed[0].key, "a write step", "nothing: the agent ended without it")
        return _diverged(attempt, flow)
    stored = outcomes.store(attempt.home, value)
    storing.persistently(
        lambda: transitions.complete(
            attempt.home.db, attempt.task.id, **attempt.fence, result_json=stored.text, now=attempt.home.now()
        )
    )
    return Outcome("completed", value=value)


def _raised(attempt: Attempt, agent: Agent[Any, Any], run: Recorder, error: BaseException) -> Outcome:
    calling.call(run._unfinished)
    chain = calling.chain(error)
    reached = [failure for failure in run._failures if any(failure.error is one for one in chain)]
    given_up = any(isinstance(one, StepAbandoned) for one in chain)  # a person said so
    if given_up or attempt.task.retries_left <= 0:
        return _failed(attempt, error, ended_by=[failure.call.key for failure in reached])
    unsafe = [failure for failure in reached if not failure.repeatable]
    if unsafe:
        why = f"it raised {unsafe[0].error!r}, and repeating it is not declared safe"
        return _asked(attempt, *(Asked(failure.call.key, why) for failure in unsafe))
    now = attempt.home.now()
    storing.persistently(
        lambda: transitions.retry(
            attempt.home.db,
            attempt.task.id,
            **attempt.fence,
            due_at=now + agent.retry_delay_ms,
            retries_left=attempt.task.retries_left - 1,
            error_json=outcomes.error_json(error),
            supersede=[failure.call.key for failure in reached],
            now=now,
        )
    )
    return Outcome("retrying", error)


def _failed(attempt: Attempt, error: BaseException, *, ended_by: Sequence[str] = ()) -> Outcome:
    text = outcomes.error_json(error, ended_by)
    storing.persistently(
        lambda: transitions.fail(
            attempt.home.db,
            attempt.task.id,
            **attempt.fence,
            reason="error",
            error_json=text,
            now=attempt.home.now(),
        )
    )
    return Outcome("failed", error)


def _asked(attempt: Attempt, *flows: Asked) -> Outcome:
    """Put the task aside and ask about the steps that may not run again by themselves."""
    record = replay.history(traces.step_records(attempt.home.db, attempt.task.id))
    steps = _in_doubt(attempt, record, {flow.step_key: flow.why for flow in flows})
    _file(attempt, record, f"step {flows[0].step_key}: {flows[0].why}", steps, reason="asked")
    return Outcome("asked", flows[0])


def _diverged(attempt: Attempt, flow: Diverged) -> Outcome:
    record = replay.history(traces.step_records(attempt.home.db, attempt.task.id))
    _file(attempt, record, f"replay diverged {flow}", _in_doubt(attempt, record, {}), reason="diverged")
    return Outcome("asked", flow)


def _in_doubt(attempt: Attempt, record: replay.History, whys: dict[str, str]) -> list[StepInDoubt]:
    """Every step that a person has to speak about: those that are named, and each write whose end nobody knows."""
    unsettled = sweep.unsettled_writes(attempt.home.db, attempt.task, record)
    named = [record.steps[key] for key in whys]
    return [
        sweep.in_doubt(step, evidence.look(attempt.task, step), error=whys.get(step.key))
        for step in (*named, *(step for step in unsettled if step.key not in whys))
    ]


def _file(
    attempt: Attempt, record: replay.History, why: str, steps: list[StepInDoubt], *, reason: str
) -> None:
    request = sweep.request(attempt.task, why, record, steps)
    storing.persistently(
        lambda: confirmations.ask(
            attempt.home.db,
            attempt.task,
            reason=reason,
            request=request,
            steps=steps,
            now=attempt.home.now(),
            owner=attempt.owner.id,
        )
    )


def _lost(attempt: Attempt, flow: ControlFlow) -> Outcome:
    """The task is someone else's, or ended: let go of it, so that nobody waits for proof of this worker's death."""
    journal.let_go(attempt.home.db, attempt.task.id, **attempt.fence)
    return Outcome("cancelled" if isinstance(flow, Cancelled) else "lost", flow)


def _given_back(attempt: Attempt) -> Outcome:
    claims.unclaim(attempt.home.db, attempt.task.id, **attempt.fence, now=attempt.home.now())
    return Outcome("lost", None)


def _finish(attempt: Attempt, outcome: Outcome) -> Outcome:
    attempt.owner.drop(attempt.task.id, attempt.task.attempt)
    announcing.ended(attempt.task, outcome.kind, outcome.error)
    return outcome
