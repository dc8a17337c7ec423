"""Texts too large for a row, in files named by their own SHA-256.

Invariant: a file under its final name is whole, and it and its folder are on disk before `store` returns, so that a
commit may name it. A file is never changed; the same bytes twice are one file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import errors
from .encoding import clip

INLINE_BYTES = 65536
ASIDE = ".aside"  # the end of the name of a blob that no row named when upkeep looked; it is still read

_HEX = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class BlobRef:
    """The name of a blob: the digest of its bytes, and how many there are."""

    sha256: str
    size: int

    @property
    def path(self) -> str:
        """Where it lies, below the folder of the blobs."""
        return f"{self.sha256[:2]}/{self.sha256}"


def store(folder: Path, data: bytes, *, limit: int) -> BlobRef:
    """Keep these bytes durably; more than `limit` is a TooLargeError and leaves nothing behind."""
    if len(data) > limit:
        raise errors.TooLargeError("value", len(data), limit, "MAX_BLOB_BYTES")
    ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data))
    path = folder / ref.path
    try:
        _make_folder(path.parent)
        if not (_holds(path, ref) and _touched(path)):
            _write(path, data)
        _sync_folder(path.parent)  # also where the file was there: its writer may not have come to this yet
    except OSError as cause:
        kind = errors.StorageFullError if cause.errno in _FULL else errors.StorageError
        raise kind(f"cannot store {len(data)} bytes as {path}: {cause.strerror or cause}") from cause
    return ref


def load(folder: Path, ref: BlobRef) -> bytes:
    """Read a blob back; what is missing or has other bytes is a SealedStepError, never a wrong value."""
    if not _HEX.fullmatch(ref.sha256):
        raise errors.SealedStepError(f"{ref.sha256!r} is not the name of a blob")
    try:
        data = where(folder, ref).read_bytes()
    except OSError as cause:
        raise errors.SealedStepError(f"blob {folder / ref.path}: {cause.strerror or cause}") from cause
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise errors.SealedStepError(f"blob {folder / ref.path} does not match its digest")
    return data


def where(folder: Path, ref: BlobRef) -> Path:
    """The file that holds a blob, also while it is set aside; where there is none, the path that it should have."""
    path = folder / ref.path
    aside = path.with_name(f"{path.name}{ASIDE}")
    return aside if not path.exists() and aside.exists() else path


def files(folder: Path) -> list[Path]:
    """Every file below the folder of the blobs, unfinished ones and those set aside too."""
    return [file for part in folder.glob("[0-9a-f][0-9a-f]") for file in part.iterdir() if file.is_file()]


def total_bytes(folder: Path) -> int:
    """How much room the blobs take."""
    total = 0
    for file in files(folder):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def preview(text: str, limit_bytes: int = 1024) -> str:
    """The beginning of a text, for showing: what is cut off says so."""
    return clip(text, limit_bytes)


_FULL = {errno.ENOSPC, errno.EDQUOT}


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync_folder(folder.parent)
    _sync_folder(folder.parent.parent)


def _holds(path: Path, ref: BlobRef) -> bool:
    """Whether the file is there and whole; a damaged one is written again."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != ref.size:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == ref.sha256
    except FileNotFoundError:
        return False


def _touched(path: Path) -> bool:
    """Make an old file young, so that upkeep leaves it until the row that names it now is committed."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _sync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """On macOS fsync stops at the drive's own cache; F_FULLFSYNC goes through it."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(descriptor, full)
    else:
        os.fsync(descriptor)
