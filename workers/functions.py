"""What a function says about itself: its name, where it is declared, what its annotations mean, whether it may be used.

Invariant: whatever is not a function that Relight can call and record is one InputError where it is declared, which
says what is accepted; each annotation is evaluated by itself, so one that cannot be resolved takes no other with it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ..models.errors import InputError

_log = logging.getLogger("relight.steps")


class Hints(NamedTuple):
    """The annotations of a function as objects, and why the others are none."""

    known: dict[str, Any]
    unknown: dict[str, str]


class Place(NamedTuple):
    """Where a function is declared."""

    file: str
    qualname: str
    line: int


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with code inside of wrappers, partials, methods and callable objects, as far as there is one."""
    while True:
        inner = _inner(fn)
        if inner is None:
            return fn
        fn = inner


def _inner(fn: Any) -> Callable[..., Any] | None:
    if isinstance(fn, functools.partial):
        found: Any = fn.func
    elif inspect.ismethod(fn):
        found = fn.__func__
    else:
        found = getattr(fn, "__wrapped__", None)
    if (
        found is None
        and not hasattr(fn, "__code__")
        and not inspect.isroutine(fn)
        and not inspect.isclass(fn)
    ):
        found = type(fn).__call__
    return found if inspect.isroutine(found) or callable(found) else None


def hints_of(fn: Callable[..., Any]) -> Hints:
    """What the annotations of a function mean."""
    source = plain(fn)
    found = Hints({}, {})
    for name, said in (getattr(source, "__annotations__", None) or {}).items():
        if not isinstance(said, str):
            found.known[name] = said
            continue
        try:
            found.known[name] = eval(said, getattr(source, "__globals__", {}), _enclosed(source))  # noqa: S307  # it is the code of the agent's author
        except Exception as error:  # noqa: BLE001  # evaluating a user's annotation may raise anything
            found.unknown[name] = f"{said!r} cannot be resolved ({type(error).__name__}: {error})"
    return found


def _enclosed(fn: Any) -> dict[str, Any]:
    """The names of enclosing functions that the function uses."""
    try:
        return dict(inspect.getclosurevars(fn).nonlocals)
    except (TypeError, ValueError):
        return {}


def returned(fn: Callable[..., Any], what: str) -> Any:
    """The annotation that a returned value is typed back by, or None; one that cannot be resolved is warned about."""
    hints = hints_of(fn)
    if "return" in hints.unknown:
        _log.warning("%s: its return annotation %s: the value stays untyped", what, hints.unknown["return"])
    found = hints.known.get("return")
    return None if found in (None, type(None), Any) else found


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a call has to be awaited."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(_call_of(fn))


def named(what: str, fn: Any, name: str | None) -> str:
    """The name that a function is declared under; raises InputError for what cannot be a step or an agent."""
    if not callable(fn):
        right = f"@{what}(name={fn!r})" if isinstance(fn, str) else f"@{what} above a function"
        raise InputError(f"{fn!r} cannot be {_a(what)}: it is no function; write {right}")
    call = _call_of(fn)
    if any(
        test(one) for one in (fn, call) for test in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    ):
        raise InputError(
            f"{fn!r} cannot be {_a(what)}: it is a generator, whose body a call does not run; "
            f"{_a(what)} is a def or async def without yield: return a list"
        )
    found = name or getattr(fn, "__name__", None)
    if not isinstance(found, str):
        raise InputError(f"{fn!r} has no name of its own: give it one, {what}(name=…)")
    return found


def _call_of(fn: Any) -> Any:
    """What runs when a callable object is called."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    return fn if inspect.isroutine(fn) or inspect.isclass(fn) else type(fn).__call__


def _a(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def place(fn: Callable[..., Any]) -> Place:
    """Where a function is declared; what has no code is at home in its module."""
    source: Any = plain(fn)
    qualname = getattr(source, "__qualname__", type(source).__qualname__)
    code = getattr(source, "__code__", None)
    if code is None:
        return Place(str(getattr(source, "__module__", "")), qualname, 0)
    return Place(code.co_filename, qualname, code.co_firstlineno)


def same(one: Place, other: Place) -> bool:
    """Whether two declarations are of one function: the same again, or of a file that was edited and loaded again."""
    if one[:2] != other[:2]:
        return False
    return one.line == other.line or not {one.line, other.line} <= _declared_lines(other)


def refuse_another(name: str, known: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Raise InputError where two different functions would be agents of one name."""
    one, other = place(known), place(new)
    if not same(one, other):
        places = " and ".join(f"{where.qualname} ({where.file}:{where.line})" for where in (one, other))
        raise InputError(f"two agents are called {name!r}: {places}; give one a name=")


def _declared_lines(where: Place) -> set[int]:
    """The lines at which the file, as it is now, declares a function of this name."""
    linecache.checkcache(where.file)
    try:
        tree = ast.parse("".join(linecache.getlines(where.file)))
    except (SyntaxError, ValueError):
        return set()
    name = where.qualname.rpartition(".")[2]
    return {
        min(one.lineno for one in (node, *node.decorator_list))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    }
