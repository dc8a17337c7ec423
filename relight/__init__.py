"""The front door of Relight, a durable task queue for AI agents: `import relight` gives the public names.

Each name is loaded from its room at its first use, so importing this package opens nothing and loads neither
pydantic nor huey nor peewee. Nothing else lives here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .models import errors
    from .models.errors import NotDone
    from .models.events import AgentEvent
    from .models.state import StateDatabase
    from .models.tasks import AgentTask, Lane, RiskLevel, TaskStatus
    from .models.trace_events import AgentTraceEvent
    from .models.traces import TaskTrace
    from .workers.agents import agent, enqueue_many, get_task, ref
    from .workers.handles import TaskHandle
    from .workers.run import AsyncRun, Run
    from .workers.steps import current_step, step

__all__ = [
    "AgentEvent",
    "AgentTask",
    "AgentTraceEvent",
    "AsyncRun",
    "Lane",
    "NotDone",
    "RiskLevel",
    "Run",
    "StateDatabase",
    "TaskHandle",
    "TaskStatus",
    "TaskTrace",
    "agent",
    "current_step",
    "enqueue_many",
    "errors",
    "get_task",
    "ref",
    "step",
]

_HOMES = {
    "AgentEvent": "models.events",
    "AgentTask": "models.tasks",
    "AgentTraceEvent": "models.trace_events",
    "AsyncRun": "workers.run",
    "Lane": "models.tasks",
    "NotDone": "models.errors",
    "RiskLevel": "models.tasks",
    "Run": "workers.run",
    "StateDatabase": "models.state",
    "TaskHandle": "workers.handles",
    "TaskStatus": "models.tasks",
    "TaskTrace": "models.traces",
    "agent": "workers.agents",
    "current_step": "workers.steps",
    "enqueue_many": "workers.agents",
    "get_task": "workers.agents",
    "ref": "workers.agents",
    "step": "workers.steps",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module(".models.errors", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
