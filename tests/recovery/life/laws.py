"""What is promised about every task, checked against the tables after each rule.

Each law is a method named after what it says; `check` runs them all on one look at the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from relight.models import confirmations, pauses, tasks
from relight.models.database import Database
from relight.models.errors import ConflictError
from relight.models.tasks import AgentTask, RiskLevel, TaskStatus
from relight.recovery.policy import RecoveryPolicy
from relight.recovery.sweep import Report, Rules
from tests.models.conftest import AGENT
from tests.recovery.life.crew import FakeRun, FakeWorker
from tests.recovery.life.ledger import Ledger

NEVER_CHANGED = ("rank", "lane", "priority", "created_at", "agent_id", "input_json", "key")
TRACES = """
    SELECT step_index, id, event_kind, event_json, step_key, digest, attempt, effect, late
    FROM task_traces WHERE task_id = ? ORDER BY step_index
"""
WAITS_FOR_A_PERSON = ("asked", "diverged")


class Laws:
    """The promises, and what has to be remembered between two looks."""

    def __init__(self, db: Database, ledger: Ledger) -> None:
        self.db, self.ledger = db, ledger
        self.first: dict[str, AgentTask] = {}
        self.before: dict[str, AgentTask] = {}
        self.ended: dict[str, dict[str, Any]] = {}
        self.traces: dict[str, list[tuple[Any, ...]]] = {}

    def tasks(self) -> list[AgentTask]:
        return [tasks.find(self.db, task_id) for task_id in self.first]

    def open_questions(self) -> list[tuple[Any, ...]]:
        """The (id, task) of each open question, oldest first."""
        return self.db.rows(
            "SELECT id, task_id FROM confirmations WHERE status = 'open' ORDER BY asked_at, id"
        )

    # -- what is told to it -----------------------------------------------------------------------------------

    def acknowledge(self, task_id: str) -> None:
        self.first[task_id] = self.before[task_id] = tasks.find(self.db, task_id)

    def claimed(self, run: FakeRun, *, now: int) -> None:
        before = self.before[run.task.id]
        assert before.status == TaskStatus.PENDING, f"a task that was {before.status} was claimed"
        assert str(before.lane) not in pauses.lanes(self.db), "a task of a paused lane was claimed"
        assert before.hold is None or (before.hold == "due" and (before.due_at or 0) <= now)
        assert before.expires_at is None or before.expires_at > now or before.attempt > 0
        assert run.claim.attempt == before.attempt + 1

    def finishing(self, run: FakeRun) -> None:
        self._owned = run.is_ours()

    def finished(self, run: FakeRun, how: str | None) -> None:
        assert how is None or self._owned, f"a zombie could {how} a task that it lost"
        assert how is not None or not self._owned, "an owner could not end its own task"
        if how in WAITS_FOR_A_PERSON:
            assert self.ledger.unsettled_writes(run.task.id) <= self._named(run.task.id), (
                "a question leaves something out"
            )

    def retried(self, before: AgentTask) -> None:
        assert before.status == TaskStatus.FAILED or before.reason in ("skipped", "diverged")
        self.ended.pop(before.id, None)
        assert not self.ledger.hands(before.id), "a task is tried again while a write of it is being executed"

    def refused(self, refusal: ConflictError, expected: type[ConflictError]) -> None:
        assert type(refusal) is expected, f"refused for another reason: {refusal!r}"

    def swept(
        self, before: dict[str, AgentTask], report: Report, dry: Report, rules: Rules, proved: set[str]
    ) -> None:
        """A pass keeps to its policy, touches only orphans, and finds what its dry run said."""
        assert report.errors == []
        assert report.ids() == dry.ids() or set(_ids(report)) <= set(_ids(dry))
        for entry in report.resumed:
            self._resumed(before[entry["id"]], rules, proved)
        for entry in report.asked:
            wanted = self.ledger.unsettled_writes(entry["id"])
            assert self._named(entry["id"]) == wanted, "a question does not name what is in doubt"
        for entry in report.quarantined:
            assert tasks.find(self.db, entry["id"]).losses >= rules.max_losses

    def _named(self, task_id: str) -> set[str]:
        """The steps that the open question of a task names."""
        (cid,) = (cid for cid, asked_about in self.open_questions() if asked_about == task_id)
        return {step.step_key for step in confirmations.steps(self.db, cid)}

    def _resumed(self, task: AgentTask, rules: Rules, proved: set[str]) -> None:
        assert isinstance(rules.policy, RecoveryPolicy), "something was resumed without a policy"
        low = task.risk_level == RiskLevel.LOW
        assert rules.policy.low == "resume" if low else AGENT in rules.policy.exempt, (
            f"a task of {task.risk_level} risk was resumed against the policy"
        )
        assert not self.ledger.unsettled_writes(task.id), "a task was resumed with a write in doubt"
        assert task.reason in (None, "shutdown", "lost")
        assert task.worker_id is None or task.worker_id in proved | rules.lease_out, (
            "a living owner lost its task"
        )

    # -- the laws ---------------------------------------------------------------------------------------------

    def check(self, crew: Sequence[FakeWorker]) -> None:
        found = self.tasks()
        for task in found:
            self._a_row_is_never_contradictory(task)
            self._only_what_may_change_has_changed(task)
            self._an_end_is_final(task)
            self._a_worker_is_named_while_it_matters(task, crew)
            self._a_task_waits_visibly(task)
            self.before[task.id] = task
        self._a_question_is_open_exactly_while_its_task_waits(found)
        self._events_have_no_gap()
        self._traces_only_grow()

    def _a_row_is_never_contradictory(self, task: AgentTask) -> None:
        assert task.status.is_terminal() == (task.completed_at is not None)
        assert task.hold is None or task.status == TaskStatus.PENDING
        if task.status == TaskStatus.RUNNING:
            assert task.worker_id is not None
            assert task.started_at is not None
            assert task.attempt > 0
        if task.status == TaskStatus.INTERRUPTED:
            assert task.reason in ("shutdown", "lost", "skipped", *WAITS_FOR_A_PERSON)
        if task.status == TaskStatus.FAILED:
            assert task.reason in ("error", "cancelled", "rejected", "crash_loop", "expired")
            assert task.reason != "expired" or task.attempt == 0

    def _only_what_may_change_has_changed(self, task: AgentTask) -> None:
        first, before = self.first[task.id], self.before[task.id]
        for name in NEVER_CHANGED:
            assert getattr(task, name) == getattr(first, name), f"{name} has changed"
        assert task.attempt >= before.attempt
        assert task.retries_left <= before.retries_left
        wrote = any(step.effect == "write" and step.intents for step in self.ledger.of(task.id).values())
        assert task.risk_level == (RiskLevel.HIGH if wrote else first.risk_level), (
            "risk only rises, by a write"
        )

    def _an_end_is_final(self, task: AgentTask) -> None:
        shown = {name: value for name, value in task.__data__.items() if name != "worker_id"}
        if task.id in self.ended:
            assert shown == self.ended[task.id], "an end was not final"
        elif task.status.is_terminal():
            self.ended[task.id] = shown

    def _a_worker_is_named_while_it_matters(self, task: AgentTask, crew: Sequence[FakeWorker]) -> None:
        hands = {worker_id for worker_id, _ in self.ledger.hands(task.id)}
        if task.status in (TaskStatus.PENDING, TaskStatus.COMPLETED, TaskStatus.IDLE, TaskStatus.SWAPPED):
            assert task.worker_id is None
        elif task.status != TaskStatus.RUNNING:
            assert hands <= {task.worker_id}, "nobody knows who may still be executing a write"
            named = [worker for worker in crew if worker.id == task.worker_id and worker.alive]
            busy = [worker for worker in named if any(run.task.id == task.id for run in worker.runs)]
            assert named == busy, "a worker that is done is named"

    def _a_task_waits_visibly(self, task: AgentTask) -> None:
        """Promise 1: whoever looks at a task that goes on neither by itself nor by recovery sees why."""
        if task.status == TaskStatus.PENDING:
            assert task.hold in (None, "due", "unknown_agent", "paused")
            assert task.hold != "due" or task.due_at is not None
        if task.status == TaskStatus.INTERRUPTED and task.reason in ("skipped", *WAITS_FOR_A_PERSON):
            assert json.loads(task.error_json or "{}").get("text"), "it waits, and nobody can see why"

    def _a_question_is_open_exactly_while_its_task_waits(self, found: list[AgentTask]) -> None:
        questions = self.open_questions()
        waiting = [
            task.id for task in found if task.status == "interrupted" and task.reason in WAITS_FOR_A_PERSON
        ]
        assert sorted(task_id for _, task_id in questions) == sorted(waiting)
        for cid, task_id in questions:
            known = self.ledger.of(task_id)
            for step in confirmations.steps(self.db, cid):
                settled = not (known[step.step_key].in_doubt or known[step.step_key].failed)
                assert step.decision is not None or not settled, "a settled step is asked about"

    def _events_have_no_gap(self) -> None:
        rows = self.db.rows("SELECT task_id, count(*), min(seq), max(seq) FROM agent_events GROUP BY task_id")
        assert {row[0] for row in rows} == set(self.first)
        assert all((low, high) == (1, count) for _, count, low, high in rows)
        asked = "SELECT task_id FROM agent_events WHERE event_type = 'confirmation_requested'"
        assert sorted(self.db.rows(asked)) == sorted(self.db.rows("SELECT task_id FROM confirmations"))

    def _traces_only_grow(self) -> None:
        for task_id in self.first:
            rows, known = self.db.rows(TRACES, (task_id,)), self.traces.get(task_id, [])
            assert rows[: len(known)] == known, "what was recorded has changed"
            self.traces[task_id] = rows
            assert [row[0] for row in rows] == list(range(len(rows))), "a step index is missing or doubled"


def _ids(report: Report) -> list[str]:
    return [task_id for ids in report.ids().values() for task_id in ids]
