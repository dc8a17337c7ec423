"""Any sequence of moves keeps the invariants of the task row."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relight.models import claims, confirmations, journal, schema, tasks, transitions, workers
from relight.models.confirmations import StepInDoubt
from relight.models.errors import ConflictError, ControlFlow
from relight.models.journal import Claim, StepCall
from relight.models.tasks import AgentTask, RiskLevel
from tests.models.conftest import AGENT, NOW, new_task

IDS = st.sampled_from(["t1", "t2"])
WRONG = st.sampled_from([False, False, False, False, True])
CALLS = [StepCall("a#0", "d", "read"), StepCall("b#0", "d", "write"), StepCall("b#1", "d", "write")]
STEPS = st.sampled_from(CALLS)

REFUSED = (ConflictError, ControlFlow)


class Life(RuleBasedStateMachine):
    """Two tasks, two workers that may die, and everybody trying everything with right and wrong fences."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.db = schema.open_database(Path(self.folder.name) / "state.db", now=NOW, durability="process")
        self.now = NOW
        self.attempts = {"t1": 0, "t2": 0}
        self.born = 0
        self.ended: dict[str, dict[str, object]] = {}
        for id, risk in (("t1", RiskLevel.LOW), ("t2", RiskLevel.HIGH)):
            tasks.submit(self.db, new_task(id, risk=risk, retries_left=1), now=NOW)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close_all()
            self.folder.cleanup()

    def tick(self) -> int:
        self.now += 1
        return self.now

    def task(self, id: str) -> AgentTask:
        return tasks.find(self.db, id)

    def fence(self, id: str, wrong: bool) -> tuple[int, str]:
        """Who owns the task now, or somebody who does not."""
        task = self.task(id)
        return (task.attempt - 1, "w0") if wrong else (task.attempt, task.worker_id or "w1")

    @rule()
    def claim(self) -> None:
        alive = workers.alive(self.db)
        if not alive:
            self.born += 1
            name = f"w{self.born}"
            workers.insert(
                self.db, id=name, lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW
            )
        owner = alive[0].id if alive else name
        claims.claim(self.db, "subagent", worker_id=owner, now=self.tick(), known=frozenset({AGENT}))

    @rule(id=IDS, wrong=WRONG, verb=st.sampled_from(["complete", "fail", "retry", "suspend", "unclaim"]))
    def finish(self, id: str, wrong: bool, verb: str) -> None:
        attempt, worker = self.fence(id, wrong)
        owned: dict[str, Any] = {"attempt": attempt, "worker_id": worker, "now": self.tick()}
        with suppress(*REFUSED):
            match verb:
                case "complete":
                    transitions.complete(self.db, id, result_json="1", **owned)
                case "fail":
                    transitions.fail(self.db, id, reason="error", error_json="{}", **owned)
                case "retry":
                    rest = {"due_at": self.now, "retries_left": 0, "error_json": "{}", "supersede": ["a#0"]}
                    transitions.retry(self.db, id, **rest, **owned)
                case "suspend":
                    transitions.suspend(self.db, id, **owned)
                case "unclaim":
                    claims.unclaim(self.db, id, **owned)
            assert not wrong

    @rule(id=IDS, wrong=WRONG, reason=st.sampled_from(["shutdown", "lost"]), keep=st.booleans())
    def interrupt(self, id: str, wrong: bool, reason: str, keep: bool) -> None:
        attempt, _ = self.fence(id, wrong)
        with suppress(*REFUSED):
            transitions.interrupt(
                self.db, id, reason=reason, now=self.tick(), attempt=attempt, keep_owner=keep
            )
            assert not wrong

    @rule()
    def die(self) -> None:
        for worker in workers.alive(self.db):
            workers.mark_dead(self.db, worker.id, now=self.tick())

    @rule(id=IDS, wrong=WRONG, call=STEPS, part=st.sampled_from(["intent", "intent", "outcome", "value"]))
    def step(self, id: str, wrong: bool, call: StepCall, part: str) -> None:
        owned, now = Claim(id, *self.fence(id, wrong)), self.tick()
        with suppress(*REFUSED):
            if part == "intent":
                journal.accept_intent(self.db, owned, call, "{}", told={}, now=now)
                assert not wrong
            elif part == "value":
                journal.record_value(self.db, owned, StepCall("now#0", "", "read"), "{}", now=now)
                assert not wrong

    @rule(calls=st.lists(STEPS, min_size=1, max_size=3, unique=True), ends=st.booleans())
    def work(self, calls: list[StepCall], ends: bool) -> None:
        """What a worker does most of the time."""
        self.claim()
        for id in self.attempts:
            for call in calls:
                self.step(id=id, wrong=False, call=call, part="intent")
                if ends:
                    self.end_a_step(id=id, call=call)

    @rule()
    def lose(self) -> None:
        """What recovery sees most of the time."""
        self.die()
        for id in self.attempts:
            task = self.task(id)
            if task.status == "running":
                calls = [call for call in CALLS if call.effect == "write" and self.in_doubt(id, call.key)]
                if calls:
                    steps = [StepInDoubt(call, 1, {}) for call in calls]
                    confirmations.ask(
                        self.db, task, reason="asked", request={}, steps=steps, now=self.tick(), lost=True
                    )
                else:
                    transitions.resume(self.db, task, now=self.tick())

    @rule(id=IDS, call=STEPS)
    def end_a_step(self, id: str, call: StepCall) -> None:
        """By the attempt that began it, however late."""
        for attempt, worker in self.db.rows(
            "SELECT attempt, json_extract(event_json, '$.worker_id') FROM task_traces"
            " WHERE task_id = ? AND event_kind = 'turn_started'",
            (id,),
        ):
            if self.open_intent(id, call.key, attempt):
                owned = Claim(id, attempt, worker)
                journal.record_outcome(self.db, owned, call, "{}", told={}, now=self.tick())

    def open_intent(self, id: str, key: str, attempt: int) -> bool:
        rows = self.db.rows(
            "SELECT event_kind, attempt FROM task_traces WHERE task_id = ? AND step_key = ? ORDER BY step_index",
            (id, key),
        )
        return bool(rows) and rows[-1] == ("tool_call_started", attempt)

    @rule(id=IDS, lease_out=st.booleans())
    def resume(self, id: str, lease_out: bool) -> None:
        before = self.task(id)
        with suppress(*REFUSED):
            transitions.resume(self.db, before, now=self.tick(), lease_out=lease_out)
            assert before.status.is_recoverable()
            assert before.reason not in ("asked", "diverged", "skipped")

    @rule(id=IDS, call=STEPS, reason=st.sampled_from(["asked", "diverged"]))
    def ask(self, id: str, call: StepCall, reason: str) -> None:
        task = self.task(id)
        if task.status.is_recoverable():
            with suppress(*REFUSED):
                steps = [StepInDoubt(call, 1, {})] if self.in_doubt(id, call.key) else []
                confirmations.ask(
                    self.db, task, reason=reason, request={}, steps=steps, now=self.tick(), lost=True
                )

    def in_doubt(self, id: str, key: str) -> bool:
        return any(self.open_intent(id, key, attempt) for attempt in range(9))

    @rule(verb=st.sampled_from(["approve", "reject", "ran", "again", "abandon"]))
    def answer(self, verb: str) -> None:
        for asked in confirmations.listing(self.db)[:1]:
            now = self.tick()
            with suppress(*REFUSED):
                match verb:
                    case "approve":
                        confirmations.approve(self.db, asked.id, by="ann", now=now)
                    case "reject":
                        confirmations.reject(self.db, asked.id, by="ann", reason="", now=now)
                    case "ran":
                        confirmations.answer_ran(
                            self.db, asked.id, None, outcome_json="{}", by="ann", now=now
                        )
                    case "again":
                        confirmations.answer_again(self.db, asked.id, None, by="ann", now=now)
                    case "abandon":
                        confirmations.answer_abandon(
                            self.db, asked.id, None, outcome_json="{}", by="ann", now=now
                        )

    @rule(id=IDS, verb=st.sampled_from(["skip", "retry", "wake", "hold", "release", "end"]))
    def move(self, id: str, verb: str) -> None:
        task, now = self.task(id), self.tick()
        with suppress(*REFUSED):
            match verb:
                case "end" if self.now % 3 == 0:
                    transitions.cancel(self.db, id, by="ann", detail="{}", now=now)
                case "end" if task.losses > 1:
                    transitions.quarantine(self.db, task, detail="{}", now=now)
                case "end":
                    transitions.expire(self.db, id, now=now)
                case "skip":
                    transitions.put_aside(self.db, task, reason="skipped", now=now, lost=True)
                case "retry":
                    transitions.retry_by_person(self.db, id, by="ann", now=now)
                    self.ended.pop(id, None)
                case "wake":
                    transitions.wake(self.db, id, now=now)
                case "hold":
                    claims.hold(self.db, id, hold="paused", now=now)
                case "release":
                    claims.release(self.db, id, now=now)

    @invariant()
    def a_row_is_never_contradictory(self) -> None:
        if not hasattr(self, "db"):
            return
        for id in self.attempts:
            task = self.task(id)
            assert task.status.is_terminal() == (task.completed_at is not None)
            assert task.hold is None or task.status == "pending"
            assert task.attempt >= self.attempts[id]
            self.attempts[id] = task.attempt
            if task.status == "running":
                assert task.worker_id is not None
                assert task.started_at is not None
                assert task.attempt > 0
            elif task.status not in ("interrupted", "failed"):  # there a worker may still execute a write
                assert task.worker_id is None
            if task.status == "interrupted":
                assert task.reason in ("shutdown", "lost", "asked", "diverged", "skipped")

    @invariant()
    def an_end_is_final_but_for_a_person_s_retry(self) -> None:
        if not hasattr(self, "db"):
            return
        for id in self.attempts:
            task = self.task(id)
            shown = {**task.__data__, "worker_id": None}  # its worker is let go when a late write has ended
            if id in self.ended:
                assert shown == self.ended[id]
            elif task.status.is_terminal():
                self.ended[id] = shown

    @invariant()
    def events_have_no_gap_and_traces_no_double(self) -> None:
        if not hasattr(self, "db"):
            return
        for table, column in (("agent_events", "seq"), ("task_traces", "step_index")):
            rows = self.db.rows(
                f"SELECT count(*), count(DISTINCT {column}), max({column}) - min({column}) FROM {table} GROUP BY task_id"
            )
            assert all(count == distinct == span + 1 for count, distinct, span in rows)

    @invariant()
    def a_question_is_open_exactly_while_its_task_waits(self) -> None:
        if not hasattr(self, "db"):
            return
        open_for = [asked.task_id for asked in confirmations.listing(self.db)]
        assert len(open_for) == len(set(open_for))
        for id in self.attempts:
            task = self.task(id)
            waits = task.status == "interrupted" and task.reason in ("asked", "diverged")
            assert waits == (id in open_for)

    @invariant()
    def no_write_ran_twice_without_a_yes(self) -> None:
        if not hasattr(self, "db"):
            return
        doubled = self.db.row(
            """
            SELECT i.task_id, i.step_key FROM task_traces i
            WHERE i.event_kind = 'tool_call_started' AND i.effect = 'write'
            AND (SELECT count(*) FROM task_traces j WHERE j.task_id = i.task_id AND j.step_key = i.step_key
                AND j.event_kind = 'tool_call_started')
              > 1 + (SELECT count(*) FROM confirmation_steps s JOIN confirmations c ON c.id = s.confirmation_id
                WHERE c.task_id = i.task_id AND s.step_key = i.step_key AND s.consumed_at IS NOT NULL)
              + (SELECT count(*) FROM task_traces o WHERE o.task_id = i.task_id AND o.step_key = i.step_key
                AND o.event_kind = 'tool_call_completed')
            """
        )
        assert doubled is None


Life.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase
