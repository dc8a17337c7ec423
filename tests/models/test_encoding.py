"""Whatever a step takes, gives or raises can be stored, and comes back the same wherever JSON or a type allows it."""

from __future__ import annotations

import asyncio
import enum
import json
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, UserDict, deque, namedtuple
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel

from relight.models import encoding, errors, marks
from relight.models.encoding import canonical, clean_text, clip, decode, describe_error, encode, rebuild_error
from tests.conftest import ROOT

MORNING = datetime(2024, 1, 1)  # noqa: DTZ001 - a naive one is what steps return too

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)
HASHABLE = st.recursive(
    SCALARS | st.binary() | st.datetimes() | st.decimals(allow_nan=False) | st.uuids() | st.timedeltas(),
    lambda inner: st.frozensets(inner) | st.tuples(inner),
    max_leaves=5,
)
EXACT = st.recursive(
    HASHABLE | st.dates() | st.times(),
    lambda inner: st.lists(inner) | st.dictionaries(HASHABLE, inner) | st.sets(HASHABLE),
    max_leaves=20,
)
ANYTHING = st.recursive(
    EXACT | st.text(st.characters(categories=["Cs", "Lu"])) | st.floats() | st.builds(object) | st.just(len),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters()), inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mood(enum.StrEnum):
    GLAD = "glad"


@dataclass(frozen=True)
class Place:
    path: Path
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Spot:
    line: int
    path: Path


class Report(BaseModel):
    when: datetime
    data: bytes
    ratio: float = Field(alias="r")
    place: Place
    names: dict[int, str]


Pair = namedtuple("Pair", "left right")


