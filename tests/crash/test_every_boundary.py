"""SIGKILL at every step boundary and around every write transaction of a task's life: nothing is lost, no finished
step runs again, and a write that may have happened is not repeated unless somebody says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from relight import TaskHandle
from relight.models import confirmations
from relight.models.confirmations import Confirmation
from relight.models.errors import StepInDoubtError
from relight.workers import answers
from tests.conftest import wait_until
from tests.crash import agents_life
from tests.crash.agents_life import STEPS
from tests.crash.conftest import Forked, Stage
from tests.crash.moments import MOMENTS, Moment

KINDS = {
    "thread": ("--kind", "thread", "--concurrency", "1"),
    "process": ("--kind", "process", "--concurrency", "6"),
}
ANSWERS = ("again", "ran", "abandon")
SAID = {"said": True}

Prompts = dict[str, Moment]
Told = dict[tuple[str, int], list[str]]


@pytest.mark.parametrize(
    ("name", "kind"), [("reader", "thread"), ("reader", "process"), ("async_reader", "thread")]
)
def test_a_low_risk_task_ends_wherever_its_worker_was_killed(stage: Stage, name: str, kind: str) -> None:
    # the writes of asynchronous agents happen in other threads than the agent's: there is no "before the next one"
    moments = [moment for moment in MOMENTS if name == "reader" or "before-next" not in moment.text]
    prompts = enqueue(stage, getattr(agents_life, name), moments)
    keep_alive(stage, kind, until=lambda: count_ended(stage) == len(prompts))
    check_every_moment_struck(stage, prompts)
    for task_id, moment in prompts.items():
        assert result_of(stage, task_id) == [{"step": n} for n in STEPS], moment
        assert executions(stage, task_id) == {n: 1 + (n in moment.after_effect) for n in STEPS}, moment
    assert stage.rows("SELECT count(*) FROM confirmations") == [(0,)]
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


@pytest.mark.parametrize("kind", KINDS)
def test_a_high_risk_task_asks_wherever_its_worker_was_killed(stage: Stage, kind: str) -> None:
    prompts = enqueue(stage, agents_life.writer, MOMENTS)
    told = answer_until_all_ended(stage, kind, prompts)
    check_every_moment_struck(stage, prompts)
    for task_id, moment in prompts.items():
        check_writes(stage, task_id, moment, told, writes=set(STEPS))
        assert len(stage.questions(task_id)) == moment.deaths, moment
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


def test_a_low_risk_task_asks_from_its_first_write_on(stage: Stage) -> None:
    prompts = enqueue(stage, agents_life.late_writer, MOMENTS)
    told = answer_until_all_ended(stage, "thread", prompts)
    check_every_moment_struck(stage, prompts)
    for task_id, moment in prompts.items():
        check_writes(stage, task_id, moment, told, writes={2})
        assert len(stage.questions(task_id)) == (0 if moment.is_before_intent(2) else moment.deaths), moment
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


@pytest.mark.parametrize("event", ["uncommitted task_recovered 1", "committed task_recovered 1"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recovery_pass_that_is_killed_while_it_resumes_blocks_nobody(
    stage: Stage, kind: str, event: str
) -> None:
    prompts: Prompts = {}
    for n in STEPS:  # one by one: a strike in another thread could come between a commit and its own strike
        prompts |= enqueue(stage, agents_life.reader, [Moment(f"between {n};{event}")])
        keep_alive(stage, kind, until=lambda n=n: count_ended(stage) == n)
    check_every_moment_struck(stage, prompts)
    assert all(result_of(stage, task_id) for task_id in prompts)
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


@pytest.mark.parametrize(
    "event", ["uncommitted confirmation_requested 1", "committed confirmation_requested 1"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_recovery_pass_that_is_killed_while_it_asks_blocks_nobody(
    stage: Stage, kind: str, event: str
) -> None:
    prompts, told = Prompts(), Told()
    for n in STEPS:
        prompts |= enqueue(stage, agents_life.writer, [Moment(f"effect {n};{event}")])
        told |= answer_until_all_ended(stage, kind, prompts)
    check_every_moment_struck(stage, prompts)
    for task_id in prompts:
        ran = executions(stage, task_id)
        assert all(ran[n] <= 1 + told.get((task_id, n), []).count("again") for n in STEPS)
    stage.check_nothing_finished_ran_again()
    stage.check_storage()


def enqueue(stage: Stage, agent: Any, moments: Any) -> Prompts:
    handles: list[tuple[TaskHandle, Moment]] = [
        (stage.enqueue(agent, moment.text), moment) for moment in moments
    ]
    return {handle.id: moment for handle, moment in handles}


def keep_alive(stage: Stage, kind: str, *, until: Callable[[], bool]) -> None:
    """Restart the worker as often as it dies, until a condition holds: what a process manager does."""
    worker: list[Forked] = [stage.start(agents_life, *KINDS[kind])]

    def is_reached() -> bool:
        if until():
            return True
        if worker[-1].has_ended():
            worker.append(stage.start(agents_life, *KINDS[kind]))
        return False

    wait_until(is_reached, 60)
    worker[-1].kill()


def answer_until_all_ended(stage: Stage, kind: str, prompts: Prompts) -> Told:
    """Keep the worker alive and answer every question; what was answered for each step."""
    told: Told = {}

    def is_reached() -> bool:
        for asked in confirmations.listing(stage.home.db):
            answer(stage, asked, list(prompts).index(asked.task_id), told)
        return count_ended(stage) == len(prompts)

    keep_alive(stage, kind, until=is_reached)
    return told


def answer(stage: Stage, asked: Confirmation, nth: int, told: Told) -> None:
    """Answer for each step in doubt, in turns by `nth`; only where none is in doubt a plain yes is taken."""
    home = stage.home
    for step in confirmations.steps(home.db, asked.id):
        with pytest.raises(StepInDoubtError):
            confirmations.approve(home.db, asked.id, by="test", now=home.now())
        number = json.loads(step.shown_json)["input"]["number"]
        chosen = ANSWERS[nth % len(ANSWERS)]
        told.setdefault((asked.task_id, number), []).append(chosen)
        if chosen == "ran":
            answers.ran(home, asked.id, step.step_key, SAID, by="test")
        else:
            getattr(answers, chosen)(home, asked.id, step.step_key, by="test")
    if confirmations.find(home.db, asked.id).status == "open":
        confirmations.approve(home.db, asked.id, by="test", now=home.now())


def check_writes(stage: Stage, task_id: str, moment: Moment, told: Told, *, writes: set[int]) -> None:
    """Each step ran as often as it was allowed to, and the agent was given what was answered."""
    ran, expected = executions(stage, task_id), []
    for n in STEPS:
        said = told.get((task_id, n), [])
        happened = n in moment.after_effect
        if n in writes and n in moment.in_doubt:
            assert len(said) == 1, (moment, n)
            assert ran[n] == happened + (said == ["again"]), (moment, n, said)
        else:
            assert said == [], (moment, n)
            assert ran[n] == 1 + happened, (moment, n)
        expected.append({"ran": SAID, "abandon": "abandoned"}.get("".join(said), {"step": n}))
    assert result_of(stage, task_id) == expected, moment


def count_ended(stage: Stage) -> int:
    return sum(count for (status, _), count in stage.states().items() if status in ("completed", "failed"))


def result_of(stage: Stage, task_id: str) -> Any:
    task = stage.task(task_id)
    assert task.status == "completed", (task.task_prompt, task.reason, task.error_json)
    return json.loads(task.result_json or "null")


def executions(stage: Stage, task_id: str) -> Counter[int]:
    """How often each step of a task really ran."""
    return Counter(int(line[1]) for line in stage.lines() if line[0] == task_id)


def check_every_moment_struck(stage: Stage, prompts: Prompts) -> None:
    wanted = {
        (task_id, part.replace(" ", "_")) for task_id, m in prompts.items() for part in m.text.split(";")
    }
    assert {(line[1], line[2]) for line in stage.lines("strikes")} == wanted
