"""`@step`: a function whose call inside a run is recorded, and what its body may ask about itself.

Invariant: outside a run a step is its plain function, except in a process that runs tasks, where a call without its
run would leave no record and is refused.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from ..models import encoding
from ..models.errors import InputError, MisuseError, StepOutsideRun
from . import scopes, serving
from .options import key_part, seconds, whole

if TYPE_CHECKING:
    from .pulses import Pulses

P = ParamSpec("P")
T = TypeVar("T")

Effect = Literal["read", "write"]

_TOKEN_BYTES = 65_536  # of one pulse: events are for following, what must be kept is an outcome


@dataclass(frozen=True)
class StepContext:
    """What the body of a running step may ask about itself."""

    task_id: str
    step_key: str
    attempt: int
    _pulses: Pulses | None = field(repr=False, default=None)

    @property
    def key(self) -> str:
        """The idempotency key: the same in every attempt of the task, and no other step's."""
        return f"{self.task_id}:{self.step_key}"

    def stream(self, token: str) -> None:
        """Tell followers about progress: a pulse, which may be dropped without changing anything."""
        if self._pulses is not None:
            short = encoding.clip(token, _TOKEN_BYTES) if isinstance(token, str) else token
            self._pulses.add(self.task_id, {"step": self.step_key, "token": short})


_context = scopes.step


def current_step() -> StepContext:
    """The step whose body is running; raises MisuseError outside of one, except in a plain call (see `Step.local`)."""
    found = _context.get()
    if found is None:
        raise MisuseError("current_step() was called outside of a step")
    return found


def enter(context: StepContext) -> None:
    """Make this the running step of the current context."""
    _context.set(context)


@contextmanager
def entered(context: StepContext) -> Iterator[None]:
    """Make this the running step for the length of the block."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def in_step() -> bool:
    """Whether the body of a step is running here."""
    return _context.get() is not None


@dataclass(frozen=True)
class Declared:
    """What a step says about itself."""

    name: str
    effect: Effect | None = None
    verify: Callable[..., Any] | None = None
    retries: int = 0
    retry_delay_ms: int = 0
    idempotent: bool = False
    safe_errors: tuple[type[BaseException], ...] = ()


_declared: dict[str, Step[..., Any] | None] = {}


def called(name: str) -> Step[..., Any] | None:
    """The step of this name that this process knows; None where there is none, or more than one."""
    return _declared.get(name)


def _declare(step: Step[..., Any]) -> None:
    name = step.declared.name
    known = _declared.setdefault(name, step)
    if known is not None and known.fn.__code__.co_filename != step.fn.__code__.co_filename:
        _declared[name] = None
    elif known is not None:
        _declared[name] = step  # the same file, loaded again


class Step(Generic[P, T]):
    """A function with a record. Called inside a run it is a recorded step; `local` is always the plain function."""

    def __init__(self, fn: Callable[P, T], declared: Declared) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.declared = fn, declared
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = _signature(fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        scope = scopes.current.get()
        if scope is None:
            if _context.get() is None and serving.has_begun():
                raise StepOutsideRun(
                    f"step {self.declared.name} was called without its run in a process that runs tasks; "
                    f"pass the run on, or call {self.declared.name}.local(…) for the plain function"
                )
            return self.local(*args, **kwargs)
        if _context.get() is not None:  # inside another step's body it is a part of that step
            return self.fn(*args, **kwargs)
        outcome: T = scope.run._called(self, args, kwargs)
        return outcome

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the plain function: nothing is recorded."""
        returned: T = self._plainly(*args, **kwargs)
        return returned

    @functools.cached_property
    def returns(self) -> Any:
        """The annotation that outcomes are typed back by, or None."""
        found = hints_of(self.fn).get("return")
        return None if found in (None, type(None), Any) else found

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; raises InputError where they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"step {self.declared.name}: {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def may_repeat(self, effect: Effect, error: BaseException) -> bool:
        """Whether this error leaves the step safe to run again without asking anybody."""
        from ..models.errors import NotDone

        declared = self.declared
        return effect == "read" or declared.idempotent or isinstance(error, (NotDone, *declared.safe_errors))

    def _plainly(self, *args: Any, **kwargs: Any) -> Any:
        if _context.get() is not None:
            return self.fn(*args, **kwargs)
        context = contextvars.copy_context()
        context.run(_context.set, StepContext("local", self.declared.name, 1))
        if self.is_async:
            return _in_context(self.fn, args, kwargs)
        return context.run(self.fn, *args, **kwargs)


@overload
def step(fn: Callable[P, T], /) -> Step[P, T]: ...
@overload
def step(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    effect: Effect | None = None,
    verify: Callable[..., Any] | None = None,
    retries: int = 0,
    retry_delay: float = 0,
    idempotent: bool = False,
    safe_errors: tuple[type[BaseException], ...] = (),
) -> Callable[[Callable[P, T]], Step[P, T]]: ...
def step(
    fn: Callable[P, T] | None = None,
    /,
    *,
    name: str | None = None,
    effect: Effect | None = None,
    verify: Callable[..., Any] | None = None,
    retries: int = 0,
    retry_delay: float = 0,
    idempotent: bool = False,
    safe_errors: tuple[type[BaseException], ...] = (),
) -> Step[P, T] | Callable[[Callable[P, T]], Step[P, T]]:
    """Make a function a step.

    `effect`: "read" may run twice without harm, "write" may not; without it the step takes its agent's side.
    `verify`: a read-only function with the step's arguments that says whether a write in doubt has landed.
    `retries`, `retry_delay` (seconds): how often an exception is answered by running the step again. A write is run
    again only if that is declared safe: `idempotent=True`, an error in `safe_errors`, or `NotDone`.
    """
    whole("retries", retries, least=0)
    seconds("retry_delay", retry_delay, least=0)
    if effect not in (None, "read", "write"):
        raise InputError(f"@step(effect={effect!r}): the effect is 'read' or 'write'")

    def declare(function: Callable[P, T]) -> Step[P, T]:
        declared = Declared(
            name or function.__name__,
            effect,
            verify,
            retries,
            round(retry_delay * 1000),
            idempotent,
            safe_errors,
        )
        key_part("step", declared.name)
        made = Step(function, declared)
        _declare(made)
        return made

    return declare if fn is None else declare(fn)


def as_step(fn: Callable[..., Any]) -> Step[..., Any]:
    """The step that `run.step(fn, …)` means: a plain function is a step that declares nothing."""
    return fn if isinstance(fn, Step) else Step(fn, Declared(getattr(fn, "__name__", type(fn).__name__)))


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as objects; those that cannot be resolved are left out."""
    try:
        return inspect.get_annotations(fn, eval_str=True)
    except Exception:  # noqa: BLE001  # evaluating a user's annotation may raise anything; it is then just untyped
        return {}


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except ValueError:  # a builtin such as `int` tells nobody what it takes
        return inspect.signature(_anything)
    except TypeError as error:
        raise InputError(f"{fn!r} cannot be a step: {error}") from None


def _anything(*args: Any, **kwargs: Any) -> None: ...


async def _in_context(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with entered(StepContext("local", getattr(fn, "__name__", ""), 1)):
        return await fn(*args, **kwargs)
