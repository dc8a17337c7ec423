"""Workers run on a local file system; one that is shared with other machines is refused, or warned about where allowed."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from relight.models.errors import RefusedError
from relight.workers import filesystems, lanes, settings
from relight.workers.consumer import LaneConsumer
from relight.workers.home import Home
from relight.workers.shift import Shift

Mount = namedtuple("Mount", ["mountpoint", "fstype"])  # as psutil's own


def mounted(monkeypatch: pytest.MonkeyPatch, *mounts: tuple[str, str]) -> None:
    found = [Mount(*mount) for mount in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)


def test_the_nearest_mount_above_a_folder_counts_and_the_last_where_two_are_stacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path.resolve()
    mounted(monkeypatch, ("/", "ext4"), (str(here), "xfs"), (str(here), "NFS4"), (f"{here}-other", "9p"))
    assert filesystems.kind(here / "home") == "nfs4"
    assert filesystems.kind(Path("/elsewhere")) == "ext4"


def test_a_link_is_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounted(monkeypatch, ("/", "ext4"), (str((tmp_path / "far").resolve()), "cifs"))
    assert filesystems.kind(tmp_path / "near" / "home") == "cifs"


def test_this_machine_has_a_file_system(tmp_path: Path) -> None:
    assert filesystems.kind(tmp_path) != ""


@pytest.mark.parametrize(
    "name", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse.sshfs", "macfuse"]
)
def test_a_shared_file_system_is_known(name: str) -> None:
    assert filesystems.is_remote(name)


@pytest.mark.parametrize(
    "name", ["ext4", "xfs", "btrfs", "apfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs", ""]
)
def test_a_local_one_is_not_taken_for_it(name: str) -> None:
    assert not filesystems.is_remote(name)


def test_a_worker_does_not_start_on_a_shared_file_system(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Home.open(settings.load())
    mounted(monkeypatch, ("/", "nfs4"))
    lane = lanes.LaneHuey("main", home=opened)
    with pytest.raises(RefusedError, match=r"nfs4 file system.*RELIGHT_ALLOW_NETWORK_FS=1"):
        Shift(opened, [LaneConsumer(lane)]).run()
    opened.close()


def test_an_operator_may_allow_it_and_is_warned(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mounted(monkeypatch, ("/", "9p"))
    monkeypatch.setenv("RELIGHT_ALLOW_NETWORK_FS", "1")
    filesystems.refuse_remote(settings.load())
    assert "9p file system" in caplog.text


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("False", False), ("no", False)])
def test_the_setting_is_a_yes_or_a_no(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    monkeypatch.setenv("RELIGHT_ALLOW_NETWORK_FS", text)
    assert settings.load().allow_network_fs is value
    again = settings.load(env=settings.environment(replace(settings.load(), allow_network_fs=value)))
    assert again.allow_network_fs is value
