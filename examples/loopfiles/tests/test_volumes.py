"""Real file systems on real loop devices, and a volume's life in a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from volplane_loopfiles import LoopFilesBackend

from volplane import (
    Asset,
    CapacityRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    Done,
    Erased,
    ExpandRequest,
    Ownership,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    StartRequest,
    VolumeIdentity,
    VolumeInUse,
)
from volplane_testing import Cluster, FailAfter, FaultyBackend

MIB = 1 << 20
CONTEXT = Context(driver="loopfiles.example.com", cluster_id="test")
OWNER = Ownership(cluster_id="test", claim_uid="u1", volume_name="pvc-u1")

needs_devices = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/loop-control", os.R_OK | os.W_OK) or shutil.which("mkfs.ext4") is None,
    reason="needs root, loop devices and mkfs.ext4",
)


def backend_on(root: Path, **options: object) -> LoopFilesBackend:
    given = {"root": str(root), "node_name": "node-a", "devices": True, "reserve": 0, "page": 500, **options}
    backend = LoopFilesBackend(given)
    assert backend.start(StartRequest(context=CONTEXT)) == Done()
    return backend


def demand(**fields: object) -> ProvisionRequest:
    request = {"context": CONTEXT, "name": "pvc-u1", "capacity_bytes": 16 * MIB, "owner": OWNER}
    claim = ClaimIdentity(namespace="default", name="data", uid="u1")
    return ProvisionRequest(**{**request, "claim": claim, **fields})


def volume_of(asset: Asset) -> VolumeIdentity:
    return VolumeIdentity(
        name="pvc-u1",
        uid="pv-u1",
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=asset.capacity_bytes,
        owner=OWNER,
    )


def shell(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def free_bytes(backend: LoopFilesBackend) -> int:
    return backend.get_capacity(CapacityRequest(context=CONTEXT)).available_bytes


@needs_devices
def test_a_volume_carries_a_file_system_through_growth_and_a_reboot(tmp_path: Path) -> None:
    root, set_link = tmp_path / "root", tmp_path / "mount"
    root.mkdir()
    set_link.mkdir()
    backend = backend_on(root)
    asset = backend.provision(demand())
    device = asset.source.fields["path"]
    assert asset.source.kind == "local"
    assert asset.source.fields["fsType"] == "ext4"
    shell("mkfs.ext4", "-q", device)
    shell("mount", device, str(set_link))
    try:
        (set_link / "file").write_text("precious")
        with pytest.raises(VolumeInUse):
            backend.delete(DeleteRequest(context=CONTEXT, volume=volume_of(asset)))
        with pytest.raises(VolumeInUse):
            backend.recycle(RecycleRequest(context=CONTEXT, volume=volume_of(asset)))
        larger = ExpandRequest(context=CONTEXT, volume=volume_of(asset), capacity_bytes=32 * MIB)
        assert backend.expand(larger).capacity_bytes == 32 * MIB
        assert int(shell("blockdev", "--getsize64", device)) == 32 * MIB
    finally:
        shell("umount", str(set_link))

    shell("losetup", "--detach", str(Path(device).resolve()))  # as a reboot does
    again = backend_on(root)
    shell("mount", device, str(set_link))
    try:
        assert (set_link / "file").read_text() == "precious"
    finally:
        shell("umount", str(set_link))

    assert again.recycle(RecycleRequest(context=CONTEXT, volume=volume_of(asset))) == Erased()
    with Path(device).open("rb") as contents:
        assert not any(contents.read())
    assert again.delete(DeleteRequest(context=CONTEXT, volume=volume_of(asset))) == Done()
    assert [path.name for path in root.rglob("*") if not path.is_dir()] == ["lock"]
    assert str(root) not in shell("losetup", "--list", "--noheadings", "--output", "BACK-FILE")


def test_blocks_are_allocated_when_the_volume_is_made(tmp_path: Path) -> None:
    backend = backend_on(tmp_path, devices=False)
    asset = backend.provision(demand())
    image = Path(asset.source.fields["path"])
    assert image.stat().st_size == 16 * MIB
    assert image.stat().st_blocks * 512 >= 16 * MIB


def test_sparse_images_take_nothing_but_their_promise(tmp_path: Path) -> None:
    backend = backend_on(tmp_path, devices=False)
    before = free_bytes(backend)
    asset = backend.provision(demand(capacity_bytes=1 << 30, parameters={"sparse": True}))
    image = Path(asset.source.fields["path"])
    assert image.stat().st_size == 1 << 30
    assert image.stat().st_blocks * 512 < MIB
    assert before - free_bytes(backend) > 1 << 29


def test_what_is_reserved_is_left_free(tmp_path: Path) -> None:
    backend = backend_on(tmp_path, devices=False, reserve=shutil.disk_usage(tmp_path).free)
    with pytest.raises(ResourceExhausted, match="lower reserve") as refused:
        backend.provision(demand())
    assert refused.value.nothing_done
    assert list(tmp_path.rglob("*.img")) == []


async def test_a_volume_lives_in_a_cluster_although_answers_get_lost(tmp_path: Path) -> None:
    images = backend_on(tmp_path, devices=False)
    faulty = FaultyBackend(images, {"provision": [FailAfter()], "delete": [FailAfter()]})

    async with Cluster({"loopfiles.example.com": faulty}) as cluster:
        await cluster.create_class("images")
        claim = await cluster.create_claim("data", storage_class="images", capacity="16Mi")
        volume = await cluster.wait_bound(claim)
        assert volume["spec"]["hostPath"]["type"] == "File"
        [image] = tmp_path.rglob("*.img")
        assert image.stem == volume["metadata"]["name"]
        await cluster.delete_claim(claim)
        await cluster.advance(60)
        assert volume not in cluster.api
        assert list(tmp_path.rglob("*.img")) == []
