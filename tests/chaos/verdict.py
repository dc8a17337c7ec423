"""What must be true once the storm is over, told from the tables and from what the steps left outside.

Each check yields the faults that it finds as (task id or "-", what is wrong).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from relight.models import workers
from relight.workers import bells, recovery_job
from relight.workers.home import Home
from tests.chaos.agents import ABANDONED, expected
from tests.chaos.people import ACKS, is_answered, lines_in

Fault = tuple[str, str]
LIVE = "status NOT IN ('completed', 'failed')"
HISTORY = {
    "row": "SELECT * FROM agent_tasks WHERE id = ?",
    "events": """
        SELECT seq, timestamp, event_type, payload_json FROM agent_events WHERE task_id = ? ORDER BY seq
    """,
    "traces": """
        SELECT step_index, timestamp, event_kind, step_key, attempt, effect, late, superseded, event_json
        FROM task_traces WHERE task_id = ? ORDER BY step_index
    """,
    "questions": "SELECT * FROM confirmations WHERE task_id = ?",
    "answers": """
        SELECT * FROM confirmation_steps WHERE confirmation_id IN (SELECT id FROM confirmations WHERE task_id = ?)
    """,
}
TOPICS = ("main", "subagent", "upkeep", "watch")
OWNER_ID_LENGTH = 36


def is_settled(home: Home, seed: int) -> bool:
    """Whether nothing goes on any more: every task has ended or waits for an answer that never comes."""
    waiting = dict(home.db.rows("SELECT task_id, id FROM confirmations WHERE status = 'open'"))
    return all(
        status == "interrupted" and task_id in waiting and not is_answered(seed, waiting[task_id])
        for task_id, status in home.db.rows(f"SELECT id, status FROM agent_tasks WHERE {LIVE}")
    )


class Verdict:
    """The checks of one run."""

    def __init__(self, home: Home, witness: Path, seed: int) -> None:
        self.home, self.witness, self.seed = home, witness, seed

    def faults(self) -> list[Fault]:
        checks: tuple[Callable[[], Iterator[Fault]], ...] = (
            self._the_file_is_whole,
            self._nothing_acknowledged_is_lost,
            self._every_task_ended_or_waits,
            self._no_task_ended_strangely,
            self._no_finished_step_began_again,
            self._no_write_ran_again_without_a_yes,
            self._every_line_has_its_intent,
            self._every_child_is_there_once,
            self._results_are_right,
            self._events_tell_it_once,
            self._nothing_is_left_locked,
        )
        return [fault for check in checks for fault in check()]

    def _rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.home.db.rows(sql, params)

    def _completed(self, agent: str) -> list[str]:
        statement = "SELECT id FROM agent_tasks WHERE agent_id = ? AND status = 'completed'"
        return [row[0] for row in self._rows(statement, agent)]

    def _the_file_is_whole(self) -> Iterator[Fault]:
        for check in ("integrity_check", "foreign_key_check"):
            if (found := self._rows(f"PRAGMA {check}")) not in ([], [("ok",)]):
                yield "-", f"{check}: {found[:3]}"

    def _nothing_acknowledged_is_lost(self) -> Iterator[Fault]:
        stored = dict(self._rows("SELECT id, key FROM agent_tasks"))
        acknowledged: dict[str, str] = {}
        for line in lines_in(self.witness, ACKS):
            task_id, key = line.split()
            if stored.get(task_id) != key:
                yield task_id, f"was acknowledged under {key} and is not there"
            if acknowledged.setdefault(key, task_id) != task_id:
                yield task_id, f"{key} was stored twice: {acknowledged[key]}"

    def _every_task_ended_or_waits(self) -> Iterator[Fault]:
        asked = "SELECT task_id, count(*) FROM confirmations WHERE status = 'open' GROUP BY task_id"
        questions = dict(self._rows(asked))
        live = f"SELECT id, status, reason, hold FROM agent_tasks WHERE {LIVE}"
        for task_id, status, reason, hold in self._rows(live):
            if status != "interrupted" or not questions.get(task_id):
                yield task_id, f"neither ended nor waits: {status} ({reason}, {hold})"
        for task_id, count in questions.items():
            if count > 1:
                yield task_id, f"has {count} open questions"

    def _no_task_ended_strangely(self) -> Iterator[Fault]:
        failed = "SELECT id, reason, error_json FROM agent_tasks WHERE status = 'failed'"
        for task_id, reason, error in self._rows(failed):
            if reason not in ("cancelled", "rejected", "crash_loop"):
                yield task_id, f"failed: {reason} {error}"
        for task_id in self._completed("poisonous"):
            yield task_id, "took every worker down and completed"
        statement = "SELECT task_id, payload_json FROM agent_events WHERE payload_json LIKE '%diverged%'"
        for task_id, told in self._rows(statement):
            yield task_id, f"diverged: {told}"

    # -- steps ------------------------------------------------------------------------------------------------

    @cached_property
    def _steps(self) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
        """(index, kind, attempt, effect, late, superseded) of what is recorded about each step."""
        found: dict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
        for task_id, key, *rest in self._rows(
            "SELECT task_id, step_key, step_index, event_kind, attempt, effect, late, superseded"
            " FROM task_traces WHERE step_key IS NOT NULL ORDER BY task_id, step_index"
        ):
            found[task_id, key].append(tuple(rest))
        return found

    @cached_property
    def _lines(self) -> dict[tuple[str, str], list[int]]:
        """The attempts in which each step really ran."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for line in lines_in(self.witness, "lines"):
            task_id, _, attempt, key = line.split()
            found[task_id, key.removeprefix(f"{task_id}:")].append(int(attempt))
        return found

    def _no_finished_step_began_again(self) -> Iterator[Fault]:
        for (task_id, key), records in self._steps.items():
            counts = [r for r in records if r[1] == "tool_call_completed" and not r[4] and not r[5]]
            for index, _, attempt, *_ in counts[:1]:
                if any(r[1] == "tool_call_started" and r[0] > index for r in records):
                    yield task_id, f"{key} had finished and was begun again"
                if any(ran > attempt for ran in self._lines.get((task_id, key), [])):
                    yield task_id, f"{key} had finished in attempt {attempt} and ran again"
            if len(counts) > 1:
                yield task_id, f"{key} has {len(counts)} outcomes"

    def _no_write_ran_again_without_a_yes(self) -> Iterator[Fault]:
        statement = """
            SELECT c.task_id, s.step_key FROM confirmation_steps s JOIN confirmations c ON c.id = s.confirmation_id
            WHERE s.decision = 'again' AND s.consumed_at IS NOT NULL
        """
        allowed = Counter((row[0], row[1]) for row in self._rows(statement))
        for (task_id, key), records in self._steps.items():
            intents = sum(r[1] == "tool_call_started" and r[3] == "write" for r in records)
            if intents > 1 + allowed[task_id, key]:
                yield task_id, f"{key} was begun {intents} times with {allowed[task_id, key]} grants"
            ran = len(self._lines.get((task_id, key), []))
            if intents and ran > 1 + allowed[task_id, key]:
                yield task_id, f"{key} ran {ran} times with {allowed[task_id, key]} grants"

    def _every_line_has_its_intent(self) -> Iterator[Fault]:
        for (task_id, key), attempts in self._lines.items():
            begun = Counter(r[2] for r in self._steps[task_id, key] if r[1] == "tool_call_started")
            for attempt, ran in Counter(attempts).items():
                if ran > begun[attempt]:
                    yield task_id, f"{key} ran {ran} times in attempt {attempt}, begun {begun[attempt]} times"

    def _every_child_is_there_once(self) -> Iterator[Fault]:
        spawned = {
            (row[0], json.loads(row[2])["result"]["output"]): f"{row[0]}/{row[1]}"
            for row in self._rows(
                "SELECT task_id, step_key, event_json FROM task_traces WHERE step_key LIKE 'spawn.%'"
            )
        }
        children = {
            (row[0], row[1]): row[2]
            for row in self._rows("SELECT parent_task_id, id, key FROM agent_tasks")
            if row[0] is not None
        }
        for parent, child in spawned.items() ^ children.items():
            yield parent[0], f"child {parent[1]} under {child} is not what its parent recorded"
        for task_id in self._completed("fostering"):
            if (count := sum(parent == task_id for parent, _ in children)) != 2:
                yield task_id, f"has {count} children"

    def _results_are_right(self) -> Iterator[Fault]:
        for task_id, name, given, result in self._rows(
            "SELECT id, agent_id, input_json, result_json FROM agent_tasks WHERE status = 'completed'"
        ):
            length = int(json.loads(given)["kwargs"]["length"])
            if not _fits(expected(name, length), json.loads(result), name):
                yield task_id, f"{name}({length}) gave {result}"

    # -- the rest ---------------------------------------------------------------------------------------------

    def _events_tell_it_once(self) -> Iterator[Fault]:
        gaps = (
            "SELECT task_id FROM agent_events GROUP BY task_id HAVING max(seq) <> count(*) OR min(seq) <> 1"
        )
        for (task_id,) in self._rows(gaps):
            yield task_id, "its events have a gap"
        ends = """
            SELECT task_id FROM agent_events GROUP BY task_id
            HAVING sum(event_type IN ('task_completed', 'task_failed')) > 1 + sum(event_type = 'task_retried')
        """
        for (task_id,) in self._rows(ends):
            yield task_id, "ended twice"
        asked = """
            SELECT t.id FROM agent_tasks t
            WHERE (SELECT count(*) FROM confirmations c WHERE c.task_id = t.id) <>
                (SELECT count(*) FROM agent_events e WHERE e.task_id = t.id AND e.event_type = 'confirmation_requested')
        """
        for (task_id,) in self._rows(asked):
            yield task_id, "a question was not told once"

    def _nothing_is_left_locked(self) -> Iterator[Fault]:
        """Everybody has ended: a pass finds them dead and takes their locks away, a ring their bells."""
        recovery_job.recover(self.home)
        for worker in workers.alive(self.home.db):
            yield "-", f"worker {worker.id} (pid {worker.pid}) is not known to be dead"
        for path in sorted((self.home.path / "locks").iterdir()):
            if len(path.name.removeprefix(".")) == OWNER_ID_LENGTH:
                yield "-", f"the lock {path.name} is left"
        if heard := bells.ring(self.home.path, TOPICS):
            yield "-", f"{heard} bells are still heard"
        for path in (self.home.path / bells.FOLDER).glob("[!.]*"):
            yield "-", f"the bell {path.name} is left"


def _fits(wanted: Any, found: Any, name: str) -> bool:
    if name == "fostering":
        return isinstance(found, list) and len(found) == len(wanted)
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(_fits(one, other, name) for one, other in zip(wanted, found, strict=True))
        )
    return isinstance(found, int) or found == ABANDONED if wanted is None else bool(found == wanted)


def history(home: Home, witness: Path, task_id: str) -> str:
    """Everything that is known about a task, for whoever has to find out what happened."""
    told = [f"== task {task_id}"]
    for title, sql in HISTORY.items():
        told += [f"-- {title}", *(" | ".join(map(str, row)) for row in home.db.rows(sql, (task_id,)))]
    told += ["-- what really ran", *(line for line in lines_in(witness, "lines") if line.startswith(task_id))]
    return "\n".join(told)
