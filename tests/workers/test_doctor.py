"""The doctor names what is wrong and what to do about it, works where nothing else does, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relight.workers import settings
from relight.workers.home import Home
from tests.conftest import Cli, StartWorker, environment, wait_until

AGENTS = """
from relight import agent, step

@step(effect="read")
def look() -> int:
    return 1

@agent(risk="low", version={version})
def explorer(run, prompt: str) -> int:
    return look(){more}
"""

Examined = Callable[..., dict[str, Any]]


@pytest.fixture
def state(home: Path) -> Path:
    """A state directory that nobody has open."""
    Home.open(settings.load()).close()
    return home


@pytest.fixture
def examined(cli: Cli) -> Examined:
    """The findings of `relight doctor` by check, the worst of each; its exit code must be `code`."""

    def examine(*args: str, code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
        done = cli("--json", *args, "doctor", env=env)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout)
        order = ["ok", "warning", "fault"]
        assert document["level"] == max((one["level"] for one in document["checks"]), key=order.index)
        found: dict[str, Any] = {}
        for one in sorted(document["checks"], key=lambda one: order.index(one["level"])):
            assert one["text"]
            assert bool(one["advice"]) == (one["level"] != "ok")
            found[one["check"]] = one
        return found

    return examine


def everything(folder: Path) -> dict[str, Any]:
    """All there is below a folder: content, times, modes."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        is_file = stat.S_ISREG(file.lstat().st_mode)
        content = hashlib.sha256(file.read_bytes()).hexdigest() if is_file else ""
        found[str(file.relative_to(folder))] = (file.lstat().st_mode, file.lstat().st_mtime_ns, content)
    return found


def levels(found: dict[str, Any]) -> dict[str, str]:
    return {
        check: one["level"] for check, one in found.items() if one["level"] != "ok" and check != "free space"
    }


# -- a healthy home -------------------------------------------------------------------------------------------


def test_a_healthy_home_has_no_fault_and_every_check_says_what_it_saw(
    state: Path, examined: Examined
) -> None:
    before = everything(state)
    found = examined()
    assert levels(found) in ({}, {"file system": "warning"})
    assert {
        *(
            "sqlite",
            "file system",
            "free space",
            "fsync",
            "permissions",
            "policy",
            "write lock",
            "state file",
        ),
        *("modes", "schema", "integrity", "workers"),
    } <= set(found)
    assert everything(state) == before


def test_a_home_with_a_living_worker_is_healthy_and_left_alone(
    state: Path, tmp_path: Path, examined: Examined, start_worker: StartWorker, cli: Cli
) -> None:
    app = tmp_path / "agents_of_doctor.py"
    app.write_text(AGENTS.format(version=1, more=""), encoding="utf-8")
    start_worker(state, app, "all")
    task = json.loads(cli("--json", "-A", str(app), "enqueue", "explorer", "go").stdout)["id"]
    assert cli("wait", task, "--timeout", "20").returncode == 0
    found = examined()
    assert levels(found) in ({}, {"file system": "warning"})
    assert "alive" in found["workers"]["text"]


def test_for_people_each_check_is_a_line_and_advice_follows_it(state: Path, cli: Cli) -> None:
    (state / "policy.toml").unlink()
    done = cli("doctor")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    (at,) = [number for number, line in enumerate(lines) if line.startswith("fault    policy")]
    assert lines[at + 1].strip().startswith("→")
    assert any(line.startswith("ok       sqlite") for line in lines)


# -- sick homes -----------------------------------------------------------------------------------------------


def truncated(home: Path) -> None:
    os.truncate(home / "state.db", 5000)


def emptied(home: Path) -> None:
    os.truncate(home / "state.db", 0)


def text(home: Path) -> None:
    (home / "state.db").write_text("shopping list\n" * 500, encoding="utf-8")


def overwritten(home: Path) -> None:
    with (home / "state.db").open("r+b") as file:
        file.seek(12 * 4096)
        file.write(b"\xff" * 8192)


def newer(home: Path) -> None:
    opened = Home.open(settings.load())
    with opened.db.write():
        opened.db.change("INSERT INTO schema_migration (name, applied) VALUES ('0999_future', 1)")
    opened.close()


def lost(home: Path) -> None:
    (home / "state.db").unlink()


def a_folder(home: Path) -> None:
    lost(home)
    (home / "state.db").mkdir()


def no_policy(home: Path) -> None:
    (home / "policy.toml").unlink()


