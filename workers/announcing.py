"""What a worker says about itself: whom it serves at its start, which agents it misses, and how its attempts end."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..models.tasks import AgentTask
from . import agents, tracebacks
from .home import Home

log = logging.getLogger("relight.worker")

_ENDED_BADLY = ("failed", "retrying")
_missed: set[str] = set()


def serving(home: Home, lanes: Sequence[str]) -> None:
    """Say which lanes of which state directory this process serves, and for which agents."""
    known = sorted(agents.known())
    log.info("serving %s in %s; agents: %s", ", ".join(lanes), home.path, ", ".join(known) or "none")
    if not known and any(lane != "upkeep" for lane in lanes):
        log.warning("no agents are loaded: give -A FILE or RELIGHT_APP; tasks wait unclaimed")


def unknown_agent(name: str) -> None:
    """Warn, once for each name, that a task is held because no code of its agent is loaded here."""
    if name not in _missed:
        _missed.add(name)
        log.warning("a task is held: its agent is not loaded here", extra={"agent": name})


def ended(task: AgentTask, outcome: str, error: BaseException | None) -> None:
    """Log the end of an attempt; with the traceback where its agent raised."""
    about = {"task": task.id, "attempt": task.attempt, "agent": task.agent_id, "outcome": outcome}
    if outcome not in _ENDED_BADLY or error is None:
        log.info("attempt ended", extra=about)
        return
    about["error"] = f"{type(error).__name__}: {error}"
    raised = (type(error), error, tracebacks.below_ours(error.__traceback__))
    log.warning("attempt ended", extra=about, exc_info=raised)
