"""Wake-ups between processes: one FIFO per listening process in `bells/`, named after the topics it listens to.

Invariant: a bell is rung after the commit and means "look again at everything you wait for". It carries nothing,
coalesces, and may ring for nothing. Whoever reads `generation`, looks, and then waits for a later generation misses no
ring: a FIFO keeps what nobody has read yet.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import secrets
import select
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..models import forks

log = logging.getLogger("relight.bells")

FOLDER = "bells"
_SETTLED_NS = 50_000_000  # folder times tick with the kernel (4–10 ms): a younger one may hide a later change
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class Bell:
    """What one process waits on: the FIFO that others ring, and a count of the rings that were heard.

    There is no listener thread: of the threads that wait, one polls the FIFO and wakes the others, so that a ring
    costs one switch of threads, and a process in which nobody waits is not disturbed at all.
    """

    def __init__(self, folder: Path, topics: frozenset[str]) -> None:
        self.folder, self.topics = folder / FOLDER, topics
        self.path: Path | None = None
        self.rebuilt = 0
        self._generation = 0
        self._polling = self._closed = False
        self._reset()
        forks.guard.register(self)

    def start(self) -> None:
        """Create the FIFO, once; waiting does it too. A look that was made before is not trusted any more."""
        with self._changed:
            if self._fd < 0 and not self._closed:
                self._hang_up()
                self._ring_inside()

    @property
    def generation(self) -> int:
        """How many rings were heard; read it before looking."""
        return self._generation

    def wait(self, seen: int, timeout: float | None = None) -> int:
        """Block until a ring later than `seen` is heard or `timeout` seconds have passed; the generation then."""
        self.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                while self._generation <= seen and (self._polling or self._closed):
                    if not self._changed.wait(_left(deadline)):
                        return self._generation
                if self._generation > seen:
                    return self._generation
                self._polling, fd = True, self._fd
            heard = False
            try:
                heard = _heard(fd, _left(deadline))
            finally:
                self._leave(heard)
            if not heard:
                self._rebuild_if_deaf()
                return self._generation

    def poke(self) -> None:
        """Wake those who wait in this process. Never from a signal handler, which could find the mutex taken."""
        with self._changed:
            self._ring_inside()

    def close(self) -> None:
        """Take the FIFO away; whoever still waits goes on until a poke or the end of its time."""
        with self._changed:
            self._closed = True
            self._take_down()
            self._ring_inside()

    def close_inherited(self) -> None:
        """In a forked child: drop the parent's FIFO, which stays where it is; the next wait hangs a bell of its own."""
        for fd in (self._fd, *self._old):
            if fd >= 0:
                os.close(fd)
        self._reset()
        self._generation += 1

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._fd, self._old = -1, list[int]()
        self.path = None
        self._polling = self._closed = False

    def _hang_up(self) -> None:
        """A visible bell always has its reader: it gets its name only when it is open, and its name never twice."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ident = secrets.token_hex(8)
        unnamed = self.folder / f".{ident}"
        os.mkfifo(unnamed, 0o600)
        with forks.guard:
            self._fd = os.open(unnamed, os.O_RDWR | _FLAGS)
        self.path = self.folder / f"{'+'.join(sorted(self.topics))}.{ident}"
        os.rename(unnamed, self.path)

    def _take_down(self) -> None:
        if self._fd >= 0 and self.path is not None:
            with suppress(FileNotFoundError):
                self.path.unlink()
            self._old.append(self._fd)
            self._fd, self.path = -1, None

    def _ring_inside(self) -> None:
        self._generation += 1
        self._changed.notify_all()
        for fd in (self._fd, *self._old):
            if self._polling and fd >= 0:
                _strike(fd)
        self._close_old()

    def _leave(self, heard: bool) -> None:
        with self._changed:
            self._polling = False
            self._generation += heard
            self._close_old()
            self._changed.notify_all()

    def _close_old(self) -> None:
        """Descriptors are closed when nobody polls them: their number may go to another file."""
        while self._old and not self._polling:
            os.close(self._old.pop())

    def _rebuild_if_deaf(self) -> None:
        """A bell whose file is gone, or is another's, hears nothing: hang up a new one and count it."""
        with self._changed:
            if self.path is None or _same_file(self.path, self._fd):
                return
            self.rebuilt += 1
            log.warning(
                "a bell was deaf and is rebuilt", extra={"bell": self.path.name, "rebuilt": self.rebuilt}
            )
            self._old.append(self._fd)
            self._fd = -1
            self._hang_up()
            self._ring_inside()


