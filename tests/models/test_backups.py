"""A backup is whole under its name; what comes out of it is checked, and knows no living worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relight.models import backups, blobs, schema, tasks, traces, workers
from relight.models.blobs import BlobRef
from relight.models.database import Database
from relight.models.errors import ConflictError, NewerSchemaError, StorageUnreadableError
from tests.models.conftest import NOW, Claim, Submit, new_task


def name_a_blob(db: Database, data: bytes) -> BlobRef:
    """Let the outcome of a step of t1 lie in a blob."""
    ref = blobs.store(db.path.parent / "blobs", data, limit=1 << 20)
    output = json.dumps({"$blob": {"sha256": ref.sha256, "size": ref.size}})
    with db.write():
        traces.append(db, "t1", traces.OUTCOME, f'{{"result":{{"output":{output}}}}}', attempt=1, now=NOW)
    return ref


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def restored(source: Path, tmp_path: Path) -> Database:
    target = tmp_path / "restored.db"
    backups.draft(backups.state_file(source), target, now=NOW + 5)
    return schema.open_existing(target)


def test_a_backup_holds_the_state_its_blobs_and_the_policy_and_nothing_else(
    db: Database, claim: Claim, tmp_path: Path
) -> None:
    claim("t1")
    ref = name_a_blob(db, b"large result")
    blobs.store(db.path.parent / "blobs", b"named by nobody", limit=99)
    (db.path.parent / "policy.toml").write_text("version = 1\n", encoding="utf-8")
    (db.path.parent / "key").write_text("secret", encoding="utf-8")
    made = backups.write(db, tmp_path / "deep" / "backup")
    assert files(made.path) == {"state.db", "policy.toml", f"blobs/{ref.path}"}
    assert (made.tasks, made.blobs, made.missing, made.has_policy) == (1, 1, [], True)
    assert blobs.load(made.path / "blobs", ref) == b"large result"
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in made.path.parent.iterdir()] == ["backup"]


def test_a_blob_that_upkeep_has_set_aside_is_in_the_backup(
    db: Database, claim: Claim, tmp_path: Path
) -> None:
    claim("t1")
    ref = name_a_blob(db, b"result")
    file = db.path.parent / "blobs" / ref.path
    file.rename(f"{file}{blobs.ASIDE}")
    assert backups.write(db, tmp_path / "backup").missing == []


@pytest.mark.parametrize("damage", [None, b"other"], ids=["missing", "damaged"])
def test_a_blob_that_is_not_there_is_named_and_the_rest_is_backed_up(
    db: Database, claim: Claim, tmp_path: Path, damage: bytes | None
) -> None:
    claim("t1")
    ref = name_a_blob(db, b"result")
    file = db.path.parent / "blobs" / ref.path
    file.unlink() if damage is None else file.write_bytes(damage)
    made = backups.write(db, tmp_path / "backup")
    assert (made.missing, made.tasks) == ([ref.sha256], 1)
    assert not any("blobs/" in name for name in files(made.path))


def test_a_backup_never_replaces_one(db: Database, tmp_path: Path) -> None:
    first = backups.write(db, tmp_path / "backup")
    with pytest.raises(ConflictError, match="exists already"):
        backups.write(db, first.path)
    (tmp_path / "empty").mkdir()
    assert backups.write(db, tmp_path / "empty").path == tmp_path / "empty"


def test_a_damaged_state_gives_no_backup(db: Database, tmp_path: Path) -> None:
    for number in range(200):
        tasks.submit(db, new_task(f"t{number}"), now=NOW)
    db.close_all()
    with db.path.open("r+b") as file:
        file.seek(db.path.stat().st_size // 2)
        file.write(b"\xff" * 8192)
    with pytest.raises(StorageUnreadableError, match="damaged"):
        backups.write(db, tmp_path / "backup")
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_the_state_of_a_backup_knows_no_living_worker(db: Database, claim: Claim, tmp_path: Path) -> None:
    workers.insert(db, id="w1", lane="subagent", pid=1, host="h", lock_inode=1, nonce="n", now=NOW)
    claim("t1")
    backups.write(db, tmp_path / "backup")
    again = restored(tmp_path / "backup", tmp_path)
    assert workers.alive(again) == []
    assert again.row("SELECT dead_at FROM workers") == (NOW + 5,)
    assert tasks.find(again, "t1").status == "running"
    again.close_all()
    assert len(workers.alive(db)) == 1, "the original is as it was"


def test_a_single_state_file_is_a_backup_too(db: Database, submit: Submit, tmp_path: Path) -> None:
    submit("t1")
    backups.write(db, tmp_path / "backup")
    again = restored(tmp_path / "backup" / "state.db", tmp_path)
    assert tasks.find(again, "t1").id == "t1"
    again.close_all()


def test_a_folder_that_was_copied_by_hand_with_its_log_is_taken_whole(
    db: Database, submit: Submit, tmp_path: Path
) -> None:
    submit("t1")
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in ("state.db", "state.db-wal"):
        (copied / file).write_bytes((db.path.parent / file).read_bytes())
    again = restored(copied, tmp_path)
    assert tasks.find(again, "t1").id == "t1"
    again.close_all()


def test_a_newer_backup_is_refused(db: Database, tmp_path: Path) -> None:
    with db.write():
        db.change("INSERT INTO schema_migration (name, applied) VALUES ('0999_future', 1)")
    backups.write(db, tmp_path / "backup")
    with pytest.raises(NewerSchemaError, match="0999_future"):
        restored(tmp_path / "backup", tmp_path)
    assert not (tmp_path / "restored.db").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"shopping list\n" * 500, b"SQLite format 3\0" + bytes(5000)],
    ids=["empty", "text", "torn"],
)
def test_what_is_no_backup_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(StorageUnreadableError, match="state.db"):
        restored(tmp_path, tmp_path)
    assert files(tmp_path) == {"state.db"}


def test_a_folder_without_a_state_file_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreadableError, match="no backup"):
        backups.state_file(tmp_path)


def test_a_policy_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, text in ((here, "mine"), (there, "theirs")):
        folder.mkdir()
        (folder / "policy.toml").write_text(text, encoding="utf-8")
    assert backups.copy_policy(there, here)
    assert (here / "policy.toml").read_text(encoding="utf-8") == "mine"
    (there / "policy.toml").unlink()
    (here / "policy.toml").unlink()
    assert not backups.copy_policy(there, here)
