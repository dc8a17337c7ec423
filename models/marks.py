"""The forms of what JSON cannot say, written and read back.

Invariant: a form is a dictionary with one key, one of `RESERVED`; a user's own dictionary that looks like one is
written as `$map`, so that reading is never ambiguous. `Builder.build` gives JSON's own types for any value and never an
address: what has no form becomes `{"$lossy": "<type>"}` and sets `lossy`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections import UserList, deque
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import singledispatch
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from uuid import UUID

#: How deep the written JSON may go: the way back has 1000 levels, of the interpreter's stack and of SQLite's JSON functions.
MAX_DEPTH = 200
#: A list that holds itself twice doubles at every level; past this many containers the rest is marked lossy.
MAX_CONTAINERS = 5_000_000
#: An integer with more bits than this can pass 4300 digits, where Python refuses to write it in decimal.
_DECIMAL_BITS = 14_000

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Replace lone surrogates, which can be neither stored nor sent; everything else, NUL too, stays."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def attempt(call: Callable[[], Any], otherwise: Any, *, let: tuple[type[Exception], ...] = ()) -> Any:
    """Call the code of a foreign value; where that raises, but for what is let through, the value has no such form."""
    try:
        return call()
    except let:
        raise
    except Exception:  # noqa: BLE001 - a value's own code may raise anything, and its step is done already
        return otherwise


def type_name(kind: type) -> str:
    """Name a class as `module.qualname`, builtins bare."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def dumps(tree: Any, *, sort_keys: bool = False) -> str:
    """Write JSON's own types, compactly and in plain characters."""
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


class Box(NamedTuple):
    """A container on its way: its parts, how many levels of JSON it takes, and what makes it whole again."""

    parts: list[Any]
    whole: Callable[[list[Any]], Any]
    levels: int = 1
    typed: bool = False


