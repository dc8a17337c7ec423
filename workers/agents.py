"""`@agent`: a function that tasks run, how it is called later, and the registry of those known to this process.

Invariant: what is enqueued is the input by name, already valid where the agent is importable; it is checked again when
the task starts, because another version of the code may run it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from ..models import short_ids, tasks
from ..models.errors import InputError, TooLargeError
from ..models.fields import new_id
from ..models.tasks import AgentTask, Lane, RiskLevel
from . import bells, functions, inputs, loading, scopes, steps
from .handles import TaskHandle
from .home import Home
from .options import Chosen, Options, key_part, seconds, whole, word

P = ParamSpec("P")
T = TypeVar("T")

_WARN_EVERY_S = 60.0


class Callee(Protocol):
    """What can be enqueued: an agent of this process, or one that is known by its name only."""

    @property
    def name(self) -> str: ...

    def input_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inputs.Input: ...

    def fill(self, task: AgentTask, options: Options) -> AgentTask: ...


@dataclass(frozen=True)
class Bound:
    """An agent with options; `enqueue` makes a task of a call, `call` prepares one for `enqueue_many`."""

    callee: Callee
    chosen: Options = field(default_factory=Options)

    def options(self, **chosen: Unpack[Chosen]) -> Bound:
        """The same agent with further options: delay, expires (seconds), at (datetime), key, lane, … (see Options)."""
        return replace(self, chosen=self.chosen.but(chosen))

    def enqueue(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Store the call as a task; inside a run it is a recorded step (`run.spawn`).

        Raises InputError for arguments that do not fit, TooLargeError, KeyConflictError, StorageError.
        """
        scope = scopes.current.get()
        if scope is not None and not steps.in_step():
            child: TaskHandle = scope.run._spawned(self, args, kwargs)
            return child
        return enqueue_many([self.call(*args, **kwargs)])[0]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: options are for a task."""
        name = self.callee.name
        raise InputError(f"{name} with options is not called itself: write {name}.options(…).enqueue(…)")

    def call(self, *args: Any, **kwargs: Any) -> Call:
        """The call without storing it."""
        return Call(self, args, kwargs)


@dataclass(frozen=True)
class Call:
    """One call of an agent that is not enqueued yet."""

    bound: Bound
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def task(self, home: Home, *, now: int) -> AgentTask:
        """The row that this call becomes; checked, not stored."""
        callee, chosen = self.bound.callee, self.bound.chosen
        given = callee.input_of(self.args, self.kwargs)
        size = len(given.text.encode())
        if size > home.settings.max_payload_bytes:
            raise TooLargeError(
                f"the input of {callee.name}",
                size,
                home.settings.max_payload_bytes,
                "RELIGHT_MAX_PAYLOAD_BYTES",
            )
        task = AgentTask.new(
            new_id(), chosen.session or "", callee.name, given.prompt, RiskLevel.HIGH, now=now
        )
        task.input_json, task.key = given.text, chosen.key
        task.expires_at = chosen.expires_at(now)
        task = task.with_lane(word(Lane, chosen.lane)).with_order(
            priority=chosen.priority, due_at=chosen.due_at(now)
        )
        return callee.fill(task, chosen)


class Agent(Generic[P, T]):
    """A function that tasks run. Calling it calls the function; `enqueue` makes a task."""

    def __init__(
        self,
        fn: Callable[P, T],
        *,
        name: str,
        risk: RiskLevel,
        version: int,
        retries: int,
        retry_delay_ms: int,
    ) -> None:
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isroutine(fn) else ())
        self.fn, self.name, self.risk, self.version = fn, name, risk, version
        self.retries, self.retry_delay_ms = retries, retry_delay_ms
        self.is_async = functions.is_async(fn)
        self.form = inputs.Form(fn, name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.fn(*args, **kwargs)

    def options(self, **chosen: Unpack[Chosen]) -> Bound:
        """This agent with options for its task: delay, expires (seconds), at (datetime), key, … (see Options)."""
        return Bound(self).options(**chosen)

    def enqueue(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Store a call as a task with the default options; see Bound.enqueue."""
        return Bound(self).enqueue(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Call:
        """A call for `enqueue_many`."""
        return Bound(self).call(*args, **kwargs)

    def input_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inputs.Input:
        """The checked input of a call; raises InputError naming the parameter."""
        return self.form.input_of(args, kwargs)

    def fill(self, task: AgentTask, options: Options) -> AgentTask:
        """Give a task what this agent declares."""
        task.risk_level = word(RiskLevel, options.risk or self.risk)
        task.retries_left = self.retries if options.retries is None else options.retries
        task.handler_version = self.handler_version
        return task

    @functools.cached_property
    def handler_version(self) -> str:
        """The declared version and a digest of the source, as `2+1f0c9a…`."""
        try:
            source = inspect.getsource(functions.plain(self.fn))
        except (OSError, TypeError):
            source = ""
        return f"{self.version}+{hashlib.sha256(source.encode()).hexdigest()[:12]}"

    @functools.cached_property
    def returns(self) -> Any:
        """The annotation that results are typed back by, or None."""
        return functions.returned(self.fn, f"agent {self.name}")


@dataclass(frozen=True)
class Named:
    """An agent known by name only: its input is checked when it starts, its risk is high unless said otherwise."""

    name: str

    def input_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inputs.Input:
        return inputs.unchecked(args, kwargs)

    def fill(self, task: AgentTask, options: Options) -> AgentTask:
        task.risk_level = word(RiskLevel, options.risk or RiskLevel.HIGH)
        task.retries_left = options.retries or 0
        return task


_registry: dict[str, Agent[Any, Any]] = {}


@overload
def agent(fn: Callable[P, T], /) -> Agent[P, T]: ...
@overload
def agent(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    risk: RiskLevel | str = RiskLevel.HIGH,
    version: int = 1,
    retries: int = 0,
    retry_delay: float = 1.0,
) -> Callable[[Callable[P, T]], Agent[P, T]]: ...
def agent(
    fn: Callable[P, T] | None = None,
    /,
    *,
    name: str | None = None,
    risk: RiskLevel | str = RiskLevel.HIGH,
    version: int = 1,
    retries: int = 0,
    retry_delay: float = 1.0,
) -> Agent[P, T] | Callable[[Callable[P, T]], Agent[P, T]]:
    """Make a function an agent and register it under its name.

    `risk`: "low" only reads and resumes by itself after a crash, "high" asks first. `version`: raise it when the code
    changes so that older unfinished tasks must not be replayed against it. `retries`, `retry_delay` (seconds): how
    often, and how much later, a task whose agent raised runs again.
    """

    whole("version", version)
    whole("retries", retries, least=0)
    seconds("retry_delay", retry_delay, least=0)

    def declare(function: Callable[P, T]) -> Agent[P, T]:
        made = Agent(
            function,
            name=_named(function, name),
            risk=word(RiskLevel, risk),
            version=version,
            retries=retries,
            retry_delay_ms=round(retry_delay * 1000),
        )
        known = _registry.get(made.name)
        if known is not None:
            functions.refuse_another(made.name, known.fn, function)
        _registry[made.name] = made
        return made

    return declare if fn is None else declare(fn)


def _named(fn: Any, name: str | None) -> str:
    """The name of what can be an agent; raises InputError for anything else."""
    if isinstance(fn, Agent | steps.Step | type | staticmethod | classmethod):
        raise InputError(
            f"{fn!r} cannot be an agent: an agent is a function, as in def name(run, prompt: str)"
        )
    found = functions.named("agent", fn, name)
    key_part("agent", found)
    return found


def ref(name: str | Agent[Any, Any]) -> Bound:
    """An agent by its name, whether or not it is importable here."""
    if isinstance(name, Agent):
        return Bound(name)
    if not isinstance(name, str):
        raise InputError(f"ref({name!r}): give the name of an agent as a text")
    key_part("agent", name)
    return Bound(_registry.get(name) or Named(name))


def known() -> dict[str, Agent[Any, Any]]:
    """The agents that are registered in this process."""
    return dict(_registry)


def enqueue_many(calls: Iterable[Call]) -> list[TaskHandle]:
    """Store many calls (`some_agent.call(…)`) as tasks in one transaction: all of them or none.

    Inside a run they are recorded steps, one for each: none where one of them does not fit.
    """
    page = _page(calls)
    if not page:
        return []
    loading.refuse()
    home = page[0].bound.chosen.home or Home.current()
    now = home.now()
    rows = [call.task(home, now=now) for call in page]
    scope = scopes.current.get()
    if scope is not None and not steps.in_step():
        return [scope.run._spawned(call.bound, call.args, call.kwargs) for call in page]
    for row, call in zip(rows, page, strict=True):
        if call.bound.chosen.parent is not None:
            parent = tasks.find(home.db, call.bound.chosen.parent)
            row.with_parent_task(parent.id, parent.recursion_depth)
    stored = tasks.submit_many(home.db, rows, now=now)
    file = _file_of(page[0].bound.callee)
    for lane in {str(task.lane) for task in stored}:
        _warn_if_nobody_listens(home, lane, file)
    return [TaskHandle(home, task.id) for task in stored]


def _page(calls: Any) -> list[Call]:
    page: list[Any] = list(calls) if isinstance(calls, Iterable) else [calls]
    if not isinstance(calls, Iterable) or not all(isinstance(one, Call) for one in page):
        wrong = next((one for one in page if not isinstance(one, Call)), calls)
        raise InputError(
            f"enqueue_many takes a list of calls, as in [some_agent.call(…)], not {wrong!r:.200}"
        )
    return page


def get_task(task_id: str) -> TaskHandle:
    """The handle of a stored task, by its id or any unique beginning or end of it; raises NotFoundError."""
    home = Home.current()
    return TaskHandle(home, short_ids.task(home.db, task_id))


_warned: dict[tuple[str, str], float] = {}


def _warn_if_nobody_listens(home: Home, lane: str, file: str) -> None:
    which, now = (str(home.path), lane), time.monotonic()
    if now - _warned.get(which, -_WARN_EVERY_S) < _WARN_EVERY_S:
        return
    _warned[which] = now
    if bells.listeners(home.path, lane) == 0:
        sys.stderr.write(
            f"relight: the task is stored in {home.path}, but no worker serves its {lane} lane; start one: "
            f"relight {f'-A {file} ' if file else ''}worker {lane}\n"
        )


def _file_of(callee: Callee) -> str:
    """The file of an agent, as seen from here; nothing where it is not known."""
    file = Path(functions.place(callee.fn).file) if isinstance(callee, Agent) else Path()
    if not file.is_file():
        return ""
    here = Path.cwd()
    return shlex.quote(str(file.relative_to(here) if file.is_relative_to(here) else file))


__all__ = ["Agent", "agent", "enqueue_many", "get_task", "known", "ref"]
