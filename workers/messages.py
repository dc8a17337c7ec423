"""How plain Huey messages and results are written down: JSON, with a tag for each type that JSON does not have.

Invariant: reading never runs code that the bytes name. What cannot be written exactly is refused before it is queued,
naming the place; an exception is rebuilt only from an Exception class that is already imported under its name.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from huey.registry import Message
from huey.serializer import Serializer
from huey.utils import SKIPPED, Error

from ..models.errors import InputError, StepFailed

_TAG = "$"
_PLAIN = (str, int, float, bool, type(None))


class JsonSerializer(Serializer):  # type: ignore[misc]  # huey is untyped
    """Huey's serializer, without its default format, which lets whoever writes the file run code."""

    def _serialize(self, data: Any) -> bytes:
        try:
            return json.dumps(_encoded(data, "the message"), separators=(",", ":")).encode()
        except RecursionError:
            raise InputError("the message is nested too deeply, or contains itself") from None
        except ValueError as error:
            raise InputError(f"the message cannot be written: {error}") from error

    def _deserialize(self, data: Any) -> Any:
        try:
            return _decoded(json.loads(bytes(data)))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"a queued message cannot be read: {error}") from error


class _Kind(NamedTuple):
    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _encoded(value: Any, place: str) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_encoded(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if kind is dict:
        return _encoded_dict(value, place)
    if kind is Message:
        return {_TAG: "message", "v": _encoded_message(value)}
    if isinstance(value, Exception):
        return {_TAG: "exception", "v": _encoded_exception(value, place)}
    for tag, known in _KINDS.items():
        if kind is known.type:
            return {_TAG: tag, "v": _encoded(known.encode(value), place)}
    raise InputError(
        f"{place} is a {kind.__module__}.{kind.__qualname__}, which a message cannot hold: pass plain values "
        "(numbers, text, bytes, dates, lists, tuples, sets, dicts) or a reference"
    )


def _encoded_dict(value: dict[Any, Any], place: str) -> Any:
    if _TAG not in value and all(type(key) is str for key in value):
        return {key: _encoded(item, f"{place}[{key!r}]") for key, item in value.items()}
    pairs = [
        [_encoded(key, f"a key of {place}"), _encoded(item, f"{place}[{key!r}]")]
        for key, item in value.items()
    ]
    return {_TAG: "dict", "v": pairs}


def _encoded_message(message: Any) -> dict[str, Any]:
    given = message._asdict()
    return {
        name: _encoded(value, name if name == "args" else f"{name} of {message.name}")
        for name, value in given.items()
        if value is not None
    }


def _encoded_exception(error: Exception, place: str) -> dict[str, Any]:
    kind = type(error)
    name = {"module": kind.__module__, "name": kind.__qualname__, "text": str(error)}
    try:
        return {**name, "args": _encoded(error.args, place)}
    except InputError:
        return name


def _decoded(value: Any) -> Any:
    if type(value) is list:
        return [_decoded(item) for item in value]
    if type(value) is not dict:
        return value
    tag = value.get(_TAG)
    if tag is None:
        return {key: _decoded(item) for key, item in value.items()}
    inner = _decoded(value["v"])
    if tag == "dict":
        return {key: item for key, item in inner}
    if tag == "message":
        return Message(**inner)
    if tag == "exception":
        return _rebuilt(inner)
    return _KINDS[tag].decode(inner)


def _rebuilt(told: dict[str, Any]) -> Exception:
    """The exception, if its class is imported already; else its name and text."""
    found: Any = sys.modules.get(told["module"])
    for part in told["name"].split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if "args" in told and isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(*told["args"])
        except TypeError:
            pass
    return StepFailed(told["name"], told["text"])


_KINDS: dict[str, _Kind] = {
    "tuple": _Kind(tuple, list, tuple),
    "set": _Kind(set, list, set),
    "frozenset": _Kind(frozenset, list, frozenset),
    "datetime": _Kind(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": _Kind(date, date.isoformat, date.fromisoformat),
    "time": _Kind(time, time.isoformat, time.fromisoformat),
    "timedelta": _Kind(timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda v: timedelta(*v)),
    "bytes": _Kind(bytes, lambda v: base64.b64encode(v).decode(), base64.b64decode),
    "decimal": _Kind(Decimal, str, Decimal),
    "uuid": _Kind(UUID, str, UUID),
    "error": _Kind(Error, lambda v: v.metadata, Error),
    "skipped": _Kind(type(SKIPPED), lambda v: None, lambda v: SKIPPED),
}
