"""A blob leaves in two steps, and only while no row names it; whoever needs one finds it in between."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relight.models import blobs, errors, traces, unnamed_blobs
from relight.models.blobs import BlobRef
from relight.models.database import Database
from relight.models.unnamed_blobs import SETTLED_MS
from tests.models.conftest import NOW, Claim


def store(db: Database, data: bytes, *, age: int = SETTLED_MS) -> BlobRef:
    """A blob that was stored `age` ms before NOW."""
    ref = blobs.store(folder(db), data, limit=1 << 20)
    stamp(folder(db) / ref.path, NOW - age)
    return ref


def stamp(file: Path, ms: int) -> None:
    os.utime(file, ns=(ms * 1_000_000, ms * 1_000_000))


def folder(db: Database) -> Path:
    return db.path.parent / "blobs"


def name(db: Database, task_id: str, ref: BlobRef) -> None:
    """Let a trace name a blob, as an outcome does."""
    output = json.dumps({"$blob": {"sha256": ref.sha256, "size": ref.size}})
    event = f'{{"kind":"tool_call_completed","result":{{"status":"success","output":{output}}}}}'
    with db.write():
        traces.append(db, task_id, traces.OUTCOME, event, attempt=1, now=NOW)


def sweep(db: Database, *, now: int = NOW) -> unnamed_blobs.Swept:
    return unnamed_blobs.sweep(db, folder(db), now=now)


def test_an_old_blob_that_no_row_names_is_set_aside_then_removed(db: Database) -> None:
    ref = store(db, b"result")
    assert sweep(db).set_aside == 1
    assert blobs.load(folder(db), ref) == b"result", "a reader still finds it"
    assert sweep(db, now=NOW + SETTLED_MS - 1).removed == 0
    swept = sweep(db, now=NOW + SETTLED_MS)
    assert (swept.removed, swept.removed_bytes) == (1, 6)
    with pytest.raises(errors.SealedStepError):
        blobs.load(folder(db), ref)


def test_a_young_blob_waits_for_the_row_that_will_name_it(db: Database) -> None:
    store(db, b"result", age=SETTLED_MS - 1)
    assert sweep(db) == unnamed_blobs.Swept()


def test_a_named_blob_stays_whether_a_trace_or_a_result_names_it(db: Database, claim: Claim) -> None:
    claim("t1")
    name(db, "t1", store(db, b"outcome"))
    result = store(db, b"result")
    marker = json.dumps({"$blob": {"sha256": result.sha256, "size": result.size}}, separators=(",", ":"))
    with db.write():
        db.change("UPDATE agent_tasks SET result_json = ?", (marker,))
    assert sweep(db) == unnamed_blobs.Swept()
    assert len(unnamed_blobs.named(db)) == 2


def test_a_blob_that_is_named_after_all_comes_back(db: Database, claim: Claim) -> None:
    """A process that was stopped between storing a blob and committing its name goes on a day later."""
    claim("t1")
    ref = store(db, b"outcome")
    sweep(db)
    name(db, "t1", ref)
    swept = sweep(db, now=NOW + SETTLED_MS)
    assert (swept.brought_back, swept.removed) == (1, 0)
    assert (folder(db) / ref.path).read_bytes() == b"outcome"


def test_a_blob_that_is_stored_again_is_young_again(db: Database) -> None:
    ref = store(db, b"same")
    blobs.store(folder(db), b"same", limit=9)
    stored_at = (folder(db) / ref.path).stat().st_mtime_ns // 1_000_000
    assert sweep(db, now=stored_at + SETTLED_MS - 1) == unnamed_blobs.Swept()


def test_a_blob_that_is_stored_again_while_it_is_set_aside_is_written_anew(
    db: Database, claim: Claim
) -> None:
    claim("t1")
    ref = store(db, b"same")
    sweep(db)
    blobs.store(folder(db), b"same", limit=9)
    name(db, "t1", ref)
    sweep(db, now=NOW + SETTLED_MS)
    assert blobs.load(folder(db), ref) == b"same"


def test_what_a_killed_writer_left_unfinished_goes(db: Database) -> None:
    ref = store(db, b"whole", age=0)
    left = (folder(db) / ref.path).with_name(".new-abc")
    left.write_bytes(b"ha")
    stamp(left, NOW - SETTLED_MS)
    assert sweep(db).removed == 1
    assert not left.exists()


def test_looking_beforehand_changes_nothing(db: Database) -> None:
    ref = store(db, b"result")
    assert unnamed_blobs.sweep(db, folder(db), now=NOW, dry_run=True).set_aside == 1
    assert (folder(db) / ref.path).exists()


def test_without_a_folder_there_is_nothing_to_do(db: Database) -> None:
    assert sweep(db) == unnamed_blobs.Swept()
    assert blobs.total_bytes(folder(db)) == 0
