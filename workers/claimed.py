"""A claimed row as Huey sees it.

Invariant: it is a real `huey.api.Task`, so that workers, hooks, signals and listings treat it like any other; what runs
is the row it carries, never its message.
"""

from __future__ import annotations

from typing import Any

from huey.api import Task

from ..models.tasks import AgentTask


class ClaimedTask(Task):  # type: ignore[misc]  # huey is untyped
    """A row of `agent_tasks` as Huey's workers, hooks and signals see it; `row` is absent in a mere listing."""

    row: AgentTask | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.name: str = self.args[0] if self.args else type(self).__name__

    @property
    def is_suspect(self) -> bool:
        """Whether it lost its worker when it ran last, so that others may have been kept from running beside it."""
        return self.row is not None and self.row.losses > 0

    @classmethod
    def of(cls, row: AgentTask) -> ClaimedTask:
        """The Huey task of a row: same id, the agent's name, its priority and the retries that are left."""
        task = cls((row.agent_id,), {}, id=row.id, retries=row.retries_left, priority=row.priority)
        task.row = row
        return task
