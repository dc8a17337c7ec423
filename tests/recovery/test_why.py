"""Each place that a task can be in has one sentence, the facts behind it, and what a person can do."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from relight.models.confirmations import Confirmation, ConfirmationStep
from relight.models.pauses import LanePause
from relight.models.tasks import AgentTask, Lane, TaskStatus
from relight.models.workers import Worker
from relight.recovery import wording
from relight.recovery.why import Situation, why
from tests.models.conftest import NOW, new_task

TASK = "0190-0000-12345678"
PAUSE = LanePause(lane="main", paused_at=NOW, paused_by="ann")


def at(status: TaskStatus, *, error: dict[str, Any] | None = None, **columns: Any) -> Situation:
    """A situation of a task in this status."""
    task: AgentTask = new_task(TASK, lane=Lane.MAIN, status=status, **columns)
    if error is not None:
        task.error_json = json.dumps(error)
    return Situation(task=task, now=NOW, serving=1, living=1)


def worker(**columns: Any) -> Worker:
    told = {"lane": "main", "pid": 7, "host": "h", "lock_inode": 1, "nonce": "n", "started_at": NOW}
    return Worker(id="w" * 36, **{**told, "renewed_at": NOW, **columns})


def question(why_asked: str = "high risk") -> Confirmation:
    request = json.dumps({"why": why_asked})
    return Confirmation(id="c-87654321", task_id=TASK, attempt=1, request_json=request, asked_at=NOW)


def doubt(key: str, decision: str | None = None) -> ConfirmationStep:
    told = {"digest": "d", "effect": "write", "attempt": 1, "shown_json": "{}"}
    return ConfirmationStep(confirmation_id="c-87654321", step_key=key, decision=decision, **told)


PENDING, RUNNING, FAILED, STOPPED = (
    TaskStatus.PENDING,
    TaskStatus.RUNNING,
    TaskStatus.FAILED,
    TaskStatus.INTERRUPTED,
)
ASKED = replace(at(STOPPED, reason="asked"), question=question("may have happened: pay#1"))
DUE = {"hold": "due", "due_at": NOW + 12_000}
CASES: list[tuple[Situation, str, str, str]] = [
    # situation, code, what the sentence says, what the commands say
    (replace(at(PENDING), position=3), "queued", "number 3 in the main lane, which one process serves", ""),
    (replace(at(PENDING), serving=2, position=1), "queued", "which 2 processes serve", ""),
    (
        replace(at(PENDING), serving=0, position=1),
        "no_worker",
        "No process serves the main lane",
        "worker main",
    ),
    (replace(at(PENDING), lane_pause=PAUSE), "lane_paused", "ann paused the main lane", "unpause main"),
    (at(PENDING, expires_at=NOW), "expired", "ends it as expired", ""),
    (replace(at(PENDING, hold="paused"), said_by="ann"), "paused", "ann paused it", "unpause 12345678"),
    (at(PENDING, hold="unknown_agent", agent="fixer"), "unknown_agent", "'fixer'", "-A APP worker main"),
    (replace(at(PENDING, **DUE), put_back_by="task_enqueued"), "delayed", "12 s from now", ""),
    (
        replace(
            at(PENDING, **DUE, attempt=2, error={"type": "OSError", "text": "no"}),
            put_back_by="task_retrying",
        ),
        *("retrying", "attempt 2 raised OSError: no; it waits until", ""),
    ),
    (
        replace(at(PENDING, **DUE, losses=2), put_back_by="task_recovered", open_steps=("burn#1",)),
        *("backing_off", "lost its worker 2 times in a row, the last time in step burn#1", "cancel 12345678"),
    ),
    (at(PENDING, hold="due", due_at=NOW - 1), "delayed", "its time has come", ""),
    (at(PENDING, hold="axis:cloud"), "held", "axis:cloud", ""),
    (
        replace(at(RUNNING, attempt=2), owner=worker(), owner_lock="held", open_steps=("look#4",)),
        *("running", "(pid 7 on h) runs it, attempt 2, in step look#4", "cancel"),
    ),
    (replace(at(RUNNING), owner=worker(dead_at=NOW)), "owner_dead", "is dead; the next recovery pass", ""),
    (replace(at(RUNNING), owner=worker(), owner_lock="free"), "owner_dead", "is dead", ""),
    (
        replace(at(RUNNING), owner=worker(dead_at=NOW), living=0),
        *("owner_dead", "no worker process lives", "recover"),
    ),
    (
        replace(at(RUNNING), owner=worker(renewed_at=NOW - 200_000), owner_lock="held"),
        *("owner_silent", "no sign of life for 3 min and is not proved dead", ""),
    ),
    (at(RUNNING), "owner_unknown", "no worker is known to run it", ""),
    (
        replace(ASKED, doubtful=(doubt("pay#1"), doubt("pay#2", "ran"))),
        *(
            "asked",
            "may have happened: pay#1",
            "resolve 87654321 --step pay#1 (--ran JSON | --again | --abandon)",
        ),
    ),
    (ASKED, "asked", "waits for a person", "approve 87654321"),
    (
        replace(at(STOPPED, reason="diverged"), question=question("replay diverged at step a#1")),
        *("diverged", "replay diverged at step a#1", "retry 12345678"),
    ),
    (
        at(STOPPED, reason="shutdown"),
        "shutdown",
        "told to stop before it was done; the next recovery pass",
        "",
    ),
    (
        replace(at(STOPPED, reason="shutdown"), owner=worker(), owner_lock="held"),
        *("shutdown", "until that one has ended or is proved dead", ""),
    ),
    (at(STOPPED, reason="lost"), "lost", "lost it; the next recovery pass", ""),
    (
        at(STOPPED, reason="skipped", error={"type": "Skipped", "text": "no execution traces available"}),
        *("skipped", "leaves it alone: no execution traces available.", "retry 12345678"),
    ),
    (at(STOPPED, reason="asked"), "interrupted", "no question about it is open", "retry"),
    (
        at(FAILED, reason="error", error={"type": "ValueError", "text": "broken"}),
        *("error", "raised ValueError: broken, and no retry is left", "retry 12345678"),
    ),
    (
        replace(
            at(FAILED, reason="cancelled", error={"type": "Cancelled", "text": "not needed"}), said_by="ann"
        ),
        *("cancelled", "cancelled by ann: not needed.", "retry"),
    ),
    (
        replace(at(FAILED, reason="rejected", error={"type": "Rejected", "text": "too dear"}), said_by="bob"),
        *("rejected", "answered with no by bob: too dear.", "retry"),
    ),
    (
        at(
            FAILED,
            reason="crash_loop",
            error={"type": "CrashLoop", "text": "lost its worker 3 times in a row"},
        ),
        *("crash_loop", "It lost its worker 3 times in a row, and was given up.", "retry"),
    ),
    (at(FAILED, reason="expired"), "expired", "before its time was over", "retry"),
    (
        at(FAILED, reason="parent_cancelled"),
        "parent_cancelled",
        "cancelled with the task that spawned it",
        "retry",
    ),
    (at(FAILED, reason="timeout"), "timeout", "longer than it may", "retry"),
    (at(FAILED, reason="eaten", error={"type": "X", "text": "y"}), "eaten", "failed (eaten): X: y", "retry"),
    (at(TaskStatus.COMPLETED, completed_at=NOW), "completed", "ended well at 2023-11-14", "result 12345678"),
    (at(TaskStatus.IDLE), "idle", "holds no worker", ""),
    (at(TaskStatus.SWAPPED), "swapped", "holds no worker", ""),
]


@pytest.mark.parametrize(
    ("situation", "code", "says", "offers"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)]
)
def test_the_reason_is_one_sentence_with_its_code_and_its_commands(
    situation: Situation, code: str, says: str, offers: str
) -> None:
    answer = why(situation)
    assert answer.code == code
    assert says in answer.sentence
    assert answer.sentence.endswith(".")
    assert "\n" not in answer.sentence
    assert offers in " | ".join(answer.next)
    assert bool(answer.next) or not offers
    json.dumps(answer.facts)


def test_every_status_hold_and_reason_has_an_answer_whatever_else_is_unknown() -> None:
    reasons = [
        None,
        "error",
        "cancelled",
        "shutdown",
        "lost",
        "asked",
        "diverged",
        "skipped",
        "new in a later version",
    ]
    for status, reason, hold in itertools.product(TaskStatus, reasons, [None, "due", "paused", "limit:x"]):
        answer = why(at(status, reason=reason, hold=hold))
        assert answer.code
        assert answer.sentence[0].isupper()


@pytest.mark.parametrize("stored", ["", "{", "[]", '"x"', "null"])
def test_an_error_that_cannot_be_read_does_not_hide_the_rest(stored: str) -> None:
    situation = at(FAILED, reason="error")
    situation.task.error_json = stored
    assert "an unknown error" in why(situation).sentence


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0.0 s"),
        (1_500, "1.5 s"),
        (12_400, "12 s"),
        (119_999, "119 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
        (2**62, "53375995583 d"),
    ],
)
def test_a_length_of_time_is_told_in_its_own_unit(ms: int, words: str) -> None:
    assert wording.span(ms) == words


def test_a_time_that_no_calendar_has_is_told_as_its_number() -> None:
    assert wording.moment(2**62) == str(2**62)
    assert wording.moment(0) == "1970-01-01 00:00:00Z"
