"""A copy of a state file in use is of one moment, complete under its name, and for its owner alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relight.models import copies, inspection
from relight.models.database import Database
from tests.conftest import environment
from tests.models.conftest import Submit

WRITER = """
import sys; from pathlib import Path; from relight.models import database
db = database.Database(Path(sys.argv[1]), gate_ms=500, durability="process")
for number in range(1 << 30):
    with db.write():
        db.change("INSERT INTO kv (queue, key, value) VALUES ('w', ?, zeroblob(500))", (str(number),))
    print(number, flush=True)
"""


def rows_of(file: Path) -> list[tuple[object, ...]]:
    with inspection.look(file) as copy:
        return copy.rows("SELECT key FROM kv ORDER BY rowid")


def test_a_copy_holds_what_was_committed_before_and_nothing_half(db: Database, tmp_path: Path) -> None:
    """Also while another process writes: its commits do not restart the copy, and none of them is torn."""
    with db.write():
        db.change_many(
            "INSERT INTO kv (queue, key, value) VALUES ('q', ?, zeroblob(4000))",
            [(f"old{n}",) for n in range(5000)],
        )
    heard: list[tuple[str, int, int]] = []
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(db.path)], stdout=subprocess.PIPE, text=True, env=environment()
    ) as writer:
        assert writer.stdout is not None
        acknowledged = int(writer.stdout.readline())
        copies.copy(db, tmp_path / "copy.db", told=lambda *told: heard.append(told))
        writer.kill()
    with inspection.look(tmp_path / "copy.db") as copy:
        assert inspection.faults(copy, whole=True) == []
    keys = [str(row[0]) for row in rows_of(tmp_path / "copy.db")]
    written = [int(key) for key in keys if key.isdecimal()]
    assert len(keys) - len(written) == 5000
    assert written == list(range(len(written)))
    assert len(written) > acknowledged
    assert [told[1] for told in heard] == sorted(told[1] for told in heard)
    assert heard[-1][1] == heard[-1][2]


def test_a_copy_is_one_file_for_its_owner_alone(db: Database, tmp_path: Path, submit: Submit) -> None:
    submit("t1")
    target = tmp_path / "copies"
    target.mkdir()
    copies.copy(db, target / "copy.db")
    assert [file.name for file in target.iterdir()] == ["copy.db"]
    assert (target / "copy.db").stat().st_mode & 0o777 == 0o600
    assert inspection.header(target / "copy.db") == inspection.Header(is_wal=True, is_incremental=True)


def test_a_copy_that_fails_leaves_nothing(db: Database, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        copies.copy(db, tmp_path / "copy.db", told=full)
    assert [file.name for file in tmp_path.iterdir() if file.name != "state"] == []
    with db.write():
        db.change("INSERT INTO kv (queue, key, value) VALUES ('q', 'after', 1)")


def test_a_second_name_is_a_copy_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setattr(os, "link", refused)
    copies.second_name(tmp_path / "file", tmp_path / "name")
    assert (tmp_path / "name").read_bytes() == b"content"


FULL = """
import resource, sys; from pathlib import Path; from relight.models import copies, schema
from relight.models.errors import StorageError
db = schema.open_existing(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # a disk that takes no more, as far as this process can tell
try:
    copies.copy(db, Path(sys.argv[2]))
except StorageError as error:
    print(type(error).__name__, error)
"""


def test_a_disk_that_takes_no_more_gives_no_copy_and_says_so(db: Database, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "copy.db"
    target.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(db.path), str(target)],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert done.stdout.startswith(("StorageError", "StorageFullError"))
    assert str(target.parent) in done.stdout
    assert list(target.parent.iterdir()) == []
