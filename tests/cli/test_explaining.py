"""The verbs about one task or lane: why, retry, pause, unpause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Asked
from tests.conftest import Cli, StartWorker, wait_until

PAYER = """
from pathlib import Path
from relight import agent, step

@step(effect="write")
def pay(file: str) -> str:
    if not Path(file).exists():
        raise TimeoutError("no answer")
    return "paid"

@step(effect="read")
def look(file: str) -> str:
    return Path(file).read_text()

@agent(risk="high")
def payer(run, prompt: str, *, file: str) -> str:
    return pay(file)

@agent(risk="low")
def looker(run, prompt: str, *, file: str) -> str:
    return look(file)
"""


@pytest.fixture
def payers(tmp_path: Path) -> Path:
    file = tmp_path / "payers.py"
    file.write_text(PAYER, encoding="utf-8")
    return file


def enqueue(asked: Asked, app: Path, agent: str, file: Path) -> str:
    given = json.dumps({"file": str(file)})
    return str(asked("-A", str(app), "enqueue", agent, "Go", "--input", given)["id"])


def test_why_says_it_in_one_sentence_and_under_json_with_a_code(cli: Cli, asked: Asked) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    printed = cli("why", task[-8:]).stdout.splitlines()
    assert printed[0] == f"{task[-8:]} is pending. No process serves the subagent lane, where it is number 1."
    assert "  relight worker subagent" in printed
    answer = asked("why", task)
    assert list(answer) == ["id", "status", "code", "why", "facts", "next"]
    assert (answer["id"], answer["code"]) == (task, "no_worker")
    assert answer["next"] == ["relight worker subagent"]


def test_why_shows_no_control_codes_that_a_task_brought_with_it(cli: Cli, asked: Asked) -> None:
    task = asked("enqueue", "elsewhere", "Go")["id"]
    asked("cancel", task, "--reason", "red \x1b[31m\nalert")
    printed = cli("why", task).stdout
    assert all(letter.isprintable() for letter in printed.replace("\n", ""))
    assert len(printed.splitlines()[0]) > 40


def test_a_paused_lane_starts_nothing_until_it_goes_on_also_after_a_restart(
    asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    asked("init")
    assert asked("pause", "subagent")["paused"] is True
    task = asked("-A", str(app), "enqueue", "adder", "Add")["id"]
    main = asked("-A", str(app), "enqueue", "adder", "Add", "--lane", "main")["id"]
    start_worker(home, app, "all").kill()
    start_worker(home, app, "all")
    asked("wait", main, "--timeout", "20")
    assert asked("show", task)["status"] == "pending"
    assert asked("why", task)["code"] == "lane_paused"
    assert list(asked("status")["paused"]) == ["subagent"]
    assert asked("unpause", "subagent") == {"lane": "subagent", "paused": False}
    asked("wait", task, "--timeout", "20")


def test_a_paused_task_is_passed_over_until_it_goes_on(
    asked: Asked, home: Path, app: Path, start_worker: StartWorker
) -> None:
    task = asked("-A", str(app), "enqueue", "adder", "Add")["id"]
    assert asked("pause", task[-8:])["hold"] == "paused"
    other = asked("-A", str(app), "enqueue", "adder", "Add")["id"]
    start_worker(home, app, "subagent")
    asked("wait", other, "--timeout", "20")
    assert asked("why", task)["code"] == "paused"
    assert asked("unpause", task[-8:])["hold"] is None
    asked("wait", task, "--timeout", "20")


def test_a_lane_or_task_that_is_not_there_is_answered_with_the_nearest_lane(cli: Cli, home: Path) -> None:
    cli("init")
    done = cli("pause", "mian")
    assert done.returncode == 3
    assert "did you mean main?" in done.stderr


def test_a_read_that_failed_is_tried_again_by_a_person(
    cli: Cli, asked: Asked, home: Path, payers: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    start_worker(home, payers, "subagent")
    task = enqueue(asked, payers, "looker", tmp_path / "it")
    asked("wait", task, "--timeout", "20", code=1)
    (tmp_path / "it").write_text("seen")
    assert "runs again: look#1" in cli("retry", task[-8:]).stdout
    asked("wait", task, "--timeout", "20")
    assert asked("result", task)["result"] == "seen"
    assert asked("retry", task, code=4)["error"]["type"] == "StaleMove"


def test_a_write_that_failed_becomes_a_question_and_runs_only_after_the_answer(
    cli: Cli, asked: Asked, home: Path, payers: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    start_worker(home, payers, "subagent")
    task = enqueue(asked, payers, "payer", tmp_path / "it")
    asked("wait", task, "--timeout", "20", code=1)
    (tmp_path / "it").touch()
    assert asked("retry", task)["in_doubt"] == ["pay#1"]
    wait_until(lambda: asked("why", task)["code"] == "asked")
    why = asked("why", task)
    assert why["facts"]["in_doubt"] == ["pay#1"]
    command = why["next"][0].split()
    assert command[:2] == ["relight", "resolve"]
    asked("resolve", command[2], "--again")
    assert asked("wait", task, "--timeout", "20")["result"] == "paid"


def test_why_follows_a_task_through_its_life(
    asked: Asked, home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    files = json.dumps({"first": str(tmp_path / "go"), "witness": str(tmp_path / "witness")})
    task = asked("-A", str(app), "enqueue", "reader", "Read", "--input", files)["id"]
    worker = start_worker(home, app, "subagent")
    wait_until((tmp_path / "witness").exists)
    answer = asked("why", task)
    assert (answer["code"], answer["facts"]["open_steps"]) == ("running", ["look_at#1"])
    assert answer["facts"]["pid"] == worker.pid
    worker.kill()
    answer = asked("why", task)
    assert answer["code"] == "owner_dead"
    assert "relight recover" in answer["next"]
    asked("recover")
    assert asked("why", task)["code"] == "no_worker"
    (tmp_path / "go").touch()
    start_worker(home, app, "subagent")
    asked("wait", task, "--timeout", "20")
    assert asked("why", task)["code"] == "completed"
