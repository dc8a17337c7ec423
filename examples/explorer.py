"""Explorer: reads a source tree and reports what is in it. Low risk: it only reads, so it resumes by itself.

Every file is one recorded step. Killed at any point, the explorer goes on with the first file that has no outcome yet;
the facts about all earlier files come from the record.

    relight -A examples/explorer.py enqueue explorer "Survey" --input '{"roots": ["recovery"]}'
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
import time
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relight import Run, agent, current_step, step

_MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


@dataclass(frozen=True)
class Function:
    """A function and where it stands."""

    name: str
    file: str
    line: int
    lines: int


@dataclass(frozen=True)
class Mark:
    """A comment in which somebody left work for later."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class FileFacts:
    """What one file holds; `problem` says why a file could not be read as Python."""

    file: str
    lines: int
    functions: int
    longest: Function | None
    marks: list[Mark]
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """What the whole tree holds."""

    files: int
    lines: int
    functions: int
    longest: Function | None
    marks: list[Mark]
    unreadable: list[str]


@agent(risk="low")
def explorer(
    run: Run,
    prompt: str = "Survey the source tree",
    *,
    roots: list[str] | None = None,
    pace_ms: int = 0,
    witness: str | None = None,
) -> Report:
    """Read every Python file below `roots` (default: the standard library's json and asyncio) and report.

    `pace_ms` slows each file down, to have time to watch. `witness` names a file that gets a line each time a
    step's code really runs, which shows from outside that a finished step never ran twice.
    """
    found = list_sources(roots)
    return summarise([read_source(root, file, pace_ms, witness) for root, file in found])


@step(effect="read")
def list_sources(roots: list[str] | None) -> list[tuple[str, str]]:
    """Every Python file as (folder, name below it). The default is looked up here, in the step, so that it is
    recorded: a resume on another interpreter goes on with the same list."""
    tops = [Path(root) for root in roots] if roots is not None else _standard_packages()
    return [(str(top.parent), str(path.relative_to(top.parent))) for top in tops for path in _sources(top)]


@step(effect="read")
def read_source(root: str, file: str, pace_ms: int, witness: str | None) -> FileFacts:
    """Parse one file and count what is in it."""
    if witness:
        _note(witness)
    facts = _described(root, file)
    time.sleep(pace_ms / 1000)
    current_step().stream(
        f"{file}: {facts.problem or f'{facts.functions} functions in {facts.lines} lines'}\n"
    )
    return facts


def describe(file: str, source: bytes) -> FileFacts:
    """The facts about one file, given its bytes."""
    lines = len(source.splitlines())
    try:
        functions = list(_functions(file, ast.parse(source)))
        marks = list(_marks(file, source))
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        return FileFacts(file, lines, 0, None, [], problem=f"not readable as Python: {error}")
    return FileFacts(file, lines, len(functions), _longest(functions), marks)


def summarise(facts: list[FileFacts]) -> Report:
    """Add the files up."""
    return Report(
        files=len(facts),
        lines=sum(one.lines for one in facts),
        functions=sum(one.functions for one in facts),
        longest=_longest([one.longest for one in facts if one.longest]),
        marks=[mark for one in facts for mark in one.marks],
        unreadable=[f"{one.file}: {one.problem}" for one in facts if one.problem],
    )


def _described(root: str, file: str) -> FileFacts:
    try:
        return describe(file, (Path(root) / file).read_bytes())
    except OSError as error:
        return FileFacts(file, 0, 0, None, [], problem=str(error))


def _standard_packages() -> list[Path]:
    return [Path(module.__file__).parent for module in (json, asyncio) if module.__file__]


def _sources(top: Path) -> list[Path]:
    return [top] if top.is_file() else sorted(top.rglob("*.py"))


def _functions(file: str, tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(node.name, file, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)


def _marks(file: str, source: bytes) -> Iterator[Mark]:
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT and _MARK.search(token.string):
            yield Mark(file, token.start[0], token.string.lstrip("# ").strip())


def _longest(functions: list[Function]) -> Function | None:
    return max(functions, key=lambda function: function.lines, default=None)


def _note(witness: str) -> None:
    with open(witness, "a", encoding="utf-8") as file:
        file.write(f"{current_step().key} {current_step().attempt}\n")
