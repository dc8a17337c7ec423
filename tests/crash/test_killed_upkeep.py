"""Upkeep that is killed at any point leaves a state that is whole: the old one, the new one, or a refusal that says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relight.models import blobs, inspection, schema, tasks, traces, transitions
from relight.models.blobs import BlobRef
from relight.models.database import Database
from relight.models.errors import StorageUnreadableError
from relight.models.tasks import AgentTask, RiskLevel
from relight.workers import restoring, settings, tidying, upgrading
from relight.workers.home import Home
from tests.conftest import ROOT, environment

NOW = 1_700_000_000_000
TASKS = 400
SEED = 20_261_129

REBUILD = """
def up(migrator, db):
    db.change("ALTER TABLE agent_tasks ADD COLUMN mood TEXT")
    db.change("CREATE TABLE notes (id INTEGER PRIMARY KEY, task_id TEXT NOT NULL, note TEXT NOT NULL)")
    db.change("INSERT INTO notes (task_id, note) SELECT id, task_prompt FROM agent_tasks")
    db.change("CREATE TABLE kv_new (queue TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, stored_at INTEGER,"
              " PRIMARY KEY (queue, key)) WITHOUT ROWID")
    db.change("INSERT INTO kv_new SELECT queue, key, value, stored_at FROM kv")
    db.change("DROP TABLE kv")
    db.change("ALTER TABLE kv_new RENAME TO kv")
    db.change("UPDATE agent_tasks SET mood = 'calm'")
"""


def fill(db: Database, count: int = TASKS, *, prefix: str = "t") -> None:
    page = [
        AgentTask.new(f"{prefix}{number}", "s", "explorer", f"prompt {number}", RiskLevel.LOW, now=NOW)
        for number in range(count)
    ]
    tasks.submit_many(db, page, now=NOW)
    with db.write():
        db.change_many(
            "INSERT INTO kv (queue, key, value) VALUES ('q', ?, ?)",
            [(str(n), b"x" * 200) for n in range(count)],
        )


def killed(work: str, template: Path, into: Path, *, points: int, **more: Any) -> list[dict[str, Any]]:
    """Do the work in copies of the template, killed at as many points; where each one is, and whether it was killed."""
    into.mkdir()
    order = {
        "work": work,
        "template": str(template),
        "into": str(into),
        "points": points,
        "seed": SEED,
        **more,
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "crash" / "killed_at.py"), json.dumps(order)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == points
    assert all(one["killed"] for one in told), "a kill missed the work"
    return told


def whole(db: Database) -> bool:
    return inspection.faults(db, whole=True) == [] and db.rows("PRAGMA foreign_key_check") == []


def count(db: Database, table: str) -> int:
    row = db.row(f"SELECT count(*) FROM {table}")
    return int(row[0]) if row else -1


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A closed state directory with tasks in it."""
    opened = Home.open(settings.load(home=tmp_path / "template", env={}))
    fill(opened.db)
    opened.close()
    return opened.path


