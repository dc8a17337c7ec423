"""The whole examination: every check in its order, and none that keeps another from being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ...models import inspection
from ...models.errors import RelightError, StorageError
from ...models.inspection import LookOnly
from ..home import STATE_FILE
from ..settings import Settings
from . import findings, machine, processes, state
from .findings import Finding, Level

Check = Callable[[Settings], Finding | Iterator[Finding]]


def examine(settings: Settings) -> list[Finding]:
    """Look at everything. Locks come before anything opens the state: see `lock_holders`."""
    found = _looked_at(settings)
    # Shown first and asked last: the agents are loaded by now, and they may have brought another library.
    return [*_asked("sqlite", machine.sqlite, settings), *found]


def _looked_at(settings: Settings) -> list[Finding]:
    if not settings.home.is_dir():
        advice = "correct RELIGHT_HOME, or create it: relight init"
        return [findings.fault("home", f"{settings.home} is no folder", advice)]
    found = [one for name, check in _CHECKS for one in _asked(name, check, settings)]
    return found + _opened(settings, found)


def _asked(name: str, check: Check, settings: Settings) -> list[Finding]:
    """What a check finds; one that cannot be made is a fault of its own."""
    try:
        told = check(settings)
        return [told] if isinstance(told, Finding) else list(told)
    except (RelightError, OSError) as error:
        return [findings.fault(name, f"cannot be looked at: {error}", "repair what it says, then ask again")]


def _opened(settings: Settings, found: list[Finding]) -> list[Finding]:
    """What can be seen only in an open state file."""
    if any(one.level == Level.FAULT and one.check == "state file" for one in found):
        return []
    told = _looked_into(settings)
    # Without a log the file is read as it lies there; whoever opened it meanwhile may have written under our eyes.
    changed = any(one.check == "integrity" and one.level == Level.FAULT for one in told)
    return _looked_into(settings) if changed and inspection.has_log(settings.home / STATE_FILE) else told


def _looked_into(settings: Settings) -> list[Finding]:
    try:
        with inspection.look(settings.home / STATE_FILE) as db:
            return [*state.content(settings, db), *_workers(settings, db)]
    except StorageError as error:
        return [findings.warning("state file", str(error), "run relight status, then ask again")]


def _workers(settings: Settings, db: LookOnly) -> list[Finding]:
    try:
        return list(processes.living(settings, db))
    except StorageError as error:
        return [processes.unreadable("workers", error)]


_CHECKS: tuple[tuple[str, Check], ...] = (
    ("file system", machine.file_system),
    ("free space", machine.free_space),
    ("fsync", machine.fsync),
    ("permissions", machine.permissions),
    ("policy", state.policy),
    ("write lock", processes.write_lock),
    ("state file", state.file),
)


def document(home: Path, found: list[Finding]) -> dict[str, object]:
    """The examination as JSON's own types."""
    return {"home": str(home), "level": str(findings.worst(found)), "checks": [vars(one) for one in found]}
