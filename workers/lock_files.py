"""The lock file of a process that runs tasks: a kernel lock, a nonce that says whose it is, and a counter that moves.

Invariants: plain `os.open` and `flock`, so that the kernel frees the lock at death, whatever the pid, container or host
name; a file gets its name when it is locked and complete; whoever looks at another's file never creates it. A forked
child closes what it inherited: unlocking would free the parent's lock, keeping it would outlive the parent.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from ..models import forks

FOLDER = "locks"
NONCE_DIGITS = 32
_COUNTER_AT = NONCE_DIGITS + 1  # after a line break
_COUNTER = "%020d\n"


class HeldLock:
    """Our own lock file, locked until we die or close it."""

    def __init__(self, path: Path, nonce: str) -> None:
        self.path, self.nonce = path, nonce
        self._count = 0
        self._fd = -1
        self._mutex = threading.Lock()

    @classmethod
    def create(cls, path: Path, nonce: str) -> Self:
        """Create, lock, fill, make durable, and only then name the file: whoever finds it can believe it.

        After a power cut the row needs its file; without it nothing would ever prove this owner dead.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unnamed = path.with_name(f".{path.name}")
        lock = cls(path, nonce)
        forks.guard.register(lock)
        with forks.guard:
            lock._fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(lock._fd, f"{nonce}\n{_COUNTER % 0}".encode(), 0)
        os.fsync(lock._fd)
        os.rename(unnamed, path)
        _fsync_folder(path.parent)
        return lock

    @property
    def held(self) -> bool:
        """Whether this process holds the lock; false in a forked child and after the end."""
        return self._fd >= 0

    @property
    def inode(self) -> int:
        """The inode that a prober compares with the worker's row."""
        return os.fstat(self._fd).st_ino

    def count(self) -> None:
        """Move the counter, which says that this process still runs."""
        with self._mutex:  # the number of a closed descriptor may go to another file
            if self.held:
                self._count += 1
                os.pwrite(self._fd, (_COUNTER % self._count).encode(), _COUNTER_AT)

    def close(self) -> None:
        """Give the lock up; the file stays for a sweep to remove."""
        with self._mutex:
            self._close()

    def close_inherited(self) -> None:
        """In a forked child: close; the lock stays the parent's alone."""
        self._mutex = threading.Lock()
        self._close()

    def _close(self) -> None:
        with forks.guard:  # a fork between the two would leave the child a descriptor that nobody closes
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class SeenLock:
    """A lock file as others see it: opened if it is there, closed at the end of the block."""

    def __init__(self, path: Path) -> None:
        self.path, self._fd = path, -1
        forks.guard.register(self)

    def __enter__(self) -> Self:
        with suppress(FileNotFoundError), forks.guard:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        self.close_inherited()

    def close_inherited(self) -> None:
        """Close; the lock is free once nobody has this descriptor."""
        with forks.guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def read(self) -> bytes:
        """The nonce and the counter; nothing if the file is not there or not filled yet."""
        return os.pread(self._fd, 64, 0) if self._fd >= 0 else b""

    def belongs_to(self, *, inode: int, nonce: str) -> bool:
        """Whether this is the very file that its owner made: a missing one, a copy or a newcomer proves nothing."""
        return (
            self._fd >= 0
            and os.fstat(self._fd).st_ino == inode
            and self.read()[:NONCE_DIGITS] == nonce.encode()
        )

    def take(self) -> bool:
        """Take the lock if nobody holds it: whoever held it is dead."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def remove(self) -> None:
        """Take the file away, while its lock is ours."""
        with suppress(FileNotFoundError):
            self.path.unlink()


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
