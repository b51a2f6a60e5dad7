"""The directories of a mocked cloud's disks: snapshots keep what was there at their moment, restores begin with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unit.binding.objects import volume
from volplane_embedded.kubelet.attached_disks import AttachedDisks, disk_path
from volplane_embedded.kubelet.mounts import MountError
from volplane_testing.cloud import MemoryContents
from volplane_testing.disks import DiskDirectory


def test_a_restored_disk_begins_with_what_was_there_at_the_moment_of_the_snapshot(tmp_path: Path) -> None:
    cloud = DiskDirectory(tmp_path)
    cloud.show({"vol-1": ("i-1",)})
    disk = disk_path(tmp_path, "i-1", "vol-1")
    (disk / "greeting").write_text("before")
    cloud.begin("snap-1", "vol-1")
    (disk / "greeting").write_text("after")
    cloud.begin("vol-2", "snap-1")
    cloud.show({"vol-1": ("i-1",), "snap-1": (), "vol-2": ("i-1",)})
    assert (disk_path(tmp_path, "i-1", "vol-2") / "greeting").read_text() == "before"
    assert (disk / "greeting").read_text() == "after"


def test_a_snapshot_outlives_its_disk_and_loses_its_contents_when_it_is_deleted(tmp_path: Path) -> None:
    cloud = DiskDirectory(tmp_path)
    cloud.show({"vol-1": ("i-1",)})
    (disk_path(tmp_path, "i-1", "vol-1") / "greeting").write_text("before")
    cloud.begin("snap-1", "vol-1")
    cloud.show({"vol-1": ("i-1",), "snap-1": ()})
    cloud.begin("vol-2", "snap-1")
    cloud.show({"snap-1": (), "vol-2": ("i-1",)})
    assert (disk_path(tmp_path, "i-1", "vol-2") / "greeting").read_text() == "before"
    cloud.show({})
    assert list((tmp_path / "contents").iterdir()) == []


def test_a_new_disk_of_a_name_that_was_there_before_has_nothing_of_it(tmp_path: Path) -> None:
    for contents in (DiskDirectory(tmp_path), MemoryContents()):
        contents.begin("disk", None)
        contents.write("disk", "secret")
        contents.begin("copy", "disk")
        contents.begin("disk", None)
        assert (contents.written("disk"), contents.written("copy")) == ([], ["secret"])


async def test_a_volume_of_a_vendors_csi_driver_says_what_shows_its_disk_here() -> None:
    asked: Any = None  # nothing is asked of the API server
    theirs = volume(hostPath=None, csi={"driver": "disks.vendor.example", "volumeHandle": "d-1"})
    with pytest.raises(MountError, match="no node plugin runs here") as why:
        await AttachedDisks(asked, None).find(theirs, "node-1", block=False)
    assert str(why.value).startswith("volume v is csi (driver disks.vendor.example): ")
    assert "volplane fake BACKEND --disks DIR" in str(why.value)
    assert str(why.value).endswith("start volplane dev with --disks DIR")