class Builder:
    """Rebuilds one value from JSON's own types, in two frames of stack a level.

    `typed` holds below a dataclass or model: its annotations know the types, so plain texts and lists will do.
    `spliced` says that marks in the value are marks already, not a user's own keys.
    """

    def __init__(self, *, sort_keys: bool = False, spliced: bool = False) -> None:
        self.sort_keys, self.spliced = sort_keys, spliced
        self.lossy, self.typed = False, False
        self.depth, self.left = 0, MAX_CONTAINERS
        self.above: set[int] = set()

    def build(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            return value
        form = attempt(lambda: _form(value, self), None, let=(RecursionError,))
        if form is None:
            return self.lost(type_name(type(value)))
        if not isinstance(form, Box):
            return form
        self.left -= 1
        if id(value) in self.above or self.depth + form.levels > MAX_DEPTH or self.left < 0:
            return self.lost(type_name(type(value)))
        before = self.depth, self.typed
        self.depth, self.typed = self.depth + form.levels, self.typed or form.typed
        self.above.add(id(value))
        built = [self.build(part) for part in form.parts]
        self.above.discard(id(value))
        self.depth, self.typed = before
        return form.whole(built)

    def lost(self, what: str) -> dict[str, str]:
        self.lossy = True
        return {"$lossy": clean_text(what)}

    def text(self, text: str) -> str:
        clean = clean_text(text)
        self.lossy = self.lossy or clean != text
        return clean

    def marked(self, mark: str, text: str) -> Any:
        return self.text(text) if self.typed else {mark: self.text(text)}

    def sort(self, built: list[Any]) -> None:
        built.sort(key=lambda item: dumps(item, sort_keys=True))


def _form(value: Any, builder: Builder) -> Any:
    """The JSON of a leaf, or the Box of a container."""
    if isinstance(value, type):
        return builder.lost(f"class {type_name(value)}")
    if hasattr(type(value), "__pydantic_serializer__"):
        return _model(value)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return Box([getattr(value, name) for name in names], _named(names), typed=True)
    return _form_of(value, builder)


def _model(value: Any) -> Box:
    """By its own serializer; where that refuses (bytes that are no text), by its fields."""
    write = type(value).__pydantic_serializer__.to_python
    dumped = attempt(lambda: write(value, mode="json", by_alias=False, warnings=False), value)
    return Box([vars(value) if dumped is value else dumped], _only, levels=0, typed=True)


@singledispatch
def _form_of(value: Any, builder: Builder) -> Any:
    kind = type_name(type(value))
    if kind.startswith("numpy.") and hasattr(value, "tolist"):
        return Box([value.tolist()], _only, levels=0)
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return builder.lost(f"{kind} {value.__module__ or 'builtins'}.{name}" if isinstance(name, str) else kind)


@_form_of.register
def _(value: str, builder: Builder) -> Any:
    return builder.text(str.__str__(value))


@_form_of.register
def _(value: int, builder: Builder) -> Any:
    number = int.__int__(value)
    return number if number.bit_length() < _DECIMAL_BITS else {"$int": hex(number)}


@_form_of.register
def _(value: float, builder: Builder) -> Any:
    number = float.__float__(value)
    return number if number - number == 0 else {"$float": str(number)}


@_form_of.register
def _(value: Enum, builder: Builder) -> Any:
    return Box([value.value], _only, levels=0)


@_form_of.register(bytes)
@_form_of.register(bytearray)
@_form_of.register(memoryview)
def _(value: bytes, builder: Builder) -> Any:
    return {"$bytes": base64.b64encode(value).decode()}


@_form_of.register
def _(value: timedelta, builder: Builder) -> Any:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def _write_as_text(kind: type, mark: str, write: Callable[[Any], str]) -> None:
    _form_of.register(kind)(lambda value, builder: builder.marked(mark, write(value)))


_write_as_text(datetime, "$datetime", lambda value: value.isoformat())
_write_as_text(date, "$date", lambda value: value.isoformat())
_write_as_text(time, "$time", lambda value: value.isoformat())
_write_as_text(Decimal, "$decimal", str)
_write_as_text(UUID, "$uuid", str)
_write_as_text(PurePath, "$path", str)


@_form_of.register(list)
@_form_of.register(tuple)
@_form_of.register(deque)
@_form_of.register(range)
@_form_of.register(UserList)
@_form_of.register(KeysView)
@_form_of.register(ValuesView)
@_form_of.register(ItemsView)
def _(value: Sequence[Any], builder: Builder) -> Any:
    return None if len(value) > builder.left and isinstance(value, range) else Box(list(value), _same)


@_form_of.register(set)
@_form_of.register(frozenset)
def _(value: set[Any] | frozenset[Any], builder: Builder) -> Any:
    mark = "$frozenset" if isinstance(value, frozenset) else "$set"
    numbers = {*map(type, value)} <= {int}

    def whole(built: list[Any], typed: bool = builder.typed) -> Any:
        if not numbers:  # numbers are in order already; everything else is ordered by how it is written
            builder.sort(built)
        return built if typed else {mark: built}

    return Box(sorted(value) if numbers else list(value), whole, levels=2)


@_form_of.register(dict)
@_form_of.register(Mapping)
def _(value: Mapping[Any, Any], builder: Builder) -> Any:
    pairs = list(dict.items(value) if isinstance(value, dict) else value.items())
    keys = [key for key, _ in pairs]
    looks_marked = len(keys) == 1 and not builder.spliced and keys[0] in RESERVED
    if all(isinstance(key, str) for key in keys) and not looks_marked:
        names = [builder.text(str.__str__(key)) for key in keys]
        return Box([item for _, item in pairs], _named(names))

    def whole(built: list[Any]) -> Any:
        if builder.sort_keys:
            builder.sort(built)
        return {"$map": built}

    return Box(pairs, whole, levels=2)


def _named(names: list[str]) -> Callable[[list[Any]], dict[str, Any]]:
    return lambda built: dict(zip(names, built, strict=True))


def _same(built: list[Any]) -> list[Any]:
    return built


def _only(built: list[Any]) -> Any:
    return built[0]


def unmark(node: dict[str, Any]) -> Any:
    """Read one dictionary whose content is read already: a form gives its value, any other stays."""
    if len(node) != 1:
        return node
    [(mark, content)] = node.items()
    read = MARKS.get(mark)
    if read is None:
        return node
    try:
        return read(content)
    except (TypeError, ValueError, ArithmeticError):  # written by hand, or a set of what cannot be hashed
        return content if mark in ("$set", "$frozenset") else node


def unmarked(value: Any) -> Any:
    """Read JSON that was parsed already, with every form in it."""
    if isinstance(value, dict):
        return unmark({key: unmarked(item) for key, item in value.items()})
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def _key(value: Any) -> Any:
    """JSON has no tuples: a list that stands where Python needs a hash was one."""
    return tuple(map(_key, value)) if isinstance(value, list) else value


MARKS: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$int": lambda text: int(text, 16),
    "$float": lambda text: float(text) if isinstance(text, str) else {"$float": text},
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$path": Path,
    "$set": lambda items: set(map(_key, items)),
    "$frozenset": lambda items: frozenset(map(_key, items)),
    "$map": lambda pairs: {_key(key): item for key, item in pairs},
}
#: A user's own dictionary with one of these as its only key is written as a `$map`; `$blob` names a file (blobs.py).
RESERVED = frozenset({*MARKS, "$lossy", "$blob"})
