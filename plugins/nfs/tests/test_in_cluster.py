"""Snapshots, restored claims and clones of the driver in a whole cluster, to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane.kube import names
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model.state import Node
from volplane_nfs.testing.subjects import backend_through
from volplane_testing import Cluster

from .conftest import DRIVER, MODEL
from .test_snapshots import contents, fill_node

SNAPSHOTS = "snapshot.storage.k8s.io"


async def eventually(cluster: Cluster, condition: Callable[[], Any]) -> Any:
    for _ in range(2000):
        cluster.controllers.check()
        if found := condition():
            return found
        await asyncio.sleep(0.5)
    raise AssertionError("it never happens")


def volume_of(model: ModelServer, cluster: Cluster, claim: str) -> Node:
    """The directory of a bound claim."""
    shown = cluster.api.get("persistentvolumeclaims", claim)
    assert shown is not None
    volume = cluster.api.get("persistentvolumes", shown["spec"]["volumeName"])
    assert volume is not None
    node = model.share
    for name in volume["spec"]["nfs"]["path"].removeprefix("/vol/").encode().split(b"/"):
        node = node.children[name]
    return node


async def test_a_claim_is_restored_from_a_snapshot_and_cloned_and_nothing_stays() -> None:
    model = ModelServer()
    backend = backend_through(model.dial)
    async with Cluster({DRIVER: lambda: backend({"shares": (MODEL,)})}) as cluster:
        await cluster.create_class("shared")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="shared"))
        source = volume_of(model, cluster, "data")
        fill_node(model, source)
        metadata = {"name": "daily", "annotations": {names.DEFAULT_SNAPSHOT_CLASS: "true"}}
        body = {"metadata": metadata, "driver": DRIVER, "deletionPolicy": "Delete"}
        cluster.api.create("volumesnapshotclasses", {**body, "parameters": {"consistency": "any"}})
        spec = {"source": {"persistentVolumeClaimName": "data"}}
        cluster.api.create("volumesnapshots", {"metadata": {"name": "before"}, "spec": spec})
        await eventually(
            cluster,
            lambda: (cluster.api.get("volumesnapshots", "before") or {}).get("status", {}).get("readyToUse"),
        )
        references = {
            "restored": {"apiGroup": SNAPSHOTS, "kind": "VolumeSnapshot", "name": "before"},
            "cloned": {"kind": "PersistentVolumeClaim", "name": "data"},
        }
        for name, reference in references.items():
            made = await cluster.create_claim(name, storage_class="shared", dataSource=reference)
            await cluster.wait_bound(made)
            assert contents(volume_of(model, cluster, name)) == contents(source)
        cluster.api.delete("volumesnapshots", "before")
        for name in ("data", "restored", "cloned"):
            cluster.api.delete("persistentvolumeclaims", name)
        control = model.share.children[b".volplane"].children
        await eventually(
            cluster,
            lambda: not any(control[each].children for each in (b"volumes", b"snapshots", b"copies", b"trash")),
        )


async def test_claims_for_readers_show_one_snapshot_which_goes_after_the_last_of_them() -> None:
    model = ModelServer()
    backend = backend_through(model.dial)
    async with Cluster({DRIVER: lambda: backend({"shares": (MODEL,)})}) as cluster:
        await cluster.create_class("shared")
        await cluster.create_class("readers", parameters={"backingSnapshot": "true"})
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="shared"))
        fill_node(model, volume_of(model, cluster, "data"))
        body = {"metadata": {"name": "daily"}, "driver": DRIVER, "deletionPolicy": "Delete"}
        cluster.api.create("volumesnapshotclasses", body)
        spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"}
        snapshot = cluster.api.create("volumesnapshots", {"metadata": {"name": "before"}, "spec": spec})
        await eventually(
            cluster,
            lambda: (cluster.api.get("volumesnapshots", "before") or {}).get("status", {}).get("readyToUse"),
        )
        source = {"apiGroup": SNAPSHOTS, "kind": "VolumeSnapshot", "name": "before"}
        for name in ("one", "two"):
            fields = {"storage_class": "readers", "dataSource": source, "accessModes": ["ReadOnlyMany"]}
            volume = await cluster.wait_bound(await cluster.create_claim(name, **fields))
            assert volume["spec"]["nfs"]["readOnly"] is True
            assert volume["spec"]["mountOptions"] == ["ro"]
            assert volume["metadata"]["annotations"][names.BACKING_SNAPSHOT]
        cluster.api.delete("volumesnapshots", "before")

        def refused() -> bool:
            events = cluster.api.events(snapshot)
            return any("shown, without a copy, by volume pvc-" in each["message"] for each in events)

        await eventually(cluster, refused)
        cluster.api.delete("persistentvolumeclaims", "one")
        await eventually(cluster, lambda: len(cluster.api.all("persistentvolumes")) == 2)
        assert cluster.api.get("volumesnapshots", "before") is not None
        assert contents(volume_of(model, cluster, "two")) == contents(volume_of(model, cluster, "data"))
        cluster.api.delete("persistentvolumeclaims", "two")
        await eventually(cluster, lambda: cluster.api.get("volumesnapshots", "before") is None)
        await eventually(cluster, lambda: len(cluster.api.all("persistentvolumes")) == 1)
        assert not model.share.children[b".volplane"].children[b"snapshots"].children
