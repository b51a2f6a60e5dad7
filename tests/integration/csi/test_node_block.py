"""The service Node over block volumes: image files of hostpath as loop devices, where this process may have any."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.csi.pods import Pods, running
from volplane.csi.codes import CsiError
from volplane.csi.loops import Loop, Loops
from volplane.csi.sources import IMAGE

pytest.importorskip("volplane_hostpath")
pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("mounting", "devices")]
DRIVER = "conformance.example.com"
WRITER = {"block": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
SINGLE = {"block": {}, "access_mode": {"mode": "SINGLE_NODE_SINGLE_WRITER"}}
MIB = 1 << 20


def loops(directory: Path) -> list[Loop]:
    """Those over files in the directory."""
    images = {path.stat().st_ino for path in directory.glob(f"disk*/root/**/{IMAGE}")}
    return [each for each in Loops(DRIVER).attached() if each.inode in images]


@pytest.fixture
def devices(directory: Path) -> Iterator[None]:
    """Skip where there are no loop devices. What a test leaves attached goes."""
    (directory / "try").write_bytes(bytes(MIB))
    probe = Loops(str(directory))
    fd = os.open(directory / "try", os.O_RDWR)
    try:
        probe.attach(fd, read_only=False)
    except OSError as error:
        pytest.skip(f"no loop devices here: {error.strerror}")
    finally:
        os.close(fd)
        probe.detach_unused([])
    yield
    Loops(DRIVER).detach_unused([])


@asynccontextmanager
async def block(directory: Path, **more: Any) -> AsyncIterator[Pods]:
    async with running(directory, images=True, capability=WRITER, **more) as pods:
        yield pods


async def publish(pods: Pods, name: str = "device", **fields: Any) -> Path:
    return await pods.publish(name, **({"volume_capability": WRITER} | fields))


def size_of(device: Path) -> int:
    fd = os.open(device, os.O_RDONLY)
    try:
        return os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


async def test_a_block_volume_is_a_device_of_its_size(directory: Path) -> None:
    """... published twice, with the same contents at each place, and nothing is left of it."""
    async with block(directory) as pods:
        for _ in range(2):
            device = await publish(pods)
        assert stat.S_ISBLK(device.lstat().st_mode)
        assert size_of(device) == pods.csi.subject.capacity_bytes
        other = await publish(pods, "other")
        assert device.stat().st_rdev == other.stat().st_rdev
        with device.open("r+b", buffering=0) as written:
            written.write(b"x" * 4096)
            os.fsync(written.fileno())
        with other.open("rb", buffering=0) as read:
            assert read.read(4096) == b"x" * 4096
        stats = await pods.csi.call("NodeGetVolumeStats", volume_id=pods.id, volume_path=str(device))
        assert [(each.unit, each.total) for each in stats.usage] == [(1, pods.csi.subject.capacity_bytes)]
        await pods.csi.refused("FAILED_PRECONDITION", "DeleteVolume", volume_id=pods.id)
        for name in ("device", "other", "device"):
            await pods.unpublish(name)
        assert (pods.mounted(), loops(directory)) == ([], [])
        assert not device.exists()
        await pods.csi.delete(pods.id)
        assert await pods.csi.ids() == []


async def test_a_read_only_device_cannot_be_written(directory: Path) -> None:
    async with block(directory) as pods:
        device = await publish(pods, readonly=True)
        with pytest.raises(OSError, match=r"not permitted|Read-only"), device.open("r+b", buffering=0) as opened:
            opened.write(bytes(4096))
        writable = await publish(pods, "writable")
        assert device.stat().st_rdev != writable.stat().st_rdev
        text = await pods.csi.refused("ALREADY_EXISTS", "NodePublishVolume", **_demand(pods, "device"))
        assert "but read-only" in text
        await pods.unpublish("writable")
        await pods.unpublish("device")
        assert loops(directory) == []


def _demand(pods: Pods, name: str, **fields: Any) -> dict[str, Any]:
    return pods.demand(name, **({"volume_capability": WRITER} | fields))


async def test_a_device_for_a_single_pod_is_published_once(directory: Path) -> None:
    async with block(directory) as pods:
        both = await asyncio.gather(
            *(publish(pods, name, volume_capability=SINGLE) for name in ("one", "two")), return_exceptions=True
        )
        refused = [each.code for each in both if isinstance(each, CsiError)]
        assert refused == ["FAILED_PRECONDITION"]
        assert len(pods.mounted()) == len(loops(directory)) == 1


async def test_a_device_grows_where_it_is_published(directory: Path) -> None:
    async with block(directory) as pods:
        device = await publish(pods)
        larger = pods.csi.subject.capacity_bytes + MIB
        wanted: dict[str, Any] = {"volume_id": pods.id, "capacity_range": {"required_bytes": larger}}
        answer = await pods.csi.call("ControllerExpandVolume", **wanted, volume_capability=WRITER)
        assert answer.node_expansion_required
        place: dict[str, Any] = {"volume_id": pods.id, "volume_path": str(device)}
        assert 3 in [each.rpc.type for each in (await pods.csi.call("NodeGetCapabilities")).capabilities]
        assert (await pods.csi.call("NodeExpandVolume", **place)).capacity_bytes == larger
        assert size_of(device) == larger


async def test_what_a_killed_bridge_has_left_of_a_device_is_taken_up(directory: Path) -> None:
    """A device that is attached and nowhere mounted, and the place without a device."""
    async with block(directory) as pods:
        device = await publish(pods)
        await pods.unpublish("device")
        (image,) = (directory / "disk" / "root").glob(f"**/{IMAGE}")
        fd = os.open(image, os.O_RDWR)
        left = Loops(DRIVER).attach(fd, read_only=False)
        os.close(fd)
        device.touch()
    async with block(directory, made=pods.id) as again:
        assert (await publish(again)).stat().st_rdev == Path(left.path).stat().st_rdev
        await again.unpublish("device")
        assert loops(directory) == []
        fd = os.open(image, os.O_RDWR)
        Loops(DRIVER).attach(fd, read_only=False)
        os.close(fd)
        device.touch()
        await again.unpublish("device")
        assert (loops(directory), device.exists()) == ([], False)


async def test_only_a_place_of_the_right_kind_and_a_volume_of_its_mode_are_used(directory: Path) -> None:
    async with running(directory, images=True) as pods:
        mounted = await pods.publish()
        (mounted / "file").touch()
        await pods.csi.refused("FAILED_PRECONDITION", "NodePublishVolume", **_demand(pods, "device"))
        Path(pods.target("directory")).mkdir()
        await pods.csi.refused("FAILED_PRECONDITION", "NodePublishVolume", **_demand(pods, "directory"))
        Path(pods.target("file")).write_text("kept")
        await pods.csi.refused("NOT_FOUND", "NodeGetVolumeStats", volume_id=pods.id, volume_path=pods.target("file"))
        await pods.csi.refused(
            "FAILED_PRECONDITION", "NodeUnpublishVolume", volume_id=pods.id, target_path=pods.target("file")
        )
        assert Path(pods.target("file")).read_text() == "kept"
        assert [each.name for each in mounted.iterdir()] == ["file"]


async def test_a_link_in_the_place_of_the_image_is_not_followed(directory: Path) -> None:
    async with block(directory) as pods:
        volume = next((directory / "disk" / "root").glob("**/*pvc-1*"))
        (directory / "secret").write_bytes(bytes(MIB))
        (volume / IMAGE).symlink_to(directory / "secret")
        await pods.csi.refused("UNAVAILABLE", "NodePublishVolume", **_demand(pods, "device"))
        assert (directory / "secret").stat().st_size == MIB


async def test_block_volumes_are_served_only_where_the_backend_says_so(directory: Path) -> None:
    async with running(directory) as pods:
        await pods.csi.refused(
            "INVALID_ARGUMENT", "CreateVolume", **pods.csi.demand("pvc-2", volume_capabilities=[WRITER])
        )
        text = await pods.csi.refused("INVALID_ARGUMENT", "NodePublishVolume", **_demand(pods, "device"))
        assert "Block are not served" in text
