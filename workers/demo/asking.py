"""The question about the fixer, and a person's answer, given through the same door as anybody's: the command line."""

from __future__ import annotations

import json
from typing import Any

from ...models import confirmations
from ...models.confirmations import Confirmation, ConfirmationStep
from ..home import Home
from .crew import Crew
from .facts import Answer
from .screen import Screen
from .view import ActFailed

QUESTION = "Shall the fixer go on?"
SHORT_ID = 8  # the end of an id, which the command line accepts

_LANDED = {"True": "it landed", "False": "it did not land"}

Question = tuple[Confirmation, list[ConfirmationStep]]


def question(home: Home, task_id: str) -> Question | None:
    """The open question about a task, with its steps in doubt."""
    for asked in confirmations.listing(home.db):
        if asked.task_id == task_id:
            return asked, confirmations.steps(home.db, asked.id)
    return None


def answer(home: Home, crew: Crew, screen: Screen, asked: Question, *, assume_yes: bool) -> Answer:
    """Show the question, wait for yes or no, do what was said; returns what then stands in the state file."""
    confirmation, doubtful = asked
    _show(screen, confirmation, doubtful)
    if assume_yes:
        screen.say(f"{QUESTION} yes (--yes)", "bold")
    agreed = assume_yes or screen.ask(QUESTION)
    for words in yes(confirmation, doubtful) if agreed else [no(confirmation)]:
        screen.say(f"relight {' '.join(words)}", "dim")
        _say(crew, *words)
    found = confirmations.find(home.db, confirmation.id)
    return Answer(found.asked_at, found.decided_at or 0, found.status, found.decided_by)


def yes(asked: Confirmation, doubtful: list[ConfirmationStep]) -> list[tuple[str, ...]]:
    """What a person says who believes `verify`: it ran where it landed, again where it did not."""
    if not doubtful:
        return [("approve", asked.id[-SHORT_ID:])]
    resolve = ("resolve", asked.id[-SHORT_ID:], "--step")
    return [(*resolve, step.step_key, *_answer_for(step)) for step in doubtful]


def no(asked: Confirmation) -> tuple[str, ...]:
    """What a person says who wants the fixer to end."""
    return "reject", asked.id[-SHORT_ID:], "--reason=no"


def _show(screen: Screen, asked: Confirmation, doubtful: list[ConfirmationStep]) -> None:
    restored = asked.request.get("restored", {})
    screen.say(
        f"the fixer waits: {asked.request.get('why')}; {restored.get('finished_steps')} steps are restored",
        "yellow",
    )
    for step in doubtful:
        file = _file(json.loads(step.shown_json).get("input"))
        landed = _LANDED.get(str(_evidence(step).get("landed")), "nothing")
        screen.say(f"in doubt: {step.step_key}, of {file}; verify says: {landed}", "yellow")


def _answer_for(step: ConfirmationStep) -> tuple[str, ...]:
    landed = _evidence(step).get("landed")
    if landed is None:
        raise ActFailed(f"verify does not say whether {step.step_key} landed: {_evidence(step)}")
    return ("--ran", "null") if landed else ("--again",)


def _evidence(step: ConfirmationStep) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(step.shown_json).get("verify") or {}
    return found


def _file(given: Any) -> str:
    return str(given["change"]["file"]) if isinstance(given, dict) and "change" in given else "?"


def _say(crew: Crew, *words: str) -> None:
    done = crew.run(*words)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ActFailed(f"relight {words[0]} ended with code {done.returncode}: {said}")
