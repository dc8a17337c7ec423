"""Work that one process of a state directory does at a time, admitted by a kernel lock that ends with its holder.

Invariant: a forked child closes the descriptor that it inherited, so that it never keeps its parent's lock alive.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from ..models import forks
from .lock_files import FOLDER

_LOOK_S = 0.02


class Exclusive:
    """A lock `locks/<name>` of a state directory, held from `take` to the end of the block."""

    def __init__(self, home: Path, name: str) -> None:
        self.path, self._fd = home / FOLDER / name, -1
        forks.guard.register(self)

    def __enter__(self) -> Self:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with forks.guard:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        self.close_inherited()

    def take(self, *, wait_s: float = 0.0) -> bool:
        """Whether the lock is ours, at the latest after `wait_s` seconds; the file then holds our pid."""
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        with suppress(OSError):  # on a full disk nobody learns the pid, and that is all
            os.pwrite(self._fd, b"%-10d\n" % os.getpid(), 0)
        return True

    def holder(self) -> str:
        """The pid that took the lock last, as text; nothing where it cannot be read."""
        return os.pread(self._fd, 10, 0).decode("ascii", "replace").strip()

    def close_inherited(self) -> None:
        """Close; the lock is free once nobody has this descriptor."""
        with forks.guard:  # a fork between the two would leave the child a descriptor that nobody closes
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
