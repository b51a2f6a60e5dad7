"""The service Node over hostpath: what csi-sanity asks of it, and real mounts, where this process may make any."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.csi.pods import MANY, running
from volplane.assets import ListedAsset, VolumeSource
from volplane.csi.codes import CsiError
from volplane.csi.mounts import Targets
from volplane.csi.node import HOSTNAME, NodeOptions
from volplane.csi.sources import Directory, source_of
from volplane.csi.usage import measure
from volplane.errors import ConfigurationError

hostpath = pytest.importorskip("volplane_hostpath.testing")
pytestmark = pytest.mark.real_time
SINGLE = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_SINGLE_WRITER"}}
READERS = {"mount": {}, "access_mode": {"mode": "MULTI_NODE_READER_ONLY"}}
MIB = 1 << 20


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def path_of(directory: Path) -> Path:
    return next((directory / "disk" / "root").glob("**/*pvc-1*"))


# --- what csi-sanity asks, and needs no mounts --------------------------------------------------------------------


async def test_the_node_says_what_it_can_do_and_where_it_is(directory: Path) -> None:
    """NodeGetCapabilities should return appropriate capabilities; NodeGetInfo should return appropriate values"""
    async with running(directory, shared=False) as pods:
        found = [each.rpc.type for each in (await pods.csi.call("NodeGetCapabilities")).capabilities]
        assert sorted(found) == [2, 4, 5]
        info = await pods.csi.call("NodeGetInfo")
        assert info.node_id == "node-a"
        assert dict(info.accessible_topology.segments) == {HOSTNAME: "node-a"}


async def test_what_a_call_must_have_is_asked_for(directory: Path) -> None:
    """Node Service should fail when no volume id / target path / volume capability / volume path is provided"""
    async with running(directory) as pods:
        csi, path = pods.csi, dict[str, Any](volume_path=pods.target())
        for lacking in ("volume_id", "target_path", "volume_capability"):
            await csi.refused("INVALID_ARGUMENT", "NodePublishVolume", **(pods.demand() | {lacking: None}))
        await csi.refused("INVALID_ARGUMENT", "NodeUnpublishVolume", target_path=pods.target())
        await csi.refused("INVALID_ARGUMENT", "NodeUnpublishVolume", volume_id=pods.id)
        for method in ("NodeGetVolumeStats", "NodeExpandVolume"):
            await csi.refused("INVALID_ARGUMENT", method, **path)
            await csi.refused("INVALID_ARGUMENT", method, volume_id=pods.id)
            # ... when volume is not found, when volume does not exist on the specified path
            await csi.refused("NOT_FOUND", method, volume_id="none", **path)
            await csi.refused("NOT_FOUND", method, volume_id=pods.id, **path)
            await csi.refused("NOT_FOUND", method, volume_id=pods.id, volume_path="some/path")
            await csi.refused("NOT_FOUND", method, volume_id="none", volume_path="some/path")
        await csi.refused("NOT_FOUND", "NodePublishVolume", **pods.demand(volume_id="none"))


@pytest.mark.parametrize("path", ["/etc/mount", "pods/a/mount", "{kubelet}", "{kubelet}/../mount", "{kubelet}/pods//m"])
async def test_a_target_is_below_the_directory_of_the_kubelet(directory: Path, path: str) -> None:
    async with running(directory) as pods:
        target = path.format(kubelet=pods.kubelet)
        text = await pods.csi.refused("INVALID_ARGUMENT", "NodePublishVolume", **pods.demand(target_path=target))
        assert "expected a path below" in text
        await pods.csi.refused("INVALID_ARGUMENT", "NodeUnpublishVolume", volume_id=pods.id, target_path=target)


async def test_a_block_device_is_refused(directory: Path) -> None:
    block = {"block": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
    async with running(directory) as pods:
        await pods.csi.refused("INVALID_ARGUMENT", "NodePublishVolume", **pods.demand(volume_capability=block))


@pytest.mark.parametrize(
    "source",
    [
        VolumeSource(kind="nfs", fields={"server": "", "path": "/export/a"}),
        VolumeSource(kind="csi", fields={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}),
        VolumeSource(kind="hostPath", fields={"path": "relative"}),
        None,
    ],
    ids=lambda source: source.kind if source else "none",
)
def test_only_directories_and_shares_are_mounted(source: VolumeSource | None) -> None:
    asset = ListedAsset(handle="h", name="pvc-1", capacity_bytes=1, owner=None, source=source)
    with pytest.raises(CsiError, match="this node service mounts hostPath, local and nfs alone"):
        source_of(asset)


def test_a_topology_key_needs_a_value(directory: Path) -> None:
    options = NodeOptions(node_id="node-a", kubelet_dir=directory, labels={"zone": "z"})
    assert options.place(["zone", HOSTNAME]) == {"zone": "z", HOSTNAME: "node-a"}
    with pytest.raises(ConfigurationError, match="--node-label rack=VALUE"):
        options.place(["zone", "rack"])


def test_a_tree_is_measured_without_following_links(directory: Path) -> None:
    top, deep = directory / "tree", directory / "tree"
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (top / "file").write_bytes(b"x" * MIB)
    (top / "again").hardlink_to(top / "file")
    (top / "link").symlink_to("/")
    fd = os.open(top, os.O_PATH)
    try:
        size, inodes = measure(fd, float("inf"))
    finally:
        os.close(fd)
    assert MIB <= size < 2 * MIB
    assert 100 < inodes <= 303


def test_a_tree_of_links_is_measured_without_a_list_of_them(directory: Path) -> None:
    """A tenant has as many as the volume has inodes, and all nodes have one process."""
    top = directory / "tree"
    (top / "links").mkdir(parents=True)
    for number in range(2000):
        (top / str(number)).write_bytes(b"x")
        (top / "links" / str(number)).hardlink_to(top / str(number))
    fd = os.open(top, os.O_PATH)
    tracemalloc.start()
    try:
        _, inodes = measure(fd, float("inf"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(fd)
    assert inodes == 2002
    assert most < 64 << 10


# --- with mounts --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mounting")
async def test_a_volume_is_published_and_unpublished_as_often_as_asked(directory: Path) -> None:
    """Node Service should work; should be idempotent; should remove target path; Stats; Expand"""
    async with running(directory) as pods:
        for _ in range(3):
            mounted = await pods.publish()
        (mounted / "file").write_bytes(b"x" * MIB)
        assert (path_of(directory) / "file").stat().st_size == MIB
        assert pods.mounted() == ["mount"]
        place: dict[str, Any] = {"volume_id": pods.id, "volume_path": str(mounted)}
        stats = await pods.csi.call("NodeGetVolumeStats", **place)
        size, inodes = stats.usage
        capacity = pods.csi.subject.capacity_bytes
        assert (size.unit, size.total, inodes.unit, inodes.used) == (1, capacity, 2, 2)
        assert MIB <= size.used < 2 * MIB
        assert not stats.volume_condition.abnormal
        assert (await pods.csi.call("NodeExpandVolume", **place)).capacity_bytes == capacity
        for _ in range(3):
            await pods.unpublish()
        assert pods.mounted() == []
        assert not mounted.exists()
        assert (path_of(directory) / "file").stat().st_size == MIB
        await pods.csi.call("NodeUnpublishVolume", volume_id="none", target_path=f"{pods.kubelet}/none/mount")


@pytest.mark.usefixtures("mounting")
async def test_a_volume_lies_where_the_backend_says_and_stays_while_it_is_published(directory: Path) -> None:
    async with running(directory) as pods:
        mounted = await pods.publish(volume_context={"path": "/etc", "source": "/etc"})
        assert list(mounted.iterdir()) == []
        await pods.csi.refused("FAILED_PRECONDITION", "DeleteVolume", volume_id=pods.id)
        assert path_of(directory).is_dir()
        await pods.unpublish()
        await pods.csi.delete(pods.id)
        assert await pods.csi.ids() == []


@pytest.mark.usefixtures("mounting")
async def test_a_kubelet_is_told_of_no_end_while_an_earlier_attempt_has_mounted(directory: Path) -> None:
    """After any other code it counts nothing as mounted, and unmounts nothing."""
    async with running(directory) as pods:
        await pods.publish()
        (directory / "disk" / "root" / ".volplane" / "volumes" / "pvc-1.json").unlink()
        text = await pods.csi.refused("ABORTED", "NodePublishVolume", **pods.demand())
        assert "is mounted, but now: " in text
        await pods.csi.refused("NOT_FOUND", "NodePublishVolume", **pods.demand("other"))
        await pods.unpublish()
        await pods.csi.refused("NOT_FOUND", "NodePublishVolume", **pods.demand())
        assert pods.mounted() == []


@pytest.mark.usefixtures("mounting")
async def test_pods_end_also_while_the_driver_cannot_start(directory: Path) -> None:
    async with running(directory) as pods:
        await pods.publish()
    (directory / "disk" / "root" / ".volplane" / "root.json").unlink()
    async with running(directory, made=pods.id) as again:
        await again.csi.refused("UNAVAILABLE", "NodePublishVolume", **again.demand("other"))
        await again.unpublish()
        assert again.mounted() == []


@pytest.mark.usefixtures("mounting")
@pytest.mark.parametrize("fields", [{"readonly": True}, {"volume_capability": READERS}])
async def test_a_read_only_volume_cannot_be_written(directory: Path, fields: dict[str, Any]) -> None:
    async with running(directory) as pods:
        for _ in range(2):
            mounted = await pods.publish(**fields)
        with pytest.raises(OSError, match="Read-only"):
            (mounted / "file").touch()
        (await pods.publish("writable") / "file").touch()
        text = await pods.csi.refused("ALREADY_EXISTS", "NodePublishVolume", **pods.demand())
        assert "but read-only" in text
        assert (mounted / "file").exists()


@pytest.mark.usefixtures("mounting")
async def test_a_volume_for_a_single_pod_is_published_once(directory: Path) -> None:
    """should fail when a SINGLE_NODE_SINGLE_WRITER volume is published at a second target path"""
    async with running(directory, shared=False) as pods:
        alone = {"volume_capability": SINGLE}
        both = await asyncio.gather(
            *(pods.csi.call("NodePublishVolume", **pods.demand(name, **alone)) for name in ("one", "two")),
            return_exceptions=True,
        )
        assert sorted(getattr(each, "code", "OK") for each in both) == ["FAILED_PRECONDITION", "OK"]
        (first,) = pods.mounted()
        await pods.publish(first, **alone)
        second = ({"one", "two"} - {first}).pop()
        assert not Path(pods.target(second)).exists()
        await pods.unpublish(first)
        await pods.publish(second, **alone)


@pytest.mark.usefixtures("mounting")
async def test_what_others_have_put_at_a_target_is_not_touched(directory: Path) -> None:
    (directory / "other").mkdir()
    (directory / "other" / "file").touch()
    async with running(directory) as pods:
        Targets(pods.kubelet).publish(Directory(str(directory / "other")), pods.target(), read_only=False, alone=False)
        await pods.csi.refused("ALREADY_EXISTS", "NodePublishVolume", **pods.demand())
        place: dict[str, Any] = {"volume_id": pods.id, "volume_path": pods.target()}
        await pods.csi.refused("NOT_FOUND", "NodeGetVolumeStats", **place)
        full = Path(pods.target("full"))
        (full / "file").mkdir(parents=True)
        await pods.csi.refused("FAILED_PRECONDITION", "NodeUnpublishVolume", volume_id=pods.id, target_path=str(full))
        assert (full / "file").exists()
        assert (directory / "other" / "file").exists()


@pytest.mark.usefixtures("mounting")
async def test_no_link_is_followed(directory: Path) -> None:
    elsewhere = directory / "elsewhere"
    (elsewhere / "a").mkdir(parents=True)
    async with running(directory) as pods:
        Path(pods.target("link")).symlink_to(elsewhere)
        (pods.kubelet / "pods" / "b").symlink_to(elsewhere)
        for target in (pods.target("link"), f"{pods.kubelet}/pods/b/mount", f"{pods.kubelet}/pods/b/a/mount"):
            place: dict[str, Any] = {"volume_id": pods.id, "target_path": target}
            await pods.csi.refused("FAILED_PRECONDITION", "NodePublishVolume", **pods.demand(target_path=target))
            await pods.csi.refused("FAILED_PRECONDITION", "NodeUnpublishVolume", **place)
        volume = path_of(directory)
        volume.rename(volume.with_name("away"))
        volume.symlink_to("/etc")
        with pytest.raises(CsiError, match="symbolic link"):
            await pods.publish()
    (volume.parent / "link").symlink_to(volume.with_name("away"))
    with pytest.raises(CsiError, match="symbolic link"):
        Targets(pods.kubelet).publish(Directory(str(volume)), pods.target(), read_only=True, alone=False)
    assert pods.mounted() == []
    assert sorted(each.name for each in elsewhere.iterdir()) == ["a"]


@pytest.mark.usefixtures("mounting")
async def test_what_a_killed_kubelet_or_bridge_has_left_is_taken_up(directory: Path) -> None:
    async with running(directory) as pods:
        Path(pods.target()).mkdir()
        mounted = await pods.publish()
    async with running(directory, made=pods.id) as again:
        assert await again.publish() == mounted
        assert again.mounted() == ["mount"]
        # On top of each other, as two bridges at once could do.
        run("mount", "--bind", path_of(directory), mounted)
        assert again.mounted() == ["mount", "mount"]
        await again.unpublish()
        assert again.mounted() == []
        assert not mounted.exists()


@pytest.mark.usefixtures("mounting")
async def test_the_empty_mount_point_of_a_root_is_not_served(directory: Path) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=64m", "none", directory / "disk")
    async with running(directory) as pods:
        await pods.publish("before")
        volume = path_of(directory)
        run("umount", "--lazy", directory / "disk")
        volume.mkdir(parents=True)
        await pods.csi.refused("UNAVAILABLE", "NodePublishVolume", **pods.demand())
        assert pods.mounted() == ["before"]
        await pods.unpublish("before")
        assert pods.mounted() == []


@pytest.mark.usefixtures("mounting")
async def test_a_file_system_that_hangs_stops_nothing_else(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()

    def hanging(ask: Callable[[int], Any]) -> Callable[[int], Any]:
        def asked(fd: int) -> Any:
            if threading.current_thread().name == "csi-node":
                hangs.wait(60)
            return ask(fd)

        return asked

    async with running(directory) as pods:
        place: dict[str, Any] = {"volume_id": pods.id, "volume_path": str(await pods.publish())}
        await pods.publish("other")
        monkeypatch.setattr(os, "fstatvfs", hanging(os.fstatvfs))
        before = threading.active_count()
        for _ in range(5):
            await pods.csi.refused("ABORTED", "NodeGetVolumeStats", seconds=0.1, **place)
        assert threading.active_count() <= before + 1
        await pods.publish("third")
        monkeypatch.setattr(os, "fstat", hanging(os.fstat))
        await pods.unpublish("other")
        await pods.unpublish("third")
        assert pods.mounted() == ["mount"]
        assert (await pods.csi.call("Probe")).ready.value
        hangs.set()
        assert len((await pods.csi.call("NodeGetVolumeStats", **place)).usage) == 2


@pytest.mark.usefixtures("mounting")
async def test_a_look_that_hangs_keeps_no_pod_from_ending(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, statvfs = threading.Event(), os.fstatvfs

    def hanging(fd: int) -> os.statvfs_result:
        hangs.wait(60)
        return statvfs(fd)

    async with running(directory) as pods:
        place: dict[str, Any] = {"volume_id": pods.id, "volume_path": str(await pods.publish())}
        monkeypatch.setattr(os, "fstatvfs", hanging)
        await pods.csi.refused("ABORTED", "NodeGetVolumeStats", seconds=0.1, **place)
        await pods.unpublish()
        assert pods.mounted() == []
        assert not Path(place["volume_path"]).exists()
        hangs.set()


@pytest.mark.usefixtures("mounting")
async def test_what_another_program_uses_stays_mounted_until_it_ends(directory: Path) -> None:
    async with running(directory) as pods:
        fd = os.open(await pods.publish(), os.O_RDONLY)
        await pods.csi.refused("UNAVAILABLE", "NodeUnpublishVolume", volume_id=pods.id, target_path=pods.target())
        assert pods.mounted() == ["mount"]
        os.close(fd)
        await pods.unpublish()
        assert pods.mounted() == []


# --- a snapshot for readers, on btrfs -----------------------------------------------------------------------------


@pytest.fixture
def btrfs(directory: Path) -> Path:
    """The disk of a root, with btrfs on it. What is mounted goes with the directory."""
    image = directory / "image"
    image.touch()
    os.truncate(image, 400 * MIB)
    mkfs = shutil.which("mkfs.btrfs")
    if mkfs is None or subprocess.run([mkfs, "-q", image], check=False, capture_output=True).returncode:
        pytest.skip("mkfs.btrfs is not installed")
    mounted = subprocess.run(["mount", "-o", "loop", image, directory / "disk"], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("no btrfs here")
    return directory


@pytest.mark.usefixtures("mounting")
async def test_a_volume_that_is_a_snapshot_is_published_for_readers_who_see_its_moment(btrfs: Path) -> None:
    async with running(btrfs, overcommit_percent=1000) as pods:
        made = await pods.csi.create("pvc-2", parameters={"subvolume": "true"}, volume_capabilities=[MANY])
        written = await pods.publish("written", volume_id=made.volume_id, volume_capability=MANY)
        (written / "file").write_text("before")
        cut = await pods.csi.call("CreateSnapshot", source_volume_id=made.volume_id, name="s1")
        (written / "file").write_text("after")
        shown = await pods.csi.create(
            "pvc-3",
            parameters={"backingSnapshot": "true"},
            volume_capabilities=[READERS],
            volume_content_source={"snapshot": {"snapshot_id": cut.snapshot.snapshot_id}},
        )
        for _ in range(2):
            read = await pods.publish("read", volume_id=shown.volume_id, volume_capability=READERS)
        assert (read / "file").read_text() == "before"
        with pytest.raises(OSError, match="Read-only"):
            (read / "file").write_text("written into a snapshot")
        usage = await pods.csi.call("NodeGetVolumeStats", volume_id=shown.volume_id, volume_path=str(read))
        assert usage.usage
        for name, volume in (("read", shown), ("written", made)):
            target = pods.target(name)
            await pods.csi.call("NodeUnpublishVolume", volume_id=volume.volume_id, target_path=target)
        assert pods.mounted() == []
