"""Kills or stops the process it is loaded into, at a chosen moment of a chosen task's life.

A task's prompt names its moments, separated by `;`; each strikes once, whatever restarts afterwards:

    uncommitted EVENT N   in the write transaction of the task's N-th EVENT, its statements executed, nothing committed
    committed EVENT N     right after that transaction's commit, before anybody is told
    PLACE N               where the agent or a step says `strikes.at(PLACE, N)`
    before-next PLACE N   as the thread that was at PLACE begins its next write transaction

`kill` (SIGKILL) is the default; with `stop:` in front the process stops (SIGSTOP) instead, and
`gate:`, `turn:`, `inside:` stop it where it holds the write gate, waits at it with the turn, or is in its transaction,
in the next write after PLACE.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relight.models import events, gate
from relight.models.database import Database, Durability
from tests.crash import witness


class _Here(threading.local):
    depth: int = 0
    told: list[tuple[str, str, int]] | None = None
    armed: tuple[str, str] | None = None  # how, and for which moment


_here = _Here()
_write, _record, _acquire = Database.write, events.record, gate.WriteGate.acquire
_prompts: dict[str, list[str]] = {}


def at(place: str, number: int, *, prompt: str, task_id: str) -> None:
    """Strike here if the task's prompt says so."""
    moments = prompt.split(";")
    if f"{place} {number}" in moments:
        _strike(task_id, f"{place} {number}", signal.SIGKILL)
    if f"stop:{place} {number}" in moments:
        _strike(task_id, f"stop:{place} {number}", signal.SIGSTOP)
    for how in ("before-next ", "gate:", "turn:", "inside:"):
        if f"{how}{place} {number}" in moments:
            _here.armed = (how, f"{task_id}:{how}{place} {number}")


def _strike(task_id: str, moment: str, number: int) -> None:
    if _mark(task_id, moment):
        _send(number)


def _mark(task_id: str, moment: str) -> bool:
    """Whether it is the first time that this moment comes."""
    first = witness.once(f"{task_id}:{moment}")
    if first:
        witness.note(os.getpid(), task_id, moment.replace(" ", "_"), file="strikes")
    return first


def _send(number: int) -> None:
    signal.pthread_kill(threading.get_ident(), number)  # this very thread goes no further


def _strike_armed(how: str, number: int) -> None:
    if _here.armed is not None and _here.armed[0] == how:
        task_id, _, moment = _here.armed[1].partition(":")
        _here.armed = None
        _strike(task_id, moment, number)


@contextmanager
def _writing(self: Database, durability: Durability = Durability.FULL) -> Iterator[None]:
    if _here.depth:
        with _write(self, durability):
            yield
        return
    _strike_armed("before-next ", signal.SIGKILL)
    _here.depth, _here.told = 1, []
    try:
        with _write(self, durability):
            yield
            _strike_armed("inside:", signal.SIGSTOP)
            _strike_told("uncommitted")
        _strike_told("committed")
    finally:
        _here.depth, _here.told = 0, None


def _recording(db: Database, task_id: str, event_type: str, payload: Any, *, now: int) -> None:
    _record(db, task_id, event_type, payload, now=now)
    row = db.row("SELECT task_prompt FROM agent_tasks WHERE id = ?", (task_id,))
    _prompts[task_id] = str(row[0]).split(";") if row else []
    if _here.told is not None and any(event_type in moment for moment in _prompts[task_id]):
        counted = db.row(
            "SELECT count(*) FROM agent_events WHERE task_id = ? AND event_type = ?", (task_id, event_type)
        )
        _here.told.append((task_id, event_type, counted[0] if counted else 0))


def _strike_told(when: str) -> None:
    """One transaction may hold events of several tasks: all of them are struck by one signal."""
    moments = [(task_id, f"{when} {event} {number}") for task_id, event, number in _here.told or ()]
    marks = [_mark(task_id, moment) for task_id, moment in moments if moment in _prompts[task_id]]
    if any(marks):
        _send(signal.SIGKILL)


def _passing(self: gate.WriteGate) -> bool:
    passed = _acquire(self)
    _strike_armed("gate:", signal.SIGSTOP)
    return passed


class _Locking:
    """The locks as the gate uses them; the first that it takes is the turn."""

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)

    def flock(self, fd: int, how: int) -> None:
        fcntl.flock(fd, how)
        if how & fcntl.LOCK_EX:
            _strike_armed("turn:", signal.SIGSTOP)


def load() -> None:
    """Take effect in this process."""
    Database.write = _writing  # type: ignore[method-assign]
    events.record = _recording
    gate.WriteGate.acquire = _passing  # type: ignore[method-assign]
    gate.fcntl = _Locking()  # type: ignore[assignment, attr-defined]


if witness.VARIABLE in os.environ:
    load()
