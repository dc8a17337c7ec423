"""What the attempts of this process share: one event loop and one pulse buffer for each state directory.

Invariant: made at first use, never at import; a forked child starts with nothing.
"""

from __future__ import annotations

import threading

from ..models import forks
from .home import Home
from .loops import AgentLoop
from .pulses import Pulses


class _Serving:
    def __init__(self) -> None:
        self._reset()
        forks.guard.register(self)

    def close_inherited(self) -> None:
        """In a forked child: the parent's loop and buffer are not ours, and a child of a step runs no tasks."""
        self._reset()

    def _reset(self) -> None:
        self.begun = False
        self.loops: dict[str, AgentLoop] = {}
        self.pulses: dict[str, Pulses] = {}
        self.mutex = threading.Lock()


_shared = _Serving()


def begin() -> None:
    """From now on this process runs tasks."""
    _shared.begun = True


def has_begun() -> bool:
    """Whether this process runs tasks: then a step called without its run is a mistake."""
    return _shared.begun


def loop(home: Home) -> AgentLoop:
    """The event loop of asynchronous agents."""
    with _shared.mutex:
        if str(home.path) not in _shared.loops:
            _shared.loops[str(home.path)] = AgentLoop()
        return _shared.loops[str(home.path)]


def pulses(home: Home) -> Pulses:
    """The buffer of pulse events."""
    with _shared.mutex:
        if str(home.path) not in _shared.pulses:
            _shared.pulses[str(home.path)] = Pulses(home.db, home.path, home.settings.test_clock)
        return _shared.pulses[str(home.path)]
