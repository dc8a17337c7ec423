"""Who holds SQLite's own locks on a state file, asked of the kernel; nothing is taken but by `Alone`.

Invariant: only for a process that has not opened the file with SQLite: closing any descriptor of a file drops all POSIX
locks that the process has on it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import Self

# Where SQLite puts its locks: on the file from this byte (os_unix.c, SHARED_FIRST), every connection in WAL mode holds
# the shared one for as long as it is open; in the -shm file (wal.c, WAL_WRITE_LOCK) the byte of the one writer.
_SHARED_AT, _SHARED_BYTES = 0x4000_0002, 510
_WRITER_AT = 120
_STRUCT = "qqihh" if sys.platform == "darwin" else "hhqqi4x"  # struct flock


def readers(state: Path) -> int | None:
    """A process that has the file open, or None."""
    return _holder(state, _SHARED_AT, _SHARED_BYTES)


def writer(state: Path) -> int | None:
    """The process that is inside a write transaction now, or None."""
    return _holder(state.with_name(f"{state.name}-shm"), _WRITER_AT, 1)


def flocked(file: Path) -> int | None:
    """The process that holds a lock of ours (`flock`), -1 where it cannot be told which, or None."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _flock_pid(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _flock_pid(file: os.stat_result) -> int:
    """What Linux lists: `1: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF`."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return -1
    words = [line.split() for line in lines if place in line and " FLOCK " in line and "->" not in line]
    return int(words[0][4]) if words else -1


class Alone:
    """The proof that no process has a state file open, for as long as the block lasts: new ones wait outside."""

    def __init__(self, state: Path) -> None:
        self.state, self._fd = state, -1

    def __enter__(self) -> Self:
        if self.state.exists():
            self._fd = os.open(self.state, os.O_RDWR | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def take(self) -> bool:
        """Whether nobody has it open; a file that is not there is open nowhere."""
        try:
            if self._fd >= 0:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_AT)
        except OSError:
            return False
        return True


def _holder(file: Path, start: int, length: int) -> int | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _packed(start, length))
    finally:
        os.close(descriptor)
    kind, pid = _unpacked(answer)
    return None if kind == fcntl.F_UNLCK else pid


def _packed(start: int, length: int) -> bytes:
    """Ask for a write lock, so that every lock there is in the way."""
    if sys.platform == "darwin":
        return struct.pack(_STRUCT, start, length, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return struct.pack(_STRUCT, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)


def _unpacked(answer: bytes) -> tuple[int, int]:
    fields = struct.unpack(_STRUCT, answer)
    return (fields[3], fields[2]) if sys.platform == "darwin" else (fields[0], fields[4])
