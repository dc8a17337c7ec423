"""Why a task is where it is, in one sentence, with the facts behind it and what a person can do about it.

Invariant: pure. Everything that is looked up comes in as a `Situation`; each status, hold and reason that a task can have
leads to exactly one sentence, also one that a later version invents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..models.confirmations import Confirmation, ConfirmationStep
from ..models.fields import INT64_MAX
from ..models.pauses import LanePause
from ..models.tasks import AgentTask, TaskStatus
from ..models.workers import Worker
from .wording import error_of, moment, processes, reason_of, span


@dataclass(frozen=True)
class Situation:
    """What is known about a task: its row, and what it waits for.

    `position` is its place in its lane, from 1. `serving` and `living` count the processes that serve its lane, and any
    lane. `owner_lock` says what the lock of its worker proves: held, free or nothing. `put_back_by` is the event that
    made it pending, `said_by` who ended or paused it; `open_steps` were begun in this attempt and have not ended.
    """

    task: AgentTask
    now: int
    position: int = 0
    serving: int = 0
    living: int = 0
    lane_pause: LanePause | None = None
    owner: Worker | None = None
    owner_lock: str = "nothing"
    question: Confirmation | None = None
    doubtful: tuple[ConfirmationStep, ...] = ()
    put_back_by: str = ""
    said_by: str | None = None
    open_steps: tuple[str, ...] = ()
    silent_after_ms: int = 60_000
    suspect_from: int = INT64_MAX


@dataclass(frozen=True)
class Why:
    """The answer: a code for programs, a sentence for people, facts, and the commands that would change something."""

    code: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)
    next: tuple[str, ...] = ()


def why(at: Situation) -> Why:
    """Say why a task is where it is."""
    match at.task.status:
        case TaskStatus.PENDING:
            return _held(at) if at.task.hold else _ready(at)
        case TaskStatus.RUNNING:
            return _running(at)
        case TaskStatus.INTERRUPTED:
            return _interrupted(at)
        case TaskStatus.FAILED:
            return _failed(at)
        case TaskStatus.COMPLETED:
            return Why(
                "completed",
                f"It ended well at {moment(at.task.completed_at)}.",
                next=(f"result {short(at)}",),
            )
        case _:
            return Why(str(at.task.status), "It waits for something and holds no worker meanwhile.")


# -- pending ------------------------------------------------------------------------------------------------------


def _ready(at: Situation) -> Why:
    task, lane = at.task, str(at.task.lane)
    if task.attempt == 0 and task.expires_at is not None and task.expires_at <= at.now:
        sentence = (
            f"Nobody took it before {moment(task.expires_at)}, so the next recovery pass ends it as expired."
        )
        return Why("expired", sentence, {"expires_at": task.expires_at})
    if at.lane_pause is not None:
        return _lane_paused(at, at.lane_pause)
    facts = {"position": at.position, "serving": at.serving, "lane": lane, "priority": task.priority}
    if not at.serving:
        sentence = f"No process serves the {lane} lane, where it is number {at.position}."
        return Why("no_worker", sentence, facts, (f"worker {lane}",))
    sentence = f"It is number {at.position} in the {lane} lane, which {processes(at.serving)}"
    if task.losses >= at.suspect_from:
        facts["losses"] = task.losses
        sentence += f"; after {task.losses} losses in a row it is not run beside another such task"
    return Why("queued", f"{sentence}.", facts)


def _lane_paused(at: Situation, pause: LanePause) -> Why:
    sentence = f"{pause.paused_by} paused the {pause.lane} lane at {moment(pause.paused_at)}: nothing of it is started."
    facts = {
        "lane": pause.lane,
        "paused_at": pause.paused_at,
        "paused_by": pause.paused_by,
        "position": at.position,
    }
    return Why("lane_paused", sentence, facts, (f"unpause {pause.lane}",))


def _held(at: Situation) -> Why:
    task = at.task
    match task.hold:
        case "due":
            return _due(at)
        case "paused":
            sentence = f"{at.said_by or 'Somebody'} paused it, so no worker takes it."
            return Why("paused", sentence, {"paused_by": at.said_by}, (f"unpause {short(at)}",))
        case "unknown_agent":
            sentence = f"No worker that looked at it knows the agent {task.agent_id!r}; one that does takes it at its start."
            return Why("unknown_agent", sentence, {"agent": task.agent_id}, (f"-A APP worker {task.lane}",))
        case hold:
            return Why("held", f"It is held: {hold}.", {"hold": hold})


def _due(at: Situation) -> Why:
    task = at.task
    due_at = task.due_at or 0
    left = max(0, due_at - at.now)
    facts: dict[str, Any] = {"due_at": due_at, "left_ms": left}
    until = (
        f"until {moment(due_at)}, {span(left)} from now"
        if left
        else "for a worker to see that its time has come"
    )
    if at.put_back_by == "task_retrying":
        facts |= {"retries_left": task.retries_left, "error": error_of(task)}
        return Why(
            "retrying", f"Its attempt {task.attempt} raised {error_of(task)}; it waits {until}.", facts
        )
    if at.put_back_by == "task_recovered":
        facts |= {"losses": task.losses, "suspect": list(at.open_steps)}
        suspect = f", the last time in step {at.open_steps[-1]}" if at.open_steps else ""
        sentence = f"It lost its worker {task.losses} times in a row{suspect}, so it waits {until}."
        return Why("backing_off", sentence, facts, (f"cancel {short(at)}",))
    return Why("delayed", f"It was enqueued with a delay: it waits {until}.", facts)


# -- running ------------------------------------------------------------------------------------------------------


def _running(at: Situation) -> Why:
    task, owner = at.task, at.owner
    facts: dict[str, Any] = {"attempt": task.attempt, "open_steps": list(at.open_steps), **_named(owner)}
    if owner is None:
        sentence = f"It counts as running, but no worker is known to run it; {_next_pass(at)}."
        return Why("owner_unknown", sentence, facts, _recover(at))
    where = f"worker {owner.id[-8:]} (pid {owner.pid} on {owner.host})"
    if owner.dead_at is not None or at.owner_lock == "free":
        return Why("owner_dead", f"Its {where} is dead; {_next_pass(at)}.", facts, _recover(at))
    silent = at.now - owner.renewed_at
    if silent > at.silent_after_ms:
        facts["silent_ms"] = silent
        sentence = (
            f"Its {where} has given no sign of life for {span(silent)} and is not proved dead: "
            "it goes on elsewhere only if no write is open."
        )
        return Why("owner_silent", sentence, facts)
    doing = f", in step {', '.join(at.open_steps)}" if at.open_steps else ""
    return Why(
        "running",
        f"{where.capitalize()} runs it, attempt {task.attempt}{doing}.",
        facts,
        (f"cancel {short(at)}",),
    )


def _named(owner: Worker | None) -> dict[str, Any]:
    if owner is None:
        return {"worker": None}
    return {"worker": owner.id, "pid": owner.pid, "host": owner.host, "renewed_at": owner.renewed_at}


def _next_pass(at: Situation) -> str:
    if at.living:
        return "the next recovery pass takes it up"
    return "no worker process lives, and recovery runs in those"


def _recover(at: Situation) -> tuple[str, ...]:
    return () if at.living else (f"worker {at.task.lane}", "recover")


# -- interrupted --------------------------------------------------------------------------------------------------


def _interrupted(at: Situation) -> Why:
    if at.question is not None:
        return _asked(at, at.question)
    match at.task.reason:
        case "shutdown":
            return _stopped(at, "shutdown", "Its worker was told to stop before it was done")
        case "lost":
            return _stopped(at, "lost", "Its worker lost it")
        case "skipped":
            sentence = f"Recovery leaves it alone: {error_of(at.task)}."
            return Why(
                "skipped",
                sentence,
                {"error": error_of(at.task)},
                (f"retry {short(at)}", f"cancel {short(at)}"),
            )
        case reason:
            sentence = f"It was interrupted ({reason or 'for no recorded reason'}), and no question about it is open."
            return Why(
                "interrupted", sentence, {"reason": reason}, (f"retry {short(at)}", f"cancel {short(at)}")
            )


def _stopped(at: Situation, code: str, sentence: str) -> Why:
    facts = {"losses": at.task.losses, "risk": str(at.task.risk_level), **_named(at.owner)}
    if at.owner is not None and at.owner.dead_at is None and at.owner_lock != "free":
        return Why(code, f"{sentence}; it waits until that one has ended or is proved dead.", facts)
    return Why(code, f"{sentence}; {_next_pass(at)}.", facts, _recover(at))


def _asked(at: Situation, question: Confirmation) -> Why:
    undecided = [step.step_key for step in at.doubtful if step.decision is None]
    asked = question.request.get("why", "")
    facts = {
        "confirmation": question.id,
        "asked_at": question.asked_at,
        "asked": asked,
        "in_doubt": undecided,
    }
    cid = question.id[-8:]
    if undecided:
        commands = tuple(
            f"resolve {cid} --step {key} (--ran JSON | --again | --abandon)" for key in undecided
        )
    else:
        commands = (f"approve {cid}",)
    if at.task.reason == "diverged":
        commands += (f"retry {short(at)}",)
    code = "diverged" if at.task.reason == "diverged" else "asked"
    sentence = f"It waits for a person since {moment(question.asked_at)}: {asked}."
    return Why(code, sentence, facts, (*commands, f"reject {cid}"))


# -- failed -------------------------------------------------------------------------------------------------------


def _failed(at: Situation) -> Why:
    task = at.task
    by = f" by {at.said_by}" if at.said_by else ""
    sentences = {
        "error": f"Its agent raised {error_of(task)}, and no retry is left.",
        "cancelled": f"It was cancelled{by}: {error_of(task)}.",
        "parent_cancelled": "It was cancelled with the task that spawned it.",
        "rejected": f"A question about it was answered with no{by}: {error_of(task)}.",
        "crash_loop": f"It {reason_of(task)}, and was given up.",
        "timeout": "It took longer than it may.",
        "expired": "Nobody took it before its time was over.",
    }
    sentence = sentences.get(task.reason or "", f"It failed ({task.reason}): {error_of(task)}.")
    facts = {
        "reason": task.reason,
        "error": error_of(task),
        "attempt": task.attempt,
        "losses": task.losses,
        "by": at.said_by,
    }
    return Why(task.reason or "failed", sentence, facts, (f"retry {short(at)}",))


def short(at: Situation) -> str:
    """The end of the task's id, which commands accept."""
    return at.task.id[-8:]
