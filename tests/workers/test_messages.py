from __future__ import annotations

import enum
import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from huey.registry import Message
from huey.utils import SKIPPED, Error
from hypothesis import given
from hypothesis import strategies as st

from relight.models.errors import InputError, NotDone, StepFailed
from relight.workers.messages import JsonSerializer

serializer = JsonSerializer()


def through(value: Any) -> Any:
    return serializer.deserialize(serializer.serialize(value))


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**80,
        -0.25,
        math.inf,
        "é \ud83d alone",
        b"\x00\xff",
        (1, ("a", [2])),
        {1, 2},
        frozenset({(1, 2)}),
        {"a": {"b": (1,)}},
        {1: "one", (2, 3): None},
        {"$": "tuple", "v": [1]},
        datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # Huey's own times have no zone
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        date(2026, 1, 2),
        time(3, 4, 5, 6),
        timedelta(days=-1, microseconds=3),
        Decimal("1.10"),
        UUID(int=7),
        Error({"error": "ValueError('x')", "retries": 2}),
    ],
)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.tuples(st.text(), st.integers())


@given(
    st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner)
    )
)
def test_any_nesting_of_plain_values_comes_back(value: Any) -> None:
    assert through(value) == value


def test_a_message_with_its_pipeline_and_chord_comes_back() -> None:
    callback = Message("c", "app.callback", args=(), kwargs={})
    message = Message(
        "id",
        "app.add",
        eta=datetime(2026, 1, 2),  # noqa: DTZ001  # Huey's own times have no zone
        retries=3,
        args=(1, "two"),
        kwargs={"at": timedelta(seconds=1)},
        on_complete=Message("n", "app.next", args=(), kwargs={}, on_complete=callback),
        on_error=callback,
        chord_config=("cid", 2, 0, callback),
    )
    assert through(message) == message
    assert type(through(message).on_complete.on_complete) is Message


def test_a_message_with_fewer_fields_than_ours_is_understood() -> None:
    data = json.dumps({"$": "message", "v": {"id": "1", "name": "app.add", "args": {"$": "tuple", "v": []}}})
    assert through(Message("1", "app.add", args=())) == serializer.deserialize(data.encode())


def test_a_skipped_chord_member_stays_the_one_sentinel() -> None:
    assert through([SKIPPED])[0] is SKIPPED


def test_an_exception_is_rebuilt_only_as_a_class_that_is_imported() -> None:
    back = through(NotDone("no effect"))
    assert type(back) is NotDone
    assert back.args == ("no effect",)
    stranger = serializer.serialize(NotDone("x")).replace(b"relight.models.errors", b"not.imported.here")
    assert type(serializer.deserialize(stranger)) is StepFailed
    not_an_exception = serializer.serialize(NotDone("x")).replace(b"relight.models.errors", b"os")
    assert type(serializer.deserialize(not_an_exception.replace(b"NotDone", b"system"))) is StepFailed


def test_what_cannot_be_written_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"args\[1\]\['c'\] is a .*Colour"):
        serializer.serialize(Message("1", "app.add", args=(1, {"c": Colour.RED}), kwargs={}))
    with pytest.raises(InputError, match="object"):
        serializer.serialize([object()])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InputError, match="contains itself"):
        serializer.serialize(loop)


@pytest.mark.parametrize("data", [b"\x80\x05K\x01.", b"", b'{"$":"tuple"}', b'{"$":"os","v":1}', b"{"])
def test_bytes_that_are_not_ours_are_refused_and_never_run(data: bytes) -> None:
    with pytest.raises(InputError):
        serializer.deserialize(data)
