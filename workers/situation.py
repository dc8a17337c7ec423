"""Looks up why a task is where it is: what `relight why` asks `recovery.why` about.

Invariant: it only reads. A lock that turns out to be free is a proof, which is left for a recovery pass to commit.
"""

from __future__ import annotations

import json

from ..models import claims, confirmations, events, pauses, traces, workers
from ..models.events import AgentEvent
from ..models.tasks import AgentTask, Lane, TaskStatus
from ..models.workers import Worker
from ..recovery import decision, replay
from ..recovery.why import Situation
from . import bells
from .home import Home
from .lock_files import FOLDER, SeenLock

_PUT_BACK = ("task_enqueued", "task_retrying", "task_recovered", "task_retried", "task_resumed", "task_woken")
_SAID = ("task_held", "task_failed")


def look(home: Home, task: AgentTask) -> Situation:
    """Gather what is known about a task now."""
    serving = {str(lane): bells.listeners(home.path, lane) for lane in Lane}
    owner = workers.find(home.db, task.worker_id) if task.worker_id else None
    question = confirmations.open_for(home.db, task.id)
    put_back, said = (events.last(home.db, task.id, kinds) for kinds in (_PUT_BACK, _SAID))
    return Situation(
        task=task,
        now=home.now(),
        position=claims.position(home.db, task) if task.status == TaskStatus.PENDING else 0,
        serving=serving[str(task.lane)],
        living=sum(serving.values()) + bells.listeners(home.path, "upkeep"),
        lane_pause=pauses.lanes(home.db).get(str(task.lane)),
        owner=owner,
        owner_lock=_lock_of(home, owner) if owner is not None else "nothing",
        question=question,
        doubtful=tuple(confirmations.steps(home.db, question.id)) if question else (),
        put_back_by=put_back.event_type if put_back else "",
        said_by=_by(said),
        open_steps=_open_steps(home, task),
        silent_after_ms=home.settings.lease_ms,
        suspect_from=decision.suspect_from(home.settings.max_losses),
    )


def _lock_of(home: Home, owner: Worker) -> str:
    with SeenLock(home.path / FOLDER / owner.id) as lock:
        if not lock.belongs_to(inode=owner.lock_inode, nonce=owner.nonce):
            return "nothing"
        return "free" if lock.take() else "held"


def _by(event: AgentEvent | None) -> str | None:
    by = json.loads(event.payload_json).get("by") if event else None
    return str(by) if by else None


def _open_steps(home: Home, task: AgentTask) -> tuple[str, ...]:
    """The steps of the last attempt that were begun and have not ended."""
    history = replay.history(traces.step_records(home.db, task.id))
    return tuple(step.key for step in history.in_doubt() if step.attempt == task.attempt)
