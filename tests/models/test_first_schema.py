"""A state file of the first schema, kept as it was, is brought up to date in place and keeps what it held.

`fixtures/first_schema.db.gz` was written through the first schema alone: a task in each status, their traces, events,
a question, a plain result.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from relight.models import claims, confirmations, orphans, schema, tasks, traces, transitions, workers
from relight.models.database import Database
from relight.models.errors import StorageError
from relight.models.tasks import TaskStatus
from tests.models.conftest import AGENT, NOW, new_task
from tests.models.test_schema import digest, migration, stamps, statements

KEPT = Path(__file__).parent / "fixtures" / "first_schema.db.gz"
FIRST = "0001_first_schema"
EVERYTHING = (
    *("agent_tasks", "task_traces", "agent_events", "workers"),
    *("confirmations", "confirmation_steps", "recovery_runs"),
)
DANGLING = """
    db.change("PRAGMA defer_foreign_keys = 1")
    db.change("INSERT INTO task_traces VALUES (99, 'nobody', 0, 'k', '{}', 0, NULL, NULL, 0, NULL, 0, 0)")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The kept file, in a folder of the test."""
    folder = tmp_path / "state"
    (folder / "locks").mkdir(parents=True)
    file = folder / "state.db"
    file.write_bytes(gzip.decompress(KEPT.read_bytes()))
    return file


@pytest.fixture
def untouched(path: Path) -> Database:
    """The kept file before anything is done to it."""
    return Database(path, gate_ms=500, durability="power")


def rows(db: Database, table: str, columns: str) -> list[tuple[object, ...]]:
    return db.rows(f"SELECT {columns} FROM {table} ORDER BY 1, 2")


def content(db: Database) -> dict[str, list[tuple[object, ...]]]:
    """What the tables of the first schema hold, by the columns that they had."""
    first = {}
    for table in EVERYTHING:
        columns = [
            row[1] for row in db.rows(f"PRAGMA table_info({table})") if row[1] in columns_of_the_first(table)
        ]
        first[table] = rows(db, table, ", ".join(columns))
    return first


def columns_of_the_first(table: str) -> set[str]:
    return {part.strip('", ') for part in _FIRST_COLUMNS[table]}


def _columns_in(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    table = ""
    for line in source.splitlines():
        words = line.split()
        if line.lstrip().startswith("CREATE TABLE"):
            table = words[2].strip('"')
        elif words and words[0].startswith('"') and table:
            found.setdefault(table, []).append(words[0])
    return found


_FIRST_COLUMNS = _columns_in((schema.MIGRATIONS / f"{FIRST}.py").read_text(encoding="utf-8"))


@pytest.mark.spec(14)
def test_the_kept_file_is_of_the_first_schema_and_holds_every_status(untouched: Database) -> None:
    assert stamps(untouched) == [FIRST]
    assert all(content(untouched).values())
    found = {row[0] for row in untouched.rows("SELECT status FROM agent_tasks")}
    assert found == set(TaskStatus)
    untouched.close_all()


@pytest.mark.spec(14)
def test_it_is_brought_up_to_date_in_place_and_loses_nothing(
    path: Path, untouched: Database, tmp_path: Path
) -> None:
    before = content(untouched)
    untouched.close_all()
    (tmp_path / "fresh").mkdir()
    db, fresh = (
        schema.open_database(path, now=NOW),
        schema.open_database(tmp_path / "fresh" / "state.db", now=NOW),
    )
    assert content(db) == before
    assert {plain.lower() for plain in statements(db)} == {plain.lower() for plain in statements(fresh)}
    assert stamps(db) == stamps(fresh)
    assert db.rows("PRAGMA integrity_check") == [("ok",)]
    assert db.rows("PRAGMA foreign_key_check") == []
    for opened in (db, fresh):
        opened.close_all()


@pytest.mark.spec(14)
def test_opening_it_twice_upgrades_it_once(path: Path) -> None:
    schema.open_database(path, now=NOW).close_all()
    copies = sorted((path.parent / "backups").iterdir())
    assert len(copies) == 1, "a copy of what it was"
    before = digest(path)
    db = schema.open_database(path, now=NOW + 5)
    assert schema.upgrade(db, now=NOW + 6) == []
    db.close_all()
    assert digest(path) == before
    assert sorted((path.parent / "backups").iterdir()) == copies


@pytest.mark.spec(14)
def test_a_failing_step_is_undone_whole_and_the_next_start_goes_on_from_there(
    path: Path, untouched: Database, tmp_path: Path
) -> None:
    """What came before it stays; the failing one leaves neither a change nor a stamp."""
    folder = tmp_path / "migrations"
    migration(folder, "0900_half", "db.change('DROP TABLE recovery_runs'); raise RuntimeError('half way')")
    with pytest.raises(RuntimeError, match="half way"):
        schema.upgrade(untouched, now=NOW, directory=folder)
    shipped = [file.stem for file in sorted(schema.MIGRATIONS.glob("[0-9]*.py"))]
    assert stamps(untouched) == shipped
    assert untouched.row("SELECT count(*) FROM recovery_runs") == (1,)
    untouched.close_all()
    db = schema.open_database(path, now=NOW)
    tasks.submit(db, new_task("after"), now=NOW)
    db.close_all()


@pytest.mark.spec(14)
def test_a_first_step_that_fails_leaves_the_file_as_it_was(untouched: Database, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / f"{FIRST}.py").write_bytes((schema.MIGRATIONS / f"{FIRST}.py").read_bytes())
    (folder / "0002_dangling.py").write_text(f"def up(migrator, db):{DANGLING}", encoding="utf-8")
    before = statements(untouched), stamps(untouched), content(untouched)
    with pytest.raises(StorageError, match="dangling rows"):
        schema.upgrade(untouched, now=NOW, directory=folder)
    assert (statements(untouched), stamps(untouched), content(untouched)) == before
    untouched.close_all()


@pytest.mark.spec(14)
def test_the_tasks_of_the_kept_file_live_on(path: Path) -> None:
    """Each is moved by an edge that leads on: none is stuck in what an older version wrote."""
    db = schema.open_database(path, now=NOW)
    task = claims.claim(db, "subagent", worker_id="w2", now=NOW + 90_000, known=frozenset({AGENT}))
    assert task is not None
    fence = {"attempt": task.attempt, "worker_id": "w2"}
    assert transitions.complete(db, task.id, **fence, result_json="1", now=NOW).status.is_terminal()
    workers.mark_dead(db, "w1", now=NOW)
    assert [orphan.task.id for orphan in orphans.page(db, lease_out=frozenset(), after=None)] == ["running"]
    [asked] = confirmations.listing(db)
    woken = [
        confirmations.answer_again(db, asked.id, None, by="ann", now=NOW),
        transitions.wake(db, "idle", now=NOW),
        transitions.wake(db, "swapped", now=NOW),
        transitions.retry_by_person(db, "failed", by="ann", now=NOW),
    ]
    assert [one and one.status for one in woken] == [TaskStatus.PENDING] * 4
    [outcome] = traces.by_task(db, "completed", kind=traces.OUTCOME)
    assert "ü€𝄞" in outcome.event_json
    db.close_all()
