"""The run that an agent gets as its first argument: synchronous or asynchronous, one attempt of one task.

Invariant: both forms record the same way (`recording.py`); an asynchronous run never blocks its event loop.
"""

from __future__ import annotations

import asyncio
import random as _random
import threading
import time
import uuid as _uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from ..models.errors import StepNeedsAwait
from . import calling, steps
from .calling import Raised, Returned
from .handles import TaskHandle
from .recording import Circumstances, Opened, Recorder
from .steps import Step

if TYPE_CHECKING:
    from .agents import Bound

T = TypeVar("T")


class Run(Recorder):
    """The run of a synchronous agent."""

    def step(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run a function as a recorded step, or give back its recorded outcome."""
        return self._called(steps.as_step(fn), args, kwargs)  # type: ignore[no-any-return]

    def now(self) -> int:
        """The time in epoch ms, the same in every replay."""
        return self._valued(*self._open_value("run.now"), self._on.home.now)  # type: ignore[no-any-return]

    def uuid(self) -> str:
        """A random UUID, the same in every replay."""
        return self._valued(*self._open_value("run.uuid"), _new_uuid)  # type: ignore[no-any-return]

    def random(self) -> float:
        """A random number in [0, 1), the same in every replay."""
        return self._valued(*self._open_value("run.random"), _random.random)  # type: ignore[no-any-return]

    def artifact(self, name: str, content: Any) -> Any:
        """Store something worth keeping, with an `artifact_created` event."""
        return self._artifact(*self._open_value("run.artifact"), name, content)

    def spawn(self, agent: Any, /, *args: Any, **kwargs: Any) -> TaskHandle:
        """Start a child task, once over all replays; `agent` may carry options: `explore.options(…)`."""
        return self._spawned(_bound(agent), args, kwargs)

    def _called(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        opened = self._open(step, args, kwargs)
        return self._given(opened, self._replayed(opened) or self._perform(opened))

    def _perform(self, opened: Opened) -> Returned | Raised:
        self._intend(opened)
        began, tries, body = time.monotonic(), 1, self._body(opened)
        outcome = calling.call(body)
        while self._may_try_again(opened, outcome, tries):
            time.sleep(opened.step.declared.retry_delay_ms / 1000)
            self._still_ours()
            tries, outcome = tries + 1, calling.call(body)
        return self._conclude(opened, outcome, began)

    def _body(self, opened: Opened) -> Callable[[], Any]:
        context = copy_context()
        context.run(steps.enter, self._context(opened))
        fn = opened.step.fn
        if opened.step.is_async:
            return lambda: context.run(asyncio.run, fn(*opened.args, **opened.kwargs))
        return lambda: context.run(fn, *opened.args, **opened.kwargs)

    def _spawned(self, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskHandle:
        return self._spawn(*self._open_value(f"spawn.{bound.callee.name}"), bound, args, kwargs)


class AsyncRun(Recorder):
    """The run of an asynchronous agent; database work and synchronous bodies leave the event loop."""

    def __init__(self, on: Circumstances, *, bodies: Executor, storage: Executor) -> None:
        super().__init__(on)
        self._bodies, self._storage = bodies, storage
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executing: set[Future[Any]] = set()
        self.at_step: str | None = None

    def enter_loop(self) -> None:
        """From now on the agent runs on the current event loop."""
        self._loop = asyncio.get_running_loop()
        self._root.enter_thread()

    def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a function as a recorded step, or give back its recorded outcome; a synchronous one runs in a thread."""
        return self._awaitable(steps.as_step(fn), args, kwargs)

    def now(self) -> Coroutine[Any, Any, int]:
        """The time in epoch ms, the same in every replay."""
        return self._value("run.now", self._on.home.now)

    def uuid(self) -> Coroutine[Any, Any, str]:
        """A random UUID, the same in every replay."""
        return self._value("run.uuid", _new_uuid)

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number in [0, 1), the same in every replay."""
        return self._value("run.random", _random.random)

    def artifact(self, name: str, content: Any) -> Coroutine[Any, Any, Any]:
        """Store something worth keeping, with an `artifact_created` event."""
        call, recorded = self._open_value("run.artifact")
        return self._promised(call.key, lambda: self._artifact(call, recorded, name, content))

    def spawn(self, agent: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, TaskHandle]:
        """Start a child task, once over all replays; `agent` may carry options: `explore.options(…)`."""
        bound = _bound(agent)
        call, recorded = self._open_value(f"spawn.{bound.callee.name}")
        return self._promised(call.key, lambda: self._spawn(call, recorded, bound, args, kwargs))

    def _called(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._in_thread():
            return self._from_thread(self._awaitable(step, args, kwargs))
        if not step.is_async:
            name = step.declared.name
            raise StepNeedsAwait(
                f"step {name} is synchronous: on the event loop write await run.step({name}, …)"
            )
        return self._awaitable(step, args, kwargs)

    def _spawned(self, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._in_thread():
            return self._from_thread(self.spawn(bound, *args, **kwargs))
        name = bound.callee.name
        raise StepNeedsAwait(f"enqueue blocks the event loop: write await run.spawn({name}, …)")

    def _in_thread(self) -> bool:
        return threading.get_ident() != self._root.thread

    def _from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Have the loop conduct what a thread of the agent called, and wait for it there."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _awaitable(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """The coroutine of a step whose key is taken now; it runs or replays the step when it is awaited."""
        opened = self._open(step, args, kwargs)
        return self._awaited(opened.call.key, self._conduct(opened))

    def _value(self, name: str, make: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        call, recorded = self._open_value(name)
        return self._promised(call.key, lambda: self._valued(call, recorded, make))

    def _promised(self, key: str, work: Callable[[], T]) -> Coroutine[Any, Any, T]:
        """The coroutine of database work whose key is taken now."""
        return self._awaited(key, self._begun(key, work))

    async def _begun(self, key: str, work: Callable[[], T]) -> T:
        self._not_awaited.pop(key, None)
        self._check()
        return await self._off_loop(work)

    def _awaited(self, key: str, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The same coroutine, which has to be awaited until the agent ends."""
        self._not_awaited[key] = coroutine
        return coroutine

    async def _conduct(self, opened: Opened) -> Any:
        self._not_awaited.pop(opened.call.key, None)
        self._check()
        outcome = self._replayed(opened) if opened.recorded else None
        return self._given(opened, outcome or await self._perform(opened))

    async def quiet(self) -> None:
        """Wait until no synchronous body is executing in a thread, where nothing can end it early."""
        while waiting := [asyncio.wrap_future(body) for body in tuple(self._executing)]:
            await asyncio.wait(waiting)
            for body in waiting:
                _seen(body)

    async def _perform(self, opened: Opened) -> Returned | Raised:
        await self._off_loop(lambda: self._intend(opened))
        self.at_step = opened.call.key
        if not opened.step.is_async:
            return await self._in_pool(opened)
        began, tries = time.monotonic(), 1
        outcome = await self._body(opened)
        while self._may_try_again(opened, outcome, tries):
            await asyncio.sleep(opened.step.declared.retry_delay_ms / 1000)
            await self._off_loop(self._still_ours)
            tries, outcome = tries + 1, await self._body(opened)
        return await self._off_loop(lambda: self._conclude(opened, outcome, began))

    async def _body(self, opened: Opened) -> Returned | Raised:
        with steps.entered(self._context(opened)):
            return await calling.acall(opened.step.fn, *opened.args, **opened.kwargs)

    async def _in_pool(self, opened: Opened) -> Returned | Raised:
        body = self._bodies.submit(copy_context().run, self._execute, opened)
        self._executing.add(body)
        body.add_done_callback(self._executing.discard)
        return await asyncio.wrap_future(body)

    def _execute(self, opened: Opened) -> Returned | Raised:
        """In a thread of the pool: a synchronous body and its record, whether or not anybody still awaits it."""
        began, tries = time.monotonic(), 1
        with steps.entered(self._context(opened)):
            outcome = calling.call(opened.step.fn, *opened.args, **opened.kwargs)
            while self._may_try_again(opened, outcome, tries):
                time.sleep(opened.step.declared.retry_delay_ms / 1000)
                self._storage.submit(self._still_ours).result()
                tries, outcome = tries + 1, calling.call(opened.step.fn, *opened.args, **opened.kwargs)
        return self._storage.submit(self._conclude, opened, outcome, began).result()

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Do database work in its own pool. It is not cancelled half-way: what was begun is stored."""
        done = asyncio.get_running_loop().run_in_executor(self._storage, work)
        done.add_done_callback(_seen)
        return await asyncio.shield(done)


def _bound(agent: Any) -> Bound:
    from .agents import Bound  # not above: agents imports what runs import

    return agent if isinstance(agent, Bound) else agent.options()


def _seen(done: asyncio.Future[Any]) -> None:
    """Whoever waited for it may be cancelled by now: then asyncio would log its error, which is on record, as forgotten."""
    if not done.cancelled():
        done.exception()


def _new_uuid() -> str:
    return str(_uuid.uuid4())
