"""Short and long pieces of work for the tests of lanes and of races."""

from __future__ import annotations

import os
import time
from typing import Any

from relight import Run, agent, current_step, step
from relight.models.errors import StepAbandoned
from tests.crash import witness


@step(effect="read")
def seen(name: str) -> int:
    """Leave a line, and the process it was in."""
    here = current_step()
    witness.note(here.task_id, name, here.attempt, here.key, os.getpid())
    return os.getpid()


@step(effect="read")
def held(name: str) -> str:
    """Leave a line, and hold until the barrier of that name opens."""
    here = current_step()
    witness.note(here.task_id, name, here.attempt, here.key, os.getpid())
    witness.wait_at(name)
    return name


@agent(risk="low")
def quick(run: Run, name: str = "quick") -> Any:
    return run.step(seen, name)


@agent(risk="low")
def holding(run: Run, name: str = "hold") -> Any:
    run.step(held, name)
    return run.step(seen, "after")


@step(effect="write")
def held_write(name: str) -> str:
    return held.fn(name)


@agent(risk="high")
def holding_write(run: Run, name: str = "hold") -> list[Any]:
    """Writes, holding in the second of three steps; goes on without it where a person gave it up."""
    found: list[Any] = [run.step(seen, "before")]
    try:
        found.append(run.step(held_write, name))
    except StepAbandoned:
        found.append("abandoned")
    return [*found, run.step(seen, "after")]


@step(effect="read")
def spin(seconds: float) -> str:
    """Compute without a pause."""
    here = current_step()
    witness.note(here.task_id, "spin", here.attempt, here.key, os.getpid())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


@agent(risk="low")
def spinning(run: Run, seconds: float) -> str:
    return run.step(spin, seconds)
