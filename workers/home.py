"""A state directory, opened by this process: its settings, its database, its bells, and this process's ownership.

Invariant: nothing is opened at import. A directory is created whole, with its policy file, at first use; one that
exists is never completed, so a policy file that somebody removed stays missing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NoReturn

from platformdirs import user_state_path

from ..models import forks, schema
from ..models.database import Database
from ..models.errors import StorageUnreadableError
from . import policy_file, settings
from .bells import Bell, Ringer
from .clock import now_ms
from .ownership import Owner
from .settings import Settings

STATE_FILE = "state.db"


class Home:
    """One opened state directory; safe to share between threads, and usable after a fork."""

    def __init__(self, told: Settings, db: Database) -> None:
        self.settings, self.db = told, db
        self._ringer = Ringer(told.home)
        self._bells: dict[frozenset[str], Bell] = {}
        self._owner: Owner | None = None
        self._mutex = threading.RLock()
        db.ring = self._ringer.ring
        forks.guard.register(self)

    @classmethod
    def open(cls, told: Settings) -> Home:
        """Open the directory that the settings name, creating it where it is absent; raises StorageError."""
        _create_folder(told.home)
        state = told.home / STATE_FILE
        if not state.exists():
            policy_file.create(told.home)
        now = now_ms(told.test_clock)
        return cls(
            told, schema.open_database(state, now=now, gate_ms=told.gate_ms, durability=told.durability)
        )

    @classmethod
    def current(cls) -> Home:
        """The directory that environment and working directory name now; opened once for each of them."""
        if _adopted is not None:
            return _adopted
        said = (os.getcwd(), *map(os.environ.get, settings.VARIABLES))
        with _opened_mutex:
            if said not in _opened:
                told = settings.load()
                same = next((home for home in _opened.values() if home.settings == told), None)
                _opened[said] = same or cls.open(told)
            return _opened[said]

    def adopt(self) -> None:
        """Make this the directory that `current` gives in this process, whatever the environment says."""
        global _adopted
        _adopted = self

    @property
    def path(self) -> Path:
        """The directory."""
        return self.settings.home

    def now(self) -> int:
        """The time that policy goes by, in epoch ms."""
        return now_ms(self.settings.test_clock)

    def bell(self, *topics: str) -> Bell:
        """This process's bell for these topics."""
        wanted = frozenset(topics)
        with self._mutex:
            if wanted not in self._bells:
                self._bells[wanted] = Bell(self.path, wanted)
            return self._bells[wanted]

    def owner(self, lane: str) -> Owner:
        """This process's identity, made at its first claim; a forked child gets its own."""
        with self._mutex:
            if self._owner is None or not self._owner.alive:
                self._owner = Owner.start(
                    self.db, self.path, lane, clock=self.now, lease_ms=self.settings.lease_ms
                )
            return self._owner

    @property
    def claimant(self) -> Owner | None:
        """This process's identity, if it has one yet."""
        return self._owner if self._owner is not None and self._owner.alive else None

    def close_inherited(self) -> None:
        """In a forked child: another thread of the parent may have held the mutex; what it guards resets itself."""
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Sign off and close everything that is open."""
        with self._mutex:
            if self._owner is not None:
                self._owner.retire()
            for bell in self._bells.values():
                bell.close()
            self._bells.clear()
            self._ringer.close()
            self.db.close_all()


_opened: dict[tuple[str | None, ...], Home] = {}
_opened_mutex = threading.Lock()
_adopted: Home | None = None


def _renew_opened_mutex() -> None:
    global _opened_mutex
    _opened_mutex = threading.Lock()


os.register_at_fork(after_in_child=_renew_opened_mutex)  # another thread of the parent may have held it


def refuse_absent(folder: Path) -> None:
    """Raise StorageUnreadableError where there is no state: only a verb that begins something creates one."""
    if not folder.is_dir() and folder.exists():
        _refuse_file(folder)
    if not (folder / STATE_FILE).exists():
        raise StorageUnreadableError(
            f"no state in {folder}: relight init creates it, or set --home or RELIGHT_HOME"
        )


def _refuse_file(folder: Path) -> NoReturn:
    raise StorageUnreadableError(f"{folder} is a file, not a directory; correct --home or RELIGHT_HOME")


def _create_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    if folder.exists():
        _refuse_file(folder)
    is_ours = folder == user_state_path("relight")  # the platform's place: its parents may be made too
    try:
        folder.mkdir(mode=0o700, parents=is_ours, exist_ok=True)
    except OSError as error:
        raise StorageUnreadableError(
            f"{folder}: the state directory cannot be created ({error.strerror}); correct RELIGHT_HOME or make its parent"
        ) from error
