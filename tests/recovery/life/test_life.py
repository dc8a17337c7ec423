"""Whatever happens, in whatever order, the promises hold: a machine that tries everything on a real file.

Workers claim, work, stand still and die; passes run under good and broken policies; persons answer, cancel and retry; the
clock is set forth and back. After each rule the file is compared with what is promised (laws.py) and with what really
happened (ledger.py); at the end everything that is not done yet is brought to its end, so nothing was lost.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relight.models import claims, confirmations, pauses, retries, schema, tasks, transitions
from relight.models.confirmations import Confirmation
from relight.models.errors import AlreadyDecidedError, ConflictError, StaleMove, StepInDoubtError
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
    "cautious": policy.parse(
        policy.DEFAULT_TEXT.replace('low = "resume"', 'low = "ask"'), path="policy.toml"
    ),
    "exempting": policy.parse(
        policy.DEFAULT_TEXT.replace("exempt = []", f'exempt = ["{AGENT}"]'), path="policy.toml"
    ),
    "missing": policy.parse(None, path="policy.toml"),
    "broken": policy.parse("version = 1\n[recovery]\nlow = ", path="policy.toml"),
    "strange": policy.parse(
        policy.DEFAULT_TEXT.replace('high = "ask"', 'high = "resume"'), path="policy.toml"
    ),
}
CALLS = st.sampled_from([*STEPS, *STEPS, CHANGED])
CLOCK_STEPS = st.sampled_from([-HOUR, -1_000, -1, 100, HOUR, 24 * HOUR])
ENDINGS = st.sampled_from(
    ["complete", "complete", "fail", "retry", "retry", "unclaim", "suspend", "value", "lose"]
)
MOST_TASKS, MAX_WORKERS = 5, 2
EXAMPLES = int(os.environ.get("LIFE_EXAMPLES", "100"))  # more of them for a night


class Life(RuleBasedStateMachine):
    """Rules see to what they need: a worker to work, a claim to begin a step. So most of them lead somewhere."""

    @initialize(risks=st.lists(st.sampled_from(RiskLevel), min_size=1, max_size=2))
    def begin(self, risks: list[RiskLevel]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.db = schema.open_database(Path(self.folder.name) / "state.db", now=NOW, durability="process")
        self.now = NOW
        self.ledger = Ledger()
        self.laws = Laws(self.db, self.ledger)
        self.crew: list[FakeWorker] = []
        for risk in risks:
            self.enqueue_plainly(risk)

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

    # -- who is there -----------------------------------------------------------------------------------------

    def living(self) -> list[FakeWorker]:
        return [worker for worker in self.crew if worker.alive]

    def runs(self) -> list[tuple[FakeWorker, FakeRun]]:
        return [(worker, run) for worker in self.living() for run in worker.runs]

    def a_worker(self, which: int) -> FakeWorker:
        """One of the living; a new one where there are few."""
        living = self.living()
        if which % MAX_WORKERS >= len(living):
            self.crew.append(FakeWorker.start(self.db, self.ledger, f"w{len(self.crew)}", now=self.tick()))
            return self.crew[-1]
        return living[which % MAX_WORKERS]

    def a_run(self, which: int) -> FakeRun | None:
        """A run that goes on, or a new one."""
        runs = self.runs()
        return runs[which % len(runs)][1] if runs else self.claimed(which)

    def claimed(self, which: int) -> FakeRun | None:
        """The best task of whichever lane has one, a new one if need be."""
        worker = self.a_worker(which)
        if not any(claims.ready(self.db, lane) or claims.next_due(self.db) for lane in Lane):
            self.enqueue_plainly(list(RiskLevel)[which % 2])
        for lane in (Lane.SUBAGENT, Lane.MAIN, Lane.SUBAGENT):
            run = worker.claim(lane, now=self.tick())
            if run is not None:
                self.laws.claimed(run, now=self.now)
                return run
            self.now += 31_000  # what was lost before waits for that long at most
        return None

    def enqueue_plainly(self, risk: RiskLevel) -> None:
        if len(self.laws.first) < MOST_TASKS:
            self.enqueue(risk=risk, lane=Lane.SUBAGENT, priority=0, delay=0, expires=None, retries=1)

    def a_task(self, which: int) -> AgentTask:
        ids = sorted(self.laws.first)
        return tasks.find(self.db, ids[which % len(ids)])

    # -- clients ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.laws.first) < MOST_TASKS)
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

    # -- workers ----------------------------------------------------------------------------------------------

    @rule(which=ANY, call=CALLS, reckless=st.booleans())
    def begin_a_step(self, which: int, call: StepCall, reckless: bool) -> None:
        if (run := self.a_run(which)) is not None:
            run.call(call, now=self.tick(), reckless=reckless)

    @precondition(lambda self: any(run.executing for _, run in self.runs()))
    @rule(which=ANY, step=ANY, failed=st.sampled_from([False, False, True]), repeatable=st.booleans())
    def end_a_step(self, which: int, step: int, failed: bool, repeatable: bool) -> None:
        busy = [run for _, run in self.runs() if run.executing]
        run = busy[which % len(busy)]
        key = sorted(run.executing)[step % len(run.executing)]
        run.end_step(key, failed=failed, repeatable=repeatable, now=self.tick())

    @rule(which=ANY, calls=st.lists(CALLS, min_size=1, max_size=4), ends=st.integers(0, 3))
    def work(self, which: int, calls: list[StepCall], ends: int) -> None:
        """What a worker does most of the time: some steps, of which the last may be still under way."""
        run = self.a_run(which)
        for number, call in enumerate(calls if run else []):
            assert run is not None
            run.call(call, now=self.tick())
            if number < ends and call.key in run.executing:
                run.end_step(call.key, failed=False, repeatable=False, now=self.tick())

    @rule(which=ANY, changed=st.sampled_from([False, False, True]))
    def replay_everything(self, which: int, changed: bool) -> None:
        """A run comes to every step; or one of changed code does, and nobody notices before the store."""
        if (run := self.a_run(which)) is not None:
            for call in [STEPS[0], CHANGED if changed else STEPS[1], STEPS[2]]:
                run.call(call, now=self.tick(), reckless=changed)

    @precondition(lambda self: any(run.executing and not run.is_ours() for _, run in self.runs()))
    @rule(failed=st.booleans())
    def sleepers_wake(self, failed: bool) -> None:
        """Who was thought to stand still for good ends what it was doing, late."""
        for run in [run for _, run in self.runs() if run.executing and not run.is_ours()]:
            for key in sorted(run.executing):
                run.end_step(key, failed=failed, repeatable=True, now=self.tick())

    @rule(which=ANY, call=CALLS, repeatable=st.booleans())
    def stumble(self, which: int, call: StepCall, repeatable: bool) -> None:
        """A step raises, and with it its agent."""
        run = self.a_run(which)
        if run is None or run.executing:
            return
        run.call(call, now=self.tick())
        if call.key in run.executing:
            run.end_step(call.key, failed=True, repeatable=repeatable, now=self.tick())
        self.finished(run, "retry")

    @precondition(lambda self: any(not run.executing for _, run in self.runs()))
    @rule(which=ANY, how=ENDINGS)
    def finish(self, which: int, how: str) -> None:
        idle = [run for _, run in self.runs() if not run.executing]
        self.finished(idle[which % len(idle)], how)

    def finished(self, run: FakeRun, how: str) -> None:
        (worker,) = (worker for worker, other in self.runs() if other is run)
        self.laws.finishing(run)
        if how == "value":
            run.value(now=self.tick())
        elif how == "lose":  # its end could not be stored, and the lease thread finds the claim missing
            run.lose(now=self.tick())
        else:
            self.laws.finished(run, run.finish(how, now=self.tick()))
        if how != "value":
            worker.forget(run)

    @precondition(lambda self: bool(self.runs()))
    @rule(which=ANY)
    def shut_down(self, which: int) -> None:
        self.runs()[which % len(self.runs())][0].shut_down(now=self.tick())

    @precondition(lambda self: bool(self.crew))
    @rule(which=ANY, proved=st.booleans())
    def die(self, which: int, proved: bool) -> None:
        """A worker is killed, and its death is found out; or somebody's who died before is."""
        if living := self.living():
            living[which % len(living)].die()
        if proved or not living:
            self.prove_the_dead()

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
        before = {task.id: task for task in self.laws.tasks()}
        dry = sweep.sweep(self.db, rules, now=self.tick(), dry_run=True)
        assert {task.id: vars(task) for task in self.laws.tasks()} == {
            task_id: vars(task) for task_id, task in before.items()
        }, "a dry run has moved something"
        report = sweep.sweep(self.db, rules, now=self.now)
        self.laws.swept(before, report, dry, rules, {worker.id for worker in self.crew if worker.proved})

    @rule(which=ANY, name=st.sampled_from(["shipped", "exempting"]))
    def stall(self, which: int, name: str) -> None:
        """A worker with a task stands still for longer than its lease."""
        run = self.a_run(which)
        suspects = [worker.id for worker in self.crew if not worker.proved]
        self.sweep(name, {suspects.index(run.claim.worker_id)} if run else set(), 9)
        self.the_laws_hold()
        self.claimed(which + 1)

    @rule(name=st.sampled_from(["shipped", "shipped", "exempting"]))
    def lose_everybody(self, name: str) -> None:
        """What recovery sees most of the time."""
        for worker in self.living():
            worker.die()
        self.prove_the_dead()
        self.sweep(name, set(), 9)

    # -- persons ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.db.row("SELECT 1 FROM confirmations") is not None)
    @rule(
        which=ANY,
        step=ANY,
        verb=st.sampled_from(["approve", "approve", "reject", "ran", "again", "again", "abandon"]),
    )
    def answer(self, which: int, step: int, verb: str) -> None:
        """The newest questions are the likeliest; one that is decided already is refused."""
        known = confirmations.listing(self.db, only_open=False)
        asked = known[-1 - which % 3 % len(known)]
        steps = confirmations.steps(self.db, asked.id)
        if verb in ("approve", "reject"):
            self.conclude(asked, verb)
        elif steps:
            self.settle(asked, steps[step % len(steps)], verb)

    @precondition(lambda self: bool(self.laws.open_questions()))
    @rule(verb=st.sampled_from(["ran", "again", "again", "again", "abandon"]))
    def answer_everything(self, verb: str) -> None:
        for asked in confirmations.listing(self.db):
            for step in confirmations.steps(self.db, asked.id):
                if step.decision is None:
                    self.settle(asked, step, verb)
            if confirmations.find(self.db, asked.id).status == "open":
                self.conclude(asked, "approve")

    def conclude(self, asked: Confirmation, verb: str) -> None:
        undecided = [step for step in confirmations.steps(self.db, asked.id) if step.decision is None]
        try:
            if verb == "approve":
                confirmations.approve(self.db, asked.id, by="ann", now=self.tick())
                assert not undecided, "a step in doubt was approved away"
            else:
                confirmations.reject(self.db, asked.id, by="ann", reason="", now=self.tick())
        except ConflictError as refusal:
            expected = (
                AlreadyDecidedError
                if asked.status != "open"
                else StepInDoubtError
                if undecided
                else StaleMove
            )
            self.laws.refused(refusal, expected)
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

    @rule(
        which=ANY,
        verb=st.sampled_from(["retry", "retry", "cancel", "again", "again", "expire", "wake", "swap_out"]),
    )
    def meddle(self, which: int, verb: str) -> None:
        task, now = self.a_task(which), self.tick()
        with suppress(ConflictError):
            match verb:
                case "cancel" if task.status != TaskStatus.PENDING or which % 4 == 0:
                    transitions.cancel(self.db, task.id, by="ann", detail="{}", now=now)
                case "retry":
                    self.retried(task)
                case "again" if task.attempt > 0:  # off and on again
                    transitions.cancel(self.db, task.id, by="ann", detail="{}", now=now)
                    self.retried(tasks.find(self.db, task.id))
                case "expire":
                    transitions.expire(self.db, task.id, now=now)
                case "wake":
                    transitions.wake(self.db, task.id, now=now)
                case "swap_out":
                    transitions.swap_out(self.db, task.id, swap_path="x", now=now)

    def retried(self, task: AgentTask) -> None:
        done = retries.by_person(self.db, task.id, by="ann", now=self.now)
        self.laws.retried(task)
        for key in done.again:
            self.ledger.superseded(task.id, key)
        for key in done.in_doubt:
            self.ledger.taken_back(task.id, key)

    @rule(
        which=ANY,
        how=st.sampled_from(["clock", "unpause", "pause", "unknown", "known", "lane"]),
        step=CLOCK_STEPS,
    )
    def disturb(self, which: int, how: str, step: int) -> None:
        """The clock is set; what is pending is held, and let go."""
        task, lane, now = self.a_task(which), Lane.MAIN if which % 2 else Lane.SUBAGENT, self.tick()
        with suppress(ConflictError):
            match how:
                case "clock":
                    self.now += step
                case "pause":
                    pauses.pause_task(self.db, task.id, by="ann", now=now)
                case "unpause":
                    pauses.unpause_task(self.db, task.id, by="ann", now=now)
                case "unknown" if task.hold is None:
                    claims.hold(self.db, task.id, hold="unknown_agent", now=now)
                case "known":
                    claims.release_unknown(self.db, known=frozenset({AGENT}), now=now)
                case "lane" if lane not in pauses.lanes(self.db):
                    pauses.pause_lane(self.db, lane, by="ann", now=now)
                case "lane":
                    pauses.unpause_lane(self.db, lane)

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
            self.answer_everything("ran")
            worker = FakeWorker.start(self.db, self.ledger, f"last{self.now}", now=self.tick())
            for lane in Lane:
                while (run := worker.claim(lane, now=self.tick())) is not None:
                    for call in map(self.as_recorded(run), STEPS):
                        run.call(call, now=self.tick())
                        if call.key in run.executing:
                            run.end_step(call.key, failed=False, repeatable=False, now=self.tick())
                    run.finish("complete", now=self.tick())
                    worker.forget(run)
            worker.prove(now=self.tick())
            self.laws.check([*self.crew, worker])
        left = [
            f"{task.id}: {task.status} ({task.reason}, {task.hold})"
            for task in self.laws.tasks()
            if not task.status.is_terminal()
        ]
        assert left == [], "tasks that never end"

    def as_recorded(self, run: FakeRun) -> Callable[[StepCall], StepCall]:
        """The arguments of the code that began a step."""
        known = self.ledger.of(run.task.id)
        return lambda call: replace(call, digest=known[call.key].digest) if call.key in known else call

    def release_everything(self) -> None:
        claims.release_unknown(self.db, known=frozenset({AGENT}), now=self.tick())
        for lane in Lane:
            pauses.unpause_lane(self.db, lane)
        for task in self.laws.tasks():
            with suppress(ConflictError):
                if task.hold == "paused":
                    pauses.unpause_task(self.db, task.id, by="ann", now=self.tick())
                elif task.status in (TaskStatus.IDLE, TaskStatus.SWAPPED):
                    transitions.wake(self.db, task.id, now=self.tick())
                elif task.reason == "skipped":
                    self.retried(task)


assert isinstance(SHIPPED, RecoveryPolicy)
Life.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase
