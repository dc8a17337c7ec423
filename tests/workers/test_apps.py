"""The user's modules: found by name or file, loaded once, and told by name when they cannot be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.models.errors import SettingError
from relight.workers import apps


@pytest.fixture(autouse=True)
def imports_as_before() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def written(folder: Path, name: str, code: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(code, encoding="utf-8")
    return str(folder / name)


def test_a_file_is_a_module_of_its_own_name_and_finds_its_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "neighbour_of_mine.py", "X = 3")
    apps.load(
        [written(tmp_path, "my_agents.py", "from neighbour_of_mine import X\nclass Odd(Exception): pass")]
    )
    assert sys.modules["my_agents"].X == 3
    assert sys.modules["my_agents"].Odd.__module__ == "my_agents"


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = written(tmp_path, "my_agents.py", "import sys; sys.loads = getattr(sys, 'loads', 0) + 1")
    apps.load([file, file])
    apps.load([file])
    assert sys.__dict__.pop("loads") == 1


def test_two_files_of_one_name_and_one_named_like_the_standard_library_are_told_apart(tmp_path: Path) -> None:
    files = [written(tmp_path / name, "my_agents.py", f"X = {name!r}") for name in ("a", "b")]
    apps.load([*files, written(tmp_path, "queue.py", "X = 'q'")])
    loaded = {
        vars(module).get("X")
        for name, module in sys.modules.items()
        if name.startswith(("my_agents", "queue"))
    }
    assert {"a", "b", "q"} <= loaded
    assert "X" not in vars(sys.modules["queue"])


def test_a_module_is_found_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "my_package", "agents.py", "X = 1")
    monkeypatch.chdir(tmp_path)
    apps.load(["my_package.agents"])
    assert sys.modules["my_package.agents"].X == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nothing_like_this", "ModuleNotFoundError"),
        ("x = (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError.*bad_agents.py:1"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named_with_its_cause(tmp_path: Path, code: str, told: str) -> None:
    file = written(tmp_path, "bad_agents.py", code)
    with pytest.raises(SettingError, match=f"bad_agents.py' cannot be loaded: {told}"):
        apps.load([file])
    assert "bad_agents" not in sys.modules


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"gone\.py' cannot be loaded: FileNotFoundError"):
        apps.load([str(tmp_path / "gone.py")])


def test_a_module_that_enqueues_while_it_is_loaded_is_refused_with_its_line(tmp_path: Path) -> None:
    code = "from relight import ref\n\nref('elsewhere').enqueue('Go')\n"
    file = written(tmp_path, "my_agents.py", code)
    with pytest.raises(SettingError, match="my_agents.py:3 enqueues .*__main__"):
        apps.load([file])


def test_what_ends_the_process_and_what_is_raised_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"sys\.exit\(3\) .*ending\.py:2"):
        apps.load([written(tmp_path, "ending.py", "import sys\nsys.exit(3)\n")])
    with pytest.raises(SettingError) as caught:
        apps.load([str(tmp_path / "missing.py")])
    assert "apps.py" not in str(caught.value)


def test_a_file_that_was_edited_at_once_and_kept_its_size_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for version in (1, 2):
        app = written(tmp_path, "edited_at_once.py", f"VERSION = {version}\n")
        os.utime(app, (1_000_000_000, 1_000_000_000))
        apps.load([app])
        assert sys.modules.pop("edited_at_once").VERSION == version
