"""What rows say about steps: done, in doubt, or open to run again."""

from __future__ import annotations

from typing import Any

import pytest

from relight.recovery.replay import History, StepState, history

KIND = {"intent": "tool_call_started", "outcome": "tool_call_completed"}


def read(*rows: tuple[str, dict[str, Any]]) -> History:
    """The history of intents and outcomes, given as their kind and what is special about them."""
    return history(
        (
            index,
            KIND[kind],
            told.get("json", f'{{"{kind}":{index}}}'),
            told.get("key", "a#1"),
            told.get("digest", "d1"),
            told.get("attempt", 1),
            told.get("effect", "read"),
            told.get("late", 0),
            told.get("superseded", 0),
            1000 + index,
        )
        for index, (kind, told) in enumerate(rows)
    )


def intent(**told: Any) -> tuple[str, dict[str, Any]]:
    return "intent", told


def outcome(**told: Any) -> tuple[str, dict[str, Any]]:
    return "outcome", told


def state(*rows: tuple[str, dict[str, Any]]) -> StepState:
    return read(*rows).steps["a#1"].state


def test_no_rows_are_an_empty_history() -> None:
    assert read().steps == {}
    assert read().finished() == read().in_doubt() == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([intent(), outcome()], StepState.DONE),
        ([intent()], StepState.IN_DOUBT),
        ([outcome()], StepState.DONE),
        ([intent(), intent()], StepState.IN_DOUBT),
        ([intent(), outcome(superseded=1)], StepState.OPEN),
        ([intent(), outcome(superseded=1), intent(attempt=2)], StepState.IN_DOUBT),
        ([intent(), outcome(superseded=1), intent(attempt=2), outcome(attempt=2)], StepState.DONE),
        ([intent(), intent(attempt=2), outcome(attempt=2)], StepState.DONE),
        ([intent(), outcome(late=1)], StepState.DONE),
        ([outcome(superseded=1)], StepState.OPEN),
        ([intent(), outcome(superseded=1), outcome()], StepState.DONE),
    ],
)
def test_a_step_is_in_doubt_exactly_when_its_last_intent_has_no_outcome_behind_it(
    rows: list[tuple[str, dict[str, Any]]], found: StepState
) -> None:
    assert state(*rows) is found


def test_the_owners_outcome_counts_before_a_late_one_and_the_first_late_one_before_others() -> None:
    late, later, own = outcome(late=1), outcome(late=1), outcome(attempt=2)
    assert read(intent(), late, own).steps["a#1"].outcome_json == '{"outcome":2}'
    assert read(intent(), own, late).steps["a#1"].outcome_json == '{"outcome":1}'
    assert read(intent(), late, later).steps["a#1"].outcome_json == '{"outcome":1}'


def test_of_the_owners_outcomes_the_last_that_is_not_superseded_counts() -> None:
    found = read(intent(), outcome(superseded=1), intent(), outcome(attempt=2)).steps["a#1"]
    assert (found.outcome_json, found.attempt) == ('{"outcome":3}', 2)


def test_a_persons_answer_stays_before_the_late_outcome_that_came_after_it() -> None:
    answered = read(intent(effect="write"), outcome(), outcome(late=1)).steps["a#1"]
    assert answered.outcome_json == '{"outcome":1}'


def test_a_step_without_a_known_effect_counts_as_a_write() -> None:
    assert read(intent(effect=None)).steps["a#1"].effect == "write"


def test_what_identifies_a_step_comes_from_what_it_ended_with() -> None:
    found = read(intent(digest="d1"), outcome(digest="d2", attempt=3)).steps["a#1"]
    assert (found.digest, found.attempt, found.started_at) == ("d2", 3, 1000)
    begun = read(intent(digest="d1", attempt=2)).steps["a#1"]
    assert (begun.digest, begun.attempt, begun.intent_json) == ("d1", 2, '{"intent":0}')
    value = read(outcome(digest="")).steps["a#1"]
    assert (value.digest, value.intent_json) == ("", None)


def test_steps_are_kept_apart_by_key_and_in_the_order_in_which_they_began() -> None:
    found = read(
        intent(key="b#1"), intent(key="a#1"), outcome(key="a#1"), intent(key="1/b#1"), outcome(key="b#1")
    )
    assert list(found.steps) == ["b#1", "a#1", "1/b#1"]
    assert [step.key for step in found.finished()] == ["b#1", "a#1"]
    assert [step.key for step in found.in_doubt()] == ["1/b#1"]


def test_a_loss_is_the_first_in_a_row_when_a_step_ended_in_its_attempt() -> None:
    found = read(intent(), outcome(attempt=2))
    assert found.finished_in(2)
    assert not found.finished_in(1)
    assert not read(intent(attempt=1)).finished_in(1)


@pytest.mark.parametrize("text", ["not json", "[]", "null", '{"call":7}', "{}"])
def test_an_intent_that_cannot_be_read_names_nothing_and_stops_nobody(text: str) -> None:
    assert read(intent(json=text)).steps["a#1"].intent_call() == {}
