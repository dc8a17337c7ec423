"""Five branches of three steps each, in an order that is different in every attempt."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from relight import AsyncRun, Run, agent, current_step, step
from tests.crash import witness

BRANCHES, DEPTH = 5, 3


def _seen(branch: int, depth: int, before: str) -> str:
    here = current_step()
    witness.note(here.task_id, f"{branch}.{depth}", here.attempt, here.key)
    return f"{before}>{branch}.{depth}"


@step(effect="read")
async def move(branch: int, depth: int, before: str) -> str:
    await asyncio.sleep(random.random() / 200)
    found = _seen(branch, depth, before)
    await asyncio.sleep(random.random() / 200)
    return found


@step(effect="read")
def move_in_thread(branch: int, depth: int, before: str) -> str:
    pause = threading.Event()
    pause.wait(random.random() / 200)
    found = _seen(branch, depth, before)
    pause.wait(random.random() / 200)
    return found


@step(effect="write")
async def leave(branch: int, depth: int, before: str) -> str:
    return await move.fn(branch, depth, before)


async def _branch(run: AsyncRun, branch: int) -> str:
    """Asynchronous and synchronous steps of the same names in every branch: only the scope tells them apart."""
    found = f"{branch}"
    for depth in range(DEPTH):
        await asyncio.sleep(random.random() / 200)
        found = await run.step(move if (branch + depth) % 2 else move_in_thread, branch, depth, found)
    return found


async def _writing_branch(run: AsyncRun, branch: int) -> str:
    found = f"{branch}"
    for depth in range(DEPTH):
        await asyncio.sleep(random.random() / 200)
        found = await run.step(move if depth < DEPTH - 1 else leave, branch, depth, found)
    return found


@agent(risk="low")
async def gathered(run: AsyncRun) -> list[str]:
    return await asyncio.gather(*(_branch(run, branch) for branch in range(BRANCHES)))


@agent(risk="low")
async def grouped(run: AsyncRun) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_branch(run, branch)) for branch in range(BRANCHES)]
    return [task.result() for task in tasks]


@agent(risk="low")
async def writing(run: AsyncRun) -> list[str]:
    return await asyncio.gather(*(_writing_branch(run, branch) for branch in range(BRANCHES)))


@agent(risk="low")
def threaded(run: Run) -> list[str]:
    def walk(branch: int) -> str:
        found = f"{branch}"
        with run.branch(f"b{branch}"):
            for depth in range(DEPTH):
                found = run.step(move_in_thread, branch, depth, found)
        return found

    with ThreadPoolExecutor(BRANCHES) as pool:
        return list(pool.map(walk, range(BRANCHES)))
