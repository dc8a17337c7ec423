"""The room that rows have left goes back to the disk, in bites, with nobody waiting."""

from __future__ import annotations

import cysqlite
import pytest

from relight.models import space
from relight.models.database import Database


def fill(db: Database, rows: int, *, size: int = 4000) -> None:
    with db.write():
        db.change_many(
            "INSERT INTO kv (queue, key, value) VALUES ('q', ?, zeroblob(?))",
            [(str(n), size) for n in range(rows)],
        )


def empty(db: Database) -> None:
    with db.write():
        db.change("DELETE FROM kv")


def give_everything_back(db: Database) -> int:
    pages = 0
    while space.free_pages(db):
        with db.write():
            pages += space.give_back(db)
    space.checkpoint(db)
    return pages


def test_the_file_shrinks_by_the_pages_that_are_given_back(db: Database) -> None:
    fill(db, 1000)
    empty(db)
    space.checkpoint(db)
    before = space.size(db)
    assert before.free_bytes > 3_900_000
    pages = give_everything_back(db)
    after = space.size(db)
    assert pages > 700
    assert before.file_bytes - after.file_bytes >= pages * 4096
    assert 0 < after.free_bytes <= space.KEPT_FREE_PAGES * 4096
    assert db.rows("PRAGMA integrity_check") == [("ok",)]


def test_a_bite_is_small(db: Database) -> None:
    fill(db, 1000)
    empty(db)
    with db.write():
        assert 1 <= space.give_back(db) <= 20


def test_a_few_free_pages_are_kept(db: Database) -> None:
    fill(db, 50)
    empty(db)
    assert space.free_pages(db) == 0
    with db.write():
        assert space.give_back(db) == 0


def test_a_grown_log_is_emptied(db: Database) -> None:
    fill(db, 2000)
    assert space.size(db).wal_bytes > 1_000_000
    assert space.truncate_wal(db)
    assert space.size(db).wal_bytes == 0


def test_a_reader_is_not_waited_for(db: Database) -> None:
    fill(db, 100)
    reader = cysqlite.Connection(str(db.path))
    reader.begin()
    reader.execute("SELECT count(*) FROM kv").fetchall()
    fill_more = "INSERT INTO kv (queue, key, value) VALUES ('q', 'more', 1)"
    with db.write():
        db.change(fill_more)
    try:
        assert not space.truncate_wal(db)
    finally:
        reader.rollback()
        reader.close()
    assert space.truncate_wal(db)


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_does_its_own_checkpoints_has_none_at_its_commits(db: Database, fails: bool) -> None:
    space.truncate_wal(db)
    file_bytes = db.path.stat().st_size
    try:
        with space.own_checkpoints(db):
            fill(db, 2000)
            assert db.path.stat().st_size == file_bytes
            space.checkpoint(db)
            assert db.path.stat().st_size > file_bytes
            if fails:
                raise ValueError("stop")
    except ValueError:
        pass
    before = db.path.stat().st_size
    fill_again = [(f"again{n}", 4000) for n in range(2000)]
    with db.write():
        db.change_many("INSERT INTO kv (queue, key, value) VALUES ('q', ?, zeroblob(?))", fill_again)
    assert db.path.stat().st_size > before
