"""A state directory: made whole at first use, never completed later, and opened once by a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relight.models import workers
from relight.models.errors import StorageUnreadableError
from relight.recovery.policy import DEFAULT_TEXT
from relight.workers import home as home_module
from relight.workers import settings
from relight.workers.home import Home
from tests.conftest import environment
from tests.workers.conftest import Crew


def test_a_directory_is_made_whole_at_first_use_for_its_owner_alone(home: Path) -> None:
    opened = Home.open(settings.load())
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "policy.toml").read_text(encoding="utf-8") == DEFAULT_TEXT
    assert (home / "state.db").exists()
    opened.close()


def test_a_policy_file_that_somebody_removed_stays_missing(home: Path) -> None:
    Home.open(settings.load()).close()
    (home / "policy.toml").unlink()
    Home.open(settings.load()).close()
    assert not (home / "policy.toml").exists()


def test_a_policy_file_that_was_there_first_stays_as_it_is(home: Path) -> None:
    home.mkdir()
    (home / "policy.toml").write_text("of an operator", encoding="utf-8")
    Home.open(settings.load()).close()
    assert (home / "policy.toml").read_text(encoding="utf-8") == "of an operator"


def test_a_directory_whose_parent_is_missing_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreadableError, match=str(tmp_path / "no" / "such")) as caught:
        Home.open(settings.load(home=tmp_path / "no" / "such"))
    assert caught.value.exit_code == 7
    assert not (tmp_path / "no").exists()


def test_a_file_in_its_place_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    with pytest.raises(StorageUnreadableError):
        Home.open(settings.load(home=tmp_path / "home"))
    assert (tmp_path / "home").read_text(encoding="utf-8") == "a file"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_module, "_opened", {})
    monkeypatch.setattr(home_module, "_adopted", None)


def test_the_current_directory_is_opened_once_for_each_environment(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "one"))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(Home.current()), range(8)))
    assert found == {id(Home.current())}
    one = Home.current()
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "two"))
    two = Home.current()
    assert (one.path, two.path) == (tmp_path / "one", tmp_path / "two")
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "one"))
    assert Home.current() is one
    two.adopt()
    assert Home.current() is two
    one.close()
    two.close()


def test_the_same_directory_seen_from_two_folders_is_one(
    fresh: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Home.current()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Home.current() is first
    first.close()


def test_importing_opens_nothing(tmp_path: Path) -> None:
    code = "import relight; from relight import agent, step, Run, get_task; from relight.workers import home, execution"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tmp_path,
        env=environment(RELIGHT_HOME=str(tmp_path / "h")),
    )
    assert list(tmp_path.iterdir()) == []


def test_a_process_becomes_an_owner_at_its_first_claim_and_is_one(crew: Crew) -> None:
    assert not crew.home.claimant
    assert workers.alive(crew.db) == []
    start = threading.Barrier(4)

    def ask(_: int) -> str:
        start.wait(10)
        return crew.home.owner("main").id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    assert crew.home.claimant is crew.owner
    assert [row.id for row in workers.alive(crew.db)] == [crew.owner.id]
    assert (crew.home.path / "locks" / crew.owner.id).exists()


def test_an_owner_that_has_ended_is_followed_by_a_new_one(crew: Crew) -> None:
    first = crew.owner
    crew.die()
    assert not crew.home.claimant
    assert crew.owner.id != first.id


def test_closing_signs_off_where_nothing_runs_any_more(home: Path) -> None:
    opened = Home.open(settings.load())
    opened.owner("main")
    opened.close()
    again = Home.open(settings.load())
    assert workers.alive(again.db) == []
    busy = again.owner("main")
    busy.take("t1", 1)
    again.close()
    last = Home.open(settings.load())
    assert [row.id for row in workers.alive(last.db)] == [busy.id]
    last.close()


def test_a_bell_is_hung_once_for_its_topics(crew: Crew) -> None:
    assert crew.home.bell("main", "watch") is crew.home.bell("watch", "main")
    assert crew.home.bell("main") is not crew.home.bell("main", "watch")


def test_a_commit_rings_the_bells_of_its_directory(crew: Crew) -> None:
    bell = crew.home.bell("subagent")
    bell.start()
    seen = bell.generation
    with crew.db.write():
        crew.db.touch("subagent")
    assert bell.wait(seen, 10) > seen


def test_time_is_what_the_test_clock_says(home: Path, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("1700000000000", encoding="utf-8")
    opened = Home.open(settings.load(test_clock=clock))
    assert opened.now() == 1_700_000_000_000
    clock.write_text("1700000000001", encoding="utf-8")
    assert opened.now() == 1_700_000_000_001
    opened.close()


def test_a_directory_goes_on_after_it_was_closed(crew: Crew) -> None:
    crew.home.close()
    assert crew.db.row("SELECT 1") == (1,)
    assert crew.owner.alive
    assert os.getpid() == crew.owner.pid
