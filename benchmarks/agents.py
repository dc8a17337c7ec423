"""The agents that the benchmarks run."""

from __future__ import annotations

import time

from relight import Run, agent, step


@agent(risk="low")
def noop(run: Run) -> None:
    """Nothing: what is measured is everything around it."""


@step(effect="read")
def one(number: int) -> int:
    """The smallest step."""
    return number


@agent(risk="low")
def steps(run: Run, count: int) -> int:
    """So many steps, one after another."""
    for number in range(count):
        one(number)
    return count


@agent(risk="low")
def busy(run: Run, seconds: float) -> None:
    """Background work that holds its slot."""
    time.sleep(seconds)


@agent(risk="low")
def started_at(run: Run) -> int:
    """When the agent's first line ran, in microseconds of the system clock."""
    return time.time_ns() // 1000