# -- migrations -----------------------------------------------------------------------------------------------


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    """What is shipped, and one more that rebuilds a table."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for shipped in schema.MIGRATIONS.glob("[0-9]*.py"):
        (folder / shipped.name).write_bytes(shipped.read_bytes())
    (folder / "0900_rebuild.py").write_text(REBUILD, encoding="utf-8")
    return folder


def sql_of(db: Database) -> list[tuple[Any, ...]]:
    return db.rows("SELECT name, sql FROM sqlite_master ORDER BY name")


def test_a_migration_killed_at_thirty_points_is_finished_by_the_next_start(
    template: Path, migrations: Path, tmp_path: Path
) -> None:
    told = killed("migrate", template, tmp_path / "homes", points=30, migrations=str(migrations))
    clean = schema.open_existing(tmp_path / "homes" / "whole" / "state.db")
    expected = sql_of(clean)
    clean.close_all()
    for one in told:
        db = schema.open_existing(Path(one["home"]) / "state.db")
        schema.upgrade(db, now=NOW, directory=migrations)
        assert schema.upgrade(db, now=NOW, directory=migrations) == []
        assert sql_of(db) == expected, one
        assert whole(db), one
        counts = {table: count(db, table) for table in ("agent_tasks", "agent_events", "notes", "kv")}
        assert counts == dict.fromkeys(counts, TASKS), one
        assert db.row("SELECT count(*) FROM agent_tasks WHERE mood = 'calm'") == (TASKS,)
        assert db.row("SELECT count(*) FROM schema_migration WHERE name = '0900_rebuild'") == (1,)
        db.close_all()
        check_copies(Path(one["home"]))


def check_copies(home: Path) -> None:
    """Under its name each copy is whole, and as it was before."""
    copies = list((home / "backups").glob("before-*.db"))
    assert copies != []
    for file in copies:
        with inspection.look(file) as copy:
            assert whole(copy)
            assert count(copy, "agent_tasks") == TASKS
            assert copy.row("SELECT 1 FROM sqlite_master WHERE name = 'notes'") is None


# -- restores -------------------------------------------------------------------------------------------------


@pytest.fixture
def source(template: Path, tmp_path: Path) -> Path:
    """A backup of other content, with a blob."""
    opened = Home.open(settings.load(home=tmp_path / "other", env={}))
    fill(opened.db, 50, prefix="b")
    ref = blobs.store(opened.path / "blobs", b"large", limit=99)
    name_a_blob(opened.db, "b0", ref)
    made = upgrading.backup(opened.settings, tmp_path / "source")
    opened.close()
    return made.path


def name_a_blob(db: Database, task_id: str, ref: BlobRef) -> None:
    output = json.dumps({"$blob": {"sha256": ref.sha256, "size": ref.size}})
    with db.write():
        traces.append(db, task_id, traces.OUTCOME, f'{{"result":{{"output":{output}}}}}', attempt=1, now=NOW)


def leave_a_log(home: Path) -> None:
    """Let the last commit be in the log only, as after a kill."""
    script = (
        "import os, sys; from pathlib import Path; from relight.models import schema\n"
        "db = schema.open_existing(Path(sys.argv[1]))\n"
        "with db.write():\n    db.change(\"INSERT INTO kv (queue, key, value) VALUES ('q', 'in the log', 1)\")\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(home / "state.db")], env=environment(), check=False)
    assert inspection.has_log(home / "state.db")


@pytest.mark.parametrize("log", [False, True], ids=["closed", "with a log"])
def test_a_restore_killed_at_any_point_leaves_the_old_state_the_new_one_or_a_refusal(
    template: Path, source: Path, tmp_path: Path, log: bool
) -> None:
    if log:
        leave_a_log(template)
    told = killed("restore", template, tmp_path / "homes", points=16, source=str(source))
    found = {one["home"]: state_of(Path(one["home"]), log=log) for one in told}
    assert set(found.values()) <= ({"old", "new", "refused"} if log else {"old", "new"})
    for home in found:
        restoring.restore(Path(home), source, now=NOW + 1)
        assert state_of(Path(home), log=False) == "new"
        assert [file.name for file in Path(home).iterdir() if file.name.startswith(".")] == []


def state_of(home: Path, *, log: bool) -> str:
    """What a verb would find here: the old state with every commit, the new one, or a refusal (of an empty file)."""
    if (home / "state.db").stat().st_size == 0:
        with pytest.raises(StorageUnreadableError, match="restore it from a backup"):
            schema.open_existing(home / "state.db")
        return "refused"
    db = schema.open_existing(home / "state.db")
    try:
        assert whole(db)
        has_log_row = db.row("SELECT 1 FROM kv WHERE key = 'in the log'") is not None
        if count(db, "agent_tasks") == TASKS:
            assert has_log_row or not log, "a commit of the old state is gone"
            return "old"
        assert (count(db, "agent_tasks"), has_log_row) == (50, False)
        return "new"
    finally:
        db.close_all()


# -- backups and retention ------------------------------------------------------------------------------------


def test_a_backup_killed_at_any_point_is_whole_or_not_there(template: Path, tmp_path: Path) -> None:
    told = killed("backup", template, tmp_path / "homes", points=12)
    for one in told:
        home = Path(one["home"])
        made = home.parent / f"backup-of-{home.name}"
        if not made.exists():
            upgrading.backup(settings.load(home=home, env={}), made)
        with inspection.look(made / "state.db") as copy:
            assert whole(copy)
            assert count(copy, "agent_tasks") == TASKS
        assert (made / "policy.toml").exists()
        assert [
            file.name for file in home.parent.iterdir() if file.name.startswith(f".backup-of-{home.name}.")
        ] == []


def test_retention_killed_at_any_point_is_finished_by_the_next_pass(tmp_path: Path) -> None:
    opened = Home.open(settings.load(home=tmp_path / "template", env={}))
    fill(opened.db, 60)
    for number in range(0, 60, 2):
        transitions.cancel(opened.db, f"t{number}", by="ada", detail="{}", now=NOW)
    opened.close()
    for one in killed("prune", opened.path, tmp_path / "homes", points=12):
        again = Home.open(settings.load(home=Path(one["home"]), env={}))
        assert whole(again.db)
        tidying.tidy(again)
        assert count(again.db, "agent_tasks") == 30
        assert count(again.db, "agent_events") == 30
        assert whole(again.db)
        again.close()
