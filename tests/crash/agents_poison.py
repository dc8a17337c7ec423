"""A task that kills its worker in its second step, harmless ones beside it, and long ones that are called off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from relight import Run, agent, current_step, step
from tests.crash import witness

STEPS = 10


def _note(name: object) -> None:
    here = current_step()
    witness.note(here.task_id, name, here.attempt, here.key, os.getpid())


@step(effect="read")
def count(number: int) -> int:
    _note(number)
    return number


@step(effect="read")
def burn() -> None:
    _note("burn")
    os.kill(os.getpid(), signal.SIGKILL)


@agent(risk="low")
def poison(run: Run) -> None:
    run.step(count, 1)
    run.step(burn)


@agent(risk="low")
def harmless(run: Run) -> int:
    return sum(run.step(count, number) for number in (1, 2, 3))


@step(effect="read")
def hold(number: int, at: int) -> int:
    """One of ten steps; holds in the chosen one until the test opens the barrier."""
    _note(number)
    if number == at:
        witness.wait_at("go on")
    return number


@agent(risk="low")
def long(run: Run, at: int) -> int:
    return sum(run.step(hold, number, at) for number in range(1, STEPS + 1))


@step(effect="read")
def call_tool(seconds: float) -> int:
    """What an agent's tool is: a process of its own, here one that waits for its standard input to end."""
    _note("tool")
    tool = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    witness.note(tool.pid, file="tools")
    witness.hold_until(lambda: witness.is_open("tool is done") or tool.poll() is not None)
    tool.communicate()
    return tool.returncode


@agent(risk="low")
def toolsmith(run: Run) -> int:
    run.step(call_tool, 30)
    return run.step(count, 2)


@agent(risk="low", retries=3, retry_delay=0)
def flaky(run: Run) -> int:
    if witness.once("failed once"):
        raise ConnectionError("the first time")
    return run.step(count, 1)
