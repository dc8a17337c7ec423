"""A state file is created whole, upgraded in place or refused with path and cause; it is never replaced."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cysqlite
import peewee
import pytest

from relight.models import errors, schema, tasks
from relight.models.database import Database
from tests.conftest import ROOT, environment
from tests.models.conftest import NOW, new_task

GOLDEN = ROOT / "models" / "schema.sql"
TABLES = {
    *("agent_tasks", "task_traces", "agent_events", "workers", "confirmations", "confirmation_steps"),
    *("recovery_runs", "schema_migration", "task", "kv", "schedule", "counter"),
    *("lane_pauses", "upkeep_marks"),
}


DANGLING = """
    db.change('CREATE TABLE moods (x)')
    db.change('PRAGMA defer_foreign_keys = 1')
    db.change(
        "INSERT INTO task_traces (task_id, step_index, event_kind, event_json, timestamp)"
        " VALUES ('nobody', 0, 'k', '{}', 0)"
    )
"""


def statements(db: Database) -> list[str]:
    """The schema of a file as SQL, in a stable order and spacing."""
    found = db.rows(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY tbl_name, type DESC, name"
    )
    return [f"{indented(sql)};" for (sql,) in found]


def indented(sql: str) -> str:
    first, *rest = [line.strip() for line in sql.strip().splitlines()]
    return "\n".join([first, *(line if line == ")" else f"    {line}" for line in rest if line)])


def plain(statement: str) -> str:
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", statement)).strip().lower()


def tables(db: Database) -> set[str]:
    return {
        row[0]
        for row in db.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def migration(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    for shipped in schema.MIGRATIONS.glob("[0-9]*.py"):
        (folder / shipped.name).write_bytes(shipped.read_bytes())
    (folder / f"{name}.py").write_text(f"def up(migrator, db):\n    {body}\n", encoding="utf-8")


def stamps(db: Database) -> list[str]:
    return [row[0] for row in db.rows("SELECT name FROM schema_migration ORDER BY name")]


@pytest.mark.spec(13)
def test_a_new_path_gets_every_table_and_is_for_its_owner_alone(path: Path) -> None:
    db = schema.open_database(path, now=NOW)
    assert tables(db) == TABLES
    assert path.stat().st_mode & 0o777 == 0o600
    assert db.row("SELECT applied FROM schema_migration") == (NOW,)
    assert sorted(file.name for file in path.parent.iterdir() if "draft" in file.name) == []
    db.close_all()


@pytest.mark.spec(13)
def test_opening_twice_changes_nothing(path: Path) -> None:
    schema.open_database(path, now=NOW).close_all()
    before = digest(path)
    for later in (1, 2):
        schema.open_database(path, now=NOW + later).close_all()
    assert digest(path) == before


def test_a_file_made_at_the_beginning_of_time_opens_again(path: Path) -> None:
    for _ in range(2):
        schema.open_database(path, now=0).close_all()


def test_the_golden_schema_is_what_a_new_file_holds(db: Database) -> None:
    text = "\n\n".join(statements(db)) + "\n"
    assert GOLDEN.read_text(encoding="utf-8") == text, (
        "models/schema.sql is stale; write it anew with: python -m tests.models.golden_schema"
    )


def test_a_file_made_by_the_migrations_equals_one_made_by_the_models(db: Database, tmp_path: Path) -> None:
    made = cysqlite.Connection(str(tmp_path / "models.db"))
    models = peewee.SqliteDatabase(None)
    statements_of_models: list[str] = []
    with models.bind_ctx(schema.MODELS):
        for model in schema.MODELS:
            manager = model._schema
            statements_of_models.append(manager._create_table(safe=False).query()[0])
            statements_of_models += [context.query()[0] for context in manager._create_indexes(safe=False)]
    made.close()
    ours = {plain(sql.rstrip(";")) for sql in statements(db)}
    assert [sql for sql in map(plain, statements_of_models) if sql not in ours] == []


def test_every_column_of_the_models_is_in_the_file_with_its_default(db: Database) -> None:
    for model in schema.MODELS:
        columns = {row[1]: row[4] for row in db.rows(f"PRAGMA table_info({model._meta.table_name})")}
        assert list(columns) == [field.column_name for field in model._meta.sorted_fields]
        for default in columns.values():
            assert default is None or "\n" not in default


def test_two_processes_that_create_the_file_at_once_agree(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from relight.models import schema\n"
        "db = schema.open_database(Path(sys.argv[1]), now=1)\n"
        "with db.write():\n    db.change(\"INSERT INTO kv (queue, key, value) VALUES ('q', ?, 1)\", (sys.argv[2],))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(path), str(number)], env=environment())
        for number in range(4)
    ]
    assert [process.wait(60) for process in started] == [0] * 4
    db = schema.open_database(path, now=NOW, create=False)
    assert db.row("SELECT count(*) FROM kv") == (4,)
    db.close_all()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("shopping list\n" * 1000, encoding="utf-8")


def garbage_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])


def foreign(path: Path) -> None:
    path.unlink()
    conn = cysqlite.Connection(str(path))
    conn.execute("PRAGMA journal_mode = WAL").fetchall()
    conn.execute("CREATE TABLE t (x)")
    conn.close()


def no_table(path: Path) -> None:
    conn = cysqlite.Connection(str(path))
    conn.execute("DROP TABLE schema_migration")
    conn.close()


@pytest.mark.parametrize("damage", [truncate, empty, text, garbage_header, foreign, no_table])
def test_a_file_that_cannot_be_read_is_refused_with_its_path_and_is_left_as_it_is(
    path: Path, damage: Callable[[Path], None]
) -> None:
    schema.open_database(path, now=NOW).close_all()
    for extra in path.parent.glob("state.db-*"):
        extra.unlink()
    damage(path)
    before = digest(path)
    with pytest.raises(errors.StorageUnreadableError, match=re.escape(str(path))):
        schema.open_database(path, now=NOW)
    assert digest(path) == before


def test_a_folder_in_the_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(errors.StorageUnreadableError, match="is a folder"):
        schema.open_database(path, now=NOW)
    assert path.is_dir()


def test_a_missing_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "wrong" / "state.db"
    with pytest.raises(errors.StorageUnreadableError, match=re.escape(str(path))):
        schema.open_database(path, now=NOW)
    assert not path.parent.exists()


def test_a_file_without_permission_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.open_database(path, now=NOW).close_all()
    before = digest(path)
    path.chmod(0o000)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    with pytest.raises(errors.StorageUnreadableError, match="no permission"):
        schema.open_database(path, now=NOW)
    path.chmod(0o600)
    assert digest(path) == before


def test_where_nothing_may_be_created_an_absent_file_is_refused(path: Path) -> None:
    with pytest.raises(errors.StorageUnreadableError, match="does not exist"):
        schema.open_database(path, now=NOW, create=False)
    assert not path.exists()


def test_a_file_that_was_lost_beside_its_wal_is_not_made_anew(path: Path) -> None:
    db = schema.open_database(path, now=NOW)
    tasks.submit(db, new_task(), now=NOW)
    path.unlink()
    with pytest.raises(errors.StorageUnreadableError, match="-wal"):
        schema.open_database(path, now=NOW)
    assert not path.exists()
    db.close_all()


def test_a_creation_killed_half_way_is_begun_again(path: Path) -> None:
    path.with_name(".state.db.draft").write_bytes(b"half")
    path.with_name(".state.db.draft-wal").write_bytes(b"half")
    db = schema.open_database(path, now=NOW)
    assert tables(db) == TABLES
    assert list(path.parent.glob(".state.db.draft*")) == []
    db.close_all()


def test_an_older_file_is_upgraded_in_place_and_once(db: Database, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    migration(folder, "0900_moods", "db.change('ALTER TABLE agent_tasks ADD COLUMN mood TEXT')")
    tasks.submit(db, new_task(), now=NOW)
    assert schema.upgrade(db, now=NOW + 5, directory=folder) == ["0900_moods"]
    assert db.row("SELECT id, mood FROM agent_tasks") == ("t1", None)
    assert db.row("SELECT applied FROM schema_migration WHERE name = '0900_moods'") == (NOW + 5,)
    assert schema.upgrade(db, now=NOW + 6, directory=folder) == []
    assert len(stamps(db)) == len(set(stamps(db)))


def test_a_copy_is_made_before_an_upgrade(db: Database, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    migration(folder, "0900_empty", "db.change('DELETE FROM agent_events')")
    tasks.submit(db, new_task(), now=NOW)
    schema.upgrade(db, now=NOW, directory=folder)
    [copy] = (db.path.parent / "backups").iterdir()
    conn = cysqlite.Connection(str(copy))
    assert conn.execute("SELECT count(*) FROM agent_events").fetchall() == [(1,)]
    conn.close()
    assert copy.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "failure",
    [
        "db.change('CREATE TABLE moods (x)'); raise RuntimeError('half way')",
        "db.change('CREATE TABLE moods (x)'); db.change('CREATE TABLE kv (x)')",
        DANGLING,
    ],
    ids=["raises", "bad SQL", "leaves a dangling row"],
)
def test_a_failing_migration_is_undone_whole_with_its_stamp(
    db: Database, tmp_path: Path, failure: str
) -> None:
    folder = tmp_path / "migrations"
    migration(folder, "0900_moods", failure)
    tasks.submit(db, new_task(), now=NOW)
    before = statements(db), stamps(db), db.rows("SELECT * FROM agent_tasks")
    with pytest.raises((RuntimeError, errors.StorageError, cysqlite.SqliteError, peewee.PeeweeException)):
        schema.upgrade(db, now=NOW, directory=folder)
    assert (statements(db), stamps(db), db.rows("SELECT * FROM agent_tasks")) == before
    tasks.submit(db, new_task("t2"), now=NOW)


def test_a_file_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    db = schema.open_database(path, now=NOW)
    with db.write():
        db.change("INSERT INTO schema_migration (name, applied) VALUES ('0999_future', 1)")
    db.close_all()
    before = digest(path)
    with pytest.raises(errors.NewerSchemaError, match=f"{re.escape(str(path))}.*0999_future"):
        schema.open_database(path, now=NOW)
    assert digest(path) == before


def test_a_migration_is_applied_once_by_many_processes(db: Database, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    migration(
        folder,
        "0900_count",
        "db.change(\"INSERT INTO kv (queue, key, value) VALUES ('q', hex(randomblob(8)), 1)\")",
    )
    script = (
        "import sys; from pathlib import Path; from relight.models import database, schema\n"
        "db = database.Database(Path(sys.argv[1]), gate_ms=500, durability='power')\n"
        "print(schema.upgrade(db, now=1, directory=Path(sys.argv[2])))\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(db.path), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for _ in range(4)
    ]
    said = sorted(process.communicate(timeout=60)[0].strip() for process in started)
    assert said == ["['0900_count']", "[]", "[]", "[]"]
    assert db.row("SELECT count(*) FROM kv") == (1,)


def test_the_file_is_found_whatever_the_working_directory_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    db = schema.open_database(path, now=NOW)
    monkeypatch.chdir(tmp_path)
    db.close_all()
    assert db.row("SELECT count(*) FROM agent_tasks") == (0,)
    db.close_all()


@pytest.mark.spec(26)
@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT id FROM agent_tasks WHERE status = 'running'", "agent_tasks_status"),
        ("SELECT id FROM agent_events WHERE timestamp < 5", "agent_events_timestamp"),
        (
            "SELECT id FROM task_traces WHERE task_id = 'x' ORDER BY step_index",
            "task_traces_task_id_step_index",
        ),
        (
            "SELECT id FROM agent_tasks WHERE lane = 'main' AND status = 'pending' AND hold IS NULL ORDER BY rank, id",
            "agent_tasks_ready",
        ),
        ("SELECT id FROM agent_tasks WHERE hold = 'due' AND due_at <= 5 ORDER BY due_at", "agent_tasks_due"),
        (
            "SELECT seq FROM agent_events WHERE task_id = 'x' AND seq > 3 ORDER BY seq",
            "agent_events_task_id_seq",
        ),
        ("SELECT id FROM agent_tasks WHERE worker_id = 'w' AND status = 'running'", "agent_tasks_"),
    ],
    ids=lambda value: value if value.islower() and " " not in value else None,
)
def test_each_purpose_uses_its_index_without_sorting(db: Database, query: str, index: str) -> None:
    plan = " / ".join(row[3] for row in db.rows(f"EXPLAIN QUERY PLAN {query}"))
    assert f"INDEX {index}" in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.spec(26)
def test_no_index_only_repeats_a_primary_key_or_another_index(db: Database) -> None:
    """Partial ones do not: they are small, and their condition is what they are for."""
    seen: dict[tuple[str, str], str] = {}
    for table, name in db.rows("SELECT tbl_name, name FROM sqlite_master WHERE type = 'index'"):
        columns = [row[2] for row in db.rows(f"PRAGMA index_info({name})")]
        [whole] = [row[4] == 0 for row in db.rows(f"PRAGMA index_list({table})") if row[1] == name]
        if whole:
            assert name == seen.setdefault((table, ",".join(columns)), name)
    for table in tables(db):
        key = [row[1] for row in db.rows(f"PRAGMA table_info({table})") if row[5]]
        explicit = [
            name for (other, columns), name in seen.items() if other == table and columns == ",".join(key)
        ]
        assert all(name.startswith("sqlite_autoindex") for name in explicit)
