"""What may be a step or an agent, what its annotations mean, and the one clear error for everything else."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relight import Run, agent, step
from relight.models.errors import InputError
from relight.workers import agents, functions, inputs, steps
from tests.workers.conftest import Crew

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


def total(one: int, other: int = 2) -> int:
    return one + other


class Adding:
    def __call__(self, run: Any, one: int) -> int:
        return one


class Waiting:
    async def __call__(self, run: Any, one: int) -> int:
        return one


def numbers(run: Any) -> Iterator[int]:
    yield 1


async def anumbers(run: Any) -> AsyncIterator[int]:
    yield 1


class Yielding:
    def __call__(self, run: Any) -> Iterator[int]:
        yield 1


def loaded(path: Path, source: str, name: str = "explore") -> Callable[..., Any]:
    path.write_text(source)
    made: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), made)
    found: Callable[..., Any] = made[name]
    return found


# -- annotations ----------------------------------------------------------------------------------------------


def test_one_annotation_that_cannot_be_resolved_takes_no_other_with_it() -> None:
    def mixed(run: OnlyForCheckers, prompt: str, depth: int = 1) -> list[int]: ...

    hints = functions.hints_of(mixed)
    assert hints.known == {"prompt": str, "depth": int, "return": list[int]}
    assert "OnlyForCheckers" in hints.unknown["run"]
    form = inputs.Form(mixed, "mixed")
    assert form.checked(("a",), {"depth": "4"}) == {"prompt": "a", "depth": 4}
    with pytest.raises(InputError, match="'depth'"):
        form.checked(("a",), {"depth": "deep"})


def test_a_parameter_whose_type_cannot_be_resolved_is_refused_at_first_use_and_named() -> None:
    def priced(run: Run, price: OnlyForCheckers) -> None: ...

    form = inputs.Form(priced, "priced")
    with pytest.raises(InputError, match=r"agent priced, parameter 'price': .*OnlyForCheckers.*NameError"):
        form.input_of((1,), {})


def test_a_return_type_that_cannot_be_resolved_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    @step
    def priced() -> OnlyForCheckers: ...

    with caplog.at_level(logging.WARNING):
        assert priced.returns is priced.returns is None
    assert [record.message for record in caplog.records if "step priced: its return" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


def test_annotations_may_name_what_the_enclosing_function_uses() -> None:
    class Local: ...

    def inner() -> Local:
        return Local()

    assert functions.hints_of(inner).known == {"return": Local}


# -- what may be a step or an agent ---------------------------------------------------------------------------


@pytest.mark.parametrize("yielding", [numbers, anumbers, Yielding(), functools.partial(numbers)], ids=repr)
def test_a_generator_whose_body_would_not_run_is_refused_where_it_is_declared(
    crew: Crew, yielding: Any
) -> None:
    for declare in (step(name="n"), agent(name="n"), steps.as_step):
        with pytest.raises(InputError, match="without yield"):
            declare(yielding)
    assert agents.known() == {}


def test_wrappers_partials_and_callable_objects_are_steps_and_keep_their_types() -> None:
    cached = step(functools.lru_cache(total))
    assert (cached.declared.name, cached(1), cached.returns) == ("total", 3, int)
    part = step(name="part")(functools.partial(total, 1))
    assert (part(), part(other=5), part.returns) == (3, 6, int)
    made = step(name="made")(Adding())
    assert (made(None, 4), made.arguments((None, 4), {})) == (4, {"run": None, "one": 4})
    assert step(sorted)([2, 1]) == [1, 2]


def test_callable_objects_with_a_name_are_agents(crew: Crew) -> None:
    adding, waiting = agent(name="adding", risk="low")(Adding()), agent(name="waiting", risk="low")(Waiting())
    tasks = [adding.enqueue("4"), waiting.enqueue(5)]
    crew.work_off()
    assert [task.result(timeout=5) for task in tasks] == [4, 5]


@pytest.mark.parametrize("nameless", [functools.partial(total, 1), Adding()], ids=["partial", "object"])
def test_what_has_no_name_is_asked_for_one(nameless: Any) -> None:
    for declare in (step, agent):
        with pytest.raises(InputError, match="name="):
            declare(nameless)


@pytest.mark.parametrize("declare", [step, agent])
def test_what_is_no_function_is_one_clear_error(crew: Crew, declare: Any) -> None:
    known_step = step(total)
    known_agent = agent(name="adding")(Adding())
    with pytest.raises(InputError, match=r"\(name='fetch'\)"):
        declare("fetch")
    for odd in (3, known_step, known_agent, classmethod(total)):
        with pytest.raises(InputError, match=r"cannot be|a step already"):
            declare(odd)


# -- one name, one agent --------------------------------------------------------------------------------------


def test_two_agents_of_one_name_in_one_file_are_refused(crew: Crew, tmp_path: Path) -> None:
    first = "def explore(run): ...\n"
    path = tmp_path / "mine.py"
    agent(loaded(path, first))
    with pytest.raises(InputError, match=r"two agents are called 'explore'.*:1.*:2.*name="):
        agent(loaded(path, first + first))
    with pytest.raises(InputError, match="two agents"):
        agent(name="explore")(loaded(path, "def other(run): ...\n", "other"))


def test_a_file_that_was_edited_and_loaded_again_replaces_its_agent(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    agent(loaded(path, "def explore(run): ...\n"))
    again = agent(loaded(path, "import os\n\n\ndef explore(run): return os\n"))
    assert agents.known() == {"explore": again}
