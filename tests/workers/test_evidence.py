"""What a step's `verify` says is looked for in safety: typed, bounded, shown, and never decisive."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relight import Run, agent, ref, step
from relight.models import confirmations
from relight.models.tasks import AgentTask
from relight.recovery.replay import RecordedStep
from relight.workers import evidence, steps
from tests.workers.conftest import Crew


@dataclass(frozen=True)
class Letter:
    to: str
    lines: tuple[str, ...]


def in_doubt(
    crew: Crew, put: steps.Step[..., Any], *args: Any, **kwargs: Any
) -> tuple[AgentTask, RecordedStep]:
    """A write of a task whose process died in it."""

    @agent
    def putting(run: Run) -> None:
        put(*args, **kwargs)

    task = putting.enqueue()
    with pytest.raises(KeyboardInterrupt):
        crew.work()
    [recorded] = crew.history(task.id).in_doubt()
    return task.task(), recorded


def dies(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def looked(crew: Crew, verify: Callable[..., Any]) -> dict[str, Any]:
    @step(effect="write", verify=verify)
    def put(letter: Letter, copies: int = 1) -> None:
        dies()

    found = evidence.look(*in_doubt(crew, put, Letter("ann", ("a", "b"))))
    assert found is not None
    return found


def test_verify_gets_the_recorded_arguments_with_their_types(crew: Crew) -> None:
    seen: list[Any] = []

    def verify(letter: Letter, copies: int) -> bool:
        seen.append((letter, copies))
        return True

    assert looked(crew, verify) == {"status": "answered", "landed": True, "text": "True"}
    assert seen == [(Letter("ann", ("a", "b")), 1)]


def test_whatever_verify_answers_is_text_for_a_person(crew: Crew) -> None:
    assert looked(crew, lambda letter, copies: "")["landed"] is False
    answer = looked(crew, lambda letter, copies: "sent at noon " + "x" * 5000)
    assert answer["landed"] is True
    assert answer["text"].startswith("sent at noon")
    assert len(answer["text"]) <= 1000


def test_an_asynchronous_verify_is_asked_too(crew: Crew) -> None:
    async def verify(letter: Letter, copies: int) -> bool:
        return letter.to == "ann"

    assert looked(crew, verify)["landed"] is True


@pytest.mark.parametrize("error", [ValueError("no server"), SystemExit(3), BaseException("odd")])
def test_a_verify_that_fails_is_evidence_of_just_that(crew: Crew, error: BaseException) -> None:
    def verify(letter: Letter, copies: int) -> bool:
        raise error

    assert looked(crew, verify) == {"status": "failed", "text": repr(error)}


def test_a_verify_that_does_not_answer_holds_nobody_up(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LIMIT_S", 0.05)
    for_ever = threading.Event()
    found = looked(crew, lambda letter, copies: for_ever.wait(10))
    for_ever.set()
    assert found["status"] == "no answer"


def test_a_step_without_verify_has_no_evidence(crew: Crew) -> None:
    @step(effect="write")
    def put() -> None:
        dies()

    assert evidence.look(*in_doubt(crew, put)) is None


def test_a_step_that_is_not_known_here_has_no_evidence(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    @step(effect="write", verify=lambda: True)
    def put() -> None:
        dies()

    task, recorded = in_doubt(crew, put)
    monkeypatch.setattr(steps, "_declared", {})
    assert evidence.look(task, recorded) is None


def test_of_two_steps_of_one_name_in_two_files_neither_is_taken_for_the_other(
    crew: Crew, tmp_path: Path
) -> None:
    @step(effect="write", verify=lambda: True)
    def put() -> None:
        dies()

    task, recorded = in_doubt(crew, put)
    made: dict[str, Any] = {}
    exec(compile("def put(): ...", str(tmp_path / "other.py"), "exec"), made)
    step(effect="write", verify=lambda: False)(made["put"])
    assert evidence.look(task, recorded) is None


def test_arguments_that_are_too_large_to_be_kept_are_not_asked_with(crew: Crew) -> None:
    @step(effect="write", verify=lambda text: True)
    def put(text: str) -> None:
        dies()

    found = evidence.look(*in_doubt(crew, put, "x" * 100_000))
    assert found is not None
    assert found["status"] == "not asked"


def test_spread_and_positional_arguments_reach_verify_as_they_reached_the_step(crew: Crew) -> None:
    seen: list[Any] = []

    def verify(first: str, /, *paths: str, mode: str, **rest: int) -> bool:
        seen.append((first, paths, mode, rest))
        return True

    @step(effect="write", verify=verify)
    def put(first: str, /, *paths: str, mode: str = "w", **rest: int) -> None:
        dies()

    found = evidence.look(*in_doubt(crew, put, "a", "b", "c", more=1))
    assert found == {"status": "answered", "landed": True, "text": "True"}
    assert seen == [("a", ("b", "c"), "w", {"more": 1})]


def test_a_question_shows_the_evidence_and_verify_may_use_the_store(crew: Crew) -> None:
    def verify() -> str:
        return ref("any").enqueue("looked").id

    @step(effect="write", verify=verify)
    def put() -> None:
        dies()

    in_doubt(crew, put)
    crew.relight()
    [asked] = crew.asked()
    [shown] = confirmations.steps(crew.db, asked.id)
    found = json.loads(shown.shown_json)["verify"]
    assert found["status"] == "answered"
    assert crew.db.row("SELECT count(*) FROM agent_tasks WHERE id = ?", (found["text"],)) == (1,)
