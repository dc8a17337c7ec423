"""The verbs about one task or lane that does not do what a person expects: why, retry, pause, unpause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...models.errors import NotFoundError
from . import documents, printing
from .door import Call, verb
from .watching import LANES, task_of

if TYPE_CHECKING:
    from ...recovery.why import Why
    from ..home import Home


@verb("why")
@click.argument("ident", metavar="ID")
@click.pass_obj
def why_verb(call: Call, ident: str) -> None:
    """Say why a task is where it is, and what would change that."""
    from ...recovery import why
    from .. import situation

    home = call.home()
    task = task_of(home, ident)
    answer = why.why(situation.look(home, task))
    document = {"id": task.id, "status": task.status, "code": answer.code, "why": answer.sentence}
    call.show(
        {**document, "facts": answer.facts, "next": [f"relight {words}" for words in answer.next]},
        printing.lines(_in_words(task.id, str(task.status), answer)),
    )


@verb("retry")
@click.argument("ident", metavar="ID")
@click.pass_obj
def retry_verb(call: Call, ident: str) -> None:
    """Have a failed, skipped or diverged task tried again; what it recorded stays."""
    from ...models import retries
    from .. import person

    home = call.home()
    found = retries.by_person(home.db, task_of(home, ident).id, by=person.name(), now=home.now())
    steps = {"again": found.again, "in_doubt": found.in_doubt}
    told = [f"task {found.task.id} is {found.task.status}"]
    if found.again:
        told.append(f"runs again: {', '.join(found.again)}")
    if found.in_doubt:
        told.append(f"a question comes first about: {', '.join(found.in_doubt)} (relight confirmations)")
    call.show({**documents.task_row(found.task), **steps}, "; ".join(told))


@verb("pause")
@click.argument("what", metavar="LANE|ID")
@click.pass_obj
def pause_verb(call: Call, what: str) -> None:
    """Start nothing more of a lane, or hold one pending task; what runs goes on."""
    from ...models import pauses
    from .. import person

    home, by = call.home(create=True), person.name()
    if what in LANES:
        new = pauses.pause_lane(home.db, what, by=by, now=home.now())
        return _show_lane(call, home, what, "is paused" if new else "is paused already")
    task = pauses.pause_task(home.db, _task_id(home, what), by=by, now=home.now())
    call.show(documents.task_row(task), f"task {task.id} is paused")


@verb("unpause")
@click.argument("what", metavar="LANE|ID")
@click.pass_obj
def unpause_verb(call: Call, what: str) -> None:
    """Let a paused lane or task go on."""
    from ...models import pauses
    from .. import person

    home, by = call.home(), person.name()
    if what in LANES:
        was = pauses.unpause_lane(home.db, what)
        return _show_lane(call, home, what, "goes on" if was else "was not paused")
    task = pauses.unpause_task(home.db, _task_id(home, what), by=by, now=home.now())
    held = f" and held: {task.hold}" if task.hold else ""
    call.show(documents.task_row(task), f"task {task.id} is {task.status}{held}")


def _show_lane(call: Call, home: Home, lane: str, words: str) -> None:
    from ...models import pauses

    pause = pauses.lanes(home.db).get(lane)
    document: dict[str, Any] = {"lane": lane, "paused": pause is not None}
    call.show({**document, **(documents.columns(pause) if pause else {})}, f"lane {lane} {words}")


def _task_id(home: Home, what: str) -> str:
    try:
        return task_of(home, what).id
    except NotFoundError as error:
        hint = f"a lane is one of {', '.join(LANES)}{printing.meant(what, LANES)}"
        raise NotFoundError(error.kind, error.ident, hint=hint) from None


def _in_words(task_id: str, status: str, answer: Why) -> list[str]:
    facts = [
        f"  {name}: {_fact(name, value)}" for name, value in answer.facts.items() if value not in (None, [])
    ]
    commands = [f"  relight {words}" for words in answer.next]
    return [f"{printing.short(task_id)} is {status}. {answer.sentence}", *facts, *commands]


def _fact(name: str, value: Any) -> str:
    if name.endswith("_at"):
        return printing.moment(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
