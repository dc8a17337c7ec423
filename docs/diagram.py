"""Writes the moves of a task, as a diagram and a table, into docs/lifecycle.md: `python -m docs.diagram`.

The enum `Move` is the only list of edges; what stands between the markers is never edited by hand.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from relight.models.moves import Move
from relight.models.tasks import TaskStatus

PAGE = Path(__file__).with_name("lifecycle.md")
BEGIN, END = "<!-- moves:begin -->", "<!-- moves:end -->"


def with_moves(page: str) -> str:
    """The page, with what the enum says now between the markers."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{moves()}\n{END}{tail}"


def moves() -> str:
    """Every move: a Mermaid state diagram, then a table with the events."""
    return f"```mermaid\n{_diagram()}\n```\n\n{_table()}"


def _diagram() -> str:
    labels: dict[tuple[TaskStatus, TaskStatus], list[str]] = defaultdict(list)
    for move in Move:
        for source in move.value.sources:
            labels[source, move.value.target].append(move.value.name)
    edges = [
        f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in sorted(labels.items())
    ]
    return "\n".join(
        [
            "stateDiagram-v2",
            "    [*] --> pending: enqueue",
            *edges,
            "    completed --> [*]",
            "    failed --> [*]",
        ]
    )


def _table() -> str:
    rows = [
        f"| {move.value.name} | {', '.join(move.value.sources)} | {move.value.target} | `{move.value.event}` |"
        for move in Move
    ]
    return "\n".join(["| Move | From | To | Event |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    PAGE.write_text(with_moves(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
