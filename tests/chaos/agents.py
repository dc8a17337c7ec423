"""What is at work while the storm rages: agents of every shape, whose steps leave a line each time they really run.

A line is TASK STEP ATTEMPT KEY. Every agent is deterministic, so its result can be told from its input; what chance
decides is recorded.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from relight import AsyncRun, NotDone, Run, agent, current_step, step
from relight.models.errors import StepAbandoned
from tests.crash import witness

PATIENCE_S = 0.12  # a step takes no longer, and is long enough to be cut off
ABANDONED = "abandoned"
_pause = threading.Event()


def _perform(name: str, given: Any) -> Any:
    here = current_step()
    witness.note(here.task_id, name, here.attempt, here.key)
    _pause.wait(random.random() * PATIENCE_S)
    return given


@step(effect="read")
def glance(number: int) -> int:
    return int(_perform("glance", number))


@step(effect="read")
async def glance_async(number: int) -> int:
    await asyncio.sleep(random.random() * PATIENCE_S)
    return int(_perform("glance_async", number))


@step(effect="write")
def book(number: int) -> int:
    return int(_perform("book", number))


@step(effect="write")
async def book_async(number: int) -> int:
    await asyncio.sleep(random.random() * PATIENCE_S)
    return int(_perform("book_async", number))


@step(effect="read")
def stumble(number: int) -> int:
    """Raises the first time."""
    here = current_step()
    _perform("stumble", number)
    if witness.once(f"stumble-{here.key}"):
        raise ValueError("the first time")
    return number


@step(effect="write", retries=2, retry_delay=0.01)
def resend(number: int) -> int:
    """Says the first time that nothing was sent, which makes it safe to repeat."""
    here = current_step()
    if witness.once(f"resend-{here.key}"):
        raise NotDone("the line was busy")
    return int(_perform("resend", number))


@agent(risk="low")
def strolling(run: Run, length: int) -> list[int]:
    return [run.step(glance, number) for number in range(length)]


@agent(risk="low", retries=3, retry_delay=0.02)
def stumbling(run: Run, length: int) -> list[int]:
    """Fails once, is tried again, and replays what it had."""
    return [run.step(stumble if number == 1 else glance, number) for number in range(length)]


@agent(risk="high")
def bookkeeping(run: Run, length: int) -> list[Any]:
    """Reads and writes in turn; what a person gave up it leaves out."""
    return [_left_out(run, glance if number % 2 == 0 else book, number) for number in range(length)]


@agent(risk="low")
def sneaking(run: Run, length: int) -> list[Any]:
    """Of low risk until it writes."""
    return [_left_out(run, book if number == 1 else glance, number) for number in range(length)]


@agent(risk="high")
def resending(run: Run, length: int) -> list[Any]:
    return [_left_out(run, resend, number) for number in range(length)]


def _left_out(run: Run, doing: Any, number: int) -> Any:
    try:
        return run.step(doing, number)
    except StepAbandoned:
        return ABANDONED


@agent(risk="low")
async def fanning_out(run: AsyncRun, length: int) -> list[list[int]]:
    async def branch(number: int) -> list[int]:
        return [await run.step(glance_async if (number + n) % 2 else glance, n) for n in range(length)]

    return list(await asyncio.gather(*(branch(number) for number in range(3))))


@agent(risk="high")
async def posting(run: AsyncRun, length: int) -> list[list[Any]]:
    async def post(number: int) -> Any:
        try:
            return await run.step(book_async if number % 2 else book, number)
        except StepAbandoned:
            return ABANDONED

    async def branch() -> list[Any]:
        return [await run.step(glance_async, 0), *[await post(number) for number in range(1, length)]]

    return list(await asyncio.gather(branch(), branch()))


@agent(risk="low")
def braiding(run: Run, length: int) -> list[list[int]]:
    def walk(number: int) -> list[int]:
        with run.branch(f"b{number}"):
            return [run.step(glance, n) for n in range(length)]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(walk, range(2)))


@agent(risk="low")
def fostering(run: Run, length: int) -> list[str]:
    """Spawns children in both lanes; how many, and of which kind, was left to chance once."""
    chance, name = run.random(), run.uuid()
    first = run.step(glance, 0)
    kind = strolling if chance < 0.5 else bookkeeping
    children = [run.spawn(kind.options(lane="main"), length), run.spawn(strolling, first + 2)]
    run.artifact("fostering", {"name": name, "children": len(children)})
    return [child.id for child in children]


@step(effect="read")
def bite(number: int) -> int:
    """Takes its worker down, each time."""
    _perform("bite", number)
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@agent(risk="low")
def poisonous(run: Run, length: int) -> int:
    return run.step(bite, run.step(glance, length))


CAST: dict[str, Any] = {
    one.name: one
    for one in (
        strolling,
        stumbling,
        bookkeeping,
        sneaking,
        resending,
        fanning_out,
        posting,
        braiding,
        fostering,
    )
}


def expected(name: str, length: int) -> Any:
    """What an agent returns; None in place of what a person may have decided otherwise."""
    row: list[Any] = list(range(length))
    match name:
        case "strolling" | "stumbling":
            return row
        case "bookkeeping":
            return [None if number % 2 else number for number in row]
        case "sneaking":
            return [None if number == 1 else number for number in row]
        case "resending":
            return [None] * length
        case "fanning_out":
            return [row] * 3
        case "posting":
            return [[0, *[None] * (length - 1)]] * 2
        case "braiding":
            return [row] * 2
    return [None] * 2
