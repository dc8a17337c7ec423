"""One recovery pass: look at every orphan, decide, and put it back, ask, skip or quarantine it.

Invariant: each task moves in its own guarded transaction, so passes may overlap, die or meet errors: what one does not
move, the next one finds. Whether a worker is dead, and what time it is, comes in from outside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..models import claims, confirmations, orphans, traces, transitions
from ..models.confirmations import StepInDoubt
from ..models.database import Database
from ..models.errors import StaleMove, StorageError
from ..models.journal import StepCall
from ..models.orphans import Orphan
from ..models.tasks import AgentTask, TaskStatus
from . import replay
from .decision import Decision, Facts, Verdict, decide
from .policy import PolicyFault, RecoveryPolicy
from .replay import History, RecordedStep

PAGE = 200
TOGETHER = 20  # tasks put back in one transaction: about 5 ms of the write lock
LAST_SHOWN = 3  # finished steps that a question names

Evidence = Callable[[AgentTask, RecordedStep], dict[str, Any] | None]


@dataclass(frozen=True)
class Rules:
    """What a pass goes by: the policy, the limit of losses in a row, and the workers whose lease was seen to run out."""

    policy: RecoveryPolicy | PolicyFault
    max_losses: int
    lease_out: frozenset[str] = frozenset()


@dataclass
class Report:
    """What a pass did, as lists of {"id", "reason"}; `skipped` were left for a person to see."""

    resumed: list[dict[str, str]] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    quarantined: list[dict[str, str]] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)

    def note(self, case: Case) -> None:
        """Count a task under its verdict."""
        entries = {
            Verdict.RESUME: self.resumed,
            Verdict.ASK: self.asked,
            Verdict.SKIP: self.skipped,
            Verdict.QUARANTINE: self.quarantined,
        }[case.decided.verdict]
        entries.append({"id": case.task.id, "agent": case.task.agent_id, "reason": case.decided.reason})

    def ids(self) -> dict[str, list[str]]:
        """The task ids by verdict."""
        return {name: [entry["id"] for entry in entries] for name, entries in vars(self).items()}

    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return not any(vars(self).values())


def no_evidence(task: AgentTask, step: RecordedStep) -> dict[str, Any] | None:
    """Where nobody can look whether a step landed."""
    return None


def sweep(
    db: Database, rules: Rules, *, now: int, evidence: Evidence = no_evidence, dry_run: bool = False
) -> Report:
    """Run one pass over all orphans; `dry_run` decides without moving anything."""
    report = Report()
    if not dry_run:
        _expire(db, report, now=now)
    after = None
    while page := orphans.page(db, lease_out=rules.lease_out, after=after, limit=PAGE):
        cases = [_case(db, orphan, rules) for orphan in page]
        if dry_run:
            for case in cases:
                report.note(case)
        else:
            _move(db, cases, report, now=now, evidence=evidence)
        after = page[-1].order
    return report


@dataclass(frozen=True)
class Case:
    """One orphan, what its record says, and what was decided about it."""

    orphan: Orphan
    record: History
    unsure: list[RecordedStep]
    decided: Decision
    lease_ran_out: bool

    @property
    def task(self) -> AgentTask:
        """The task as the scan saw it."""
        return self.orphan.task

    @property
    def was_running(self) -> bool:
        """Whether its worker is lost only now; an interrupted one was counted when it was interrupted."""
        return bool(self.task.status == TaskStatus.RUNNING)


def _case(db: Database, orphan: Orphan, rules: Rules) -> Case:
    record = replay.history(traces.step_records(db, orphan.task.id))
    unsure = unsettled_writes(db, orphan.task, record)
    decided = decide(_facts(orphan, record, unsure), rules.policy, max_losses=rules.max_losses)
    out = orphan.task.status == TaskStatus.RUNNING or orphan.task.worker_id in rules.lease_out
    return Case(orphan, record, unsure, decided, lease_ran_out=out)


def _expire(db: Database, report: Report, *, now: int) -> None:
    for task_id in claims.expired_ids(db, now=now):
        try:
            transitions.expire(db, task_id, now=now)
        except StaleMove:
            continue
        except StorageError as error:
            report.errors.append({"id": task_id, "reason": str(error)})


def _move(db: Database, cases: list[Case], report: Report, *, now: int, evidence: Evidence) -> None:
    _resume_all(db, [case for case in cases if case.decided.verdict is Verdict.RESUME], report, now=now)
    for case in cases:
        if case.decided.verdict is not Verdict.RESUME:
            _in_turn(report, [case], partial(_put_aside, db, case, now=now, evidence=evidence))


def _resume_all(db: Database, cases: list[Case], report: Report, *, now: int) -> None:
    """Put tasks back, a few in one transaction: a commit for each would take longer than the work."""
    for start in range(0, len(cases), TOGETHER):
        some = cases[start : start + TOGETHER]
        _in_turn(report, some, partial(_resume, db, some, now=now))


def _in_turn(report: Report, cases: list[Case], move: Callable[[], list[Case]]) -> None:
    """Move some tasks and note those that moved; on a storage error none has, and the next pass takes them."""
    try:
        moved = move()
    except StorageError as error:
        report.errors += [{"id": case.task.id, "reason": str(error)} for case in cases]
        return
    for case in moved:
        report.note(case)


def _resume(db: Database, cases: list[Case], *, now: int) -> list[Case]:
    moved = []
    with db.write():
        for case in cases:
            lease_out = not case.orphan.owner_gone and case.lease_ran_out
            with suppress(StaleMove):
                due_at = now + case.decided.wait_ms if case.decided.wait_ms else None
                transitions.resume(db, case.task, now=now, lease_out=lease_out, due_at=due_at)
                moved.append(case)
    return moved


def _put_aside(db: Database, case: Case, *, now: int, evidence: Evidence) -> list[Case]:
    """Ask, skip or quarantine; nobody is asked to look for evidence inside a transaction."""
    steps = [in_doubt(step, evidence(case.task, step)) for step in case.unsure]
    with suppress(StaleMove):
        match case.decided.verdict:
            case Verdict.QUARANTINE:
                detail = _detail("CrashLoop", case.decided.reason)
                transitions.quarantine(db, case.task, detail=detail, now=now)
            case Verdict.SKIP:
                detail = _detail("Skipped", case.decided.reason)
                transitions.put_aside(
                    db, case.task, reason="skipped", now=now, lost=case.was_running, error_json=detail
                )
            case _:
                _ask(db, case, steps, now=now)
        return [case]
    return []


def _ask(db: Database, case: Case, steps: list[StepInDoubt], *, now: int) -> None:
    asked = request(case.task, case.decided.reason, case.record, steps)
    if not case.orphan.owner_gone:
        asked["owner"] = "not proved dead: its lease ran out, so it may still be executing a step"
    confirmations.ask(
        db, case.task, reason="asked", request=asked, steps=steps, now=now, lost=case.was_running
    )


def request(task: AgentTask, why: str, record: History, asked: Sequence[StepInDoubt] = ()) -> dict[str, Any]:
    """What a person is shown about a task that waits: why, what was restored, what runs next.

    A step that is asked about is not restored, although one that raised has a recorded end.
    """
    doubtful = [step.call.key for step in asked] or [step.key for step in record.in_doubt()]
    finished = [step for step in record.finished() if step.key not in doubtful]
    following = f"step {doubtful[0]} again" if doubtful else "the code after the last finished step"
    return {
        "why": why,
        "agent": task.agent_id,
        "risk": str(task.risk_level),
        "attempt": task.attempt,
        "losses": task.losses,
        "restored": {"finished_steps": len(finished), "last": [step.key for step in finished[-LAST_SHOWN:]]},
        "next": following,
    }


def in_doubt(step: RecordedStep, verified: dict[str, Any] | None, *, error: str | None = None) -> StepInDoubt:
    """A recorded step as a question about it: its name, arguments, when it began, and what `verify` says."""
    call = step.intent_call()
    shown = {
        "name": call.get("tool_name", step.key),
        "input": call.get("input"),
        "began_at": step.started_at,
        "attempt": step.attempt,
        "effect": step.effect,
        "verify": verified or {"status": "not asked"},
    }
    if error is not None:
        shown["error"] = error
    return StepInDoubt(StepCall(step.key, step.digest, step.effect), step.attempt, shown)


def unsettled_writes(db: Database, task: AgentTask, record: History) -> list[RecordedStep]:
    """The writes that may have happened and that nobody has allowed to happen again."""
    writes = [step for step in record.in_doubt() if step.effect == "write"]
    if not writes:
        return []
    granted = confirmations.granted(db, task.id)
    return [step for step in writes if (step.key, step.digest) not in granted]


def _facts(orphan: Orphan, record: History, unsure: list[RecordedStep]) -> Facts:
    task = orphan.task
    losses = task.losses
    if task.status == TaskStatus.RUNNING:
        losses = 1 if record.finished_in(task.attempt) else losses + 1
    doubtful = record.in_doubt()
    return Facts(
        status=str(task.status),
        risk_text=orphan.risk_text,
        agent_id=task.agent_id,
        trace_count=orphan.trace_count,
        losses=losses,
        lost=task.reason != "shutdown",
        in_doubt_writes=tuple(step.key for step in unsure),
        suspect_step=doubtful[-1].key if doubtful else None,
    )


def _detail(kind: str, text: str) -> str:
    return json.dumps({"type": kind, "text": text}, ensure_ascii=False)
