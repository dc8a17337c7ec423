"""Keeps SQLite and locks correct across `os.fork`, whoever calls it (a step, a pool, multiprocessing).

Invariant: no statement runs while the process forks, and a child closes every descriptor and connection that it
inherited before it opens one of its own. An inherited SQLite connection that is used, or abandoned and collected
later, loses commits that the parent acknowledged; an inherited lock descriptor keeps a dead owner's lock alive.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol


class Inherited(Protocol):
    """Something that holds descriptors or connections which a forked child must drop."""

    def close_inherited(self) -> None:
        """Close (never unlock) what came over the fork; called in the child, before anything else runs."""


class ForkGuard:
    """A lock that statements share and that a fork takes alone."""

    def __init__(self) -> None:
        self._reset()
        self._holders: weakref.WeakSet[Inherited] = weakref.WeakSet()
        os.register_at_fork(
            before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def register(self, holder: Inherited) -> None:
        """Have `holder.close_inherited()` called in every forked child."""
        self._holders.add(holder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the block while no statement of another thread runs."""
        self._before()
        try:
            yield
        finally:
            self._after_in_parent()

    def __enter__(self) -> None:
        depth = getattr(self._local, "depth", 0)
        if depth == 0:
            with self._changed:
                while self._forking or self._wanting:  # a wish counts: busy threads are never all outside
                    self._changed.wait()
                self._inside += 1
        self._local.depth = depth + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._local.depth -= 1
        if self._local.depth == 0:
            with self._changed:
                self._inside -= 1
                if self._inside <= 1:  # 1: the forking thread itself may be inside
                    self._changed.notify_all()

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._wanting = 0
        self._forking = False
        self._local = threading.local()

    def _before(self) -> None:
        mine = 1 if getattr(self._local, "depth", 0) else 0
        with self._changed:
            self._wanting += 1
            try:
                while self._forking or self._inside > mine:
                    self._changed.wait()
            finally:
                self._wanting -= 1
            self._forking = True

    def _after_in_parent(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def _after_in_child(self) -> None:
        self._reset()
        for holder in list(self._holders):
            holder.close_inherited()


guard = ForkGuard()
