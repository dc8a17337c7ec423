"""Arguments on their way into a task and out of it: checked where they enter, typed where they arrive."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest

from relight.models.errors import InputError
from relight.workers import inputs
from relight.workers.inputs import Form


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Place:
    name: str
    at: tuple[int, int] = (0, 0)
    tags: set[str] = field(default_factory=set)


class Question(pydantic.BaseModel):
    text: str
    place: Place


def explore(run: Any, prompt: str, *, depth: int = 3, root: Path = Path("src")) -> None: ...


def there_and_back(fn: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    form = Form(fn, "tested")
    return form.arguments(form.input_of(args, kwargs).text)


def test_an_input_is_stored_by_name_with_its_defaults_and_comes_back_typed() -> None:
    stored = Form(explore, "explore").input_of(("where?",), {"depth": "4"})
    assert json.loads(stored.text)["args"] == []
    assert stored.prompt == "where?"
    assert there_and_back(explore, "where?", depth="4") == {
        "prompt": "where?",
        "depth": 4,
        "root": Path("src"),
    }


def test_values_of_every_kind_come_back_by_their_annotations() -> None:
    def many(
        run: Any,
        place: Place,
        question: Question,
        colour: Colour,
        when: datetime,
        raw: bytes,
        pair: tuple[int, str],
    ) -> None: ...

    given = {
        "place": Place("x", (1, 2), {"a", "b"}),
        "question": Question(text="?", place=Place("y")),
        "colour": Colour.RED,
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "raw": b"\x00\xff",
        "pair": (1, "a"),
    }
    hints = {**many.__annotations__}
    many.__annotations__.update(
        place=Place, question=Question, colour=Colour, when=datetime, raw=bytes, pair=tuple[int, str]
    )
    assert there_and_back(many, **given) == given
    many.__annotations__.update(hints)


def test_parameters_may_have_any_name() -> None:
    def odd(
        run: Any, model_config: str, schema: int, copy: str, self: str, cls: str, _private: int
    ) -> None: ...

    given = {"model_config": "a", "schema": 1, "copy": "b", "self": "c", "cls": "d", "_private": 2}
    assert there_and_back(odd, **given) == given


def test_further_names_are_taken_where_the_agent_takes_them() -> None:
    def open_ended(run: Any, prompt: str, **rest: Any) -> None: ...

    assert there_and_back(open_ended, "p", more=[1], other="x") == {"prompt": "p", "more": [1], "other": "x"}


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "'prompt'"),
        (("a", "b"), {}, "too many"),
        (("a",), {"dpth": 1}, "'dpth'"),
        (("a",), {"depth": "deep"}, "'depth'"),
        ((["a"],), {}, "'prompt'"),
        (("a",), {"depth": None, "root": 7}, "'depth'.*'root'"),
    ],
)
def test_a_call_that_does_not_fit_names_the_agent_and_the_parameter(
    args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=f"agent explore.*{named}"):
        Form(explore, "explore").input_of(args, kwargs)


def test_what_is_no_json_value_is_refused_and_its_parameter_named() -> None:
    def loose(run: Any, one: Any, other: Any) -> None: ...

    with pytest.raises(InputError, match=r"parameter 'other': a object"):
        Form(loose, "loose").input_of((1, object()), {})


@pytest.mark.parametrize(
    "harmless", ["half an emoji \ud83d", 'it says {"$lossy": 1}', {"$lossy": "\ud83d"}], ids=repr
)
def test_half_an_emoji_is_replaced_and_the_input_is_taken(harmless: Any) -> None:
    def loose(run: Any, one: Any) -> None: ...

    form = Form(loose, "loose")
    stored = form.input_of((harmless,), {})
    expected = json.loads(json.dumps(harmless).replace("\\ud83d", "\\ufffd"))
    assert form.arguments(stored.text) == {"one": expected}


def test_positional_spreads_and_positional_only_parameters_are_refused_with_the_form_that_works() -> None:
    def spread(run: Any, *paths: str) -> None: ...

    with pytest.raises(InputError, match="pass a list by name"):
        Form(spread, "spread").input_of(("a",), {})

    def positional(run: Any, prompt: str, /) -> None: ...

    with pytest.raises(InputError, match="positional-only"):
        Form(positional, "positional")


def test_an_agent_takes_its_run_first() -> None:
    for fn in (lambda: None, lambda *, run: None):
        with pytest.raises(InputError, match="first parameter is the run"):
            Form(fn, "odd")


@pytest.mark.parametrize(
    "stored", ["{", "[]", "null", '{"args":1,"kwargs":{}}', '{"args":[],"kwargs":[1]}', "{}"]
)
def test_a_stored_input_that_is_none_is_an_error_that_names_the_agent(stored: str) -> None:
    with pytest.raises(InputError, match="agent explore"):
        Form(explore, "explore").arguments(stored)


def test_what_was_enqueued_by_name_is_checked_when_it_arrives() -> None:
    stored = inputs.unchecked(("where?",), {"depth": "4"})
    assert stored.prompt == "where?"
    form = Form(explore, "explore")
    assert form.arguments(stored.text) == {"prompt": "where?", "depth": 4, "root": Path("src")}
    with pytest.raises(InputError, match="'depth'"):
        form.arguments(inputs.unchecked(("where?",), {"depth": "deep"}).text)
    with pytest.raises(InputError, match="no JSON"):
        inputs.unchecked((object(),), {})


@pytest.mark.parametrize(
    ("kwargs", "prompt"),
    [
        ({"prompt": "p", "other": "o"}, "p"),
        ({"other": "o"}, "o"),
        ({"prompt": ["a", 1]}, '["a", 1]'),
        ({"number": 1}, ""),
        ({}, ""),
    ],
)
def test_the_prompt_for_people_is_the_one_called_so_or_the_first_text(
    kwargs: dict[str, Any], prompt: str
) -> None:
    assert inputs.unchecked((), kwargs).prompt == prompt
