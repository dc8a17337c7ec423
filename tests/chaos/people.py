"""Who else is there while workers die: clients that enqueue and cancel, an operator who answers, and a process that does
nothing but recovery passes. Each is a process of its own and may be killed at any moment, too.

What they do follows from the seed and from what they find, never from what they did before, so that one that starts
anew goes on where the last one was cut off.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from relight.models import confirmations, retries, tasks
from relight.models.confirmations import Confirmation, ConfirmationStep
from relight.models.errors import ConflictError, StorageError
from relight.models.tasks import Lane, TaskStatus
from relight.workers import answers, recovery_job, settings
from relight.workers.home import Home
from tests.chaos.agents import CAST, poisonous
from tests.crash import witness

ACKS, OVER = "acks", "over"  # what was acknowledged; the file that ends the storm
BACKLOG = 40  # live tasks; clients hold back above, so that each of them is struck more than once
LOOK_S = 0.03
POISONED = 0.003  # of the tasks
NEVER = "never answered"


def chance(*words: object) -> float:
    """A number in [0, 1) that follows from the words."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:4]) / 2**32


def client(home: Home, seed: int, number: int) -> None:
    """Enqueue one task after the other under keys of its own, and note what was acknowledged."""
    noted = lines_in(witness.folder(), ACKS)
    done = sum(line.split()[1].startswith(f"c{number}-") for line in noted)
    while not witness.is_open(OVER):
        if live(home) < BACKLOG:
            with suppress(StorageError):
                _enqueue(home, random.Random(f"{seed}-{number}-{done}"), f"c{number}-{done}")
                done += 1
        else:
            rest()


def _enqueue(home: Home, dice: random.Random, key: str) -> None:
    made = poisonous if dice.random() < POISONED else CAST[dice.choice(sorted(CAST))]
    chosen = made.options(
        home=home,
        key=key,
        lane=dice.choice(list(Lane)),
        priority=dice.choice([None, None, 0, 5, 20]),
        delay=dice.choice([None, None, None, 0.1, 0.5]),
    )
    handle = chosen.enqueue(dice.randint(2, 4))
    witness.note(handle.id, key, file=ACKS)
    if dice.random() < 0.03:
        with suppress(ConflictError):
            handle.cancel()


def operator(home: Home, seed: int) -> None:
    """Answer what is asked, and have some of what failed tried again."""
    while not witness.is_open(f"{OVER}-for-all"):
        with suppress(StorageError):
            for asked in confirmations.listing(home.db):
                with suppress(ConflictError):
                    _answer(home, asked, seed)
            _retry_some(home, seed)
        rest()


def is_answered(seed: int, confirmation_id: str) -> bool:
    """Whether the operator will ever answer this question."""
    return chance(seed, NEVER, confirmation_id) > 0.02


def _answer(home: Home, asked: Confirmation, seed: int) -> None:
    if not is_answered(seed, asked.id):
        return
    undecided = [step for step in confirmations.steps(home.db, asked.id) if step.decision is None]
    for step in undecided:
        _decide(home, asked, step, chance(seed, asked.id, step.step_key))
    if not undecided and chance(seed, asked.id) < 0.05:
        confirmations.reject(home.db, asked.id, by="operator", reason="chance", now=home.now())
    elif not undecided:
        confirmations.approve(home.db, asked.id, by="operator", now=home.now())


def _decide(home: Home, asked: Confirmation, step: ConfirmationStep, how: float) -> None:
    if how < 0.5:
        answers.again(home, asked.id, step.step_key, by="operator")
    elif how < 0.8:
        answers.ran(home, asked.id, step.step_key, 0, by="operator")
    else:
        answers.abandon(home, asked.id, step.step_key, by="operator")


def _retry_some(home: Home, seed: int) -> None:
    failed, _ = tasks.listing(home.db, status=TaskStatus.FAILED, limit=20)
    for task in failed:
        if chance(seed, "retry", task.id, task.attempt) < 0.3:
            with suppress(ConflictError):
                retries.by_person(home.db, task.id, by="operator", now=home.now())


def recoverer(home: Home, seed: int) -> None:
    """Run one recovery pass after the other, so that a blow falls into one."""
    while not witness.is_open(f"{OVER}-for-all"):
        with suppress(StorageError):
            recovery_job.recover(home)
        rest()


def live(home: Home) -> int:
    """How many tasks have not ended."""
    return sum(n for status, n in tasks.counts(home.db).items() if not TaskStatus(status).is_terminal())


def lines_in(folder: Path, file: str) -> list[str]:
    """What was noted in a file, line by line."""
    path = folder / file
    return path.read_text().splitlines() if path.exists() else []


def rest() -> None:
    threading.Event().wait(LOOK_S)


def main(args: Sequence[str]) -> None:
    """Be the person that the first word names; what the nursery calls in a fork of its own."""
    role, *numbers = args
    roles: dict[str, Callable[..., None]] = {"client": client, "operator": operator, "recoverer": recoverer}
    home = Home.open(settings.load())
    roles[role](home, *map(int, numbers))
    home.close()
