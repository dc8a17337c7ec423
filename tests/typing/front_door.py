"""What a checker must see through `import relight`. Nothing runs this file: `make types` reads it."""

from __future__ import annotations

from typing import Any, assert_type

import relight
from relight import AsyncRun, Lane, Run, TaskHandle, TaskStatus, agent, current_step, enqueue_many, step


@step(effect="read")
def length(text: str) -> int:
    current_step().stream(text)
    assert_type(current_step().key, str)
    return len(text)


@step(effect="write", idempotent=True)
async def send(text: str) -> bool:
    raise relight.NotDone(text)


@agent(risk="low")
def count(run: Run, prompt: str, *, factor: int = 1) -> int:
    assert_type(length(prompt), int)
    assert_type(run.step(length, prompt), int)
    return length(prompt) * factor


@agent
async def deliver(run: AsyncRun, prompt: str) -> bool:
    return await send(prompt)


def outside() -> None:
    handle = count.options(lane=Lane.MAIN, key="k").enqueue("a", factor=2)
    assert_type(handle, TaskHandle)
    assert_type(handle.status, TaskStatus)
    assert_type(handle.result(timeout=1), Any)
    assert_type(enqueue_many([count.call("a"), deliver.call("b")]), list[TaskHandle])
    assert_type(relight.ref("count").enqueue("a"), TaskHandle)


async def inside_a_loop(handle: TaskHandle) -> None:
    assert_type(await handle, Any)
