"""What kind of file system a folder lies on.

Invariant: workers refuse one that is shared with other machines, unless told otherwise: kernel locks prove nothing there,
and SQLite's log needs memory that all its users share.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..models.errors import RefusedError
from .settings import Settings

log = logging.getLogger("relight.filesystems")

REMOTE = {
    *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "afs", "afpfs"),
    *("ceph", "lustre", "glusterfs", "gfs2", "ocfs2", "beegfs", "davfs", "webdav", "ncpfs", "prl_fs"),
}
LOCAL_FUSE = {"fuseblk", "fuse.fuse-overlayfs"}  # a local disk behind a program
PASSING = {"tmpfs", "ramfs", "overlay"}  # gone with the machine's or the container's next start


def kind(folder: Path) -> str:
    """The type of the file system that holds a folder, in small letters; empty where it cannot be found out."""
    import psutil

    where = os.path.realpath(folder)
    found, longest = "", 0
    for mount in psutil.disk_partitions(all=True):
        if _holds(mount.mountpoint, where) and len(mount.mountpoint) >= longest:
            found, longest = mount.fstype.lower(), len(mount.mountpoint)
    return found


def is_remote(name: str) -> bool:
    """Whether a file system of this type may be shared with other machines."""
    return name in REMOTE or ("fuse" in name and name not in LOCAL_FUSE)


def refuse_remote(settings: Settings) -> None:
    """Let a worker start on a local file system only; elsewhere warn, where the operator has allowed it.

    Raises RefusedError.
    """
    name = kind(settings.home)
    if not is_remote(name):
        return
    told = f"{settings.home} lies on a {name} file system, where locks prove nothing and the state may be damaged"
    if not settings.allow_network_fs:
        raise RefusedError(
            f"{told}; use a local disk (containers: one named volume for all), or set RELIGHT_ALLOW_NETWORK_FS=1"
        )
    log.warning(told)


def _holds(mountpoint: str, path: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")