def broken_policy(home: Path) -> None:
    (home / "policy.toml").write_text("version = 1\n[recovery]\nlow = 'always'\n", encoding="utf-8")


def unusable(home: Path) -> None:
    (home / "state.db").chmod(0o000)


def open_to_others(home: Path) -> None:
    (home / "policy.toml").chmod(0o666)


def not_wal(home: Path) -> None:
    with (home / "state.db").open("r+b") as file:
        file.seek(18)
        file.write(b"\1\1")


@pytest.mark.parametrize(
    ("damage", "check", "words"),
    [
        (truncated, "state file", "damaged"),
        (emptied, "state file", "truncated"),
        (text, "state file", "is no database"),
        (overwritten, "integrity", "damaged"),
        (newer, "schema", "0999_future"),
        (lost, "state file", "does not exist"),
        (a_folder, "state file", "does not exist"),
        (no_policy, "policy", "missing"),
        (broken_policy, "policy", "low"),
        (unusable, "permissions", "mode 0000"),
        (open_to_others, "permissions", "others may change it"),
        (not_wal, "modes", "write-ahead log is off"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_sick_home_gets_a_fault_that_names_it_and_nothing_is_changed(
    state: Path, examined: Examined, damage: Callable[[Path], None], check: str, words: str
) -> None:
    damage(state)
    before = everything(state)
    found = examined(code=1)
    assert found[check]["level"] == "fault"
    assert words in found[check]["text"]
    assert everything(state) == before


def test_a_home_that_is_not_there_is_a_fault_and_is_not_made(home: Path, examined: Examined) -> None:
    assert examined(code=1)["home"]["level"] == "fault"
    assert not home.exists()


def test_a_home_that_others_may_read_is_a_warning(state: Path, examined: Examined) -> None:
    state.chmod(0o755)
    assert "chmod 700" in examined()["permissions"]["advice"]


def test_an_older_schema_is_a_warning_and_is_not_migrated(state: Path, examined: Examined) -> None:
    opened = Home.open(settings.load())
    with opened.db.write():
        opened.db.change("DELETE FROM schema_migration WHERE name = '0003_retention'")
    opened.close()
    before = everything(state)
    assert "relight migrate" in examined()["schema"]["advice"]
    assert everything(state) == before


def test_a_log_that_nobody_has_applied_is_told(state: Path, examined: Examined) -> None:
    script = (
        "import os; from relight.workers import settings; from relight.workers.home import Home\n"
        "db = Home.open(settings.load()).db\n"
        "with db.write():\n    db.change(\"INSERT INTO kv (queue, key, value) VALUES ('q', 'k', 1)\")\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(), check=False)
    assert examined()["integrity"]["level"] == "ok"
    (state / "state.db-shm").unlink()
    before = everything(state)
    assert "state.db-wal holds changes" in examined()["state file"]["text"]
    assert everything(state) == before


def can_mount() -> bool:
    return os.geteuid() == 0 and sys.platform == "linux"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(folder)]
    if not can_mount() or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_a_fault_that_says_so(small_disk: Path, examined: Examined) -> None:
    Home.open(settings.load(home=small_disk)).close()
    with (small_disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError:
            pass
    found = examined("--home", str(small_disk), code=1)
    assert found["free space"]["level"] == "fault"
    assert "No space left" in found["fsync"]["text"]
    assert found["integrity"]["level"] == "ok"


def test_a_read_only_folder_is_a_fault_that_says_so(small_disk: Path, examined: Examined) -> None:
    Home.open(settings.load(home=small_disk)).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = examined("--home", str(small_disk), code=1)
    assert "Read-only" in found["fsync"]["text"]
    assert found["integrity"]["level"] == "ok"


# -- who works here -------------------------------------------------------------------------------------------

HOLDER = """
import sys
from relight.workers import settings
from relight.workers.home import Home
home = Home.open(settings.load())
{hold}
"""
IN_A_TRANSACTION = """
with home.db.write():
    home.db.change("INSERT INTO kv (queue, key, value) VALUES ('q', 'k', 1)")
    print("ready", flush=True)
    sys.stdin.readline()
"""
IN_THE_GATE = """
home.db.gate.acquire()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def hold(state: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a process that holds something until it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER.format(hold=code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(RELIGHT_HOME=str(state)),
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_is_stopped_inside_a_transaction_is_named(
    hold: Callable[[str], subprocess.Popen[str]], examined: Examined
) -> None:
    process = hold(IN_A_TRANSACTION)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    found = examined(code=1)["write lock"]
    assert found["level"] == "fault"
    assert f"process {process.pid} (" in found["text"]
    assert "stopped" in found["text"]
    assert f"kill -CONT {process.pid}" in found["advice"]


def test_a_process_that_stays_in_the_gate_is_named(
    hold: Callable[[str], subprocess.Popen[str]], examined: Examined
) -> None:
    process = hold(IN_THE_GATE)
    found = examined()["write lock"]
    assert found["level"] == "warning"
    assert f"process {process.pid} (" in found["text"]


@pytest.fixture
def busy(state: Path, tmp_path: Path, start_worker: StartWorker, cli: Cli) -> Any:
    """A worker that has claimed something, so that it is known, with a short lease."""
    app = tmp_path / "agents_of_doctor.py"
    app.write_text(AGENTS.format(version=1, more=""), encoding="utf-8")
    worker = start_worker(state, app, "subagent", env={"RELIGHT_LEASE_MS": "1000"})
    task = json.loads(cli("--json", "-A", str(app), "enqueue", "explorer", "go").stdout)["id"]
    assert cli("wait", task, "--timeout", "20").returncode == 0
    return worker


def test_a_stopped_worker_is_named_by_its_lease_that_does_not_move(busy: Any, examined: Examined) -> None:
    busy.signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(busy.pid).status() == psutil.STATUS_STOPPED)
    found = examined(code=1, env={"RELIGHT_LEASE_MS": "1000"})["workers"]
    assert f"pid {busy.pid} " in found["text"]
    assert "its lease does not move (the process is stopped)" in found["text"]
    busy.signal(signal.SIGCONT)


def test_a_worker_that_died_unnoticed_is_named_and_not_buried(
    busy: Any, state: Path, examined: Examined
) -> None:
    busy.kill()
    found = examined()["workers"]
    assert found["level"] == "warning"
    assert "died, and nobody has noticed yet" in found["text"]
    opened = Home.open(settings.load())
    assert opened.db.row("SELECT dead_at FROM workers") == (None,)
    opened.close()
    assert [file for file in (state / "locks").iterdir() if len(file.name) == 36] != []


def test_a_lock_file_that_is_gone_is_named(busy: Any, state: Path, examined: Examined) -> None:
    for file in (state / "locks").iterdir():
        if len(file.name) == 36:
            file.unlink()
    assert "cannot be proved" in examined()["workers"]["text"]


def test_tasks_that_wait_for_a_worker_are_told(state: Path, examined: Examined, cli: Cli) -> None:
    cli("enqueue", "explorer", "go")
    assert "1 in subagent" in examined()["workers"]["text"]


# -- versions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "more", "level", "words"),
    [
        (1, "", "ok", "can go on"),
        (1, " + 1", "warning", "the source has changed"),
        (2, "", "fault", "recorded by version 1, loaded is 2"),
    ],
)
def test_unfinished_tasks_are_compared_with_the_loaded_agents(
    state: Path, tmp_path: Path, examined: Examined, version: int, more: str, level: str, words: str
) -> None:
    app = tmp_path / "agents_of_doctor.py"
    app.write_text(AGENTS.format(version=1, more=""), encoding="utf-8")
    script = (
        "from relight.workers import apps, agents, settings; from relight.workers.home import Home\n"
        "from relight.models import claims\n"
        f"apps.load([{str(app)!r}])\n"
        "home = Home.current(); agents.ref('explorer').enqueue('go')\n"
        "claims.claim(home.db, 'subagent', worker_id='w', now=1, known=frozenset({'explorer'}))\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True, capture_output=True)
    app.write_text(AGENTS.format(version=version, more=more), encoding="utf-8")
    found = examined("-A", str(app), code=int(level == "fault"))["handler versions"]
    assert found["level"] == level
    assert words in found["text"]


def test_an_app_that_cannot_be_loaded_is_a_fault(state: Path, tmp_path: Path, examined: Examined) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    found = examined("-A", str(tmp_path / "broken.py"), code=1)["handler versions"]
    assert "nothing_of_this_name" in found["text"]


def test_an_app_that_uses_another_sqlite_is_warned(state: Path, tmp_path: Path, examined: Examined) -> None:
    """After the agents are loaded: the check of the library comes last."""
    (tmp_path / "with_sqlite.py").write_text("import sqlite3\n", encoding="utf-8")
    found = examined("-A", str(tmp_path / "with_sqlite.py"))["sqlite"]
    assert "with_sqlite" in found["text"]