def storable(text: str) -> Any:
    """Read as a strict reader would: UTF-8, no NaN, no lone surrogate."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text.encode().decode(), parse_constant=refuse)


@given(JSON)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    text, lossy = encode(value)
    assert not lossy
    assert decode(text) == value
    assert type(decode(text)) is type(value)


@given(EXACT)
def test_what_json_cannot_say_comes_back_without_an_annotation(value: Any) -> None:
    text, lossy = encode(value)
    storable(text)
    assert not lossy
    assert decode(text) == as_json_has_it(value)


def as_json_has_it(value: Any) -> Any:
    """Tuples become lists, except where Python needs a hash."""
    if isinstance(value, dict):
        return {key: as_json_has_it(item) for key, item in value.items()}
    return [as_json_has_it(item) for item in value] if isinstance(value, (list, tuple)) else value


@settings(deadline=None)
@given(ANYTHING)
def test_nothing_that_a_step_returns_fails_to_be_stored(value: Any) -> None:
    storable(encode(value).text)
    storable(canonical({"value": value}))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Place(Path("a/b"), {"x", "y"}), Place),
        ([Place(Path("."))], list[Place]),
        ({Spot(1, Path("x"))}, set[Spot]),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (Mood.GLAD, Mood),
        (Pair(1, "b"), Pair),
        ((1, "b"), tuple[int, str]),
        ({1, 2}, set[int]),
        ({Colour.RED: {1: b"\xff"}}, dict[Colour, dict[int, bytes]]),
        (b"\x00\xff", bytes),
        (datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5))), datetime),
        (timedelta(days=-1, microseconds=3), timedelta),
        (Decimal("1.10"), Decimal),
        (None, Place | None),
        (
            Report(
                when=MORNING,
                data=b"\xff",
                r=float("inf"),
                place=Place(Path("x")),
                names={1: "a"},
            ),
            Report,
        ),
    ],
)
def test_an_annotation_gives_the_type_back(value: Any, annotation: Any) -> None:
    text, lossy = encode(value)
    back = decode(text, annotation)
    assert not lossy
    assert back == value
    assert type(back) is type(value)


def test_a_strict_model_is_read_back_from_json() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        when: datetime
        parts: tuple[int, ...]

    value = Strict(when=MORNING, parts=(1, 2))
    assert decode(encode(value).text, Strict) == value


@pytest.mark.parametrize(
    "annotation", [int, Place, threading.Lock, "no such name", Iterable[str], asyncio.Future]
)
def test_an_annotation_that_does_not_fit_is_ignored(annotation: Any) -> None:
    assert decode(encode(["a", "b"]).text, annotation) == ["a", "b"]


@pytest.mark.parametrize(
    "value", [Colour.RED, Level.HIGH, Mood.GLAD, Pair(1, 2), Place(Path("x")), RootModel[int](3)]
)
def test_without_an_annotation_a_typed_value_is_its_json(value: Any) -> None:
    text, lossy = encode(value)
    assert not lossy
    assert decode(text) in ("red", 3, "glad", [1, 2], {"path": "x", "tags": []})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (UserDict({"a": 1}), {"a": 1}),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.keys(), ["a"]),
        (bytearray(b"\xff"), b"\xff"),
    ],
)
def test_other_containers_keep_their_content(value: Any, expected: Any) -> None:
    assert decode(encode(value).text) == expected


class Hostile(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise OSError("no")

    def __str__(self) -> str:
        raise OSError("no")


class Bottomless(UserDict[str, int]):
    def items(self) -> Any:
        return self.items()


class Broken(UserDict[str, int]):
    def items(self) -> Any:
        raise OSError("no")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "object"),
        (threading.Lock(), "_thread.lock"),
        ((n for n in "ab"), "generator"),
        (iter([1]), "list_iterator"),
        (Broken(), f"{__name__}.Broken"),
        (Place, f"class {__name__}.Place"),
        (json.dumps, "function json.dumps"),
        (range(10**12), "range"),
        (1j, "complex"),
    ],
)
def test_what_has_no_form_is_marked_by_its_type_and_never_by_an_address(value: Any, name: str) -> None:
    text, lossy = encode({"kept": 1, "gone": value})
    assert lossy
    assert json.loads(text) == {"kept": 1, "gone": {"$lossy": name}}


def test_a_value_whose_own_code_never_ends_is_marked_whole() -> None:
    assert json.loads(encode(Bottomless(a=1)).text) == {"$lossy": f"{__name__}.Bottomless"}


@pytest.mark.parametrize("letter", ["x", "ü", "😀", '"', "\\", "\n", "\x00"])
def test_a_text_that_is_written_in_pieces_is_written_as_one(letter: str) -> None:
    value = letter * ((2 << 20) + 1)
    assert encoding.encode(value).text == json.dumps(value, ensure_ascii=False)


def test_a_generator_is_not_consumed() -> None:
    letters = (letter for letter in "ab")
    encode(letters)
    assert list(letters) == ["a", "b"]


def test_a_dictionary_of_a_hostile_class_is_read_as_a_dictionary() -> None:
    assert decode(encode(Hostile(a=1)).text) == {"a": 1}


def test_lone_surrogates_are_replaced_and_valid_text_is_untouched() -> None:
    text, lossy = encode({"\ud83d": ["\ud83d!", "ok 😀 \x00"]})
    assert lossy
    assert decode(text) == {"\ufffd": ["\ufffd!", "ok 😀 \x00"]}


def test_a_value_that_holds_itself_ends() -> None:
    ring: dict[str, Any] = {"name": "ring"}
    ring["self"] = [ring]
    assert json.loads(encode(ring).text) == {"name": "ring", "self": [{"$lossy": "dict"}]}


def test_a_value_shared_twice_is_no_ring() -> None:
    part = {"when": date(2024, 1, 1)}
    assert decode(encode([part, part]).text) == [part, part]


def test_very_deep_nesting_is_cut_and_said() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    text, lossy = encode(deep)
    assert lossy
    assert decode(text)[0][0][0]
    while deep:  # taken apart here: the interpreter's own way down would overflow
        deep = deep.pop()


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: {"k": v}, lambda v: {1: v}, lambda v: frozenset([v])],
    ids=["list", "dict", "map", "set"],
)
def test_every_nesting_that_can_be_written_can_be_read(wrap: Any) -> None:
    value: Any = 0
    for _ in range(marks.MAX_DEPTH + 5):
        value = wrap(value)
    decode(encode(value).text)


def test_a_value_that_doubles_at_every_level_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_CONTAINERS", 1000)
    monkeypatch.setattr("relight.models.marks.MAX_CONTAINERS", 1000)
    value: Any = []
    for _ in range(100):
        value = [value, value]
    assert encode(value).lossy


@pytest.mark.parametrize(
    "number",
    [2**63, -(2**63) - 1, 10**4000, -(10**6000)],
    ids=["65 bit", "-65 bit", "4000 digits", "-6000 digits"],
)
def test_integers_of_any_size_are_stored_exactly(number: int) -> None:
    text, lossy = encode([number])
    assert not lossy
    assert decode(text) == [number]


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), -0.0, 5e-324])
def test_every_float_is_stored_exactly(number: float) -> None:
    assert str(decode(encode(number).text)) == str(number)
    assert decode(encode(float("nan")).text) != decode(encode(float("nan")).text)


@pytest.mark.parametrize(
    "value",
    [
        {"$set": [1]},
        {"$map": []},
        {"$bytes": "AA=="},
        {"$set": 1, "b": 2},
        {"$ref": "#/x"},
        {"a": {"$path": "x"}},
    ],
)
def test_a_users_own_dictionary_is_never_taken_for_a_mark(value: Any) -> None:
    text, lossy = encode(value)
    assert not lossy
    assert decode(text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"$bytes":5}',
        '{"$set":5}',
        '{"$map":[1]}',
        '{"$datetime":"x"}',
        '{"$decimal":"x"}',
        '{"$timedelta":1}',
    ],
)
def test_a_mark_written_wrong_by_hand_stays_what_it_is(text: str) -> None:
    assert decode(text) in (json.loads(text), 5)


@pytest.mark.parametrize("text", ["", "{", "nope", '{"a":}'])
def test_text_that_is_no_json_is_a_typed_error(text: str) -> None:
    with pytest.raises(errors.SealedStepError, match="not JSON"):
        decode(text)


def test_the_depth_of_the_caller_changes_nothing() -> None:
    value: Any = {1}
    for _ in range(80):
        value = [{"k": value}]

    parsed = json.loads(encode(value).text)

    def down(frames: int) -> tuple[Any, ...]:
        if frames:
            return down(frames - 1)
        text = encode(value).text
        return text, canonical({"v": value}), decode(text), encoding.revive(parsed)

    assert down(880) == down(0)


def test_a_part_of_a_parsed_document_is_revived() -> None:
    value = {"at": MORNING, "by": {3: Path("x")}}
    assert encoding.revive(json.loads(encode(value).text)) == value
    assert encoding.revive({"path": "x"}, Place) == Place(Path("x"))


@settings(max_examples=50)
@given(st.dictionaries(st.text(), EXACT, max_size=3))
def test_equal_arguments_give_one_text_in_any_order(arguments: dict[str, Any]) -> None:
    backwards = dict(reversed(arguments.items()))
    assert canonical(arguments) == canonical(backwards)


def test_a_digest_is_the_same_in_every_process() -> None:
    script = (
        "from relight.models.encoding import canonical, digest\n"
        "import threading\n"
        "print(digest(canonical({'b': {'x', 'y', 'z', 'w', 1, None}, 'a': {2: threading.Lock(), 1: object()},"
        " 'f': {frozenset({'p', 'q'}), frozenset()}})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_different_arguments_give_different_text() -> None:
    texts = {
        canonical({"a": value})
        for value in [
            1,
            1.5,
            "1",
            None,
            True,
            [1],
            {"1": 1},
            {1: 1},
            {1},
            b"1",
            Path("1"),
            date(2024, 1, 1),
            time(1),
        ]
    }
    assert len(texts) == 13


def test_encoding_loads_no_pydantic() -> None:
    script = "import sys; from relight.models import encoding as e; e.decode(e.encode({1: {2}}).text); "
    script += "assert 'pydantic' not in sys.modules and 'pydantic_core' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(ROOT)})


@given(st.text(st.characters()), st.integers(0, 60))
def test_a_clipped_text_is_valid_and_within_its_bytes(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped.encode()) <= limit
    assert len(clean_text(text).encode()) > limit or clipped == clean_text(text)


def test_a_clipped_text_says_how_long_it_was() -> None:
    assert clip("é" * 100, 40).endswith("… (clipped, 200 bytes)")


class Refusing(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Mute(Exception):
    def __str__(self) -> str:
        raise OSError("no")


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Liar(Exception):
    """Says something else each time it is made."""

    made = 0

    def __init__(self, text: str) -> None:
        Liar.made += 1
        super().__init__(text)

    def __str__(self) -> str:
        return f"{self.args[0]} {Liar.made}"


def raised(error: Exception) -> Exception:
    return rebuild_error(json.loads(json.dumps(describe_error(error))))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("k"),
        KeyError(3),
        TimeoutError(),
        FileNotFoundError(2, "No such file", "x"),
        json.JSONDecodeError("Expecting value", "doc", 1),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        errors.StepFailed("their.Error", "text"),
        errors.StepAbandoned("given up"),
        errors.NotDone("before sending"),
    ],
)
def test_an_exception_of_an_imported_class_is_raised_again_as_itself(error: Exception) -> None:
    again = raised(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args or isinstance(error, OSError)
    assert describe_error(again) == describe_error(error)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("error", [Mute("x"), Liar("x"), ExceptionGroup("g", [ValueError("x")])])
def test_an_exception_that_cannot_be_made_again_is_a_step_failed(error: Exception) -> None:
    again = raised(error)
    assert isinstance(again, errors.StepFailed)
    assert again.type_name == type(error).__qualname__
    assert describe_error(raised(again)) == describe_error(again)


def test_an_exception_whose_constructor_takes_other_arguments_is_still_caught_by_its_class() -> None:
    error = Refusing(1, "no")
    error.code = 7  # type: ignore[attr-defined]
    again = raised(error)
    assert (type(again), str(again), vars(again)) == (Refusing, str(error), vars(error))


def test_a_local_class_is_never_guessed() -> None:
    class Local(Exception):
        pass

    assert isinstance(raised(Local("x")), errors.StepFailed)


@pytest.mark.parametrize(
    "record",
    [
        {"type": "error", "module": "os", "text": "x"},  # an alias is not the class's own name
        {"type": "system", "module": "os", "text": "true"},
        {"type": "Popen", "module": "subprocess", "text": "true"},
        {"type": "SystemExit", "module": "builtins", "text": "x"},
        {"type": "error", "module": "zlib_not_loaded", "text": "x"},
        {"type": "Error.__init__.__globals__", "module": "json.decoder", "text": "x"},
        {"type": "ValueError", "module": None, "text": "x"},
        {},
    ],
)
def test_a_record_rebuilds_nothing_but_an_exception_under_its_own_name(record: dict[str, Any]) -> None:
    assert type(rebuild_error(record)) is errors.StepFailed


def test_nothing_is_imported_for_an_exception() -> None:
    record = {"type": "Error", "module": "wave", "text": "x"}
    assert "wave" not in sys.modules
    assert type(rebuild_error(record)) is errors.StepFailed
    assert "wave" not in sys.modules


def test_a_class_that_was_not_there_when_the_agents_were_loaded_stays_unknown() -> None:
    record = describe_error(json.JSONDecodeError("m", "d", 0))
    loaded = {name: module for name, module in sys.modules.items() if not name.startswith("json")}
    assert type(rebuild_error(record, modules=loaded)) is errors.StepFailed
    assert type(rebuild_error(record)) is json.JSONDecodeError


def test_the_text_of_an_exception_is_bounded_and_storable() -> None:
    record = describe_error(ValueError("\ud83d" + "x" * 100_000))
    assert len(record["text"].encode()) <= encoding.ERROR_TEXT_BYTES
    assert "args" not in record
    storable(encode(record).text)
    again = raised(ValueError("x" * 100_000))
    assert isinstance(again, ValueError)
    assert str(again) == describe_error(again)["text"]


def test_notes_of_any_other_kind_do_no_harm() -> None:
    error = ValueError("x")
    error.__notes__ = 3  # type: ignore[assignment]
    assert raised(error).args == ("x",)


def test_notes_of_an_exception_come_back() -> None:
    error = ValueError("x")
    error.add_note("while reading a.py")
    assert raised(error).__notes__ == ["while reading a.py"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_is_no_exception_can_be_described(error: BaseException) -> None:
    assert describe_error(error)["type"] == type(error).__qualname__
    assert type(rebuild_error(describe_error(error))) is errors.StepFailed


def test_uuids_come_back_whoever_made_them() -> None:
    assert decode(encode(UUID(int=7)).text) == UUID(int=7)
