"""The house rules that no linter knows: who writes a status, where SQL and clocks are, which words are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

ROOMS = ("models", "recovery", "workers")
LONGEST_FILE = 350
REFUSED = {
    *(
        "util",
        "utils",
        "helper",
        "helpers",
        "manager",
        "handler",
        "handlers",
        "service",
        "services",
        "common",
    ),
    *("core", "base", "misc", "data", "info", "engine"),
}
GIVEN = {"handler_version", "put_data", "_set_signal_handlers", "TaskTraceInfo"}  # given names
SQL = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|WITH)\s+[\w*(\"{]")
STATUS_WRITE = re.compile(
    r"UPDATE\s+agent_tasks\s+SET\b(?:(?!\bWHERE\b).)*\bstatus\s*=", re.DOTALL | re.IGNORECASE
)

Node = tuple[str, ast.AST]


def files(*folders: str) -> list[Path]:
    return sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*.py") if not path.is_symlink()
    )


def nodes(*folders: str) -> Iterator[Node]:
    """Every syntax node below the folders, with the file and line to name it by."""
    for path in files(*folders):
        if "relight/" in str(path.relative_to(ROOT)) and path.parent.name != "relight":
            continue  # reached through a link: read in its own folder
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def offenders(found: Callable[[ast.AST], bool], *folders: str, allowed: tuple[str, ...] = ()) -> list[str]:
    return [
        place for place, node in nodes(*folders) if found(node) and not place.startswith(allowed or ("-",))
    ]


def texts(node: ast.AST) -> str:
    """The text of a string, with {} for what an f-string puts in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(texts(part) or "{}" for part in node.values)
    return ""


def imported(node: ast.AST) -> list[str]:
    """The absolute module names that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", files("relight", *ROOMS), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE, f"{lines} lines: look whether a concept is hiding in it"


def test_a_task_status_is_written_by_transitions_alone() -> None:
    def writes(node: ast.AST) -> bool:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return any(isinstance(target, ast.Attribute) and target.attr == "status" for target in targets)
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            named = any(keyword.arg == "status" for keyword in node.keywords)
            return named and called.endswith(("AgentTask", "AgentTask.update"))
        return bool(STATUS_WRITE.search(texts(node)))

    assert offenders(writes, *ROOMS, "relight", allowed=("models/transitions.py",)) == []


def test_sql_is_written_in_models_alone() -> None:
    assert offenders(lambda node: bool(SQL.match(texts(node))), "recovery", "workers", "relight") == []


@pytest.mark.spec(67)
def test_no_value_is_formatted_into_a_statement() -> None:
    def formats(node: ast.AST) -> bool:
        if isinstance(node, ast.JoinedStr):
            return bool(SQL.match(texts(node)))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            return any(SQL.match(texts(side)) for side in (node.left, node.right))
        called = node.func if isinstance(node, ast.Call) else None
        return (
            isinstance(called, ast.Attribute)
            and called.attr == "format"
            and bool(SQL.match(texts(called.value)))
        )

    assert offenders(formats, *ROOMS, "relight") == []


def test_no_name_uses_a_refused_word() -> None:
    def words(name: str) -> set[str]:
        return set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()))

    def refused(node: ast.AST) -> bool:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name in GIVEN:
            return False
        noun = isinstance(node, ast.ClassDef) and "process" in words(node.name)
        prefixed = node.name.lstrip("_").startswith(("do_", "handle_"))
        return bool(words(node.name) & REFUSED) or noun or prefixed

    assert offenders(refused, *ROOMS, "relight", "examples") == []
    assert [str(path) for path in files(*ROOMS, "relight") if words(path.stem) & {*REFUSED, "process"}] == []


@pytest.mark.parametrize("module", ["sqlite3", "pickle", "redis"])
def test_a_refused_module_is_imported_nowhere(module: str) -> None:
    def imports(node: ast.AST) -> bool:
        return any(name.split(".")[0] == module for name in imported(node))

    assert offenders(imports, *ROOMS, "relight", "tests", "examples", "benchmarks") == []


def test_a_room_is_never_imported_by_its_bare_name() -> None:
    def imports(node: ast.AST) -> bool:
        return any(name.split(".")[0] in ROOMS for name in imported(node))

    assert offenders(imports, *ROOMS, "relight", "tests", "examples", "benchmarks") == []


def test_only_workers_read_the_clock_and_the_environment() -> None:
    reads = {
        "os.environ",
        "os.getenv",
        "time.time",
        "time.time_ns",
        "datetime.now",
        "datetime.utcnow",
        "date.today",
    }
    assert offenders(lambda node: dotted(node) in reads, "models", "recovery", "relight") == []


def test_recovery_reaches_nothing_that_runs() -> None:
    things = {
        "time",
        "threading",
        "asyncio",
        "socket",
        "subprocess",
        "signal",
        "multiprocessing",
        "os",
        "huey",
        "random",
    }
    assert offenders(lambda node: bool(things & set(imported(node))), "recovery") == []


def test_the_waiter_alone_sleeps_in_tests() -> None:
    def sleeps(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and dotted(node.func) == "time.sleep"

    assert offenders(sleeps, "tests", allowed=("tests/conftest.py",)) == []


def test_nothing_is_left_for_later() -> None:
    mark = re.compile(
        r"#.*\b(TODO|FIXME|XXX|HACK)\b|pytest\.mark\.(skip|xfail)\b|# noqa\s*$|# type: ignore\s*$"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files(*ROOMS, "relight", "tests")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if path != Path(__file__) and mark.search(line)
    ]
    assert found == []


def test_the_repository_speaks_of_no_machine() -> None:
    there = re.compile(r"(?<![\w.])/(root|home/\w+)/|index-url|trusted-host")
    suffixes = {".py", ".md", ".toml", ".txt", ".sql", ""}
    everywhere = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".coverage")]
    for folder in (*ROOMS, "relight", "tests", "docs", "examples", "benchmarks", ".ci"):
        everywhere += [
            path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        ]
    found = [
        str(path.relative_to(ROOT))
        for path in everywhere
        if path.suffix in suffixes
        and path != Path(__file__)
        and there.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []
