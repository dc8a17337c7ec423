"""Transactions are immediate, whole and rung after their commit; an error leaves the database usable."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import cysqlite
import pytest

from relight.models import database, errors, schema, tasks
from relight.models.database import Database, Durability
from tests.conftest import environment
from tests.models.conftest import NOW, fail_after, new_task

INSERT = "INSERT INTO kv (queue, key, value) VALUES ('q', ?, ?)"


def keys(db: Database) -> list[str]:
    return [row[0] for row in db.rows("SELECT key FROM kv ORDER BY key")]


def touch_after(db: Database, row: tuple[str, int]) -> None:
    with db.write():
        db.change(INSERT, row)
        db.touch("main")


@pytest.mark.spec(13)
def test_every_connection_has_the_settings_that_correctness_needs(db: Database) -> None:
    found: list[dict[str, object]] = []

    def look() -> None:
        names = ("journal_mode", "foreign_keys", "auto_vacuum", "busy_timeout", "journal_size_limit")
        found.append({name: db.row(f"PRAGMA {name}")[0] for name in names})  # type: ignore[index]

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    expected = {"journal_mode": "wal", "foreign_keys": 1, "auto_vacuum": 2, "busy_timeout": 5000}
    assert found == [{**expected, "journal_size_limit": 67_108_864}] * 2


def test_pages_of_deleted_rows_are_given_back_to_the_file_system(db: Database, path: Path) -> None:
    with db.write():
        for number in range(200):
            db.change(INSERT, (f"{number:03}", b"x" * 10_000))
    db.connection().checkpoint(truncate=True)
    full = path.stat().st_size
    with db.write():
        db.change("DELETE FROM kv")
    db.rows("PRAGMA incremental_vacuum")
    db.connection().checkpoint(truncate=True)
    assert full > 2_000_000
    assert path.stat().st_size < full / 4


def test_sqlite_is_new_enough_to_write_a_wal_from_several_processes() -> None:
    assert tuple(map(int, cysqlite.sqlite_version.split("."))) >= (3, 51, 3)


def test_a_write_holds_the_write_lock_from_its_first_moment(db: Database, path: Path) -> None:
    other = cysqlite.Connection(str(path), timeout=0)
    with db.write(), pytest.raises(cysqlite.DatabaseLockedError):
        other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()


def test_what_is_read_inside_a_write_cannot_change_until_it_commits(db: Database) -> None:
    rounds, threads = 100, 4
    with db.write():
        db.change(INSERT, ("n", 0))

    def count() -> None:
        for _ in range(rounds):
            with db.write(Durability.NORMAL):
                value = db.row("SELECT value FROM kv")
                assert value is not None
                db.change("UPDATE kv SET value = ?", (value[0] + 1,))

    workers = [threading.Thread(target=count) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert db.row("SELECT value FROM kv") == (rounds * threads,)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), errors.LeaseLost("x")], ids=repr)
@pytest.mark.spec(66)
def test_an_exception_rolls_the_whole_write_back_and_the_next_one_works(
    db: Database, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        fail_after(db, lambda: db.change(INSERT, ("a", 1)), error)
    with db.write():
        db.change(INSERT, ("b", 1))
    assert keys(db) == ["b"]


def test_a_failed_statement_rolls_the_whole_write_back(db: Database) -> None:
    with pytest.raises(cysqlite.IntegrityError), db.write():
        assert [db.change(INSERT, ("a", number)) for number in (1, 2)]
    assert keys(db) == []


def test_an_inner_write_that_fails_undoes_itself_alone(db: Database) -> None:
    with db.write():
        db.change(INSERT, ("a", 1))
        with pytest.raises(ValueError, match="x"):
            fail_after(db, lambda: db.change(INSERT, ("b", 1)))
        with db.write():
            db.change(INSERT, ("c", 1))
    assert keys(db) == ["a", "c"]


def test_topics_are_rung_once_after_the_commit(db: Database, path: Path) -> None:
    heard: list[tuple[frozenset[str], int]] = []
    other = cysqlite.Connection(str(path))

    def ring(topics: frozenset[str]) -> None:
        heard.append((topics, len(other.execute("SELECT key FROM kv").fetchall())))

    db.ring = ring
    with db.write():
        db.change(INSERT, ("a", 1))
        db.touch("main")
        with db.write():
            db.touch("watch", "main")
        assert heard == []
    assert heard == [(frozenset({"main", "watch"}), 1)]
    other.close()


def test_nothing_is_rung_for_a_write_that_did_not_happen(db: Database) -> None:
    heard: list[frozenset[str]] = []
    db.ring = heard.append
    with pytest.raises(ValueError, match="x"):
        fail_after(db, lambda: db.touch("main"))
    with db.write():
        db.change(INSERT, ("a", 1))
    assert heard == []


def test_touching_outside_a_write_is_refused(db: Database) -> None:
    with pytest.raises(RuntimeError, match="inside write"):
        db.touch("main")


def test_a_ring_that_fails_does_not_undo_the_commit_or_break_the_next_write(db: Database) -> None:
    def ring(topics: frozenset[str]) -> None:
        raise OSError("no bell")

    db.ring = ring
    with pytest.raises(OSError, match="no bell"):
        touch_after(db, ("a", 1))
    with db.write():
        db.change(INSERT, ("b", 1))
    assert keys(db) == ["a", "b"]


@pytest.mark.parametrize(
    ("mode", "asked", "used"),
    [
        ("power", Durability.FULL, 2),
        ("power", Durability.NORMAL, 1),
        ("process", Durability.FULL, 1),
        ("process", Durability.NORMAL, 1),
    ],
)
def test_each_kind_of_write_is_as_durable_as_was_asked(
    path: Path, mode: str, asked: Durability, used: int
) -> None:
    db = schema.open_database(path, now=NOW, durability=mode)
    for _ in range(2):
        with db.write(Durability.NORMAL):
            assert db.row("PRAGMA synchronous") == (1,)
        with db.write(asked):
            assert db.row("PRAGMA synchronous") == (used,)
    db.close_all()


def test_reading_leaves_no_statement_open_that_would_block_a_write(db: Database, path: Path) -> None:
    with db.write():
        for number in range(50):
            db.change(INSERT, (f"{number:02}", number))
    assert db.row("SELECT key FROM kv ORDER BY key") == ("00",)
    other = cysqlite.Connection(str(path))
    other.execute("UPDATE kv SET value = 0")
    other.close()
    with db.write():
        db.change(INSERT, ("x", 1))
    assert len(keys(db)) == 51


def test_a_lock_held_for_too_long_is_a_typed_error_that_names_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.open_database(path, now=NOW).close_all()
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    db = schema.open_database(path, now=NOW)
    other = cysqlite.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.StorageLockedError, match=r"state\.db.*another process"), db.write():
        pass
    other.execute("COMMIT")
    with db.write():
        db.change(INSERT, ("a", 1))
    other.close()
    db.close_all()


def test_a_full_disk_is_a_typed_error_and_the_rest_goes_on(db: Database) -> None:
    pages = db.row("PRAGMA page_count")
    assert pages is not None
    db.rows(f"PRAGMA max_page_count = {pages[0]}")
    with pytest.raises(errors.StorageFullError, match=r"state\.db"), db.write():
        db.change(INSERT, ("a", b"x" * 1_000_000))
    db.rows("PRAGMA max_page_count = 1000000")
    with db.write():
        db.change(INSERT, ("b", b"x" * 1_000_000))
    assert keys(db) == ["b"]


def test_a_file_that_vanishes_is_an_error_and_never_a_new_empty_one(db: Database, path: Path) -> None:
    db.close_all()
    path.rename(path.with_name("moved.db"))
    with pytest.raises(errors.StorageUnreadableError):
        db.rows("SELECT 1 FROM agent_tasks")
    assert not path.exists()


def test_a_closed_database_opens_again_by_itself(db: Database) -> None:
    with db.write():
        db.change(INSERT, ("a", 1))
    db.close_all()
    assert keys(db) == ["a"]


def test_the_connection_of_a_thread_that_has_ended_is_closed(db: Database) -> None:
    for _ in range(5):
        thread = threading.Thread(target=lambda: keys(db))
        thread.start()
        thread.join()
    assert len(db._opened) <= 2


@pytest.mark.spec(68)
def test_two_databases_in_one_process_do_not_touch(tmp_path: Path) -> None:
    opened = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        opened.append(schema.open_database(tmp_path / name / "state.db", now=NOW))
    one, two = opened
    heard: list[frozenset[str]] = []
    two.ring = heard.append
    with one.write():
        one.change(INSERT, ("a", 1))
        tasks.submit(one, new_task("t1"), now=NOW)
        with two.write():
            two.change(INSERT, ("b", 1))
    assert (keys(one), keys(two)) == (["a"], ["b"])
    assert heard == []
    with pytest.raises(errors.NotFoundError):
        tasks.find(two, "t1")
    one.close_all()
    assert keys(two) == ["b"]
    two.close_all()


WRITER = """
import sys
from pathlib import Path
from relight.models import schema
db = schema.open_database(Path(sys.argv[1]), now=1)
for _ in range(int(sys.argv[2])):
    with db.write():
        found = db.row("SELECT value FROM kv WHERE key = 'n'")
        db.change("UPDATE kv SET value = ? WHERE key = 'n'", (found[0] + 1,))
"""


def test_eight_processes_writing_at_once_lose_no_update_and_see_no_locked_error(
    db: Database, path: Path
) -> None:
    with db.write():
        db.change(INSERT, ("n", 0))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), "100"],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for _ in range(8)
    ]
    said = [writer.communicate(timeout=120)[1] for writer in writers]
    assert said == [""] * 8
    assert db.row("SELECT value FROM kv WHERE key = 'n'") == (800,)
    assert db.row("PRAGMA integrity_check") == ("ok",)


@pytest.mark.parametrize(
    "statement",
    [
        lambda db: db.rows("SELECT nothing FROM nowhere"),
        lambda db: db.change("UPDATE nowhere SET x = 1"),
        lambda db: db.change_many("UPDATE nowhere SET x = ?", [(1,)]),
    ],
    ids=["rows", "change", "change_many"],
)
def test_a_statement_that_fails_leaves_the_next_one_working(
    db: Database, statement: Callable[[Database], object]
) -> None:
    with pytest.raises(cysqlite.OperationalError):
        statement(db)
    assert keys(db) == []
