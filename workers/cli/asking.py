"""The verbs that ask for work and for its end: enqueue, wait, result, cancel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ...models.errors import InputError, NotFoundError
from . import documents, printing
from .door import Call, verb
from .watching import LANES, task_of

if TYPE_CHECKING:
    from ..agents import Bound
    from ..handles import TaskHandle


@verb("enqueue")
@click.argument("agent", metavar="AGENT")
@click.argument("prompt", required=False)
@click.option("--input", "given", metavar="JSON", help="The other arguments by name, as a JSON object.")
@click.option(
    "--lane", type=click.Choice(LANES), default="subagent", show_default=True, help="Whose workers run it."
)
@click.option(
    "--risk", type=click.Choice(["low", "high"]), help="Default: what the agent declares, else high."
)
@click.option("--session", metavar="ID", help="The session that it belongs to.")
@click.option("--parent", metavar="ID", help="The task that this one is a child of.")
@click.option("--key", help="A second call with this key gives the same task.")
@click.option("--priority", type=int, metavar="N", help="Higher first; a point is worth a minute of waiting.")
@click.option(
    "--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Start it no sooner than then."
)
@click.pass_obj
def enqueue_verb(
    call: Call, /, agent: str, prompt: str | None, given: str | None, parent: str | None, **options: Any
) -> None:
    """Store a task; print its id once it is committed."""
    arguments = _arguments(given)
    home = call.home(create=True)
    bound = _agent(home.settings.app, agent)
    if parent is not None:
        options["parent"] = task_of(home, parent).id
    handle = bound.options(home=home, **options).enqueue(*([] if prompt is None else [prompt]), **arguments)
    call.show(documents.task_row(task_of(home, handle.id)), handle.id)


@verb("wait")
@click.argument("ident", metavar="ID")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after this time (exit 5)."
)
@click.pass_obj
def wait_verb(call: Call, ident: str, timeout: float | None) -> int:
    """Wait until a task has ended; exit 1 if it failed."""
    from .. import handles

    task = _handle(call, ident).wait(timeout)
    failed = task.status == "failed"
    told = (f" ({task.reason})" if task.reason else "") + (f": {handles.error_of(task)}" if failed else "")
    call.show(documents.task(task), printing.shown(f"task {task.id} is {task.status}{told}"))
    return int(failed)


@verb("result")
@click.argument("ident", metavar="ID")
@click.pass_obj
def result_verb(call: Call, ident: str) -> None:
    """Print what a task returned; exit 1 if it failed, 5 if it has not ended."""
    from .. import handles, outcomes

    handle = _handle(call, ident)
    task = handle.wait(0)
    handles.refuse_failed(task)
    text = outcomes.whole(handle.home, task.result_json or "null")
    call.show({"id": task.id, "status": task.status, "result": documents.parsed(text)}, text)


@verb("cancel")
@click.argument("ident", metavar="ID")
@click.option("--reason", default="", help="Why; the task keeps it.")
@click.pass_obj
def cancel_verb(call: Call, ident: str, reason: str) -> None:
    """End a task as failed; one that runs stops at its next step."""
    task = _handle(call, ident).cancel(reason=reason)
    call.show(documents.task_row(task), f"task {task.id} is {task.status} ({task.reason})")


def _handle(call: Call, ident: str) -> TaskHandle:
    from ..handles import TaskHandle

    home = call.home()
    return TaskHandle(home, task_of(home, ident).id)


def _arguments(given: str | None) -> dict[str, Any]:
    try:
        arguments = json.loads(given or "{}")
    except ValueError as error:
        raise InputError(f"--input is no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InputError("--input must be a JSON object: the arguments by name")
    return arguments


def _agent(app: tuple[str, ...], name: str) -> Bound:
    """Return an agent; where modules were given to look for it, it must be among theirs."""
    from .. import agents, apps

    apps.load(app)
    if app and name not in agents.known():
        known = ", ".join(sorted(agents.known())) or "none"
        meant = printing.meant(name, agents.known())
        raise NotFoundError("agent", name, hint=f"{', '.join(app)} registers: {known}{meant}")
    return agents.ref(name)
