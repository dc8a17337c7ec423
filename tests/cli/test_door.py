"""What holds for every verb: how it is found, what it accepts, how its errors leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from relight.models import errors
from relight.workers.cli.door import VERBS
from tests.cli.conftest import Asked
from tests.conftest import Cli, environment


def test_help_names_every_verb_with_what_it_does(cli: Cli) -> None:
    shown = cli("--help").stdout
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.startswith("  ")}
    assert all(lines.get(verb) for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_accepts_the_common_options(cli: Cli, verb: str) -> None:
    done = cli(verb, "--help")
    assert done.returncode == 0
    assert {"--home", "--app", "--json"} <= set(done.stdout.replace(",", " ").split())


def test_without_a_verb_the_help_is_shown_and_the_exit_code_is_2(cli: Cli) -> None:
    done = cli()
    assert done.returncode == 2
    assert "confirmations" in done.stdout + done.stderr


def test_a_wrong_verb_is_answered_with_the_nearest_one(cli: Cli) -> None:
    done = cli("lst")
    assert done.returncode == 2
    assert "there is no verb 'lst'; did you mean list?" in done.stderr


def test_json_is_accepted_before_and_after_the_verb(cli: Cli, home: Path) -> None:
    assert cli("init").returncode == 0
    before, after = cli("--json", "list"), cli("list", "--json")
    assert json.loads(before.stdout) == json.loads(after.stdout) == {"tasks": [], "next_cursor": None}


def test_the_home_is_accepted_before_and_after_the_verb(cli: Cli, tmp_path: Path) -> None:
    for args in (["--home", "one", "init"], ["init", "--home", "one"]):
        assert json.loads(cli(*args, "--json").stdout) == {"home": str(tmp_path / "one")}


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["show", "nothing"], 3, "NotFoundError"),
        (["list", "--limit", "0"], 2, "BadParameter"),
        (["list", "--cursor", "x"], 2, "InputError"),
        (["lst"], 2, "UsageError"),
        (["show"], 2, "MissingParameter"),
        (["resolve", "x"], 2, "UsageError"),
        (["approve", "nothing"], 3, "NotFoundError"),
        (["-A", "gone.py", "enqueue", "x"], 2, "SettingError"),
    ],
)
def test_an_error_is_a_message_on_stderr_and_a_document_under_json(
    cli: Cli, home: Path, args: list[str], code: int, kind: str
) -> None:
    assert cli("init").returncode == 0
    plain, asked = cli(*args), cli(*args, "--json")
    assert plain.returncode == asked.returncode == code
    assert plain.stdout == ""
    error = json.loads(asked.stdout)["error"]
    assert (error["type"], error["exit_code"]) == (kind, code)
    assert error["message"] in plain.stderr.replace("\n", " ")


def test_a_setting_that_cannot_be_used_is_an_error_of_every_verb(cli: Cli, home: Path) -> None:
    done = cli("list", "--json", env={"RELIGHT_LEASE_MS": "soon"})
    assert done.returncode == 2
    assert "lease_ms = 'soon'" in json.loads(done.stdout)["error"]["message"]


def test_storage_that_cannot_be_used_is_exit_code_7(cli: Cli, home: Path) -> None:
    home.mkdir()
    (home / "state.db").write_text("not a database", encoding="utf-8")
    done = cli("list", "--json")
    assert done.returncode == 7
    assert json.loads(done.stdout)["error"]["type"] == "StorageUnreadableError"
    assert (home / "state.db").read_text(encoding="utf-8") == "not a database"


def test_the_exit_codes_are_those_of_the_contract() -> None:
    kinds = {
        1: errors.TaskFailedError,
        2: errors.InputError,
        3: errors.NotFoundError,
        4: errors.ConflictError,
        5: errors.WaitTimeoutError,
        6: errors.RefusedError,
        7: errors.StorageError,
    }
    assert {code: kind.exit_code for code, kind in kinds.items()} == {code: code for code in kinds}


def test_a_reader_that_has_seen_enough_is_no_error(asked: Asked, home: Path) -> None:
    asked("init")
    command = f"{sys.executable} -m relight.workers.cli list --help | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.stdout.startswith("Usage: relight list")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("relight conf", ["confirmations"]),
        ("relight --json pa", ["pause"]),
        ("relight list --st", ["--status"]),
        ("relight list --status runn", ["running"]),
    ],
)
def test_a_shell_completes_verbs_options_and_words(cli: Cli, words: str, completed: list[str]) -> None:
    env = {"_RELIGHT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = cli(env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(",", 1)[1] for line in done.stdout.splitlines()] == completed


def test_a_shell_is_not_disturbed_by_a_verb_that_does_not_exist(cli: Cli) -> None:
    done = cli(
        env={"_RELIGHT_COMPLETE": "bash_complete", "COMP_WORDS": "relight nothing ", "COMP_CWORD": "2"}
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_printed_for_it_to_read(cli: Cli, shell: str) -> None:
    done = cli(env={"_RELIGHT_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0
    assert f"_RELIGHT_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        *(
            ["list"],
            ["status"],
            ["confirmations"],
            ["show", "x"],
            ["trace", "x"],
            ["events", "x"],
            ["why", "x"],
        ),
        *(
            ["wait", "x"],
            ["cancel", "x"],
            ["retry", "x"],
            ["pause", "main"],
            ["unpause", "main"],
            ["approve", "x"],
        ),
    ],
    ids=lambda args: args[0],
)
def test_a_verb_that_reads_or_answers_loads_neither_huey_nor_pydantic(home: Path, args: list[str]) -> None:
    code = f"""
import sys
from relight.workers.cli import door
door.run({args!r})
sys.exit(",".join(name for name in ("huey", "pydantic", "asyncio", "psutil") if name in sys.modules) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
