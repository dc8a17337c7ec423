"""Flag beats environment beats relight.toml beats default, and a bad value is refused with its name and source."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from platformdirs import user_state_path

from relight.models.errors import SettingError
from relight.workers import settings
from relight.workers.settings import SETTINGS, Settings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def load(folder: Path, env: dict[str, str] | None = None, toml: str | None = None, **flags: Any) -> Settings:
    if toml is not None:
        (folder / "relight.toml").write_text(toml, encoding="utf-8")
    return settings.load(env=env or {}, cwd=folder, **flags)


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    assert load(tmp_path).lease_ms == 30_000
    assert load(tmp_path, toml="lease_ms = 1_000").lease_ms == 1_000
    assert load(tmp_path, env={"RELIGHT_LEASE_MS": "2000"}).lease_ms == 2_000
    assert load(tmp_path, env={"RELIGHT_LEASE_MS": "2000"}, lease_ms="3000").lease_ms == 3_000
    assert load(tmp_path, env={"RELIGHT_LEASE_MS": "2000"}, lease_ms=None).lease_ms == 2_000


def test_the_home_is_beside_the_nearest_file_going_up(tmp_path: Path) -> None:
    (tmp_path / "relight.toml").touch()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert load(below).home == tmp_path / ".relight"
    assert load(below, env={"RELIGHT_HOME": "elsewhere"}).home == below / "elsewhere"
    assert load(below, env={"RELIGHT_HOME": "elsewhere"}, home=Path("/given")).home == Path("/given")


def test_without_a_file_the_home_is_the_users_state_directory(tmp_path: Path) -> None:
    assert load(tmp_path).home == user_state_path("relight")


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, env={"RELIGHT_HOME": "", "RELIGHT_LEASE_MS": ""}).lease_ms == 30_000


def test_agent_files_are_found_from_where_they_were_named(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    load(tmp_path, toml='app = ["agents.py", "pkg.mod"]')
    assert load(below).app == (str(tmp_path / "agents.py"), "pkg.mod")
    assert load(below, env={"RELIGHT_APP": "x.py, pkg.other"}).app == (str(below / "x.py"), "pkg.other")


@pytest.mark.parametrize(
    ("value", "main", "subagent"),
    [("3", 3, 3), ("main=5", 5, 4), ("main=5,subagent=1", 5, 1), (" subagent = 9 ", 2, 9)],
)
def test_concurrency_is_one_number_or_one_for_each_lane(
    tmp_path: Path, value: str, main: int, subagent: int
) -> None:
    found = load(tmp_path, env={"RELIGHT_CONCURRENCY": value})
    assert (found.main_concurrency, found.subagent_concurrency) == (main, subagent)


def test_concurrency_may_be_a_table_in_the_file(tmp_path: Path) -> None:
    found = load(tmp_path, toml="[concurrency]\nmain = 7")
    assert (found.main_concurrency, found.subagent_concurrency) == (7, 4)


BAD = [
    ("lease_ms", "soon"),
    ("lease_ms", "99"),
    ("lease_ms", "1.5"),
    ("lease_ms", str(1 << 63)),
    ("sweep_ms", "0"),
    ("max_losses", "0"),
    ("grace_ms", "-1"),
    ("gate_ms", "½"),
    ("poll_ms", "never"),
    ("durability", "eventually"),
    ("concurrency", "0"),
    ("concurrency", "main"),
    ("concurrency", "main=x"),
    ("concurrency", "background=2"),
    ("max_payload_bytes", "0"),
    ("max_blob_bytes", "1 GiB"),
    ("log_format", "xml"),
    ("log_level", "loud"),
    ("app", "my agents"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_with_its_name_value_and_source(tmp_path: Path, name: str, value: str) -> None:
    variable = f"RELIGHT_{name.upper()}"
    with pytest.raises(SettingError) as refusal:
        load(tmp_path, env={variable: value})
    assert f"{name} = {value!r}, from the environment variable {variable}" in str(refusal.value)
    with pytest.raises(SettingError, match=f"from the flag --{name.replace('_', '-')}"):
        load(tmp_path, **{name: value})
    with pytest.raises(SettingError) as refusal:
        load(tmp_path, toml=f'{name} = "{value}"')
    assert str(tmp_path / "relight.toml") in str(refusal.value)


@pytest.mark.parametrize(
    "toml", ["lease_ms = true", "lease_ms = 1.5", "lease_ms = [1]", "home = 3", "app = [1]"]
)
def test_a_value_of_the_wrong_kind_in_the_file_is_refused(tmp_path: Path, toml: str) -> None:
    with pytest.raises(SettingError, match="relight.toml"):
        load(tmp_path, toml=toml)


def test_a_name_that_is_no_setting_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="leese_ms, from .*did you mean lease_ms"):
        load(tmp_path, toml="leese_ms = 3")


def test_a_file_that_is_not_toml_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="relight.toml cannot be read"):
        load(tmp_path, toml="= 3")


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    names = {setting.name for setting in SETTINGS} - {"concurrency"}
    assert names == {field.name for field in fields(Settings)} - {"main_concurrency", "subagent_concurrency"}


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    rows = {cells[1].strip("` "): cells for line in lines if len(cells := line.split("|")) == 6}
    for setting in SETTINGS:
        assert setting.name in rows, f"docs/operations.md has no row for {setting.name}"
        assert rows[setting.name][2].strip("` ") == setting.variable
        default = getattr(Settings(home=Path()), setting.name, None)
        if isinstance(default, int | str):
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert rows[setting.name][3].strip("` ") == shown


def test_a_child_reads_the_same_settings_from_its_environment(tmp_path: Path) -> None:
    told = load(
        tmp_path,
        env={"RELIGHT_CONCURRENCY": "main=7", "RELIGHT_TEST_CLOCK": "clock"},
        app="a.py,b",
        lease_ms=123,
    )
    (tmp_path / "elsewhere").mkdir()
    assert settings.load(env=settings.environment(told), cwd=tmp_path / "elsewhere") == told
