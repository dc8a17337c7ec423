"""What the machine gives: the SQLite library, the file system, room, speed, permissions."""

from __future__ import annotations

import errno
import os
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...models import inspection
from .. import filesystems
from ..home import STATE_FILE
from ..settings import Settings
from . import findings
from .findings import Finding

_OLDEST = (3, 51, 3)
_FAULT_BYTES, _SCARCE_BYTES = 32 << 20, 512 << 20
_SLOW_FSYNC_MS = 20.0
_FSYNCS = 5
_OWN_USERS = {"peewee", "playhouse", "huey", "sqlite3", "coverage"}


def sqlite(_: Settings) -> Finding:
    """One SQLite library, without the fault that damages logs under several writers, reads and writes the state."""
    version = inspection.sqlite_version()
    text = ".".join(map(str, version))
    if version < _OLDEST:
        needed = ".".join(map(str, _OLDEST))
        return findings.fault(
            "sqlite",
            f"cysqlite brings SQLite {text}, which can damage a file under several writers",
            f"install a cysqlite with SQLite {needed} or newer: pip install --upgrade cysqlite",
        )
    users = _users_of_the_other_library()
    if users:
        return findings.warning(
            "sqlite",
            f"SQLite {text} from cysqlite; {', '.join(users)} also use the standard library's sqlite3",
            f"never open {STATE_FILE} with it: two SQLite libraries on one file in one process lose each other's locks",
        )
    return findings.ok("sqlite", f"SQLite {text} from cysqlite, the only library that opens the state")


def _users_of_the_other_library() -> list[str]:
    """The loaded modules that hold the standard library's sqlite3, but for those that never open the state with it."""
    other = sys.modules.get("sqlite3")
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if other is not None
        and getattr(module, "sqlite3", None) is other
        and name.partition(".")[0] not in _OWN_USERS
    )


def file_system(settings: Settings) -> Finding:
    """A local one."""
    kind = filesystems.kind(settings.home)
    if filesystems.is_remote(kind):
        advice = "move the state directory to a local disk; containers of one machine share a named volume"
        make = findings.warning if settings.allow_network_fs else findings.fault
        return make("file system", f"{kind}: locks prove nothing here, and the state may be damaged", advice)
    if kind in filesystems.PASSING:
        advice = "keep the state on a disk or a volume if it has to outlive this machine's or container's next start"
        return findings.warning("file system", f"{kind}: gone with the next start", advice)
    return findings.ok("file system", kind or "of unknown type")


def free_space(settings: Settings) -> Finding:
    """Room for the log, and for a copy of the state."""
    there = os.statvfs(settings.home)
    free = there.f_bavail * there.f_frsize
    state = settings.home / STATE_FILE
    needed = max(_SCARCE_BYTES, state.stat().st_size if state.exists() else 0)
    text = f"{_mib(free)} free"
    if free < _FAULT_BYTES:
        return findings.fault("free space", text, "free some space: tasks wait while nothing can be stored")
    if free < needed:
        return findings.warning(
            "free space",
            text,
            f"{_mib(needed)} are wanted: a backup and the copy before a migration need them",
        )
    return findings.ok("free space", text)


def fsync(settings: Settings) -> Finding:
    """How long the disk takes to make a write durable: each step that is acknowledged waits for it."""
    try:
        took = _fsync_ms(settings.home)
    except OSError as error:
        return findings.fault(
            "fsync", f"nothing can be written: {error.strerror}", _WRITING.get(error.errno or 0, "")
        )
    text = f"{took:.1f} ms"
    if took > _SLOW_FSYNC_MS:
        advice = "use a faster disk, or RELIGHT_DURABILITY=process where a power cut may cost the last steps"
        return findings.warning("fsync", text, advice)
    return findings.ok("fsync", text)


_WRITING = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EROFS: "the file system is mounted read-only: look into the system's log, then mount it writable again",
    errno.EACCES: "give the state directory to the user that runs this (chown), with mode 0700",
    errno.EPERM: "give the state directory to the user that runs this (chown), with mode 0700",
}


def _fsync_ms(folder: Path) -> float:
    """The median of a few writes to a file that has no name."""
    with tempfile.TemporaryFile(dir=folder) as file:
        took = []
        for _ in range(_FSYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.monotonic()
            os.fsync(file.fileno())
            took.append((time.monotonic() - began) * 1000)
        return statistics.median(took)


def permissions(settings: Settings) -> Iterator[Finding]:
    """Everything for its owner alone, and for the user that runs this."""
    home = settings.home
    wrong = [
        told for file in (home, *_kept(home)) if (told := _wrong(file, 0o700 if file == home else 0o600))
    ]
    yield from wrong
    if not wrong:
        yield findings.ok("permissions", "for its owner alone")


def _kept(home: Path) -> list[Path]:
    names = (STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm", "policy.toml")
    return [home / name for name in names if (home / name).exists()]


def _wrong(file: Path, wanted: int) -> Finding | None:
    found = file.stat()
    mode = stat.S_IMODE(found.st_mode)
    if os.geteuid() not in (found.st_uid, 0):
        advice = f"run as the user with id {found.st_uid}, or give it away: chown -R"
        return findings.fault("permissions", f"{file} belongs to another user", advice)
    repair = f"chmod {wanted:o} {file}"
    if mode & wanted != wanted:
        return findings.fault(
            "permissions", f"{file} has mode {mode:04o}, so its owner cannot use it", repair
        )
    if mode & 0o022:
        return findings.fault("permissions", f"{file} has mode {mode:04o}, so others may change it", repair)
    if mode & 0o077:
        return findings.warning(
            "permissions", f"{file} has mode {mode:04o}, so others may look into it", repair
        )
    return None


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
