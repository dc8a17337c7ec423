"""The exit code of every verb: what the answer was, for scripts that look at nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight import ref
from relight.models import claims, confirmations, tasks, transitions
from relight.models.confirmations import StepInDoubt
from relight.models.journal import StepCall
from relight.workers import settings
from relight.workers.cli.door import VERBS
from relight.workers.home import Home
from tests.conftest import environment

RUN = """
import json, sys
from relight.workers.cli import door
codes = [door.run(words) for words in json.load(sys.stdin)]
print("\\n" + json.dumps(codes))
"""

OF_ONE = (
    "show",
    "why",
    "trace",
    "events",
    "wait",
    "result",
    "cancel",
    "retry",
    "pause",
    "unpause",
    "approve",
    "reject",
)
# What is given to each verb so that it comes as far as the storage. A verb that is not here takes no argument.
ARGUMENTS = {verb: ("{id}",) for verb in OF_ONE} | {
    "resolve": ("{id}", "--again"),
    "enqueue": ("elsewhere",),
    "worker": ("upkeep",),
    "backup": ("copy.db",),
    "restore": ("copy.db",),
}
LONG = {"up", "demo"}  # they start processes of their own; test_running.py and the demo's tests look at them


def codes_of(calls: list[list[str]], cwd: Path) -> list[int]:
    """The exit codes of these calls, made one after the other in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(RELIGHT_LOG_LEVEL="error"),
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes: list[int] = json.loads(done.stdout.splitlines()[-1])
    return codes


def call(verb: str, ident: str = "nothing") -> list[str]:
    return [verb, *(word.format(id=ident) for word in ARGUMENTS.get(verb, []))]


@pytest.fixture
def opened(home: Path) -> Iterator[Home]:
    made = Home.open(settings.load())
    yield made
    made.close()


@pytest.fixture
def ids(opened: Home) -> dict[str, str]:
    """A task in each place that an exit code tells apart, and questions about two of them."""
    made = {name: ref("elsewhere").options(home=opened).enqueue(name).id for name in PLACES}
    for name in PLACES[1:]:
        task = tasks.find(opened.db, made[name])
        opened.db.change("UPDATE agent_tasks SET rank = 0 WHERE id = ?", (task.id,))
        claimed = claims.claim(
            opened.db, "subagent", worker_id="w1", now=opened.now(), known=frozenset({"elsewhere"})
        )
        assert claimed is not None
        assert claimed.id == task.id
    end = {"worker_id": "w1", "attempt": 1, "now": opened.now()}
    transitions.complete(opened.db, made["done"], result_json="42", **end)
    transitions.fail(opened.db, made["failed"], reason="error", error_json="{}", **end)
    made["doubtful"] = question(
        opened, made["asked"], [StepInDoubt(StepCall("pay#1", "d", "write"), 1, {"name": "pay"})]
    )
    made["plain"] = question(opened, made["plain asked"], [])
    return made


PLACES = ("waiting", "running", "done", "failed", "asked", "plain asked")


def question(opened: Home, task_id: str, steps: list[StepInDoubt]) -> str:
    task = tasks.find(opened.db, task_id)
    return confirmations.ask(
        opened.db,
        task,
        reason="asked",
        request={"why": "high risk"},
        steps=steps,
        now=opened.now(),
        lost=True,
    )


def test_every_answer_has_its_exit_code(ids: dict[str, str], tmp_path: Path) -> None:
    """In this order: what a call changes is what the next ones find."""
    table: list[tuple[int, str, Any]] = [
        (0, "init", []),
        (0, "status", []),
        (0, "list", []),
        (0, "confirmations", ["--all"]),
        (0, "recover", ["--dry-run"]),
        (0, "enqueue", ["elsewhere", "Go"]),
        *((0, verb, ["waiting"]) for verb in ("show", "why", "trace", "events")),
        (0, "wait", ["done"]),
        (1, "wait", ["failed"]),
        (5, "wait", ["waiting", "--timeout", "0"]),
        (0, "result", ["done"]),
        (1, "result", ["failed"]),
        (5, "result", ["running"]),
        (4, "pause", ["running"]),
        (4, "pause", ["done"]),
        (0, "pause", ["waiting"]),
        (0, "unpause", ["waiting"]),
        (0, "unpause", ["running"]),
        (0, "pause", ["main"]),
        (0, "unpause", ["main"]),
        (4, "retry", ["running"]),
        (4, "retry", ["done"]),
        (4, "retry", ["waiting"]),
        (4, "retry", ["asked"]),
        (0, "retry", ["failed"]),
        (4, "approve", ["doubtful"]),
        (3, "resolve", ["doubtful", "--step", "other#1", "--again"]),
        (0, "resolve", ["doubtful", "--again"]),
        (4, "resolve", ["doubtful", "--again"]),
        (4, "resolve", ["plain", "--again"]),
        (0, "approve", ["plain"]),
        (4, "approve", ["plain"]),
        (4, "reject", ["plain"]),
        (0, "cancel", ["running"]),
        (4, "cancel", ["running"]),
        (4, "show", ["0"]),
    ]
    calls = [[verb, *(ids.get(word, word) for word in words)] for _, verb, words in table]
    found = codes_of(calls, tmp_path)
    expected = [code for code, _, _ in table]
    wrong = [
        (words, code, want) for words, code, want in zip(calls, found, expected, strict=True) if code != want
    ]
    assert wrong == []


def test_a_wrong_use_of_any_verb_is_2(tmp_path: Path) -> None:
    assert codes_of([[verb, "--no-such-option"] for verb in VERBS], tmp_path) == [2] * len(VERBS)
    assert codes_of([[verb] for verb in ARGUMENTS if verb in VERBS and verb != "worker"], tmp_path) == [
        2
    ] * len([verb for verb in ARGUMENTS if verb in VERBS and verb != "worker"])


def test_an_id_that_nothing_goes_by_is_3(opened: Home, tmp_path: Path) -> None:
    verbs = [verb for verb, words in ARGUMENTS.items() if words[0] == "{id}"]
    assert codes_of([call(verb) for verb in verbs], tmp_path) == [3] * len(verbs)


def test_what_a_limit_forbids_is_6(opened: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_MAX_PAYLOAD_BYTES", "100")
    assert codes_of([["enqueue", "elsewhere", "x" * 200]], tmp_path) == [6]


@pytest.mark.parametrize("sick", ["damaged", "empty", "a folder", "newer"])
def test_a_state_file_that_cannot_be_used_is_7_for_every_verb(home: Path, tmp_path: Path, sick: str) -> None:
    make_sick(home, sick)
    others = {"doctor", "restore"} | ({"backup"} if sick == "newer" else set())  # they are for such files
    verbs = [verb for verb in VERBS if verb not in LONG | others]
    codes = dict(zip(verbs, codes_of([call(verb) for verb in verbs], tmp_path), strict=True))
    assert codes == dict.fromkeys(verbs, 7)


def make_sick(home: Path, sick: str) -> None:
    if sick == "newer":
        made = Home.open(settings.load())
        made.db.change("INSERT INTO schema_migration (name, applied) VALUES ('0999_future', 1)")
        made.close()
        return
    home.mkdir(mode=0o700)
    state = home / "state.db"
    if sick == "a folder":
        state.mkdir()
    else:
        state.write_bytes(b"" if sick == "empty" else b"not a database")
