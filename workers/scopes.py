"""Where in a run a step is called: the scope path that makes step keys the same in every replay.

Invariant: every asyncio task made inside a run is a scope of its own, numbered in creation order within its parent, so
a key never depends on timing. Threads have no such order; there `run.branch(name)` names the scope by hand.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from ..models.errors import MisuseError

if TYPE_CHECKING:
    import asyncio

    from .recording import Recorder
    from .steps import StepContext


class Scope:
    """One strand of a run, in which steps are called one after another."""

    def __init__(self, run: Recorder, path: str = "") -> None:
        self.run, self.path = run, path
        self.thread = threading.get_ident()
        self._children = 0
        self._seen: Counter[str] = Counter()
        self._branches: set[str] = set()

    def enter_thread(self) -> None:
        """From now on the steps of this scope are called in the current thread."""
        self.thread = threading.get_ident()

    def key(self, name: str) -> str:
        """The key of the next step of this name; it is taken when the step is called."""
        if threading.get_ident() != self.thread:
            raise MisuseError(
                f"step {name} was called in another thread than its scope; open one there: with run.branch(NAME): …"
            )
        self._seen[name] += 1
        return f"{self.path}{name}#{self._seen[name]}"

    def child(self) -> Scope:
        """The scope of an asyncio task that is being created in this one."""
        self._children += 1
        return Scope(self.run, f"{self.path}{self._children}/")

    def branch(self, name: str) -> Scope:
        """The scope that is opened by hand under a name, used once in its parent."""
        if not name or set(name) & set("/#") or name.isdecimal():
            raise MisuseError(f"branch name {name!r}: give a word without / and #, and not a number")
        if name in self._branches:
            raise MisuseError(
                f"branch {name!r} was opened before in {self.path or 'the root scope'}; use another name"
            )
        self._branches.add(name)
        return Scope(self.run, f"{self.path}{name}/")


current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("relight_scope", default=None)
step: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar("relight_step", default=None)


def task_factory(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    *,
    context: contextvars.Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    """Create an asyncio task; inside a run it becomes the next child scope of the one that creates it.

    What the body of a step creates is no scope: replay does not run the body, and would number the others differently.
    """
    from asyncio import Task  # not above: verbs that only answer would pay for it; here it is loaded anyway

    context = context or contextvars.copy_context()
    parent = context.get(current)
    if parent is not None and context.get(step) is None:
        context.run(current.set, parent.child())
    task: asyncio.Task[Any] = Task(coro, loop=loop, context=context, **options)
    if parent is not None:
        parent.run.tasks.add(task)
    return task
