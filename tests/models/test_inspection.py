"""A look sees what is committed and changes nothing, whoever has the file open and whoever died with it."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relight.models import inspection, schema, tasks
from relight.models.database import Database
from relight.models.errors import StorageUnreadableError
from tests.conftest import environment
from tests.models.conftest import NOW, Claim, new_task

HOLDER = """
import sys; from pathlib import Path; from relight.models import database
db = database.Database(Path(sys.argv[1]), gate_ms=500, durability="power")
with db.write():
    db.change("INSERT INTO kv (queue, key, value) VALUES ('q', 'in the log', 1)")
print("ready", flush=True)
sys.stdin.readline()
"""


def everything(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(file.relative_to(folder)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def keys(path: Path) -> list[str]:
    with inspection.look(path) as db:
        assert inspection.faults(db) == []
        return [str(row[0]) for row in db.rows("SELECT key FROM kv")]


@pytest.fixture
def held(db: Database) -> subprocess.Popen[str]:
    """A process that has committed something into the log and has the file open."""
    db.close_all()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(db.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    process.send_signal(number)
    process.communicate()


@pytest.mark.parametrize("dies", [False, True], ids=["open elsewhere", "left by a killed process"])
def test_a_look_sees_the_log_and_changes_nothing(
    db: Database, held: subprocess.Popen[str], dies: bool
) -> None:
    if dies:
        end(held)
    before = everything(db.path.parent)
    assert keys(db.path) == ["in the log"]
    assert everything(db.path.parent) == before
    if not dies:
        end(held)


def test_a_look_at_a_file_that_nobody_has_open_creates_nothing(db: Database) -> None:
    tasks.submit(db, new_task(), now=NOW)
    db.close_all()
    before = everything(db.path.parent)
    with inspection.look(db.path) as looked:
        assert tasks.find(looked, "t1").id == "t1"
    assert everything(db.path.parent) == before


def test_a_log_that_cannot_be_read_without_writing_is_refused(
    db: Database, held: subprocess.Popen[str]
) -> None:
    end(held)
    db.path.with_name("state.db-shm").unlink()
    before = everything(db.path.parent)
    with pytest.raises(StorageUnreadableError, match="state.db-wal holds changes"), inspection.look(db.path):
        pass
    assert everything(db.path.parent) == before


def test_a_look_cannot_write(db: Database) -> None:
    db.close_all()
    with inspection.look(db.path) as looked, pytest.raises(StorageUnreadableError):
        looked.change("DELETE FROM kv")


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (b"", None),
        (b"shopping list\n" * 100, None),
        (b"SQLite format 3\0" + bytes(84), inspection.Header(is_wal=False, is_incremental=False)),
    ],
    ids=["empty", "text", "another database"],
)
def test_a_header_says_what_a_file_is(
    tmp_path: Path, content: bytes, header: inspection.Header | None
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert inspection.header(tmp_path / "file") == header


def test_damage_is_named(db: Database) -> None:
    db.close_all()
    size = db.path.stat().st_size
    with db.path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 4096)
    with inspection.look(db.path) as looked:
        assert inspection.faults(looked, whole=True) != []


def test_a_plan_tells_applied_pending_and_unknown(db: Database, tmp_path: Path) -> None:
    for name in ("0001_first_schema", "0900_later"):
        (tmp_path / f"{name}.py").write_text("def up(migrator, db): pass\n", encoding="utf-8")
    plan = inspection.plan(db, tmp_path)
    assert plan.applied["0001_first_schema"] == NOW
    assert plan.pending == ["0900_later"]
    assert plan.unknown == [name for name in plan.applied if name != "0001_first_schema"]
    assert inspection.plan(db, schema.MIGRATIONS).pending == []


def test_versions_are_counted_of_unfinished_tasks_that_began(db: Database, claim: Claim) -> None:
    for number in range(3):
        claim(f"t{number}")
    with db.write():
        db.change("UPDATE agent_tasks SET handler_version = '1+abc'")
    tasks.submit(db, new_task("t9"), now=NOW)
    assert inspection.recorded_versions(db) == [("explorer", "1+abc", 3)]
