"""What is installed: the rooms below `relight`, whole and real, with no redis and a front door that loads nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import relight
from tests.conftest import ROOT, environment

LINKS = ("models", "recovery", "workers")
SOURCES = {"relight": "relight", **{f"relight/{name}": name for name in (*LINKS, "examples")}}
KEPT = {".py", ".typed", ".sql", ".html", ".css", ".js"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements() -> list[str]:
    listed = project()["project"]
    return [
        *listed["dependencies"],
        *(one for extra in listed["optional-dependencies"].values() for one in extra),
    ]


def in_a_new_process(code: str) -> Any:
    """What `code` prints as JSON, in a Python that has imported nothing before, no coverage either."""
    env = {name: value for name, value in environment().items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    return json.loads(done.stdout)


def files_of_the_folders() -> set[str]:
    found = set()
    for installed, folder in SOURCES.items():
        for parent, folders, names in os.walk(ROOT / folder):  # does not follow links
            folders[:] = [name for name in folders if name != "__pycache__"]
            below = Path(installed) / Path(parent).relative_to(ROOT / folder)
            found |= {str(below / name) for name in names if Path(name).suffix in KEPT}
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a clone whose links are plain files, as git makes them with core.symlinks=false."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for folder in SOURCES.values():
        shutil.copytree(
            ROOT / folder, clone / folder, ignore=shutil.ignore_patterns(*LINKS, "__pycache__"), symlinks=True
        )
    for name in LINKS:
        shutil.copytree(
            ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
        (clone / "relight" / name).write_text(f"../{name}", encoding="utf-8")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(clone),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (made,) = out.glob("relight-*.whl")
    return made


def test_the_wheel_holds_the_folders_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert held == files_of_the_folders()


def test_every_room_and_sub_room_is_listed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packages = {
            str(Path(name).parent).replace("/", ".")
            for name in archive.namelist()
            if name.endswith("/__init__.py")
        }
    listed = set(project()["tool"]["setuptools"]["packages"])
    assert packages <= listed


def test_the_installed_wheel_imports_from_its_own_files(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import relight.workers.settings as s, relight.models.errors as e; print(s.__file__, e.__file__)"
    env = environment(PYTHONPATH=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, check=True, cwd=tmp_path
    )
    assert all(path.startswith(f"{tmp_path}/relight/") for path in done.stdout.split())


def test_no_requirement_is_redis() -> None:
    assert [one for one in requirements() if "redis" in one.lower()] == []
    assert "redis" not in (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()


def test_importing_relight_loads_no_redis_that_happens_to_be_installed(tmp_path: Path) -> None:
    """Huey's storage takes a redis where it finds one, so nothing loads Huey before a lane is used."""
    (tmp_path / "redis.py").write_text("raise SystemExit('redis was imported')", encoding="utf-8")
    code = "import relight, relight.models.state, relight.recovery.sweep, relight.workers.cli"
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_importing_every_module_loads_no_redis() -> None:
    code = """
import importlib, json, pkgutil, sys
import relight
names = [m.name for m in pkgutil.walk_packages(relight.__path__, "relight.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(json.dumps([len(names), sorted(name for name in sys.modules if "redis" in name.split("."))]))
"""
    count, loaded = in_a_new_process(code)
    assert count > 20
    assert loaded == []


def test_importing_relight_loads_nothing_heavy() -> None:
    code = "import json, sys, relight; print(json.dumps(sorted(sys.modules)))"
    loaded = in_a_new_process(code)
    assert {name.split(".")[0] for name in loaded}.isdisjoint(
        {"asyncio", "click", "cysqlite", "huey", "peewee", "playhouse", "pydantic", "rich", "sqlite3"}
    )
    assert [name for name in loaded if name.startswith("relight.")] == []


def test_the_front_door_gives_exactly_its_sorted_names() -> None:
    assert relight.__all__ == sorted(relight.__all__)
    assert set(relight._HOMES) | {"errors"} == set(relight.__all__)
    assert {name: getattr(relight, name).__name__.split(".")[-1] for name in relight.__all__} == {
        name: name for name in relight.__all__
    }


def test_checkers_see_the_names_that_the_front_door_gives() -> None:
    source = (ROOT / "relight" / "__init__.py").read_text(encoding="utf-8")
    block = source.split("if TYPE_CHECKING:\n")[1].split("\n\n")[0]
    seen = {name.strip() for line in block.splitlines() for name in line.split(" import ")[1].split(",")}
    assert seen == set(relight.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = relight.nothing  # type: ignore[attr-defined]  # that is the point
    assert set(relight.__all__) <= set(dir(relight))


def test_every_requirement_is_pinned_for_checks() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.split("==")[0].lower().replace("_", "-") for line in lines if not line.startswith("#")}
    names = {re.split(r"[\[<>=~ ]", one)[0].lower().replace("_", "-") for one in requirements()}
    assert names <= pins
    assert all(line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