class _Listing(NamedTuple):
    stamp: int
    trusted: bool
    bells: dict[str, tuple[frozenset[str], int]]  # by file name: topics and our writing end


class Ringer:
    """Rings the bells of one folder, keeping them open: a second ring costs a `stat` and a `write`, not a directory walk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self._reset()
        forks.guard.register(self)

    def ring(self, topics: Collection[str]) -> int:
        """Ring whoever listens to one of the topics; how many could hear it. Never raises: the commit has happened."""
        with self._mutex:
            try:
                return self._ring(topics)
            except OSError as error:
                log.warning("could not ring", extra={"topics": sorted(topics), "error": str(error)})
                return 0

    def close(self) -> None:
        """Close the writing ends."""
        with self._mutex:
            self.close_inherited()

    def close_inherited(self) -> None:
        for _, fd in self._listing.bells.values():
            os.close(fd)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._listing = _Listing(-1, False, {})

    def _ring(self, topics: Collection[str]) -> int:
        heard = 0
        for name, (theirs, fd) in list(self._current().items()):
            if theirs.isdisjoint(topics):
                continue
            if _strike(fd):
                heard += 1
            else:
                self._forget(name)
        return heard

    def _current(self) -> dict[str, tuple[frozenset[str], int]]:
        known = self._listing
        try:
            stamp = self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            stamp = -1
        if known.trusted and known.stamp == stamp:
            return known.bells
        trusted = time.time_ns() - stamp > _SETTLED_NS
        names = (
            {name for name in os.listdir(self.folder) if not name.startswith(".")} if stamp >= 0 else set()
        )
        for name in known.bells.keys() - names:
            os.close(known.bells.pop(name)[1])
        for name in names - known.bells.keys():
            self._open(name)
        self._listing = _Listing(stamp, trusted, known.bells)
        return known.bells

    def _open(self, name: str) -> None:
        try:
            with forks.guard:
                fd = os.open(self.folder / name, os.O_WRONLY | _FLAGS)
                self._listing.bells[name] = (frozenset(name.rpartition(".")[0].split("+")), fd)
        except OSError as error:
            if error.errno == errno.ENXIO:
                self._unlink(name)
            elif error.errno != errno.ENOENT:
                log.warning("a bell cannot be opened", extra={"bell": name, "error": str(error)})

    def _forget(self, name: str) -> None:
        os.close(self._listing.bells.pop(name)[1])
        self._unlink(name)

    def _unlink(self, name: str) -> None:
        """A named bell without a reader is a dead process's: readers open before they name."""
        with suppress(FileNotFoundError):
            os.unlink(self.folder / name)


def ring(folder: Path, topics: Collection[str]) -> int:
    """Ring once whoever listens in the state directory `folder`; how many could hear it."""
    ringer = Ringer(folder)
    try:
        return ringer.ring(topics)
    finally:
        ringer.close()


def listeners(folder: Path, topic: str) -> int:
    """How many living processes listen to a topic, without waking them; 0 where that cannot be seen."""
    ringer = Ringer(folder)
    try:
        return sum(topic in topics for topics, _ in ringer._current().values())
    except OSError as error:
        log.warning("the bells cannot be seen", extra={"folder": str(ringer.folder), "error": str(error)})
        return 0
    finally:
        ringer.close()


def _heard(fd: int, timeout: float | None) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if not poller.poll(None if timeout is None else math.ceil(timeout * 1000)):
        return False
    with suppress(BlockingIOError):
        os.read(fd, 65536)
    return True


def _strike(fd: int) -> bool:
    """One byte into a FIFO; a full one has rung already. False when nobody reads any more."""
    try:
        os.write(fd, b"!")
    except BlockingIOError:
        return True
    except BrokenPipeError:
        return False
    return True


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _same_file(path: Path, fd: int) -> bool:
    try:
        there, ours = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)
