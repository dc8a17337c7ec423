"""A fact is false whenever it was not shown: each way to be wrong is told apart from being right."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from relight.models.tasks import AgentTask, Lane, RiskLevel, TaskStatus
from relight.models.traces import INTENT, OUTCOME, TURN_STARTED, TaskTrace
from relight.workers.demo import facts
from relight.workers.demo.facts import Answer, Kill

KILL = Kill("dead-worker", at=1_000)


def trace(
    index: int, kind: str, key: str | None = None, *, at: int, attempt: int = 1, event: str = "{}"
) -> TaskTrace:
    return TaskTrace(
        task_id="t",
        step_index=index,
        event_kind=kind,
        event_json=event,
        timestamp=at,
        step_key=key,
        attempt=attempt,
    )


def task(**columns: Any) -> AgentTask:
    made = AgentTask.new(
        "t", "s", "answer", "?", RiskLevel.LOW, now=columns.pop("created_at", 500)
    ).with_lane(Lane.MAIN)
    for name, value in columns.items():
        setattr(made, name, value)
    return made


def start(worker: str, *, at: int) -> TaskTrace:
    return trace(9, TURN_STARTED, at=at, attempt=2, event=f'{{"worker_id": "{worker}"}}')


@pytest.mark.parametrize(
    ("history", "holds"),
    [
        ([start("another", at=1_800)], True),
        ([start("another", at=1_001 + facts.TAKEOVER_LIMIT_MS)], False),
        ([start(KILL.worker_id, at=1_800)], False),
        ([trace(0, TURN_STARTED, at=100)], False),
        ([], False),
    ],
    ids=["in time", "too late", "by the dead one", "not at all", "no traces"],
)
def test_a_takeover_is_by_another_worker_and_in_time(history: list[TaskTrace], holds: bool) -> None:
    assert facts.takeover(history, KILL).holds is holds


FINISHED = [trace(1, INTENT, "/a/1", at=100), trace(2, OUTCOME, "/a/1", at=200)]
CUT_OFF = [trace(3, INTENT, "/b/1", at=900), trace(4, INTENT, "/b/1", at=1_500, attempt=2)]
AGAIN = [trace(5, INTENT, "/a/1", at=1_600, attempt=2)]


@pytest.mark.parametrize(
    ("history", "lines", "holds"),
    [
        ([*FINISHED, *CUT_OFF], ["/a/1", "/b/1", "/b/1"], True),
        ([*FINISHED, *AGAIN], ["/a/1"], False),
        (FINISHED, ["/a/1", "/a/1"], False),
        (FINISHED, [], False),
        (CUT_OFF, ["/b/1"], False),
    ],
    ids=[
        "an open step may run again",
        "a second intent",
        "the witness saw two",
        "the witness saw none",
        "nothing finished",
    ],
)
def test_a_finished_step_has_one_intent_and_was_seen_once(
    history: list[TaskTrace], lines: list[str], holds: bool
) -> None:
    executed = Counter(facts.idempotency_key("t", line) for line in lines)
    assert facts.no_repeat({"explorer": history}, executed, KILL).holds is holds


QUESTION = {"created_at": 500, "started_at": 504, "completed_at": 520, "status": TaskStatus.COMPLETED}
BUSY = [{"created_at": 100, "started_at": 110}, {"created_at": 101, "started_at": 112}]
WAITING = {"created_at": 102, "started_at": 700}


@pytest.mark.parametrize(
    ("question", "background", "waiting", "holds"),
    [
        ({}, BUSY, {}, True),
        (
            {"started_at": 500 + facts.QUESTION_LIMIT_MS + 1, "completed_at": 1_900},
            BUSY,
            {"started_at": 2_000},
            False,
        ),
        ({"status": TaskStatus.FAILED}, BUSY, {}, False),
        ({}, [{"created_at": 100, "started_at": 600}], {}, False),
        ({}, BUSY, {"started_at": 510}, False),
    ],
    ids=["at once", "late", "not answered", "a slot was free", "nobody waited"],
)
def test_a_question_counts_only_while_every_slot_is_busy(
    question: dict[str, Any], background: list[dict[str, Any]], waiting: dict[str, Any], holds: bool
) -> None:
    fact = facts.question_did_not_wait(
        [task(**{**QUESTION, **question})],
        [task(**columns) for columns in background],
        task(**{**WAITING, **waiting}),
        kill=Kill("dead-worker", at=3_000),
    )
    assert fact.holds is holds


YES = Answer(asked_at=2_000, decided_at=3_000, status="approved", by="somebody")


@pytest.mark.parametrize(
    ("status", "history", "answer", "wrong", "holds"),
    [
        (TaskStatus.COMPLETED, FINISHED, YES, [], True),
        (TaskStatus.FAILED, FINISHED, YES, [], False),
        (TaskStatus.COMPLETED, FINISHED, Answer(2_000, 3_000, "rejected", "somebody"), [], False),
        (TaskStatus.COMPLETED, [trace(3, INTENT, "/b/1", at=2_500)], YES, [], False),
        (TaskStatus.COMPLETED, FINISHED, YES, ["tidied/a.py"], False),
    ],
    ids=["yes", "it failed", "the answer was no", "it did not wait", "a file is wrong"],
)
def test_the_fixer_stands_still_until_the_yes(
    status: TaskStatus, history: list[TaskTrace], answer: Answer, wrong: list[str], holds: bool
) -> None:
    assert facts.waited_for_yes(task(status=status), history, answer, wrong).holds is holds
