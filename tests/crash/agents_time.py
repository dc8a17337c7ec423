"""Agents and a plain task that leave the time at which they ran; nothing here reads a local time."""

from __future__ import annotations

from relight import Run, agent, step
from relight.workers.lanes import subagent
from tests.crash import witness


@step(effect="read")
def mark(name: str) -> str:
    witness.note(name)
    return name


@step(effect="read")
def held(name: str) -> str:
    witness.note(name)
    witness.wait_at(name)
    return name


@agent(risk="low", retries=1, retry_delay=4)
def fails_once(run: Run, name: str) -> str:
    if witness.once(f"failed {name}"):
        raise ConnectionError("the first time")
    return run.step(mark, name)


@agent(risk="low")
def marks(run: Run, name: str = "mark") -> str:
    return run.step(mark, name)


@agent(risk="low")
def holds(run: Run, name: str = "hold") -> str:
    run.step(held, name)
    return run.step(mark, "after")


@subagent.task()  # type: ignore[untyped-decorator]  # huey is untyped
def plain(name: str) -> None:
    witness.note(name)
