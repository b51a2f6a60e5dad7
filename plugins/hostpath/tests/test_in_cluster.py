"""Snapshots, restores and clones of directories by the controllers, in a cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from volplane_hostpath import HostPathBackend, copies
from volplane_testing import Cluster

SOURCE = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}


async def wait(cluster: Cluster, condition: Callable[[], Any]) -> Any:
    for _ in range(10_000):
        if found := condition():
            return found
        cluster.controllers.check()
        await asyncio.sleep(0.1)
    raise AssertionError


def files(volume: Any) -> dict[str, str]:
    top = Path(volume["spec"]["local"]["path"])
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}


async def test_a_claim_is_cut_restored_and_cloned_in_slices(
    tmp_path: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_SLICE", 0.0)
    monkeypatch.setattr(copies, "_TOLD", 0.0)
    root = tmp_path / "volumes"
    root.mkdir()
    options = {"root": str(root), "node_name": "node-1", "overcommit_percent": 100_000}
    async with Cluster([HostPathBackend(options)]) as cluster:
        api = cluster.api
        await cluster.create_class("directories")
        claim = await cluster.create_claim("data", storage_class="directories")
        volume = await cluster.wait_bound(claim)
        site.grow(Path(volume["spec"]["local"]["path"]), depth=1)
        before = files(volume)
        daily = {"metadata": {"name": "daily"}, "driver": cluster.driver, "deletionPolicy": "Delete"}
        api.create("volumesnapshotclasses", daily)
        spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"}
        api.create("volumesnapshots", {"metadata": {"name": "s"}, "spec": spec})

        def cut() -> Any:
            return ((api.get("volumesnapshots", "s") or {}).get("status") or {}).get("readyToUse")

        await wait(cluster, cut)
        (Path(volume["spec"]["local"]["path"]) / "file0").write_text("written later")
        restored = await cluster.create_claim("back", storage_class="directories", dataSource=SOURCE)
        source = {"kind": "PersistentVolumeClaim", "name": "data"}
        cloned = await cluster.create_claim("copy", storage_class="directories", dataSource=source)
        assert files(await cluster.wait_bound(restored)) == before
        assert files(await cluster.wait_bound(cloned)) == {**before, "file0": "written later"}
        api.delete("volumesnapshots", "s")
        await wait(cluster, lambda: not api.all("volumesnapshotcontents"))
        for each in (claim, restored, cloned):
            await cluster.delete_claim(each)
        await wait(cluster, lambda: not api.all("persistentvolumes"))
        await cluster.settle()
    left = [
        path
        for place in ("snapshots", "copies", "trash", "tmp", "volumes")
        for path in (root / ".volplane" / place).iterdir()
    ]
    assert left == []
