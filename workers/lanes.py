"""The lanes: Huey queues whose agent tasks are the rows of `agent_tasks`, beside plain Huey tasks.

Invariant: an agent task has no message that could be lost, doubled or disagree with its row; a lane claims the row
itself and hands it to Huey's workers as a real `huey.api.Task`. Importing this module opens nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from huey import signals
from huey.api import SqliteHuey, Task
from huey.exceptions import CancelExecution, ConfigurationError, HueyException
from huey.utils import Error

from ..models import claims, tasks, transitions
from ..models.errors import InputError, RelightError, StaleMove
from ..models.tasks import AgentTask
from ..recovery import decision
from .claimed import ClaimedTask
from .lane_storage import LaneStorage
from .messages import JsonSerializer

if TYPE_CHECKING:
    from .attempts import Outcome
    from .consumer import LaneConsumer
    from .home import Home

log = logging.getLogger("relight.lanes")

PLAIN_FIRST_EVERY = 8  # looks: a lane full of agent tasks still serves its plain messages
LANE_ERRORS = (RelightError, HueyException)
_TEST_CLOCK_POLL_S = 0.1  # nobody rings when a test moves its clock


class LaneHuey(SqliteHuey):  # type: ignore[misc]  # huey is untyped
    """A Huey instance that is one lane of a state directory; without `home`, of the one the environment names."""

    storage_class = LaneStorage
    storage: LaneStorage

    def __init__(self, name: str, *, home: Home | None = None, **options: Any) -> None:
        self._home = home
        self._turn = threading.Lock()
        self._freed = threading.Condition()
        self._looks = 0
        self._under_way: set[int] = set()  # by identity: what was taken and has not ended
        self.inside: set[int] = set()  # threads that execute something now
        self._due_at: int | None = None
        self._slots: int | None = None
        self.halted = False
        super().__init__(name, **{"serializer": JsonSerializer(), **options})
        self._registry.register(ClaimedTask)

    @property
    def concurrency(self) -> int:
        """How many tasks run at a time where nobody says otherwise."""
        told = self.home.settings
        return {"main": told.main_concurrency, "subagent": told.subagent_concurrency}.get(self.name, 1)

    @property
    def home(self) -> Home:
        """The state directory that this lane belongs to."""
        from .home import Home

        return self._home or Home.current()

    @home.setter
    def home(self, home: Home) -> None:
        self._home = home

    def get_storage(self, **options: Any) -> LaneStorage:
        if options:
            raise ConfigurationError(f"a lane takes no storage options: {', '.join(options)}")
        return LaneStorage(
            self.name,
            database=lambda: self.home.db,
            watch=lambda: self.home.bell("watch"),
            agent_tasks=self._listed,
            now=lambda: self.home.now(),
        )

    def create_consumer(self, **options: Any) -> LaneConsumer:
        """Our consumer, also for `huey_consumer`: TERM is graceful, and it ends by itself after the grace time."""
        from .consumer import LaneConsumer

        return LaneConsumer(self, **options)

    # -- taking work ------------------------------------------------------------------------------------------

    def serve(self, slots: int) -> None:
        """From now on `dequeue` waits for work of one state directory, and gives at most `slots` things at a time."""
        self._home, self._slots, self.halted = self.home, slots, False

    def halt(self) -> None:
        """Take nothing more; who waits in `dequeue` comes back with nothing."""
        self.halted = True
        self.home.bell(self.name).poke()

    def dequeue(self) -> Task | None:
        """The next thing to run. While the lane is served this waits for one, else it only looks.

        One thread looks and waits, the others queue behind it: a ring wakes one thread, not all of them.
        """
        with self._turn:
            if self._slots is None:
                return self._next()
            bell = self.home.bell(self.name)
            bell.start()
            while not self.halted:
                seen = bell.generation
                full = len(self._under_way) >= self._slots
                if not full and (task := self._next()) is not None:
                    self._under_way.add(id(task))
                    return task
                bell.wait(seen, None if full else self._patience())
        return None

    def wait_until_idle(self, timeout: float | None) -> bool:
        """After a halt: whether everything taken has ended, at the latest after `timeout` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        if not self._turn.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        self._turn.release()  # nobody is half-way through taking something any more
        with self._freed:
            left = None if timeout is None else deadline - time.monotonic()
            return self._freed.wait_for(lambda: not self._under_way, left)

    def _next(self) -> Task | None:
        self._looks += 1
        if self._looks % PLAIN_FIRST_EVERY == 0:
            return self._take_message() or self._claim()
        return self._claim() or self._take_message()

    def _take_message(self) -> Task | None:
        while isinstance(task := super().dequeue(), ClaimedTask):
            log.warning("a message that names a row is dropped: rows are claimed", extra={"task": task.id})
        return task

    def _claim(self) -> ClaimedTask | None:
        from . import agents, announcing

        if not self._something_is_ready():
            return None
        home = self.home
        owner = home.owner(self.name)
        known = frozenset(agents.known())
        row = claims.claim(
            home.db,
            self.name,
            worker_id=owner.id,
            now=home.now(),
            known=known,
            suspect_from=decision.suspect_from(home.settings.max_losses),
            on_unknown=announcing.unknown_agent,
        )
        if row is None:
            self._due_at = claims.next_due(home.db)
            return None
        owner.take(row.id, row.attempt)
        if self.halted:
            self._give_back(row)
            return None
        return ClaimedTask.of(row)

    def _something_is_ready(self) -> bool:
        """A look that takes no lock; remembers when the next delayed task is due."""
        db = self.home.db
        if claims.ready(db, self.name):
            return True
        self._due_at = claims.next_due(db)
        return self._due_at is not None and self._due_at <= self.home.now()

    def _give_back(self, row: AgentTask) -> None:
        home = self.home
        owner = home.owner(self.name)
        try:
            claims.unclaim(home.db, row.id, attempt=row.attempt, worker_id=owner.id, now=home.now())
        except StaleMove as error:
            log.info("a claim was gone before it was given back", extra={"task": row.id, "found": str(error)})
        owner.drop(row.id, row.attempt)

    def _patience(self) -> float | None:
        """Seconds until a look is worth while although nobody rang; None where the bells alone are trusted."""
        settings = self.home.settings
        limits = [settings.poll_ms / 1000] if settings.poll_ms else []
        if self._due_at is not None:
            limits.append(max(0.0, (self._due_at - self.home.now()) / 1000))
        if settings.test_clock is not None:
            limits.append(_TEST_CLOCK_POLL_S)
        return min(limits, default=None)

    # -- running it -------------------------------------------------------------------------------------------

    def execute(self, task: Task, timestamp: datetime | None = None) -> Any:
        """Run a claim as an agent task, anything else as Huey does. An async agent goes on after this returns."""
        self.inside.add(threading.get_ident())
        try:
            if isinstance(task, ClaimedTask):
                return self._run_claim(task)
            return self._run_message(task, timestamp)
        finally:
            self.inside.discard(threading.get_ident())

    def _run_message(self, task: Task, timestamp: datetime | None) -> Any:
        try:
            return super().execute(task, timestamp)
        finally:
            self._free(task)

    def _run_claim(self, task: ClaimedTask) -> None:
        if task.row is None:
            log.warning("a task that was not claimed is not run", extra={"task": task.id})
            self._free(task)
            return
        self._tasks_in_flight.add(task)
        try:
            self._emit(signals.SIGNAL_EXECUTING, task)
            if self._hooks_agree(task):
                self._launch(task, task.row)
        except BaseException:
            self._free(task)
            raise

    def _launch(self, task: ClaimedTask, row: AgentTask) -> None:
        from . import execution

        owner = self.home.owner(self.name)
        try:
            execution.launch(self.home, owner, row, lambda outcome: self._ended(task, outcome))
        except KeyboardInterrupt:
            execution.interrupt_all(self.home, owner)
            self._emit(signals.SIGNAL_INTERRUPTED, task)
            raise
        except BaseException:
            owner.drop(row.id, row.attempt)  # missing from memory: the lease thread interrupts it as lost
            raise

    def _ended(self, task: ClaimedTask, outcome: Outcome) -> None:
        try:
            self._tell(task, outcome)
        finally:
            self._free(task)

    def _hooks_agree(self, task: ClaimedTask) -> bool:
        """Run the pre-execute hooks; one that raises CancelExecution cancels the task for good."""
        try:
            self._run_pre_execute(task)
        except CancelExecution as error:
            self._cancel(task, str(error) or "cancelled by a pre-execute hook")
            self._free(task)
            return False
        return True

    def _cancel(self, task: ClaimedTask, why: str) -> None:
        home, row = self.home, task.row
        if row is None:
            return
        try:
            transitions.cancel(home.db, row.id, by="pre_execute", detail=_error_json(why), now=home.now())
        except StaleMove as error:
            log.info("a claim was gone before it was cancelled", extra={"task": row.id, "found": str(error)})
        home.owner(self.name).drop(row.id, row.attempt)
        self._emit(signals.SIGNAL_CANCELED, task)

    def _tell(self, task: ClaimedTask, outcome: Outcome) -> None:
        """Huey's signals and hooks for the end of an attempt, in Huey's order."""
        match outcome.kind:
            case "completed":
                self._run_post_execute(task, outcome.value, None)
                self._emit(signals.SIGNAL_COMPLETE, task)
            case "failed" | "retrying":
                self._emit(signals.SIGNAL_ERROR, task, outcome.error)
                self._run_post_execute(task, None, outcome.error)
                if outcome.kind == "retrying":
                    self._emit(signals.SIGNAL_RETRYING, task)
            case "cancelled":
                self._emit(signals.SIGNAL_CANCELED, task)
            case _:
                self._emit(signals.SIGNAL_INTERRUPTED, task)

    def _free(self, task: Task) -> None:
        self._tasks_in_flight.discard(task)
        with self._freed:
            was_full = len(self._under_way) == self._slots
            self._under_way.discard(id(task))
            self._freed.notify_all()
        if was_full or (isinstance(task, ClaimedTask) and task.is_suspect):
            self.home.bell(self.name).poke()

    # -- plain tasks ------------------------------------------------------------------------------------------

    def put_result(self, key: str, data: Any) -> Any:
        """Store a plain task's result; one that cannot be written is told to whoever waits, not lost."""
        try:
            return super().put_result(key, data)
        except InputError as error:
            log.exception("a plain task's result cannot be stored", extra={"task": key})
            told = {"error": f"the result cannot be stored: {error}", "retries": 0, "task_id": key}
            return super().put_result(key, Error(told))

    def enqueue_periodic(self, task: Task, now_ms: int) -> bool:
        """Enqueue a periodic task once for the minute of `now_ms`, whichever process is first."""
        if task.expires:
            task.resolve_expires(self.utc)
        name = self._registry.task_to_string(type(task))
        first = self.storage.enqueue_periodic(
            name, now_ms // 60_000, self.serialize_task(task), task.priority
        )
        if first:
            self._emit(signals.SIGNAL_ENQUEUED, task)
        return bool(first)

    def due_periodic(self, now_ms: int) -> list[Task]:
        """The periodic tasks whose schedule names the minute of `now_ms`."""
        moment = datetime.fromtimestamp(now_ms / 1000, UTC)
        found: list[Task] = self.read_periodic(moment if self.utc else moment.astimezone())
        return found

    def _listed(self, limit: int | None) -> list[bytes]:
        """The claimable rows as Huey lists a queue: one serialized task each."""
        db = self.home.db
        ids = claims.ready_ids(db, self.name, limit=limit)
        return [self.serialize_task(ClaimedTask.of(tasks.find(db, task_id))) for task_id in ids]


def _error_json(text: str) -> str:
    import json

    return json.dumps({"type": "Cancelled", "text": text}, ensure_ascii=False)


main = LaneHuey("main")
subagent = LaneHuey("subagent")
upkeep = LaneHuey("upkeep")

LANES = {lane.name: lane for lane in (main, subagent, upkeep)}
