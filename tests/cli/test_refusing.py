"""A state that cannot be opened is refused with its path by every verb, and is never replaced by an empty one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.workers import settings
from relight.workers.home import Home
from tests.conftest import Cli, environment

VERBS = [["list"], ["status"], ["enqueue", "elsewhere", "Go"], ["worker", "main"], ["recover"], ["init"]]


def truncated(home: Path) -> None:
    os.truncate(home / "state.db", 5000)


def emptied(home: Path) -> None:
    os.truncate(home / "state.db", 0)


def text(home: Path) -> None:
    (home / "state.db").write_text("shopping list\n" * 500, encoding="utf-8")


def lost_beside_its_log(home: Path) -> None:
    (home / "state.db").rename(home / "state.db-wal")


def everything(home: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in home.glob("state.db*")}


@pytest.fixture
def state(home: Path) -> Path:
    Home.open(settings.load()).close()
    return home


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    "damage", [truncated, emptied, text, lost_beside_its_log], ids=lambda fn: fn.__name__
)
def test_a_damaged_state_is_refused_and_left_as_it_is(
    state: Path, cli: Cli, damage: Callable[[Path], None], verb: list[str]
) -> None:
    damage(state)
    before = everything(state)
    done = cli(*verb)
    assert done.returncode == 7
    assert str(state) in done.stderr
    assert everything(state) == before


def test_a_state_without_permission_is_refused_and_left_as_it_is(state: Path, tmp_path: Path) -> None:
    before = everything(state)
    (state / "state.db").chmod(0o000)
    words = [sys.executable, "-m", "relight.workers.cli", "list"]
    done = subprocess.run(
        [*as_anybody(), *words], capture_output=True, text=True, env=environment(), cwd=tmp_path, check=False
    )
    (state / "state.db").chmod(0o600)
    assert done.returncode == 7
    assert f"{state / 'state.db'}: no permission" in done.stderr
    assert everything(state) == before


def as_anybody() -> list[str]:
    """What takes root's right to read everything from a command; nothing for other users."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root cannot be kept from reading here")
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", "--bounding-set", rights, "--inh-caps", rights]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_directory_in_a_place_that_does_not_exist_is_refused_and_not_made(
    tmp_path: Path, cli: Cli, verb: list[str]
) -> None:
    done = cli("--home", str(tmp_path / "missing" / "home"), *verb)
    assert done.returncode == 7
    assert "missing" in done.stderr
    assert not (tmp_path / "missing").exists()


def test_the_state_is_found_from_every_working_directory(state: Path, tmp_path: Path, cli: Cli) -> None:
    """A process manager that starts somewhere else gets the same state, not a new one."""
    project = tmp_path / "project"
    (project / "deep" / "below").mkdir(parents=True)
    (project / "relight.toml").write_text("", encoding="utf-8")
    env = {"RELIGHT_HOME": ""}
    assert cli("enqueue", "elsewhere", "Go", cwd=project, env=env).returncode == 0
    for folder in (project, project / "deep", project / "deep" / "below"):
        assert "Go" in cli("list", cwd=folder, env=env).stdout
    found = [path for path in project.rglob("state.db")]
    assert found == [project / ".relight" / "state.db"]
