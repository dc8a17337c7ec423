"""The two lines where agent code is called, and what comes back from it.

Invariant: control flow passes through, and so does what ends this process or cancels the awaiting task; everything else
that agent code does, `sys.exit` included, comes back as a value.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..models.errors import ControlFlow


@dataclass(frozen=True)
class Returned:
    """The code returned this."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The code raised this."""

    error: BaseException


def call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Returned | Raised:
    """Call agent code in this thread."""
    try:
        return Returned(fn(*args, **kwargs))
    except ControlFlow:
        raise
    except BaseException as error:  # agent code may raise anything: it is its outcome
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # a real one: Python delivers signals to the main thread only
        return Raised(error)


async def acall(fn: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Returned | Raised:
    """Await agent code on this loop."""
    import asyncio  # not above: verbs that only answer would pay for it

    try:
        return Returned(await fn(*args, **kwargs))
    except (ControlFlow, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001  # as above
        return Raised(error)


def chain(error: BaseException) -> list[BaseException]:
    """An exception and what it came from: causes, contexts, members of groups."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or any(one is known for known in found):
            continue
        found.append(one)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return found
