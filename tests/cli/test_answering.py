"""The verbs by which a person answers, on a real task whose worker was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Asked
from tests.conftest import Cli, StartWorker, environment, wait_until


@pytest.fixture
def killed(asked: Asked, home: Path, app: Path, tmp_path: Path, start_worker: StartWorker) -> dict[str, Any]:
    """The confirmation of a high-risk task that was killed inside its write step."""
    worker = start_worker(home, app, "subagent")
    files = json.dumps({"file": f"{tmp_path}/go", "witness": f"{tmp_path}/witness"})
    asked("-A", str(app), "enqueue", "writer", "Write", "--input", files)
    wait_until((tmp_path / "witness").exists)
    worker.kill()
    (tmp_path / "go").touch()
    report = asked("-A", str(app), "recover")
    (found,) = asked("confirmations")["confirmations"]
    assert [entry["id"] for entry in report["asked"]] == [found["task_id"]]
    return found  # type: ignore[no-any-return]  # JSON


def executions(tmp_path: Path) -> int:
    return len((tmp_path / "witness").read_text(encoding="utf-8").splitlines())


def test_a_confirmation_shows_what_is_in_doubt_and_what_verify_says(cli: Cli, killed: dict[str, Any]) -> None:
    (step,) = killed["steps"]
    assert (step["step_key"], step["effect"], step["decision"]) == ("put#1", "write", None)
    assert step["shown"]["verify"]["landed"] is True
    assert killed["request"]["agent"] == "writer"
    assert "put#1 (verify: it landed)" in cli("confirmations").stdout


def test_approve_is_refused_while_a_step_is_in_doubt(asked: Asked, killed: dict[str, Any]) -> None:
    error = asked("approve", killed["id"], code=4)["error"]
    assert (error["type"], error["step_keys"]) == ("StepInDoubtError", ["put#1"])


def test_a_step_that_ran_gives_its_outcome_and_is_not_repeated(
    asked: Asked, killed: dict[str, Any], home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    answer = asked("resolve", killed["id"][-8:], "--ran", '"put by hand"')
    assert (answer["status"], answer["task"]["status"]) == ("resolved", "pending")
    start_worker(home, app, "subagent")
    assert asked("wait", killed["task_id"], "--timeout", "20")["result"] == "put by hand"
    assert executions(tmp_path) == 1


def test_a_step_may_run_again(
    asked: Asked, killed: dict[str, Any], home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    asked("resolve", killed["id"], "--step", "put#1", "--again")
    start_worker(home, app, "subagent")
    assert asked("wait", killed["task_id"], "--timeout", "20")["result"] == "put"
    assert executions(tmp_path) == 2


def test_an_abandoned_step_is_an_error_for_the_agent(
    asked: Asked, killed: dict[str, Any], home: Path, app: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    asked("resolve", killed["id"], "--abandon")
    start_worker(home, app, "subagent")
    assert asked("wait", killed["task_id"], "--timeout", "20", code=1)["error"]["type"] == "StepAbandoned"
    assert executions(tmp_path) == 1


@pytest.mark.parametrize(
    "wrong", [[], ["--again", "--abandon"], ["--ran", "1", "--again"], ["--ran", "not json"]]
)
def test_an_answer_is_exactly_one_and_what_ran_is_json(
    cli: Cli, killed: dict[str, Any], wrong: list[str]
) -> None:
    assert cli("resolve", killed["id"], *wrong).returncode == 2


def test_a_step_that_is_not_in_doubt_cannot_be_answered(asked: Asked, killed: dict[str, Any]) -> None:
    asked("resolve", killed["id"], "--step", "nothing#1", "--again", code=3)


def test_a_rejected_task_fails_with_the_reason_and_is_never_proposed_again(
    cli: Cli, asked: Asked, killed: dict[str, Any]
) -> None:
    asked("reject", killed["id"], "--reason", "too late")
    task = asked("show", killed["task_id"])
    assert (task["status"], task["reason"], task["error"]["text"]) == ("failed", "rejected", "too late")
    assert not any(asked("recover").values())
    assert asked("confirmations")["confirmations"] == []
    assert [one["status"] for one in asked("confirmations", "--all")["confirmations"]] == ["rejected"]
    assert cli("confirmations").stdout == "nothing waits for a person\n"


def test_of_many_answers_at_once_one_is_taken_and_the_others_are_told_which(
    home: Path, killed: dict[str, Any]
) -> None:
    command = [sys.executable, "-m", "relight.workers.cli", "--json", "reject", killed["id"]]
    calls = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
        )
        for _ in range(8)
    ]
    answers = [(call.communicate()[0], call.returncode) for call in calls]
    assert sorted(code for _, code in answers) == [0] + [4] * 7
    late = [json.loads(text)["error"] for text, code in answers if code == 4]
    assert {(error["type"], error["decision"]) for error in late} == {("AlreadyDecidedError", "rejected")}
