"""Values as JSON text: what a step took, what it gave, what it raised.

Invariant: `encode`, `canonical` and `describe_error` never raise and always give valid UTF-8 JSON that SQLite can
store. What JSON cannot say is kept under a mark (marks.py). Dataclasses, pydantic models and enums are written the way
pydantic writes them and come back by the annotation; pydantic itself is imported only where an annotation is used.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from . import errors
from .marks import MAX_CONTAINERS, MAX_DEPTH, Builder, attempt, clean_text, dumps, type_name, unmark, unmarked

__all__ = [
    "Encoded",
    "canonical",
    "clean_text",
    "clip",
    "decode",
    "describe_error",
    "digest",
    "encode",
    "rebuild_error",
    "revive",
    "splice",
]

T = TypeVar("T")

ERROR_TEXT_BYTES = 8192
MAX_NOTES = 16

_LONG_TEXT = 1 << 20  # characters: about 5 ms

_SCALARS = {str, int, float, bool, type(None)}


class Encoded(NamedTuple):
    """JSON text, and whether anything was lost on the way into it."""

    text: str
    lossy: bool


def encode(value: Any) -> Encoded:
    """Write any value as JSON, keeping the order of its keys."""
    text = _plain_text(value)
    return _built(value, sort_keys=False) if text is None else Encoded(text, lossy=False)


def splice(document: Any) -> str:
    """Write a document whose parts went through `encode` before: the marks in them stay marks."""
    return _with_room(lambda: dumps(Builder(spliced=True).build(document)))


def decode(text: str, annotation: Any = None) -> Any:
    """Read what `encode` wrote; an annotation that fits gives the type back, one that does not is ignored."""
    marked = '"$' in text
    try:
        value = _with_room(partial(json.loads, text, object_hook=unmark if marked else None))
    except (ValueError, RecursionError) as cause:
        raise errors.SealedStepError(f"a recorded value is not JSON: {cause}") from cause
    return _typed(value, annotation, text=None if marked else text)


def revive(value: Any, annotation: Any = None) -> Any:
    """`decode` for JSON that was parsed already, as a part of something larger."""
    return _typed(_with_room(partial(unmarked, value)), annotation, text=None)


def canonical(arguments: Mapping[str, Any]) -> str:
    """Write arguments so that equal ones give equal text in every process: sorted keys and sets, no addresses."""
    return _built(arguments, sort_keys=True).text


def digest(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def clip(text: str, limit_bytes: int) -> str:
    """Cut a text to at most that many bytes of UTF-8, saying so where there is room for it."""
    text = clean_text(text)
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    mark = f"… (clipped, {len(data)} bytes)"
    if len(mark.encode()) > limit_bytes:
        mark = ""
    return data[: limit_bytes - len(mark.encode())].decode(errors="ignore") + mark


def describe_error(error: BaseException) -> dict[str, Any]:
    """Record an exception: its class, its text, and the arguments that make it again where they are simple."""
    if isinstance(error, errors.StepFailed):
        return {"type": error.type_name, "module": None, "text": _bounded(error.text)}
    kind = type(error)
    record: dict[str, Any] = {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "text": _bounded(attempt(lambda: str(error), "")),
    }
    arguments = _simple_arguments(error)
    if arguments is not None:
        record["args"] = arguments
    state = _simple_state(error)
    if state:
        record["state"] = state
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list) and notes:
        record["notes"] = [_bounded(note) for note in notes[:MAX_NOTES] if isinstance(note, str)]
    return record


def rebuild_error(record: Mapping[str, Any], *, modules: Mapping[str, ModuleType] | None = None) -> Exception:
    """Make the recorded exception again if its class is imported already and says the same; else a StepFailed.

    The live run and every replay take their exception from here, so that the agent meets the same one in both. What
    counts as imported is `modules`: a copy of `sys.modules` made when the agents were loaded keeps a class that only
    the step's own body imports from being known live and unknown at replay.
    """
    text = str(record.get("text", ""))
    loaded = sys.modules if modules is None else modules
    kind = _imported_exception(loaded, record.get("module"), record.get("type"))
    made = _made_again(kind, record.get("args"), record.get("state"), text) if kind else None
    error = made or errors.StepFailed(str(record.get("type", "Exception")), text)
    for note in record.get("notes", ()):
        error.add_note(str(note))
    return error


# Writing


def _plain_text(value: Any) -> str | None:
    """The quick way for what is JSON already; None sends it the long way."""
    if not _is_plain(value):
        return None
    try:
        text = _long_text(value) if type(value) is str and len(value) > _LONG_TEXT else dumps(value)
        if not text.isascii():
            text.encode()
    except (ValueError, RecursionError):  # NaN, a lone surrogate, an integer of over 4300 digits
        return None
    return None if '"$' in text else text


def _long_text(value: str) -> str:
    """The same as `dumps`, in pieces: other threads of the process have their turn in between."""
    pieces = (value[at : at + _LONG_TEXT] for at in range(0, len(value), _LONG_TEXT))
    return '"' + "".join(dumps(piece)[1:-1] for piece in pieces) + '"'


def _is_plain(value: Any) -> bool:
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        level = _containers_below(level)
        count += len(level)
        if not level:
            return True
        if count > MAX_CONTAINERS:
            break
    return False


def _containers_below(level: list[Any]) -> list[Any]:
    """The containers within these values; a value of no JSON type stays in the list, so it never gets empty."""
    below: list[Any] = []
    for node in level:
        kind = type(node)
        if kind is dict and {*map(type, node)} <= {str}:
            below += [part for part in node.values() if type(part) not in _SCALARS]
        elif kind is list or kind is tuple:
            below += [part for part in node if type(part) not in _SCALARS]
        elif kind not in _SCALARS:
            return [node]
    return below


def _built(value: Any, *, sort_keys: bool) -> Encoded:
    try:
        return _with_room(partial(_build, value, sort_keys))
    except RecursionError:  # its own code recurses without end
        return Encoded(dumps({"$lossy": type_name(type(value))}), lossy=True)


def _build(value: Any, sort_keys: bool) -> Encoded:
    builder = Builder(sort_keys=sort_keys)
    return Encoded(dumps(builder.build(value), sort_keys=sort_keys), builder.lossy)


def _with_room(call: Callable[[], T]) -> T:
    """Call, again on a fresh stack if the caller's is used up: a digest must not depend on who asks for it."""
    try:
        return call()
    except RecursionError:
        ended: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(ended, call))
    thread.start()
    thread.join()
    return ended.result()


