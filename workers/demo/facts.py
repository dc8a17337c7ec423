"""The four facts that the demo claims, each worked out from what was stored and from the witness file.

Pure: traces, rows and counts come in, a fact with its evidence comes out. Nothing here trusts what the demo intended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...models import traces
from ...models.tasks import AgentTask, TaskStatus
from ...models.traces import TaskTrace

CLAIMS = {
    1: "Another worker took over in about a second",
    2: "No finished step ran again",
    3: "The Main-lane question did not wait for background work",
    4: "The fixer waited for a yes, then finished",
}
TAKEOVER_LIMIT_MS = 2_000
QUESTION_LIMIT_MS = 500
APPROVED = frozenset({"approved", "resolved"})


@dataclass(frozen=True)
class Fact:
    """Whether a claim holds, and what shows it."""

    holds: bool
    evidence: str


@dataclass(frozen=True)
class Kill:
    """The SIGKILL: which worker, and when (epoch ms)."""

    worker_id: str
    at: int


@dataclass(frozen=True)
class Answer:
    """What became of the question about the fixer; times in epoch ms."""

    asked_at: int
    decided_at: int
    status: str
    by: str | None


def takeover(history: Sequence[TaskTrace], kill: Kill) -> Fact:
    """Fact 1: another worker claimed the task soon after the kill."""
    starts = [trace for trace in history if trace.event_kind == traces.TURN_STARTED and trace.attempt > 1]
    if not starts:
        return Fact(False, "no second attempt was recorded")
    took = starts[0].timestamp - kill.at
    worker = json.loads(starts[0].event_json).get("worker_id")
    if worker in (None, kill.worker_id):
        return Fact(False, f"the second attempt belongs to worker {worker}, which was killed")
    return Fact(took <= TAKEOVER_LIMIT_MS, f"{took} ms after the SIGKILL (limit {TAKEOVER_LIMIT_MS} ms)")


def no_repeat(histories: Mapping[str, Sequence[TaskTrace]], executed: Counter[str], kill: Kill) -> Fact:
    """Fact 2: no step that had an outcome has a later intent, and the witness saw each of them once.

    `executed` counts the lines of the witness file by idempotency key: what really ran, whatever was recorded.
    """
    finished = {name: _finished_before(history, kill.at) for name, history in histories.items()}
    keys = [key for found in finished.values() for key in found]
    seen = sum(executed[key] == 1 for key in keys)
    if not seen or not all(finished.values()):
        return Fact(False, "the kill came before each task had finished a step, so nothing was shown")
    repeated = {key for history in histories.values() for key in _asked_again(history)}
    repeated |= {key for key in keys if executed[key] > 1}
    if repeated:
        return Fact(False, f"these did: {', '.join(sorted(repeated))}")
    return Fact(
        True,
        f"{len(keys)} were finished at the kill; each has one intent, and the witness saw {seen} run once",
    )


def question_did_not_wait(
    questions: Sequence[AgentTask], background: Sequence[AgentTask], waiting: AgentTask, *, kill: Kill
) -> Fact:
    """Fact 3: each question started at once, while background tasks held every Subagent slot and one more waited."""
    first = min(one.created_at for one in questions)
    last = max(one.completed_at or kill.at for one in questions)
    busy = all(one.started_at is not None and one.started_at < first for one in background) and last < kill.at
    queued = waiting.created_at < first and (waiting.started_at is None or waiting.started_at > last)
    if not (busy and queued):
        return Fact(False, "the Subagent slots were not all busy at the time, so nothing was shown")
    waits = [(one.started_at or last) - one.created_at for one in questions]
    answered = all(one.status == TaskStatus.COMPLETED for one in questions)
    shown = (
        f"{len(waits)} questions started after {', '.join(map(str, waits))} ms (limit {QUESTION_LIMIT_MS} ms)"
    )
    shown += (
        f", while {len(background)} of {len(background)} Subagent slots were busy and a task waited for one"
    )
    return Fact(answered and max(waits) <= QUESTION_LIMIT_MS, shown)


def waited_for_yes(
    task: AgentTask, history: Sequence[TaskTrace], answer: Answer, wrong_files: Sequence[str]
) -> Fact:
    """Fact 4: the fixer did nothing between question and yes, then finished, and its files are as they should be."""
    meanwhile = sum(answer.asked_at < trace.timestamp < answer.decided_at for trace in history)
    if answer.status not in APPROVED:
        return Fact(False, f"the question was {answer.status}")
    if meanwhile:
        return Fact(False, f"{meanwhile} traces were written while it should have waited")
    if task.status != TaskStatus.COMPLETED:
        return Fact(False, f"it is {task.status}" + (f" ({task.reason})" if task.reason else ""))
    if wrong_files:
        return Fact(False, f"files that are not as they should be: {', '.join(wrong_files[:5])}")
    waited = answer.decided_at - answer.asked_at
    return Fact(
        True, f"it did nothing for {waited} ms, {answer.by} said yes, and every file is as it should be"
    )


def executions(witness: str) -> Counter[str]:
    """How often each step's code ran, by idempotency key."""
    return Counter(line.rpartition(" ")[0] for line in witness.splitlines())


def idempotency_key(task_id: str, step_key: str) -> str:
    """What a step reads as `current_step().key`."""
    return f"{task_id}:{step_key}"


def _asked_again(history: Sequence[TaskTrace]) -> list[str]:
    """The steps that have an intent, or another outcome, after an outcome."""
    done: set[str] = set()
    again = []
    for trace in history:
        if trace.step_key is None:
            continue
        if trace.step_key in done:
            again.append(trace.step_key)
        if trace.event_kind == traces.OUTCOME:
            done.add(trace.step_key)
    return again


def _finished_before(history: Sequence[TaskTrace], at: int) -> list[str]:
    done = (trace for trace in history if trace.event_kind == traces.OUTCOME and trace.timestamp <= at)
    return [idempotency_key(trace.task_id, trace.step_key or "") for trace in done]
