"""A task of three steps in four variants; its prompt says where it is struck (see strikes.py)."""

from __future__ import annotations

from typing import Any

from relight import AsyncRun, Run, agent, current_step, step
from relight.models.errors import StepAbandoned
from tests.crash import strikes, witness

STEPS = (1, 2, 3)


def _perform(number: int, prompt: str) -> dict[str, Any]:
    here = current_step()
    strikes.at("body", number, prompt=prompt, task_id=here.task_id)
    witness.note(here.task_id, number, here.attempt, here.key)
    strikes.at("effect", number, prompt=prompt, task_id=here.task_id)
    return {"step": number}


@step(effect="read")
def look(number: int, prompt: str) -> dict[str, Any]:
    return _perform(number, prompt)


@step(effect="read")
async def look_async(number: int, prompt: str) -> dict[str, Any]:
    return _perform(number, prompt)


@step(effect="write")
def put(number: int, prompt: str) -> dict[str, Any]:
    return _perform(number, prompt)


@agent(risk="low")
def reader(run: Run, prompt: str) -> list[Any]:
    return _life(run, prompt, {1: look, 2: look, 3: look})


@agent
def writer(run: Run, prompt: str) -> list[Any]:
    return _life(run, prompt, {1: put, 2: put, 3: put})


@agent(risk="low")
def late_writer(run: Run, prompt: str) -> list[Any]:
    """Reads, writes, reads: its risk is low until the write begins."""
    return _life(run, prompt, {1: look, 2: put, 3: look})


@agent(risk="low")
async def async_reader(run: AsyncRun, prompt: str) -> list[Any]:
    found = []
    for number in STEPS:
        strikes.at("between", number, prompt=prompt, task_id=run.task_id)
        found.append(await run.step(look_async if number % 2 else look, number, prompt))
    strikes.at("between", len(STEPS) + 1, prompt=prompt, task_id=run.task_id)
    return found


def _life(run: Run, prompt: str, steps: dict[int, Any]) -> list[Any]:
    found: list[Any] = []
    for number in STEPS:
        strikes.at("between", number, prompt=prompt, task_id=run.task_id)
        try:
            found.append(run.step(steps[number], number, prompt))
        except StepAbandoned:
            found.append("abandoned")
    strikes.at("between", len(STEPS) + 1, prompt=prompt, task_id=run.task_id)
    return found
