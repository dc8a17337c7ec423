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

TAKEOVER_LIMIT_MS = 3_000
QUESTION_LIMIT_MS = 500


@dataclass(frozen=True)
class Fact:
    """A claim, whether it holds, and what shows it."""

    claim: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class Kill:
    """The SIGKILL: which worker, and when (epoch ms)."""

    worker_id: str
    at: int


@dataclass(frozen=True)
class Answer:
    """What happened to the question about the fixer; times in epoch ms."""

    asked_at: int
    decided_at: int
    status: str
    by: str | None


def takeover(history: Sequence[TaskTrace], kill: Kill) -> Fact:
    """Another worker claimed the explorer soon after the kill."""
    claim = "Another worker took over in about a second"
    starts = [trace for trace in history if trace.event_kind == traces.TURN_STARTED and trace.attempt > 1]
    if not starts:
        return Fact(claim, False, "no second attempt was recorded")
    took = starts[0].timestamp - kill.at
    worker = json.loads(starts[0].event_json).get("worker_id")
    holds = worker not in (None, kill.worker_id) and 0 <= took <= TAKEOVER_LIMIT_MS
    return Fact(
        claim,
        holds,
        f"worker {_short(worker)} claimed it {took} ms after the kill; limit {TAKEOVER_LIMIT_MS} ms",
    )


def no_repeat(histories: Mapping[str, Sequence[TaskTrace]], executed: Counter[str], kill: Kill) -> Fact:
    """No step that had an outcome has a later intent, and none of them executed twice.

    `executed` counts the lines of the witness file by idempotency key: what really ran, whatever was recorded.
    """
    claim = "No finished step ran again"
    repeated = [key for history in histories.values() for key in _asked_again(history)]
    finished = [key for history in histories.values() for key in _finished_before(history, kill.at)]
    twice = [key for key in finished if executed[key] > 1]
    seen = sum(executed[key] == 1 for key in finished)
    every_task = all(_finished_before(history, kill.at) for history in histories.values())
    if not every_task or not seen:
        return Fact(claim, False, "the kill came before every task had finished a step, so nothing was shown")
    if repeated or twice:
        return Fact(claim, False, f"again: {', '.join(sorted({*repeated, *twice}))}")
    evidence = f"{len(finished)} steps were finished at the kill; each has one intent, and the witness saw {seen} run once"
    return Fact(claim, True, evidence)


def question_did_not_wait(
    questions: Sequence[AgentTask], background: Sequence[AgentTask], waiting: AgentTask, kill: Kill
) -> Fact:
    """Each question started at once, while the background tasks held every Subagent slot and one more waited."""
    claim = "The Main-lane question did not wait for background work"
    waits = [(one.started_at or 0) - one.created_at for one in questions]
    answered = [one for one in questions if one.status == TaskStatus.COMPLETED]
    first, last = (
        min(one.created_at for one in questions),
        max(one.completed_at or kill.at for one in questions),
    )
    busy = all((one.started_at or last) < first for one in background) and last < kill.at
    queued = waiting.created_at < first and (waiting.started_at or kill.at) > last
    if not (busy and queued):
        return Fact(claim, False, "the Subagent slots were not all busy at the time, so nothing was shown")
    holds = len(answered) == len(questions) and max(waits) <= QUESTION_LIMIT_MS
    slots = f"all {len(background)} Subagent slots were busy and a task waited there"
    return Fact(
        claim,
        holds,
        f"started after {', '.join(map(str, waits))} ms while {slots}; limit {QUESTION_LIMIT_MS} ms",
    )


def waited_for_yes(
    task: AgentTask, history: Sequence[TaskTrace], answer: Answer, wrong_files: Sequence[str]
) -> Fact:
    """The fixer did nothing between question and yes, then finished, and its files are as they should be."""
    claim = "The fixer waited for a yes, then finished"
    meanwhile = [trace for trace in history if answer.asked_at < trace.timestamp < answer.decided_at]
    waited = answer.decided_at - answer.asked_at
    if answer.status != "approved":
        return Fact(claim, False, f"the answer was: {answer.status}")
    if meanwhile:
        return Fact(claim, False, f"{len(meanwhile)} traces were written while it should have waited")
    if task.status != TaskStatus.COMPLETED:
        return Fact(claim, False, f"it is {task.status}" + (f" ({task.reason})" if task.reason else ""))
    if wrong_files:
        return Fact(claim, False, f"files that are not as they should be: {', '.join(wrong_files[:5])}")
    return Fact(
        claim,
        True,
        f"it stood still for {waited} ms, {answer.by} said yes, it completed, every file is as it should be",
    )


def executions(witness: str) -> Counter[str]:
    """How often each step's code ran, by idempotency key."""
    return Counter(line.rsplit(" ", 1)[0] for line in witness.splitlines())


def _asked_again(history: Sequence[TaskTrace]) -> list[str]:
    """The steps with an intent, or another outcome, after an outcome."""
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


def _short(worker_id: str | None) -> str:
    return (worker_id or "unknown")[-8:]
