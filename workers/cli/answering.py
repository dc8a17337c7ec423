"""The verbs by which a person answers: confirmations, approve, reject, resolve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ...models.errors import InputError
from .. import person
from . import documents, printing
from .door import Call, verb

if TYPE_CHECKING:
    from ...models.tasks import AgentTask
    from ..home import Home


@verb("confirmations")
@click.option("--all", "every", is_flag=True, help="Show answered ones too.")
@click.pass_obj
def confirmations_verb(call: Call, every: bool) -> None:
    """List what waits for a person, oldest first."""
    found = _confirmations(call.home(), only_open=not every)
    document = {"confirmations": found}
    call.show_table(document, _COLUMNS, [_cells(one) for one in found], none="nothing waits for a person")


@verb("approve")
@click.argument("cid", metavar="CID")
@click.pass_obj
def approve_verb(call: Call, cid: str) -> None:
    """Let a task go on; refused while a step of it is in doubt."""
    from ...models import confirmations, short_ids

    home = call.home()
    whole = short_ids.confirmation(home.db, cid)
    task = confirmations.approve(home.db, whole, by=person.name(), now=home.now())
    _tell(call, home, whole, task)


@verb("reject")
@click.argument("cid", metavar="CID")
@click.option("--reason", default="", help="Why; the task keeps it.")
@click.pass_obj
def reject_verb(call: Call, cid: str, reason: str) -> None:
    """End a task as failed; recovery never proposes it again."""
    from ...models import confirmations, short_ids

    home = call.home()
    whole = short_ids.confirmation(home.db, cid)
    task = confirmations.reject(home.db, whole, by=person.name(), reason=reason, now=home.now())
    _tell(call, home, whole, task)


@verb("resolve")
@click.argument("cid", metavar="CID")
@click.option("--step", metavar="KEY", help="The step in doubt; not needed where there is only one.")
@click.option("--ran", metavar="JSON", help="It did happen, and this is what it returned.")
@click.option("--again", is_flag=True, help="It did not happen, or may happen twice: run it again.")
@click.option("--abandon", is_flag=True, help="Give it up: the agent receives the error StepAbandoned.")
@click.pass_obj
def resolve_verb(call: Call, cid: str, step: str | None, ran: str | None, again: bool, abandon: bool) -> None:
    """Answer for one step in doubt; the task goes on when the last is answered."""
    if (ran is not None) + again + abandon != 1:
        raise click.UsageError("give exactly one of --ran JSON, --again and --abandon")
    home = call.home()
    whole, task = _answer(home, cid, step, ran, again)
    _tell(call, home, whole, task)


def _answer(
    home: Home, cid: str, step: str | None, ran: str | None, again: bool
) -> tuple[str, AgentTask | None]:
    from ...models import short_ids
    from .. import answers

    whole = short_ids.confirmation(home.db, cid)
    if ran is not None:
        return whole, answers.ran(home, whole, step, _returned(ran), by=person.name())
    answer = answers.again if again else answers.abandon
    return whole, answer(home, whole, step, by=person.name())


def _returned(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(
            f"--ran {text!r} is no JSON ({error}); say null where the step returned nothing"
        ) from None


def _tell(call: Call, home: Home, cid: str, task: AgentTask | None) -> None:
    """Print a confirmation as it is now, and where its task went."""
    from ...models import confirmations

    found = confirmations.find(home.db, cid)
    document = documents.confirmation(found, confirmations.steps(home.db, cid))
    document["task"] = None if task is None else documents.task_row(task)
    undecided = [step["step_key"] for step in document["steps"] if step["decision"] is None]
    went = f"task {task.id} is {task.status}" if task else f"still in doubt: {', '.join(undecided)}"
    call.show(document, f"{found.status}; {went}")


def _confirmations(home: Home, *, only_open: bool) -> list[dict[str, Any]]:
    from ...models import confirmations

    found = confirmations.listing(home.db, only_open=only_open)
    return [documents.confirmation(one, confirmations.steps(home.db, one.id)) for one in found]


_COLUMNS = ["id", "task", "status", "asked", "agent", "why", "next", "steps in doubt"]


def _cells(found: dict[str, Any]) -> list[object]:
    request = found["request"]
    return [
        *(printing.short(found["id"]), printing.short(found["task_id"]), found["status"]),
        *(printing.moment(found["asked_at"]), request.get("agent"), request.get("why"), request.get("next")),
        "; ".join(map(_step_in_words, found["steps"])),
    ]


def _step_in_words(step: dict[str, Any]) -> str:
    verified = step["shown"].get("verify") or {}
    landed = {True: "it landed", False: "it did not land"}
    told = landed[verified["landed"]] if "landed" in verified else _unanswered(verified)
    shown: str = step["decision"] or (f"verify: {told}" if told else "")
    return f"{step['step_key']} ({shown})" if shown else str(step["step_key"])


def _unanswered(verified: dict[str, Any]) -> str:
    """Why `verify` says nothing; nothing where there is none."""
    return f"{verified.get('status')}: {verified['text']}" if "text" in verified else ""
