"""Backups of a state directory, and the state file that comes out of one.

Invariants: a backup appears under its name only when it is whole, checked and durable; it holds the state file, every
blob that the file names, and the policy, and nothing else, so no key. A restored file knows no living worker.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from . import blobs, copies, inspection, schema, unnamed_blobs
from .blobs import BlobRef
from .copies import Told, silent
from .database import Database
from .errors import ConflictError, NewerSchemaError, StorageUnreadableError

STATE, BLOBS, POLICY = "state.db", "blobs", "policy.toml"
_CHUNK = 1 << 20


@dataclass
class Backup:
    """What was copied; `missing` are blobs that the state names and that are gone or damaged: the backup lacks them."""

    path: Path
    tasks: int = 0
    blobs: int = 0
    missing: list[str] = field(default_factory=list)
    has_policy: bool = False


def write(db: Database, dest: Path, *, told: Told = silent) -> Backup:
    """Back up the state directory of an open database to a new folder, while everybody goes on working.

    It contains every task that was acknowledged before the call. Raises ConflictError where `dest` exists.
    """
    home = db.path.parent
    _refuse_taken(dest)
    dest.parent.mkdir(parents=True, exist_ok=True)
    draft = dest.with_name(f".{dest.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    made = Backup(dest)
    try:
        copies.copy(db, draft / STATE, told=told)
        made.tasks, named = _checked(draft / STATE, told)
        made.missing = copy_blobs(home / BLOBS, draft / BLOBS, named, told=told)
        made.blobs = len(named) - len(made.missing)
        made.has_policy = copy_policy(home, draft)
        copies.sync(draft)
        _refuse_taken(dest)
        os.rename(draft, dest)
        copies.sync(dest.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made


def state_file(source: Path) -> Path:
    """The state file of a backup folder, or the file itself; raises StorageUnreadableError."""
    file = source / STATE if source.is_dir() else source
    if not file.is_file():
        raise StorageUnreadableError(f"{source}: holds no backup: there is no {file.name}")
    return file


def draft(source: Path, target: Path, *, now: int, told: Told = silent) -> None:
    """Make a state file of a backup's, for a directory in which no worker lives; `target` is complete at the end.

    Raises StorageUnreadableError for what is damaged or not ours, NewerSchemaError for what a newer version wrote.
    """
    copies.discard(target)
    try:
        _copy_file(source, target, told)
        log = source.with_name(f"{source.name}-wal")
        if log.exists():  # of a directory that was copied by hand
            _copy_file(log, target.with_name(f"{target.name}-wal"), silent)
        _make_fit(source, target, now=now, told=told)
        copies.sync(target)
    except BaseException:
        copies.discard(target)
        raise


def copy_blobs(source: Path, target: Path, named: set[str], *, told: Told = silent) -> list[str]:
    """Copy these blobs, each checked against its name, but those that are there; the digests that cannot be."""
    missing = []
    for done, digest in enumerate(sorted(named)):
        told("blobs", done, len(named))
        ref = BlobRef(digest, 0)
        if not blobs.where(target, ref).exists() and not _copy_blob(
            blobs.where(source, ref), target / ref.path, digest
        ):
            missing.append(digest)
    return missing


def copy_policy(source: Path, target: Path) -> bool:
    """Copy the policy file unless there is one; whether there is one then."""
    with suppress(FileNotFoundError):
        text = (source / POLICY).read_bytes()
        with suppress(FileExistsError):
            descriptor = os.open(target / POLICY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            copies.sync(target / POLICY)
    return (target / POLICY).exists()


def _refuse_taken(dest: Path) -> None:
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise ConflictError(f"{dest} exists already; name a new folder for the backup")


def _checked(file: Path, told: Told) -> tuple[int, set[str]]:
    """Check a copy from end to end; how many tasks it holds, and which blobs it names."""
    told("check", 0, 1)
    with inspection.look(file) as copy:
        found = inspection.faults(copy, whole=True)
        if found:
            raise StorageUnreadableError(
                f"{file}: the copy is damaged, so the state is: {'; '.join(found[:3])}"
            )
        return inspection.task_count(copy), unnamed_blobs.named(copy)


def _make_fit(source: Path, target: Path, *, now: int, told: Told) -> None:
    """Check the draft, and let every worker in it be dead: their locks lie elsewhere, or belong to the replaced file."""
    header = inspection.header(target)
    if header is None or not (header.is_wal and header.is_incremental):
        raise StorageUnreadableError(f"{source}: is no state file of Relight")
    db = Database(target, gate_ms=0, durability="power")
    try:
        told("check", 0, 1)
        _refuse_unusable(db, source)
        db.change("UPDATE workers SET dead_at = ? WHERE dead_at IS NULL", (now,))
        db.connection().checkpoint(truncate=True)
    finally:
        db.close_all()


def _refuse_unusable(db: Database, source: Path) -> None:
    found = inspection.faults(db, whole=True)
    if found:
        raise StorageUnreadableError(f"{source}: is damaged: {'; '.join(found[:3])}")
    if not inspection.is_ours(db):
        raise StorageUnreadableError(f"{source}: holds no Relight schema")
    unknown = inspection.plan(db, schema.MIGRATIONS).unknown
    if unknown:
        raise NewerSchemaError(
            f"{source}: written by a newer version (it has {', '.join(unknown)}); upgrade Relight"
        )


def _copy_file(source: Path, target: Path, told: Told) -> None:
    total, done = source.stat().st_size, 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with source.open("rb") as read, os.fdopen(descriptor, "wb") as written:
        for chunk in _chunks(read):
            written.write(chunk)
            done += len(chunk)
            told("bytes", done, total)


def _copy_blob(source: Path, target: Path, digest: str) -> bool:
    """Whether the blob was whole and is durable under its name now."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f".new-{target.name}")
    summed = hashlib.sha256()
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with source.open("rb") as read, os.fdopen(descriptor, "wb") as written:
            for chunk in _chunks(read):
                summed.update(chunk)
                written.write(chunk)
        if summed.hexdigest() != digest:
            return False
        copies.sync(partial)
        os.rename(partial, target)
        copies.sync(target.parent)
        return True
    except FileNotFoundError:
        return False
    finally:
        partial.unlink(missing_ok=True)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