def _settle(ended: Future[T], call: Callable[[], T]) -> None:
    try:
        ended.set_result(call())
    except (RecursionError, ValueError) as error:
        ended.set_exception(error)


# Reading


def _typed(value: Any, annotation: Any, *, text: str | None) -> Any:
    if annotation is None or annotation is Any or annotation is inspect.Signature.empty:
        return value
    if type(value) is annotation and annotation in _SCALARS:  # seconds of pydantic for a text of 200 MB
        return value
    adapter = attempt(lambda: _adapter(annotation), None) or attempt(lambda: _new_adapter(annotation), None)
    if adapter is None:
        return value
    miss = object()
    found = miss if text is None else attempt(lambda: adapter.validate_json(text, **_NAMES), miss)
    if found is miss:
        found = attempt(lambda: adapter.validate_python(value, **_NAMES), miss)
    # For Iterable[…] pydantic gives an iterator that can be read once; the step gave something better.
    return value if found is miss or type(found).__name__ == "ValidatorIterator" else found


#: Models are written by field name; one read by hand may use the alias.
_NAMES = {"by_alias": True, "by_name": True}


def _new_adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


_adapter = lru_cache(maxsize=1024)(_new_adapter)


# Exceptions


def _bounded(text: Any) -> str:
    return clip(str(text), ERROR_TEXT_BYTES)


def _simple_arguments(error: BaseException) -> list[Any] | None:
    """What its class is called with to make it again, as JSON; None where that is more than a few plain values.

    `__reduce__` knows it better than `args`: JSONDecodeError takes three arguments and keeps one.
    """
    reduced = attempt(lambda: error.__reduce__(), None)
    arguments = reduced[1] if isinstance(reduced, tuple) and reduced[0] is type(error) else error.args
    if not isinstance(arguments, tuple) or not {*map(type, arguments)} <= _SCALARS | {bytes}:
        return None
    text, lossy = encode(arguments)
    simple: list[Any] = json.loads(text)
    return None if lossy or len(text) > ERROR_TEXT_BYTES else simple


def _simple_state(error: BaseException) -> dict[str, Any]:
    """The attributes that were set on it, as far as they are a few plain values."""
    attributes = getattr(error, "__dict__", {})
    plain = {
        name: value for name, value in attributes.items() if type(value) in _SCALARS and name != "__notes__"
    }
    text, lossy = encode(plain)
    simple: dict[str, Any] = json.loads(text)
    return {} if lossy or len(text) > ERROR_TEXT_BYTES else simple


def _imported_exception(loaded: Mapping[str, ModuleType], module: Any, name: Any) -> type[Exception] | None:
    """The Exception subclass of that very name in a module that is loaded; nothing is imported for it."""
    found: Any = loaded.get(module) if isinstance(module, str) else None
    for part in str(name).split("."):
        found = vars(found).get(part) if isinstance(found, type) or inspect.ismodule(found) else None
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    return found if (found.__module__, found.__qualname__) == (module, name) else None


def _made_again(kind: type[Exception], arguments: Any, state: Any, text: str) -> Exception | None:
    """The first that says the same: made by its recorded arguments, by its text alone, or past its constructor.

    Most exception classes of one's own take other arguments than they hand on; `except` must know them all the same.
    """
    held = revive(arguments) if isinstance(arguments, list) else []
    attributes = revive(state) if isinstance(state, dict) else {}
    for make in (partial(kind, *held), partial(kind, text), partial(kind.__new__, kind, *held)):
        made = attempt(make, None)
        if type(made) is kind:
            attempt(partial(_restore, made, attributes), None)
            if attempt(lambda made=made: _bounded(made), None) == text:  # type: ignore[misc]
                return made
    return None


def _restore(made: Exception, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(made, name, value)
