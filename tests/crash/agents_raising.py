"""Writes that raise after their effect, under every setting of retries and in every way of meeting the exception."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

from relight import AsyncRun, NotDone, Run, agent, current_step, step
from relight.models.errors import StepAbandoned
from tests.crash import witness

RETRIES = 2


class Flaky(Exception):
    """Declared safe by one kind of step."""


DECLARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"idempotent": True},
    "safe": {"safe_errors": (Flaky,)},
    "not_done": {},
}


def _effect(declared: str) -> None:
    here = current_step()
    witness.note(here.task_id, "write", here.attempt, here.key)
    raise NotDone("not sent") if declared == "not_done" else Flaky("sent, and then the line broke")


def make_steps(declared: str, retries: int) -> dict[str, Callable[..., Any]]:
    """A synchronous and an asynchronous write that raise each time."""
    said = {"effect": "write", "retries": retries, "retry_delay": 0.001, **DECLARED[declared]}

    @step(name=f"send_{declared}_{retries}", **said)
    def send() -> None:
        _effect(declared)

    @step(name=f"send_async_{declared}_{retries}", **said)
    async def send_async() -> None:
        await asyncio.sleep(0)
        _effect(declared)

    return {"sync": send, "async": send_async}


def make_agents(declared: str, step_retries: int, task_retries: int, met: str) -> dict[str, Any]:
    """A synchronous and an asynchronous agent that call such a write and let its exception pass, or catch it."""
    steps = make_steps(declared, step_retries)
    said: dict[str, Any] = {"risk": "high", "retries": task_retries, "retry_delay": 0.001}
    name = f"{declared}_{step_retries}_{task_retries}_{met}"

    @agent(name=f"sync_{name}", **said)
    def sending(run: Run) -> str:
        try:
            run.step(steps["sync"])
        except (Flaky, NotDone, StepAbandoned) as error:
            return _met(met, error)
        return "sent"

    @agent(name=f"async_{name}", **said)
    async def sending_async(run: AsyncRun) -> str:
        try:
            await run.step(steps["async"])
        except (Flaky, NotDone, StepAbandoned) as error:
            return _met(met, error)
        return "sent"

    return {"sync": sending, "async": sending_async}


def _met(how: str, error: Exception) -> str:
    if how == "passed" or isinstance(error, StepAbandoned):
        raise error
    if how == "wrapped":
        raise RuntimeError("gave up") from error
    if how == "grouped":
        raise ExceptionGroup("gave up", [ValueError("another"), error])
    if how == "in_context":
        raise RuntimeError("a mistake while the error was looked at")
    return "caught"


@agent(risk="high", retries=RETRIES, retry_delay=0.001)
def caught_then_failed(run: Run) -> None:
    """The write's error is dealt with; what ends the attempt has nothing to do with it."""
    try:
        run.step(_PLAIN["sync"])
    except Flaky:
        pass
    witness.note(run.task_id, "failed", run.attempt, "-")
    raise ValueError("something else")


@step(effect="write")
async def slow_write() -> None:
    here = current_step()
    witness.note(here.task_id, "write", here.attempt, here.key)
    await asyncio.sleep(60)


@step(effect="write")
def slow_write_in_thread() -> None:
    here = current_step()
    witness.note(here.task_id, "write", here.attempt, here.key)
    witness.wait_at("late")


@agent(risk="low", retries=RETRIES, retry_delay=0.001)
async def impatient(run: AsyncRun, in_thread: bool, caught: bool) -> str:
    """Gives a write a little time, and either fails by it or goes on without it."""
    try:
        await asyncio.wait_for(run.step(slow_write_in_thread if in_thread else slow_write), 0.05)
    except TimeoutError:
        if not caught:
            raise
    witness.note(run.task_id, "on", run.attempt, "-")
    while not witness.is_open("go"):
        await asyncio.sleep(0.005)
    return "went on"


@step(effect="write", retries=1, idempotent=True)
def stuck_write() -> None:
    """Raises, and in its retry holds for ever."""
    here = current_step()
    witness.note(here.task_id, "write", here.attempt, here.key)
    if not witness.once("stuck"):
        witness.wait_at("never")
    raise Flaky("the first time")


@agent(risk="low", retries=RETRIES, retry_delay=0.001)
def stuck(run: Run) -> None:
    run.step(stuck_write)


MEETINGS = ("passed", "caught", "wrapped", "grouped", "in_context")
CASES = list(product(DECLARED, (0, RETRIES), (0, RETRIES), MEETINGS))
AGENTS = {case: make_agents(*case) for case in CASES}
_PLAIN = make_steps("plain", 0)
