"""The verbs that only read: status, list, show, trace, events. They load neither Huey nor pydantic."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from . import documents, printing
from .door import Call, verb

if TYPE_CHECKING:
    from ...models.tasks import AgentTask
    from ..home import Home

STATUSES = ["pending", "running", "completed", "failed", "interrupted", "idle", "swapped"]
LANES = ["main", "subagent"]


@verb("status")
@click.pass_obj
def status_verb(call: Call) -> None:
    """Show what there is: tasks by status, who works, what waits for a person."""
    document = _overview(call.home())
    rows = [[name, _in_words(value)] for name, value in document.items()]
    call.show_table(document, ["", ""], rows, none="")


@verb("list")
@click.option(
    "--status", type=click.Choice(STATUSES, case_sensitive=False), help="Only tasks in this status."
)
@click.option("--lane", type=click.Choice(LANES), help="Only tasks of this lane.")
@click.option("--session", metavar="ID", help="Only tasks of this session.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Tasks to show.",
)
@click.option("--cursor", metavar="C", help="What a page before gave as next_cursor.")
@click.option(
    "--order",
    type=click.Choice(["newest", "oldest"]),
    default="newest",
    show_default=True,
    help="Which come first.",
)
@click.pass_obj
def list_verb(
    call: Call,
    status: str | None,
    lane: str | None,
    session: str | None,
    limit: int,
    cursor: str | None,
    order: str,
) -> None:
    """List tasks, a page at a time."""
    from ...models import paging, tasks

    page, following = tasks.listing(
        call.home().db,
        status=tasks.TaskStatus(status) if status else None,
        lane=tasks.Lane(lane) if lane else None,
        session=session,
        limit=limit,
        cursor=paging.parse(cursor) if cursor is not None else None,
        order=paging.Order(order),
    )
    next_cursor = following and str(following)
    document = {"tasks": [documents.task_row(task) for task in page], "next_cursor": next_cursor}
    call.show_table(document, _TASK_COLUMNS, [_task_cells(task) for task in page], none="no tasks")
    if next_cursor and not call.json:
        printing.line(f"more: --cursor {next_cursor}")


@verb("show")
@click.argument("ident", metavar="ID")
@click.pass_obj
def show_verb(call: Call, ident: str) -> None:
    """Show every column of a task, with its reason, result, attempts and losses."""
    task = task_of(call.home(), ident)
    document, values = documents.task(task), dict(task.__data__)
    error = document["error"]
    raised = error.pop("traceback", "") if isinstance(error, dict) and not call.json else ""
    if raised:  # below the table, as Python prints it
        values["error_json"] = json.dumps(error, ensure_ascii=False)
    rows = [[name, _cell(name, value)] for name, value in values.items() if value is not None]
    call.show_table(document, ["", ""], rows, none="")
    if raised:
        printing.line(printing.lines(raised.splitlines()))


@verb("trace")
@click.argument("ident", metavar="ID")
@click.option("--kind", help="Only traces of this kind.")
@click.pass_obj
def trace_verb(call: Call, ident: str, kind: str | None) -> None:
    """Show what a task did, step by step, as replay reads it."""
    from ...models import traces

    home = call.home()
    task = task_of(home, ident)
    found = traces.by_task(home.db, task.id, kind=kind)
    document = {"task_id": task.id, "traces": [documents.trace(trace) for trace in found]}
    rows = [
        [
            t.step_index,
            printing.moment(t.timestamp),
            t.attempt,
            t.event_kind,
            t.step_key,
            "late" if t.late else "",
            t.event_json,
        ]
        for t in found
    ]
    call.show_table(document, ["step", "at", "attempt", "kind", "key", "", "event"], rows, none="no traces")


@verb("events")
@click.argument("ident", metavar="ID")
@click.option(
    "--since", type=click.IntRange(min=0), default=0, metavar="N", help="Only events with a greater seq."
)
@click.option("--follow", is_flag=True, help="Wait for what comes, until the task ends.")
@click.pass_obj
def events_verb(call: Call, ident: str, since: int, follow: bool) -> None:
    """Show what a task told; with --follow --json, one document per line as they come."""
    from .. import following

    home = call.home()
    task_id = task_of(home, ident).id
    if call.json and not follow:
        found = [documents.event(event) for event in following.stored(home, task_id, since)]
        return call.show(
            {"task_id": task_id, "events": found, "cursor": documents.cursor_after(found, since)}, ""
        )
    reader = following.follow if follow else following.stored
    for event in reader(home, task_id, since):
        document = documents.event(event)
        call.show(document, _sentence(document))


def task_of(home: Home, ident: str) -> AgentTask:
    from ...models import short_ids, tasks

    return tasks.find(home.db, short_ids.task(home.db, ident))


_TASK_COLUMNS = ["id", "status", "reason", "lane", "risk", "agent", "attempt", "created", "prompt"]


def _task_cells(task: AgentTask) -> list[object]:
    created = printing.moment(task.created_at)
    told = task.reason or task.hold
    return [
        *(printing.short(task.id), task.status, told, task.lane, task.risk_level),
        *(task.agent_id, task.attempt, created, task.task_prompt),
    ]


def _cell(name: str, value: Any) -> str:
    return f"{printing.moment(value)} ({value})" if name.endswith("_at") else str(value)


def _sentence(event: dict[str, Any]) -> str:
    if event["event_type"] == "gap":
        return (
            f"gap: events after {event['since']} cannot be given ({event['reason']}); next is {event['next']}"
        )
    payload = printing.shown(printing.json_text(event["payload"]))
    return f"{event['seq']:>5}  {printing.moment(event['timestamp'])}  {event['event_type']:<22} {payload}"


def _overview(home: Home) -> dict[str, Any]:
    from ...models import blobs, claims, confirmations, pauses, recovery_runs, space, tasks, workers
    from .. import bells

    lanes: dict[str, Callable[[str], int]] = {
        "ready": lambda lane: claims.ready_count(home.db, lane),
        "listening": lambda lane: bells.listeners(home.path, lane),
    }
    last = recovery_runs.recent(home.db, limit=1)
    return {
        "home": str(home.path),
        "tasks": tasks.counts(home.db),
        **{name: {lane: count(lane) for lane in LANES} for name, count in lanes.items()},
        "paused": {lane: pause.paused_by for lane, pause in pauses.lanes(home.db).items()},
        "workers": [documents.columns(worker) for worker in workers.alive(home.db)],
        "open_confirmations": len(confirmations.listing(home.db)),
        "last_recovery": documents.columns(last[0]) if last else None,
        "storage": {**vars(space.size(home.db)), "blob_bytes": blobs.total_bytes(home.path / "blobs")},
    }


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {count}" for name, count in value.items() if count is not None) or "none"
    if isinstance(value, list):
        return ", ".join(
            f"{worker['lane']} {worker['id'][-8:]} (pid {worker['pid']} on {worker['host']})"
            for worker in value
        )
    return "never" if value is None else str(value)
