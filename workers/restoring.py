"""Putting a backup in the place of the state: refused while anybody uses it, whole or not at all.

Invariant: at every moment there is either the old state with its log, or the new one without, or an empty stand-in that
every verb refuses. The replaced file is kept in `backups/`. A restore that was killed is simply run again.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..models import backups, copies, inspection, unnamed_blobs
from ..models.copies import Told, silent
from ..models.errors import ConflictError
from . import lock_holders
from .exclusive import Exclusive
from .home import STATE_FILE
from .lock_files import FOLDER, SeenLock

PATIENCE_S = 1.0  # a recovery pass and a slice of upkeep are short
_LOCK_NAME_LENGTH = 36  # of a UUID: the lock of a worker


@dataclass
class Restored:
    """What was put in place: where the replaced state is now, and the blobs that the restored one misses."""

    state: Path
    replaced: Path | None = None
    tasks: int = 0
    missing: list[str] = field(default_factory=list)
    policy: str = "kept"

    def document(self) -> dict[str, Any]:
        """The same as JSON's own types."""
        return {**vars(self), "state": str(self.state), "replaced": self.replaced and str(self.replaced)}


def restore(home: Path, source: Path, *, now: int, told: Told = silent) -> Restored:
    """Put the state of a backup (a folder, or a state file alone) in the place of this one's.

    Raises ConflictError while a process uses the state directory, StorageError for a backup that cannot be used.
    """
    with copies.storage_errors(home / STATE_FILE):
        return _restored(home, backups.state_file(source), now=now, told=told)


def _restored(home: Path, file: Path, *, now: int, told: Told) -> Restored:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
    state, draft = home / STATE_FILE, home / f".{STATE_FILE}.restored"
    with ExitStack() as held:
        _refuse_while_used(home, held)
        had_state = state.exists()
        backups.draft(file, draft, now=now, told=told)
        done = Restored(state)
        done.tasks, done.missing = _bring_blobs(file.parent, home, draft, told)
        if not had_state:
            done.policy = "restored" if backups.copy_policy(file.parent, home) else "missing"
        done.replaced = _replace(state, draft, now=now)
    return done


def _refuse_while_used(home: Path, held: ExitStack) -> None:
    """Nobody works here, opens the state, migrates or tidies it, for as long as `held` is."""
    if (home / STATE_FILE).is_dir():
        raise ConflictError(f"{home / STATE_FILE} is a folder; move it away first")
    running = _working(home)
    if running:
        raise ConflictError(f"{home}: {running} run; stop them first (relight up and every worker)")
    for name in ("migrate", "sweep", "tidy"):
        lock = held.enter_context(Exclusive(home, name))
        if not lock.take(wait_s=PATIENCE_S):
            raise ConflictError(
                f"{home}: another process holds locks/{name} (pid {lock.holder() or 'unknown'})"
            )
    alone = held.enter_context(lock_holders.Alone(home / STATE_FILE))
    if not alone.take():
        pid = lock_holders.readers(home / STATE_FILE)
        raise ConflictError(f"{home}: process {pid or 'unknown'} has the state open; end it first")


def _working(home: Path) -> str:
    """How many workers hold their lock."""
    count = 0
    for name in os.listdir(home / FOLDER):
        if len(name) == _LOCK_NAME_LENGTH:
            with SeenLock(home / FOLDER / name) as lock:
                count += not lock.take()
    return f"{count} worker process{'es' if count > 1 else ''}" if count else ""


def _bring_blobs(source: Path, home: Path, draft: Path, told: Told) -> tuple[int, list[str]]:
    with inspection.look(draft) as restored:
        named, count = unnamed_blobs.named(restored), inspection.task_count(restored)
    missing = backups.copy_blobs(source / backups.BLOBS, home / backups.BLOBS, named, told=told)
    return count, missing


def _replace(state: Path, draft: Path, *, now: int) -> Path | None:
    """Give the draft its name. The log of the old state must never meet the new one, so it goes before.

    SQLite never opens the old state here: closing a damaged file, it removes the log.
    """
    log = state.with_name(f"{state.name}-wal")
    kept = _keep(state, log, now=now)
    if log.exists():
        stand_in = state.with_name(f".{state.name}.stand-in")
        stand_in.write_bytes(b"")
        os.rename(stand_in, state)
        copies.sync(state.parent)
        log.unlink()
    state.with_name(f"{state.name}-shm").unlink(missing_ok=True)
    copies.sync(state.parent)
    os.rename(draft, state)
    copies.sync(state.parent)
    return kept


def _keep(state: Path, log: Path, *, now: int) -> Path | None:
    """Second names, in `backups/`, for what is left of the old state and its log; where the state then is."""
    left = [file for file in (state, log) if file.exists() and file.stat().st_size > 0]
    if not left:
        return None
    folder = state.parent / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / f"replaced-{now}.db"
    for file in left:
        copies.second_name(file, folder / f"{kept.name}{file.name.removeprefix(state.name)}")
    copies.sync(folder)
    return kept
