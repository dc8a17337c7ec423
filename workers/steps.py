"""`@step`: a function whose call inside a run is recorded, and what its body may ask about itself.

Invariant: outside a run a step is its plain function, except in a process that runs tasks, where a call without its
run would leave no record and is refused.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from ..models import encoding
from ..models.errors import InputError, MisuseError, NotDone, StepOutsideRun
from . import functions, scopes, serving
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
    if known is not None:
        again = functions.same(
            functions.place(known.fn), functions.place(step.fn)
        )  # the same file, loaded again
        _declared[name] = step if again else None


class Step(Generic[P, T]):
    """A function with a record. Called inside a run it is a recorded step; `local` is always the plain function."""

    def __init__(self, fn: Callable[P, T], declared: Declared) -> None:
        # The attributes of a callable object are its own business.
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isroutine(fn) else ())
        self.is_static = isinstance(fn, staticmethod)
        self.fn, self.declared = (fn.__func__ if isinstance(fn, staticmethod) else fn), declared
        self.is_async = functions.is_async(self.fn)
        self.signature = _signature(self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        scope = scopes.current.get()
        if scope is None:
            if _context.get() is None and serving.has_begun():
                raise StepOutsideRun(
                    f"step {self.declared.name} was called without its run in a process that runs tasks; "
                    f"in a thread of your own write with run.branch(NAME): …, else pass the run on, "
                    f"or call {self.declared.name}.local(…) for the plain function"
                )
            return self.local(*args, **kwargs)
        if _context.get() is not None:  # inside another step's body it is a part of that step
            return self.fn(*args, **kwargs)
        outcome: T = scope.run._called(self, args, kwargs)
        return outcome

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: the plain one outside of runs, refused inside, where `self` would have to be recorded."""
        return self if instance is None or self.is_static else types.MethodType(self._called_on, instance)

    def _called_on(self, instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        if scopes.current.get() is not None and _context.get() is None:
            raise _is_method(self)
        return cast("Callable[..., Any]", self)(instance, *args, **kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the plain function: nothing is recorded."""
        returned: T = self._plainly(*args, **kwargs)
        return returned

    @functools.cached_property
    def returns(self) -> Any:
        """The annotation that outcomes are typed back by, or None."""
        return functions.returned(self.fn, f"step {self.declared.name}")

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
        declared = self.declared
        return effect == "read" or declared.idempotent or isinstance(error, (NotDone, *declared.safe_errors))

    def _plainly(self, *args: Any, **kwargs: Any) -> Any:
        if _context.get() is not None:
            return self.fn(*args, **kwargs)
        context = contextvars.copy_context()
        context.run(_context.set, StepContext("local", self.declared.name, 1))
        if self.is_async:
            return _in_context(self.fn, args, kwargs)
        fn: Callable[..., Any] = self.fn
        return context.run(fn, *args, **kwargs)


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
    safe_errors: type[BaseException] | tuple[type[BaseException], ...] = (),
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
    safe_errors: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> Step[P, T] | Callable[[Callable[P, T]], Step[P, T]]:
    """Make a function a step.

    `effect`: "read" may run twice without harm, "write" may not; without it the step takes its agent's side.
    `verify`: a read-only function with the step's arguments that says whether a write in doubt has landed.
    `retries`, `retry_delay` (seconds): how often an exception is answered by running the step again. A write is run
    again only if that is declared safe: `idempotent=True`, an error in `safe_errors`, or `NotDone`.

    Steps are functions; a method can be one as a staticmethod only. A callable without a name needs `name=`.
    """
    whole("retries", retries, least=0)
    seconds("retry_delay", retry_delay, least=0)
    if effect not in (None, "read", "write"):
        raise InputError(f"@step(effect={effect!r}): the effect is 'read' or 'write'")
    if verify is not None and not callable(verify):
        raise InputError(f"@step(verify={verify!r}): give a function with the step's arguments")
    safe = _classes(safe_errors)

    def declare(function: Callable[P, T]) -> Step[P, T]:
        declared = Declared(
            _named(function, name),
            effect,
            verify,
            retries,
            round(retry_delay * 1000),
            idempotent,
            safe,
        )
        key_part("step", declared.name)
        made = Step(function, declared)
        _declare(made)
        return made

    return declare if fn is None else declare(fn)


def as_step(fn: Callable[..., Any]) -> Step[..., Any]:
    """The step that `run.step(fn, …)` means: a plain function is a step that declares nothing.

    A method of an object is recorded by its name and the arguments of this call alone; the object is not.
    """
    if isinstance(fn, Step):
        return fn
    owner = getattr(getattr(fn, "__func__", None), "__self__", None)
    if isinstance(owner, Step):
        raise _is_method(owner)
    default = None if hasattr(fn, "__name__") else type(fn).__name__
    return Step(fn, Declared(_named(fn, default)))


def _named(fn: Any, name: str | None) -> str:
    """The name of what can be a step; raises InputError for anything else."""
    from .agents import Agent  # not above: agents imports this

    if isinstance(fn, Step):
        raise InputError(f"step {fn.declared.name} is a step already")
    if isinstance(fn, Agent):
        raise InputError(f"agent {fn.name} cannot be a step: write run.spawn({fn.name}, …)")
    if isinstance(fn, classmethod):
        raise InputError(f"{fn!r} cannot be a step: {_FUNCTIONS_ONLY}")
    return functions.named("step", fn, name)


_FUNCTIONS_ONLY = (
    "steps are functions: self cannot be recorded; use a module-level function or a staticmethod"
)


def _is_method(step: Step[..., Any]) -> InputError:
    return InputError(f"step {step.declared.name} was called as a method, but {_FUNCTIONS_ONLY}")


def _classes(given: Any) -> tuple[type[BaseException], ...]:
    found = (given,) if isinstance(given, type) else given
    if not isinstance(found, tuple | list | set | frozenset) or not all(
        isinstance(one, type) and issubclass(one, BaseException) for one in found
    ):
        raise InputError(f"@step(safe_errors={given!r}): give exception classes, as in (ConnectionError,)")
    return tuple(found)


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
