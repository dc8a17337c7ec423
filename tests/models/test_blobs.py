"""A blob that a commit names is whole and on disk, whoever wrote it and whatever died meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relight.models import blobs, errors
from relight.models.blobs import BlobRef
from tests.conftest import ROOT, environment

MEGABYTE = 1 << 20


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 100_000], ids=["nothing", "a byte", "200 kB"])
def test_what_is_stored_comes_back_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    ref = blobs.store(tmp_path, data, limit=MEGABYTE)
    assert ref == BlobRef(hashlib.sha256(data).hexdigest(), len(data))
    assert files(tmp_path) == [tmp_path / ref.path]
    assert blobs.load(tmp_path, ref) == data


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    ref = blobs.store(tmp_path / "home" / "blobs", b"x", limit=9)
    file = tmp_path / "home" / "blobs" / ref.path
    assert file.stat().st_mode & 0o777 == 0o600
    assert {folder.stat().st_mode & 0o777 for folder in (file.parent, file.parent.parent)} == {0o700}


def test_the_same_bytes_are_kept_once_and_not_written_again_but_are_young_again(tmp_path: Path) -> None:
    """Upkeep removes old blobs that no row names, and the row that names this one is still to come."""
    first = blobs.store(tmp_path, b"same", limit=9)
    os.utime(tmp_path / first.path, (1, 1))
    before = (tmp_path / first.path).stat()
    assert blobs.store(tmp_path, b"same", limit=9) == first
    after = (tmp_path / first.path).stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert after.st_mtime > 1


def test_over_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    blobs.store(tmp_path / "at", b"1234", limit=4)
    with pytest.raises(errors.TooLargeError, match="5 bytes, the limit is 4"):
        blobs.store(tmp_path / "over", b"12345", limit=4)
    assert not (tmp_path / "over").exists()


@pytest.mark.parametrize(
    "damage", [b"", b"othe", b"other and longer"], ids=["emptied", "changed", "replaced"]
)
def test_damaged_bytes_are_an_error_and_never_a_value(tmp_path: Path, damage: bytes) -> None:
    ref = blobs.store(tmp_path, b"good", limit=9)
    (tmp_path / ref.path).write_bytes(damage)
    with pytest.raises(errors.SealedStepError, match=ref.sha256):
        blobs.load(tmp_path, ref)
    assert blobs.store(tmp_path, b"good", limit=9) == ref
    assert blobs.load(tmp_path, ref) == b"good"


def test_a_missing_blob_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(errors.SealedStepError, match="0" * 64):
        blobs.load(tmp_path, BlobRef("0" * 64, 1))


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_a_name_that_is_no_digest_reaches_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.SealedStepError, match="not the name of a blob"):
        blobs.load(tmp_path, BlobRef(name, 1))


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, errors.StorageFullError), (errno.EIO, errors.StorageError)]
)
def test_a_failed_write_is_typed_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / BlobRef(hashlib.sha256(b"x").hexdigest(), 1).path).parent.mkdir()
    monkeypatch.setattr(blobs, "_sync", fail)
    with pytest.raises(kind, match="cannot store 1 bytes"):
        blobs.store(tmp_path, b"x", limit=9)
    assert files(tmp_path) == []


def test_a_blob_and_its_folders_are_synced_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_replace, real_fsync = os.replace, os.fsync

    def fsync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}") if sys.platform == "linux" else "?"
        steps.append(f"sync {Path(name).name[:4]}")
        real_fsync(descriptor)

    def replace(source: str, target: Path) -> None:
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    ref = blobs.store(tmp_path / "blobs", b"x", limit=9)
    if sys.platform == "linux":
        assert steps[-3:] == ["sync .new", "rename", f"sync {ref.sha256[:2]}"]
        assert "sync blob" in steps[:-3]
        steps.clear()
        blobs.store(tmp_path / "blobs", b"x", limit=9)
        assert steps == [f"sync {ref.sha256[:2]}"]


def test_many_writers_of_the_same_bytes_do_not_disturb_each_other(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    with ThreadPoolExecutor(8) as pool:
        refs = set(pool.map(lambda _: blobs.store(tmp_path, data, limit=MEGABYTE), range(32)))
    assert len(refs) == 1
    assert files(tmp_path) == [tmp_path / refs.pop().path]


def test_a_writer_killed_half_way_leaves_no_blob_of_that_name(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from relight.models import blobs\n"
        "blobs.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "blobs.store(pathlib.Path(sys.argv[1]), b'x' * 1000, limit=9999)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, env=environment(), cwd=ROOT)
    ref = BlobRef(hashlib.sha256(b"x" * 1000).hexdigest(), 1000)
    assert not (tmp_path / ref.path).exists()
    assert blobs.store(tmp_path, b"x" * 1000, limit=9999) == ref
    assert blobs.load(tmp_path, ref) == b"x" * 1000


def test_a_preview_is_short_and_says_so() -> None:
    assert blobs.preview("short", 10) == "short"
    long = blobs.preview("é" * 5000, 100)
    assert len(long.encode()) <= 100
    assert "10000 bytes" in long
