"""Whatever happens, in whatever order, the promises hold: a machine that tries everything on a real file.

Workers claim, work, stand still and die; passes run under good and broken policies; persons answer, cancel and retry; the
clock is set forth and back. After each rule the file is compared with what is promised (laws.py) and with what really
happened (ledger.py); at the end everything that is not done yet is brought to its end, so nothing was lost.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relight.models import claims, confirmations, schema, tasks, transitions
from relight.models.confirmations import Confirmation
from relight.models.errors import AlreadyDecidedError, ConflictError, StepInDoubtError
from relight.models.journal import StepCall
from relight.models.tasks import AgentTask, Lane, RiskLevel, TaskStatus
from relight.recovery import policy, sweep
from relight.recovery.policy import RecoveryPolicy
from relight.recovery.sweep import Rules
from tests.models.conftest import AGENT, NOW, new_task
from tests.recovery.life.crew import FakeRun, FakeWorker, outcome
from tests.recovery.life.laws import Laws
from tests.recovery.life.ledger import Ledger

HOUR = 3_600_000
ANY = st.integers(min_value=0, max_value=11)  # which of those that are there
STEPS = [StepCall("look#1", "d1", "read"), StepCall("put#1", "d1", "write"), StepCall("put#2", "d1", "write")]
CHANGED = StepCall("put#1", "d2", "write")  # the same step with other arguments
SHIPPED = policy.parse(policy.DEFAULT_TEXT, path="policy.toml")
POLICIES = {
    "shipped": SHIPPED,
    "cautious": policy.parse(policy.DEFAULT_TEXT.replace('low = "resume"', 'low = "ask"'), path="policy.toml"),
    "exempting": policy.parse(policy.DEFAULT_TEXT.replace("exempt = []", f'exempt = ["{AGENT}"]'), path="policy.toml"),
    "missing": policy.parse(None, path="policy.toml"),
    "broken": policy.parse("version = 1\n[recovery]\nlow = ", path="policy.toml"),
    "strange": policy.parse(policy.DEFAULT_TEXT.replace('high = "ask"', 'high = "resume"'), path="policy.toml"),
}
ENDINGS = st.sampled_from(["complete", "complete", "fail", "retry", "retry", "unclaim", "suspend"])
MAX_TASKS, MAX_WORKERS = 3, 4
EXAMPLES = int(os.environ.get("LIFE_EXAMPLES", "60"))  # more of them for a night


class Life(RuleBasedStateMachine):
    @initialize(risks=st.lists(st.sampled_from(RiskLevel), min_size=1, max_size=2))
    def begin(self, risks: list[RiskLevel]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.db = schema.open_database(Path(self.folder.name) / "state.db", now=NOW, durability="process")
        self.now = NOW
        self.ledger = Ledger()
        self.laws = Laws(self.db, self.ledger)
        self.crew: list[FakeWorker] = []
        for risk in risks:
            self.enqueue(risk=risk, lane=Lane.SUBAGENT, priority=0, delay=0, expires=None, retries=1)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            try:
                if sys.exc_info()[0] is None:
                    self.bring_everything_to_its_end()
            finally:
                self.db.close_all()
                self.folder.cleanup()

    def tick(self) -> int:
        self.now += 1
        return self.now

    def living(self) -> list[FakeWorker]:
        return [worker for worker in self.crew if worker.alive]

    def runs(self) -> list[tuple[FakeWorker, FakeRun]]:
        return [(worker, run) for worker in self.living() for run in worker.runs]

    # -- clients and clocks -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.laws.first) < MAX_TASKS)
    @rule(
        risk=st.sampled_from(RiskLevel),
        lane=st.sampled_from(Lane),
        priority=st.integers(-2, 20),
        delay=st.sampled_from([0, 0, 0, 50, HOUR]),
        expires=st.sampled_from([None, None, 20, HOUR]),
        retries=st.integers(0, 2),
    )
    def enqueue(
        self, risk: RiskLevel, lane: Lane, priority: int, delay: int, expires: int | None, retries: int
    ) -> None:
        now = self.tick()
        changes: dict[str, Any] = {"retries_left": retries, "expires_at": expires and now + expires}
        task = new_task(f"t{len(self.laws.first)}", lane=lane, risk=risk, now=now, **changes)
        tasks.submit(self.db, task.with_order(priority=priority, due_at=now + delay), now=now)
        self.laws.acknowledge(task.id)

    @rule(step=st.sampled_from([-HOUR, -1_000, -1, 100, HOUR, 24 * HOUR]))
    def set_the_clock(self, step: int) -> None:
        self.now += step

    @rule(which=ANY, hold=st.sampled_from(["paused", "unknown_agent", None]))
    def hold_or_release(self, which: int, hold: str | None) -> None:
        task = self.a_task(which)
        with suppress(ConflictError):
            if hold is None:
                claims.release(self.db, task.id, now=self.tick())
            else:
                claims.hold(self.db, task.id, hold=hold, now=self.tick())
            assert task.status == TaskStatus.PENDING

    # -- workers ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.crew) < MAX_WORKERS)
    @rule()
    def start_a_worker(self) -> None:
        self.crew.append(FakeWorker.start(self.db, self.ledger, f"w{len(self.crew)}", now=self.tick()))

    @precondition(lambda self: bool(self.living()))
    @rule(which=ANY, lane=st.sampled_from([Lane.SUBAGENT, Lane.SUBAGENT, Lane.MAIN]))
    def claim(self, which: int, lane: Lane) -> None:
        self.claimed(which, lane)

    def claimed(self, which: int, lane: Lane) -> FakeRun | None:
        living = self.living()
        run = living[which % len(living)].claim(lane, now=self.tick())
        if run is not None:
            self.laws.claimed(run, now=self.now)
        return run

    @precondition(lambda self: bool(self.runs()))
    @rule(which=ANY, call=st.sampled_from([*STEPS, *STEPS, CHANGED]))
    def begin_a_step(self, which: int, call: StepCall) -> None:
        runs = self.runs()
        runs[which % len(runs)][1].call(call, now=self.tick())

    @precondition(lambda self: any(run.executing for _, run in self.runs()))
    @rule(which=ANY, step=ANY, failed=st.booleans(), repeatable=st.booleans())
    def end_a_step(self, which: int, step: int, failed: bool, repeatable: bool) -> None:
        busy = [run for _, run in self.runs() if run.executing]
        run = busy[which % len(busy)]
        key = sorted(run.executing)[step % len(run.executing)]
        run.end_step(key, failed=failed, repeatable=repeatable, now=self.tick())

    @precondition(lambda self: bool(self.runs()))
    @rule(which=ANY)
    def record_a_value(self, which: int) -> None:
        runs = self.runs()
        runs[which % len(runs)][1].value(now=self.tick())

    @precondition(lambda self: any(not run.executing for _, run in self.runs()))
    @rule(which=ANY, how=ENDINGS)
    def finish(self, which: int, how: str) -> None:
        idle = [(worker, run) for worker, run in self.runs() if not run.executing]
        worker, run = idle[which % len(idle)]
        self.laws.finishing(run)
        self.laws.finished(run, run.finish(how, now=self.tick()))
        worker.forget(run)

    @precondition(lambda self: bool(self.living()) and len(self.crew) < MAX_WORKERS)
    @rule(which=ANY, steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=3), ends=st.integers(0, 3))
    def work(self, which: int, steps: list[StepCall], ends: int) -> None:
        """What a worker does most of the time: a claim and some steps, of which the last may be still under way."""
        run = self.claimed(which, Lane.SUBAGENT)
        for number, call in enumerate(steps if run else []):
            assert run is not None
            run.call(call, now=self.tick())
            if number < ends and call.key in run.executing:
                run.end_step(call.key, failed=False, repeatable=False, now=self.tick())

    @precondition(lambda self: bool(self.runs()))
    @rule(which=ANY)
    def lose_a_claim(self, which: int) -> None:
        """The runner could not store an end and dropped its claim; the lease thread finds it missing."""
        worker, run = self.runs()[which % len(self.runs())]
        if not run.executing:
            run.lose(now=self.tick())
            worker.forget(run)

    @precondition(lambda self: bool(self.living()))
    @rule(which=ANY)
    def shut_down(self, which: int) -> None:
        self.living()[which % len(self.living())].shut_down(now=self.tick())

    @precondition(lambda self: bool(self.living()))
    @rule(which=ANY, proved=st.booleans())
    def die(self, which: int, proved: bool) -> None:
        worker = self.living()[which % len(self.living())]
        worker.die()
        if proved:
            worker.prove(now=self.tick())

    @precondition(lambda self: any(not (worker.alive or worker.proved) for worker in self.crew))
    @rule()
    def prove_the_dead(self) -> None:
        for worker in self.crew:
            if not (worker.alive or worker.proved):
                worker.prove(now=self.tick())

    # -- recovery ---------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(["shipped", "shipped", *POLICIES]), out=st.sets(ANY, max_size=2), patience=ANY)
    def sweep(self, name: str, out: set[int], patience: int) -> None:
        """A pass; `out` are workers, dead or alive, that it watched for a lease and saw standing still."""
        suspects = [worker.id for worker in self.crew if not worker.proved]
        lease_out = frozenset(suspects[number % len(suspects)] for number in out if suspects)
        rules = Rules(POLICIES[name], patience + 2, lease_out)
        before = {task_id: tasks.find(self.db, task_id) for task_id in self.laws.first}
        dry = sweep.sweep(self.db, rules, now=self.tick(), dry_run=True)
        assert {task_id: vars(tasks.find(self.db, task_id)) for task_id in before} == {
            task_id: vars(task) for task_id, task in before.items()
        }, "a dry run has moved something"
        report = sweep.sweep(self.db, rules, now=self.now)
        self.laws.swept(before, report, dry, rules, {worker.id for worker in self.crew if worker.proved})

    @precondition(lambda self: bool(self.living()))
    @rule(name=st.sampled_from(["shipped", "shipped", "exempting"]))
    def lose_everybody(self, name: str) -> None:
        """What recovery sees most of the time."""
        for worker in self.living():
            worker.die()
        self.prove_the_dead()
        self.sweep(name, set(), 9)

    # -- persons ----------------------------------------------------------------------------------------------

    def questions(self) -> list[Confirmation]:
        return confirmations.listing(self.db, only_open=False)

    def a_task(self, which: int) -> AgentTask:
        ids = sorted(self.laws.first)
        return tasks.find(self.db, ids[which % len(ids)])

    @precondition(lambda self: bool(self.questions()))
    @rule(which=ANY, step=ANY, verb=st.sampled_from(["approve", "approve", "reject", "ran", "again", "again", "abandon"]))
    def answer(self, which: int, step: int, verb: str) -> None:
        """The newest questions are the likeliest; one that is decided already is refused."""
        asked = self.questions()[-1 - which % 3 % len(self.questions())]
        steps = confirmations.steps(self.db, asked.id)
        if verb in ("approve", "reject"):
            self.conclude(asked, verb)
        elif steps:
            self.settle(asked, steps[step % len(steps)], verb)

    def conclude(self, asked: Confirmation, verb: str) -> None:
        undecided = [step for step in confirmations.steps(self.db, asked.id) if step.decision is None]
        try:
            if verb == "approve":
                confirmations.approve(self.db, asked.id, by="ann", now=self.tick())
                assert not undecided, "a step in doubt was approved away"
            else:
                confirmations.reject(self.db, asked.id, by="ann", reason="", now=self.tick())
        except ConflictError as error:
            assert isinstance(error, AlreadyDecidedError) == (asked.status != "open")
            assert isinstance(error, StepInDoubtError) == (asked.status == "open" and bool(undecided))
        else:
            assert asked.status == "open", "a question was decided twice"

    def settle(self, asked: Confirmation, step: confirmations.ConfirmationStep, verb: str) -> None:
        now, call = self.tick(), StepCall(step.step_key, step.digest, step.effect)
        hands = self.ledger.step(asked.task_id, call).hands
        told = {"outcome_json": outcome(failed=verb == "abandon", by_person=True)}
        say = {"ran": confirmations.answer_ran, "abandon": confirmations.answer_abandon}
        try:
            if verb == "again":
                confirmations.answer_again(self.db, asked.id, step.step_key, by="ann", now=now)
                assert not hands, f"{call.key} may run again while {hands} still execute it"
            else:
                say[verb](self.db, asked.id, step.step_key, by="ann", now=now, **told)
        except ConflictError:
            return
        assert asked.status == "open", "a question was decided twice"
        assert step.decision is None, "a step was decided twice"
        self.ledger.answered(asked.task_id, call, verb)

    @rule(which=ANY, verb=st.sampled_from(["cancel", "retry", "retry", "wake", "wake", "swap_out"]))
    def meddle(self, which: int, verb: str) -> None:
        task, now = self.a_task(which), self.tick()
        with suppress(ConflictError):
            match verb:
                case "cancel":
                    transitions.cancel(self.db, task.id, by="ann", detail="{}", now=now)
                case "retry":
                    transitions.retry_by_person(self.db, task.id, by="ann", now=now)
                    self.laws.retried(task)
                case "wake":
                    transitions.wake(self.db, task.id, now=now)
                case "swap_out":
                    transitions.swap_out(self.db, task.id, swap_path="x", now=now)

    # -- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "laws"):
            self.laws.check(self.crew)

    def bring_everything_to_its_end(self) -> None:
        """Nothing was lost: with a worker that lives and a person who answers, every task ends."""
        for worker in self.living():
            worker.die()
        self.prove_the_dead()
        for _ in range(12):
            self.now += 48 * HOUR
            self.release_everything()
            self.sweep("shipped", set(), 100)
            for asked in confirmations.listing(self.db):
                for step in confirmations.steps(self.db, asked.id):
                    if step.decision is None:
                        self.settle(asked, step, "ran")
                if confirmations.find(self.db, asked.id).status == "open":
                    self.conclude(asked, "approve")
            worker = FakeWorker.start(self.db, self.ledger, f"last{self.now}", now=self.tick())
            for lane in Lane:
                while (run := worker.claim(lane, now=self.tick())) is not None:
                    for call in STEPS:
                        run.call(call, now=self.tick())
                        if call.key in run.executing:
                            run.end_step(call.key, failed=False, repeatable=False, now=self.tick())
                    run.finish("complete", now=self.tick())
                    worker.forget(run)
            worker.prove(now=self.tick())
            self.laws.check([*self.crew, worker])
        left = [f"{task.id}: {task.status} ({task.reason}, {task.hold})" for task in self.laws.tasks() if not task.status.is_terminal()]
        assert left == [], "tasks that never end"

    def release_everything(self) -> None:
        for task in self.laws.tasks():
            with suppress(ConflictError):
                if task.hold in ("paused", "unknown_agent"):
                    claims.release(self.db, task.id, now=self.tick())
                elif task.status in (TaskStatus.IDLE, TaskStatus.SWAPPED):
                    transitions.wake(self.db, task.id, now=self.tick())
                elif task.reason == "skipped":
                    transitions.retry_by_person(self.db, task.id, by="ann", now=self.tick())


assert isinstance(SHIPPED, RecoveryPolicy)
Life.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase
