"""Stored rows as the documents that `--json` prints: columns by their names, ids and words as stored, times in epoch ms.

Invariant: a document only grows; scripts rely on the names in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import peewee

    from ...models.confirmations import Confirmation, ConfirmationStep
    from ...models.events import AgentEvent
    from ...models.tasks import AgentTask
    from ...models.traces import TaskTrace
    from ..following import Gap

LARGE = ("input_json", "result_json", "error_json")


def columns(record: peewee.Model, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the columns of a row by name."""
    return {name: value for name, value in record.__data__.items() if name not in without}


def task_row(task: AgentTask) -> dict[str, Any]:
    """Return a task as a list shows it: without its input, result and error."""
    return columns(task, without=LARGE)


def task(found: AgentTask) -> dict[str, Any]:
    """Return a whole task: every column, and input, result and error as the values that they hold."""
    values = {name.removesuffix("_json"): parsed(getattr(found, name)) for name in (*LARGE, "metadata_json")}
    return {**columns(found), **values}


def trace(found: TaskTrace) -> dict[str, Any]:
    """Return a trace: its columns, and its event as the value that it holds."""
    return {**columns(found), "event": parsed(found.event_json)}


def event(found: AgentEvent | Gap) -> dict[str, Any]:
    """Return an event, or the gap that stands where events cannot be given."""
    from ..following import Gap

    if isinstance(found, Gap):
        return {"event_type": "gap", **vars(found)}
    return {**columns(found), "payload": parsed(found.payload_json)}


def cursor_after(events: Sequence[dict[str, Any]], since: int) -> int:
    """Return what to read on from: an empty page keeps its cursor."""
    if not events:
        return since
    last = events[-1]
    return int(last["seq"] if "seq" in last else last["next"] - 1)


def confirmation(found: Confirmation, steps: Sequence[ConfirmationStep]) -> dict[str, Any]:
    """Return a confirmation with what the person is asked, and its steps in doubt."""
    doubtful = [{**columns(step), "shown": parsed(step.shown_json)} for step in steps]
    return {**columns(found), "request": parsed(found.request_json), "steps": doubtful}


def parsed(text: str | None) -> Any:
    """Return the value of a JSON text; the text itself where it is none."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
