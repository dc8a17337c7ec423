"""Whether this thread imports the user's modules right now: a file of agents declares them, it does not enqueue.

Invariant: what a worker imports at each of its starts would otherwise become a new task each time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from ..models.errors import InputError
from . import tracebacks

_app: ContextVar[str | None] = ContextVar("relight_loading_app", default=None)


@contextmanager
def app(entry: str) -> Iterator[None]:
    """In the block, the modules of this app are imported."""
    token = _app.set(entry)
    try:
        yield
    finally:
        _app.reset(token)


def refuse() -> None:
    """Raise InputError, naming the line, where a module enqueues while it is imported as an app."""
    entry = _app.get()
    if entry is not None:
        raise InputError(
            f"{_place(sys._getframe(1)) or entry} enqueues while its module is loaded, and every worker would do so again; "
            'put the call under: if __name__ == "__main__":'
        )


def _place(frame: FrameType | None) -> str:
    """The line of the user's code that is being run, as FILE:LINE."""
    while frame is not None and tracebacks.is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
