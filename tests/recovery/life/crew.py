"""Workers as the store sees them: they claim, begin and end steps, finish, stand still, and die, as real ones do.

A run here does what `workers/recording.py` and `workers/execution.py` do, in the same order and with the same calls to
the store; what it may do is what any agent code, however it is written, can make it do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from relight.models import claims, confirmations, journal, tasks, traces, transitions, workers
from relight.models.confirmations import StepInDoubt
from relight.models.database import Database
from relight.models.errors import Asked, ConflictError, ControlFlow, Diverged, StaleMove
from relight.models.journal import Claim, StepCall
from relight.models.tasks import AgentTask
from relight.recovery import replay, sweep
from relight.recovery.replay import History, StepState
from tests.models.conftest import AGENT
from tests.recovery.life.ledger import Ledger

VALUE = StepCall("run.now#1", "", "read")
CONSUMED = """
    SELECT count(*) FROM confirmation_steps s JOIN confirmations c ON c.id = s.confirmation_id
    WHERE c.task_id = ? AND s.step_key = ? AND s.digest = ? AND s.consumed_at IS NOT NULL
"""


@dataclass
class FakeRun:
    """One attempt in the hands of one worker."""

    db: Database
    ledger: Ledger
    task: AgentTask
    claim: Claim
    history: History
    claimed_at: int
    asked: set[str] = field(default_factory=set)
    executing: dict[str, StepCall] = field(default_factory=dict)
    failures: dict[str, bool] = field(default_factory=dict)  # step key → whether it may be repeated unasked
    stop: ControlFlow | None = None
    given_up: bool = False  # a person abandoned a step, which no retry takes back

    @property
    def hand(self) -> tuple[str, int]:
        return self.claim.worker_id, self.claim.attempt

    @property
    def fence(self) -> dict[str, Any]:
        return {"attempt": self.claim.attempt, "worker_id": self.claim.worker_id}

    def is_ours(self) -> bool:
        """Whether the attempt owns its running task."""
        row = tasks.find(self.db, self.task.id)
        return row.status == "running" and (row.worker_id, row.attempt) == self.hand

    def call(self, call: StepCall, *, now: int, reckless: bool = False) -> None:
        """The agent calls a step: it is replayed, or begun; `reckless`: nobody compares its arguments with the record."""
        if self.stop is not None or call.key in self.asked:
            return
        self.asked.add(call.key)
        recorded = self.history.steps.get(call.key)
        if recorded is not None and recorded.digest != call.digest and not reckless:
            self.stop = Diverged(call.key, recorded.digest, call.digest)
        elif recorded is not None and recorded.state is StepState.DONE:
            self._replay(call, recorded.outcome_json or "{}")
        else:
            self._begin(call, now=now)

    def _replay(self, call: StepCall, outcome_json: str) -> None:
        known = self.ledger.step(self.task.id, call)
        result = json.loads(outcome_json)["result"]
        assert known.finished, f"{call.key} is replayed as done, and it is not"
        assert (result["status"] == "error") == known.failed, f"{call.key} is replayed with another outcome"
        if known.failed:
            self.failures[call.key] = result["retryable"]
            self.given_up |= "by_person" in result

    def _begin(self, call: StepCall, *, now: int) -> None:
        refusal = self.ledger.may_begin(self.task.id, call, claimed_at=self.claimed_at)
        if not self.is_ours():
            refusal = "the task is not its worker's any more"
        before = self._consumed(call)
        try:
            journal.accept_intent(self.db, self.claim, call, _intent(call), told={"step": call.key}, now=now)
        except ControlFlow as flow:
            self.stop = flow
            assert self._consumed(call) == before, f"{call.key} was refused, and a yes was used up"
            return
        assert refusal is None, f"{call.key} of {self.task.id} was begun: {refusal}"
        used = self.ledger.begun(self.task.id, call, self.hand)
        assert self._consumed(call) - before == used, f"{call.key} used up a wrong number of grants"
        self.executing[call.key] = call

    def _consumed(self, call: StepCall) -> int:
        row = self.db.row(CONSUMED, (self.task.id, call.key, call.digest))
        return int(row[0]) if row else 0

    def end_step(self, key: str, *, failed: bool, repeatable: bool, now: int) -> None:
        """The body of a step ends, in time or late: its outcome is always stored."""
        call = self.executing.pop(key)
        repeatable |= call.effect == "read"
        event = outcome(failed=failed, retryable=repeatable)
        late = journal.record_outcome(self.db, self.claim, call, event, told={"step": key}, now=now)
        self.ledger.ended(self.task.id, call, self.hand, failed=failed, late=late is not None)
        self.stop = self.stop or late
        if failed:
            self.failures[key] = repeatable

    def value(self, *, now: int) -> None:
        """A recorded value: effect and outcome in one transaction."""
        known = self.history.steps.get(VALUE.key)
        if self.stop is not None or VALUE.key in self.asked:
            return
        self.asked.add(VALUE.key)
        if known is None or known.state is not StepState.DONE:
            try:
                journal.record_value(self.db, self.claim, VALUE, outcome(), now=now)
            except ControlFlow as flow:
                self.stop = flow

    # -- the moves that end it --------------------------------------------------------------------------------

    def finish(self, how: str, *, now: int) -> str | None:
        """End the attempt as its runner would; what happened, or None where the task was not ours any more."""
        try:
            return self._finished(how, now=now)
        except StaleMove:
            self._let_go()
            return None

    def lose(self, *, now: int) -> None:
        """Its end could not be stored and its claim was dropped: the lease thread interrupts the task."""
        try:
            transitions.interrupt(self.db, self.task.id, reason="lost", now=now, **self.fence)
        except StaleMove:
            self._let_go()

    def _finished(self, how: str, *, now: int) -> str | None:
        match self.stop:
            case Asked(key, why):
                return self._ask([key], why, reason="asked", now=now)
            case Diverged():
                return self._ask([], str(self.stop), reason="diverged", now=now)
            case None:
                return self._returned_or_raised(how, now=now)
            case _:
                self._let_go()
                return None

    def _returned_or_raised(self, how: str, *, now: int) -> str | None:
        unsafe = [key for key, repeatable in self.failures.items() if not repeatable]
        missed = [s for s in self.history.steps.values() if s.key not in self.asked and s.effect == "write"]
        if how == "complete" and missed:
            return self._ask([], f"without {missed[0].key}", reason="diverged", now=now)
        if how == "complete":
            transitions.complete(self.db, self.task.id, **self.fence, result_json="1", now=now)
        elif how == "suspend":
            transitions.suspend(self.db, self.task.id, **self.fence, now=now)
        elif how == "unclaim" and not self.asked:
            claims.unclaim(self.db, self.task.id, **self.fence, now=now)
        elif how == "retry" and self.may_retry and unsafe:
            return self._ask(unsafe, "it raised", reason="asked", now=now)
        elif how == "retry" and self.may_retry:
            transitions.retry(
                self.db,
                self.task.id,
                **self.fence,
                due_at=now + 1,
                retries_left=self.task.retries_left - 1,
                error_json="{}",
                supersede=list(self.failures),
                now=now,
            )
            for key in self.failures:
                self.ledger.superseded(self.task.id, key)
        else:
            how = "fail"
            error = json.dumps({"type": "E", "text": "x", "steps": sorted(self.failures)})
            transitions.fail(self.db, self.task.id, **self.fence, reason="error", error_json=error, now=now)
        return how

    @property
    def may_retry(self) -> bool:
        return self.task.retries_left > 0 and not self.given_up

    def _ask(self, keys: list[str], why: str, *, reason: str, now: int) -> str:
        record = replay.history(traces.step_records(self.db, self.task.id))
        others = [
            step.key for step in sweep.unsettled_writes(self.db, self.task, record) if step.key not in keys
        ]
        steps: list[StepInDoubt] = [sweep.in_doubt(record.steps[key], None) for key in [*keys, *others]]
        confirmations.ask(
            self.db,
            self.task,
            reason=reason,
            request=sweep.request(self.task, why, record),
            steps=steps,
            now=now,
            owner=self.claim.worker_id,
        )
        return reason

    def _let_go(self) -> None:
        journal.let_go(self.db, self.task.id, **self.fence)


@dataclass
class FakeWorker:
    """One process that runs tasks: alive or dead, and if dead, proved or not."""

    db: Database
    ledger: Ledger
    id: str
    alive: bool = True
    proved: bool = False
    runs: list[FakeRun] = field(default_factory=list)

    @classmethod
    def start(cls, db: Database, ledger: Ledger, id: str, *, now: int) -> FakeWorker:
        workers.insert(db, id=id, lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=now)
        return cls(db, ledger, id)

    def claim(self, lane: str, *, now: int) -> FakeRun | None:
        """Take the best ready task of a lane and read its history."""
        task = claims.claim(self.db, lane, worker_id=self.id, now=now, known=frozenset({AGENT}))
        if task is None:
            return None
        history = replay.history(traces.step_records(self.db, task.id))
        owned = Claim(task.id, task.attempt, self.id)
        self.runs.append(FakeRun(self.db, self.ledger, task, owned, history, self.ledger.tick()))
        return self.runs[-1]

    def forget(self, run: FakeRun) -> None:
        self.runs = [other for other in self.runs if other is not run]

    def shut_down(self, *, now: int) -> None:
        """The grace time is over: what still runs is marked, and its worker stays named until its step ends."""
        for run in self.runs:
            try:
                transitions.interrupt(
                    self.db,
                    run.task.id,
                    reason="shutdown",
                    now=now,
                    attempt=run.claim.attempt,
                    worker_id=self.id,
                    keep_owner=True,
                )
            except ConflictError:
                continue

    def die(self) -> None:
        """SIGKILL: what it was executing has happened or not, and nobody will tell."""
        self.alive, self.runs = False, []
        self.ledger.died(self.id)

    def prove(self, *, now: int) -> None:
        """Somebody takes its lock."""
        workers.mark_dead(self.db, self.id, now=now)
        self.proved = True


def _intent(call: StepCall) -> str:
    name = call.key.partition("#")[0]
    return json.dumps(
        {"kind": "tool_call_started", "call": {"tool_id": call.key, "tool_name": name, "input": {}}}
    )


def outcome(*, failed: bool = False, retryable: bool = False, **more: object) -> str:
    """The trace event of a step that has ended."""
    status = "error" if failed else "success"
    result = {"status": status, "output": 1, "error": "x", "retryable": retryable, **more}
    return json.dumps({"kind": "tool_call_completed", "result": result})
