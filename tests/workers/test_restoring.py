"""A restore happens whole, only while nobody uses the state, and keeps what it replaces."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.models import backups, schema, tasks, workers
from relight.models.errors import ConflictError, StorageFullError, StorageUnreadableError
from relight.models.tasks import AgentTask, RiskLevel
from relight.workers import restoring, settings, upgrading
from relight.workers.exclusive import Exclusive
from relight.workers.home import Home
from relight.workers.lock_files import HeldLock
from tests.conftest import environment, wait_until

NOW = 1_700_000_000_000

HOLDER = """
import sys; from relight.workers import settings; from relight.workers.home import Home
home = Home.open(settings.load())
home.db.rows("SELECT 1")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def backup(home: Path, tmp_path: Path) -> Path:
    """A backup of a state directory that holds the task `old`; the directory then gets `new` too, and is closed."""
    opened = Home.open(settings.load())
    submit(opened, "old")
    workers.insert(opened.db, id="w1", lane="main", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    made = upgrading.backup(opened.settings, tmp_path / "backup").path
    submit(opened, "new")
    opened.close()
    return made


@pytest.fixture
def holder(home: Path, backup: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the state open and does nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(RELIGHT_HOME=str(home)),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def submit(opened: Home, task_id: str) -> None:
    task = AgentTask.new(task_id, "s", "explorer", "a prompt", RiskLevel.LOW, now=NOW)
    tasks.submit(opened.db, task, now=NOW)


def ids(file: Path) -> list[str]:
    db = schema.open_existing(file)
    try:
        return sorted(task.id for task in tasks.listing(db)[0])
    finally:
        db.close_all()


def left(home: Path) -> set[str]:
    return {file.name for file in home.iterdir() if file.name not in ("locks", "bells", "blobs")}


def test_a_restore_brings_the_backup_back_and_keeps_what_it_replaces(home: Path, backup: Path) -> None:
    done = restoring.restore(home, backup, now=NOW)
    assert (done.tasks, done.missing, done.policy) == (1, [], "kept")
    assert ids(home / "state.db") == ["old"]
    assert done.replaced is not None
    assert ids(done.replaced) == ["new", "old"]
    assert left(home) == {"state.db", "policy.toml", "backups"}
    assert (home / "state.db").stat().st_mode & 0o777 == 0o600


def test_no_worker_of_the_backup_counts_as_alive(home: Path, backup: Path) -> None:
    restoring.restore(home, backup, now=NOW)
    db = schema.open_existing(home / "state.db")
    assert workers.alive(db) == []
    db.close_all()


def test_a_new_directory_gets_state_blobs_and_policy(tmp_path: Path, backup: Path) -> None:
    done = restoring.restore(tmp_path / "elsewhere", backup, now=NOW)
    assert (done.policy, done.replaced) == ("restored", None)
    assert ids(tmp_path / "elsewhere" / "state.db") == ["old"]
    assert left(tmp_path / "elsewhere") == {"state.db", "policy.toml"}


def test_a_policy_that_an_operator_removed_stays_away(home: Path, backup: Path) -> None:
    (home / "policy.toml").unlink()
    assert restoring.restore(home, backup, now=NOW).policy == "kept"
    assert not (home / "policy.toml").exists()


def test_the_log_of_a_killed_process_is_in_what_is_kept(
    home: Path, backup: Path, holder: subprocess.Popen[str]
) -> None:
    script = (
        "import os; from relight.workers import settings; from relight.workers.home import Home\n"
        "db = Home.open(settings.load()).db\n"
        "with db.write():\n    db.change(\"UPDATE agent_tasks SET lane = 'main' WHERE id = 'new'\")\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(), check=False)
    holder.kill()
    wait_until(lambda: holder.poll() is not None)
    assert (home / "state.db-wal").stat().st_size > 0
    done = restoring.restore(home, backup, now=NOW)
    assert done.replaced is not None
    kept = schema.open_existing(done.replaced)
    assert tasks.find(kept, "new").lane == "main"
    kept.close_all()
    assert not (home / "state.db-wal").exists()
    assert ids(home / "state.db") == ["old"]


def test_a_restore_is_refused_while_a_process_has_the_state_open(
    home: Path, backup: Path, holder: subprocess.Popen[str]
) -> None:
    before = (home / "state.db").stat().st_ino
    with pytest.raises(ConflictError, match=f"process {holder.pid} has the state open"):
        restoring.restore(home, backup, now=NOW)
    assert (home / "state.db").stat().st_ino == before
    holder.kill()
    wait_until(lambda: holder.poll() is not None)
    assert restoring.restore(home, backup, now=NOW).tasks == 1


def test_a_restore_is_refused_while_a_worker_lives(home: Path, backup: Path) -> None:
    lock = HeldLock.create(home / "locks" / "0123456789-0123456789-0123456789-012", "0" * 32)
    with pytest.raises(ConflictError, match="1 worker process run"):
        restoring.restore(home, backup, now=NOW)
    lock.close()


@pytest.mark.parametrize("name", ["migrate", "sweep", "tidy"])
def test_a_restore_is_refused_while_other_upkeep_runs(
    home: Path, backup: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "PATIENCE_S", 0.0)
    with Exclusive(home, name) as lock:
        assert lock.take()
        with pytest.raises(ConflictError, match=f"locks/{name}"):
            restoring.restore(home, backup, now=NOW)
    assert ids(home / "state.db") == ["new", "old"]


@pytest.mark.parametrize(
    "damage", [b"", b"shopping list\n" * 1000, None], ids=["truncated", "replaced by text", "lost"]
)
@pytest.mark.parametrize("log", [False, True], ids=["no log", "beside a log"])
def test_a_damaged_state_is_replaced_and_kept_with_its_log(
    home: Path, backup: Path, damage: bytes | None, log: bool
) -> None:
    (home / "state.db").unlink()
    if damage is not None:
        (home / "state.db").write_bytes(damage)
    if log:
        (home / "state.db-wal").write_bytes(b"frames of the old file")
    done = restoring.restore(home, backup, now=NOW)
    assert ids(home / "state.db") == ["old"]
    assert not (home / "state.db-wal").exists()
    kept = {file.name.removeprefix(f"replaced-{NOW}") for file in (home / "backups").glob("replaced-*")}
    assert kept == ({".db"} if damage else set()) | ({".db-wal"} if log else set())
    assert (done.replaced is not None) == bool(kept)


@pytest.mark.parametrize("content", [b"shopping list\n" * 1000, b""], ids=["text", "empty"])
def test_a_backup_that_cannot_be_used_changes_nothing(home: Path, backup: Path, content: bytes) -> None:
    (backup / "state.db").write_bytes(content)
    with pytest.raises(StorageUnreadableError):
        restoring.restore(home, backup, now=NOW)
    assert ids(home / "state.db") == ["new", "old"]
    assert left(home) == {"state.db", "policy.toml"}


def test_a_folder_in_the_place_of_the_state_is_refused(home: Path, backup: Path) -> None:
    (home / "state.db").unlink()
    (home / "state.db").mkdir()
    with pytest.raises(ConflictError, match="is a folder"):
        restoring.restore(home, backup, now=NOW)


def test_a_full_disk_is_told_as_one_and_changes_nothing(
    home: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(home / "file"))

    monkeypatch.setattr(backups, "_copy_file", full)
    with pytest.raises(StorageFullError, match=r"file: No space left on device"):
        restoring.restore(home, backup, now=NOW)
    assert ids(home / "state.db") == ["new", "old"]


def test_a_process_that_opens_the_state_while_it_is_replaced_gets_the_new_one(
    home: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote into the old one would be lost."""
    found: list[str] = []
    replace = restoring._replace

    def replace_beside_a_starter(state: Path, draft: Path, *, now: int) -> Path | None:
        script = (
            "from relight.workers import settings; from relight.workers.home import Home\n"
            "db = Home.open(settings.load()).db\n"
            "print(*sorted(row[0] for row in db.rows('SELECT id FROM agent_tasks')), flush=True)\n"
        )
        starter = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment()
        )
        wait_until(lambda: _has_open(starter.pid, state))
        kept = replace(state, draft, now=now)
        found.append("replaced")
        starters.append(starter)
        return kept

    starters: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(restoring, "_replace", replace_beside_a_starter)
    restoring.restore(home, backup, now=NOW)
    said, _ = starters[0].communicate(timeout=20)
    assert found == ["replaced"]
    assert said.split() == ["old"]


def _has_open(pid: int, file: Path) -> bool:
    import psutil

    try:
        return str(file) in [opened.path for opened in psutil.Process(pid).open_files()]
    except psutil.Error:
        return False
