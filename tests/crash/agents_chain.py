"""A chain of steps that feed each other, held at chosen places; steps that end their process; a host name of one's own."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from relight import Run, agent, current_step, step
from tests.crash import witness

LENGTH = 6


def _note(name: object) -> None:
    here = current_step()
    witness.note(here.task_id, name, here.attempt, here.key, os.getpid())


@step(effect="read")
def link(number: int, hold_at: int) -> dict[str, Any]:
    """Something that is different each time it is made, with all that JSON finds hard."""
    _note(number)
    if number == hold_at:
        witness.wait_at(f"hold {number}")
    return {
        "n": number,
        "once": os.urandom(8).hex(),
        "text": "ü€𝄞\x00\u2028",
        "float": 0.1 + number,
        "big": 2**62,
    }


@step(effect="read")
def digest(parts: list[dict[str, Any]]) -> str:
    _note("digest")
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@agent(risk="low")
def chain(run: Run, hold_at: int = 0) -> dict[str, Any]:
    parts = [run.step(link, number, hold_at) for number in range(1, LENGTH)]
    return {"parts": parts, "digest": run.step(digest, parts)}


@step(effect="write")
def send(number: int, hold_at: int) -> str:
    _note(number)
    if number == hold_at or hold_at == -1:
        witness.wait_at(f"hold {number}")
    return f"sent {number}"


@agent(risk="high")
def sender(run: Run, hold_at: int) -> list[str]:
    """Three writes; holds after the effect of one, or of each in turn (-1)."""
    return [run.step(send, number, hold_at) for number in (1, 2, 3)]


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


_LEAVE: dict[str, Callable[[int], Any]] = {
    "exit": sys.exit,
    "_exit": os._exit,
    "poison": os._exit,
    "interrupt": _interrupt,
}


@step(effect="read")
def leave(how: str) -> str:
    _note(how)
    if current_step().attempt == 1 or how == "poison":
        _LEAVE[how](3)
    return how


@agent(risk="low")
def leaver(run: Run, how: str) -> str:
    return run.step(leave, how)


def _named_by_the_environment() -> str:
    return os.environ["HOSTNAME"]


if "HOSTNAME" in os.environ and witness.VARIABLE in os.environ:
    socket.gethostname = _named_by_the_environment
