"""Volumes made of sources in other namespaces, which a ReferenceGrant there has to allow."""

from __future__ import annotations

from typing import Any

import pytest

from integration.definitions_of_others import install, send
from integration.snapshot_world import World, storage
from volplane import Unavailable
from volplane.kube import names
from volplane_embedded.apiserver.custom_kinds import definitions
from volplane_testing import Cluster
from volplane_testing.faults import FailBefore, FaultyBackend
from volplane_testing.memory import MemoryBackend

GATE = ("CrossNamespaceVolumeDataSource",)
SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
CLAIM = {"kind": "PersistentVolumeClaim", "name": "data"}
GRANTS_DEFINITION = "referencegrants.gateway.networking.k8s.io"
GRANTS = "/apis/gateway.networking.k8s.io/v1beta1/namespaces/default/referencegrants"
FROM = {"group": "", "kind": "PersistentVolumeClaim", "namespace": "theirs"}


def grant(cluster: Cluster, *, origin: Any = None, **to: str) -> None:
    allowed = {"group": SNAPSHOT["apiGroup"], "kind": "VolumeSnapshot", **to}
    body = {"metadata": {"name": "g"}, "spec": {"from": [{**FROM, **(origin or {})}], "to": [allowed]}}
    send(cluster, "POST", GRANTS, {"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", **body})


async def ask(cluster: Cluster, source: dict[str, str], name: str = "copy") -> Any:
    spec = {"dataSourceRef": {**source, "namespace": "default"}}
    return await cluster.create_claim(name, namespace="theirs", storage_class="fast", **spec)


def told(cluster: Cluster, name: str = "copy") -> str:
    events = cluster.api.events(cluster.api.get("persistentvolumeclaims", name, "theirs") or {})
    return " / ".join(each["message"] for each in events)


async def prepared(cluster: Cluster, *, grants: bool = True) -> World:
    """A bound claim with a ready snapshot in namespace default, and a namespace `theirs`."""
    world = World(cluster)
    await world.begin()
    world.cut()
    await world.status(readyToUse=True)
    cluster.api.create("namespaces", {"metadata": {"name": "theirs"}})
    if not grants:
        send(cluster, "DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{GRANTS_DEFINITION}")
    return world


@pytest.mark.parametrize(
    ("source", "to"), [(SNAPSHOT, {}), (SNAPSHOT, {"name": "s"}), (CLAIM, {"group": "", "kind": CLAIM["kind"]})]
)
async def test_a_source_of_another_namespace_is_used_and_held_where_a_grant_allows_it(source: Any, to: Any) -> None:
    made = storage()
    faulty = FaultyBackend(MemoryBackend(storage=made))
    async with Cluster([faulty], feature_gates=GATE) as cluster:
        world = await prepared(cluster)
        next(iter(made.assets.values())).contents.append("later")
        grant(cluster, **to)
        faulty.fail("provision", [FailBefore(Unavailable("no answer"))] * 3)
        claim = await ask(cluster, source)
        plural = "volumesnapshots" if source is SNAPSHOT else "persistentvolumeclaims"
        finalizer = names.RESTORED_SNAPSHOT if source is SNAPSHOT else names.CLONED_CLAIM
        await world.wait(lambda: finalizer in str(world.api.get(plural, source["name"])))
        await cluster.wait_bound(claim)
        copy = list(made.assets.values())[-1]
        assert copy.contents == ([] if source is SNAPSHOT else ["later"])
        if source is SNAPSHOT:
            await world.wait(lambda: finalizer not in str(world.snapshot()))


@pytest.mark.parametrize(
    ("origin", "to"),
    [
        ({"namespace": "other"}, {}),
        ({"kind": "Pod"}, {}),
        ({"group": "x"}, {}),
        ({}, {"group": ""}),
        ({}, {"kind": "PersistentVolumeClaim"}),
        ({}, {"name": "t"}),
    ],
)
async def test_a_grant_of_something_else_allows_nothing(origin: Any, to: Any) -> None:
    async with Cluster([MemoryBackend(storage=storage())], feature_gates=GATE) as cluster:
        world = await prepared(cluster)
        grant(cluster, origin=origin, **to)
        await ask(cluster, SNAPSHOT)
        await world.wait(lambda: told(cluster))
        assert "accessing default/s of VolumeSnapshot dataSource from theirs/copy isn't allowed" in told(cluster)
        cluster.api.delete("volumesnapshots", "s")
        await world.gone()  # A claim that was granted nothing holds nothing.


async def test_without_a_grant_nothing_is_said_of_the_source_and_a_later_one_is_found() -> None:
    async with Cluster([MemoryBackend(storage=storage())], feature_gates=GATE) as cluster:
        world = await prepared(cluster, grants=False)
        claim = await ask(cluster, {**SNAPSHOT, "name": "none"})
        await world.wait(lambda: told(cluster))
        assert "default/none of VolumeSnapshot dataSource" in told(cluster)
        assert "serves no ReferenceGrants" in told(cluster)
        assert "not found" not in told(cluster)
        for each in definitions("gateway.networking.k8s.io"):
            install(cluster, each)
        grant(cluster)
        await world.wait(lambda: '"none" not found' in told(cluster))
        cluster.api.delete("persistentvolumeclaims", claim["metadata"]["name"], "theirs")
        await cluster.wait_bound(await ask(cluster, SNAPSHOT, "again"))


async def test_a_grant_that_is_withdrawn_between_two_tries_allows_nothing_more() -> None:
    made = storage()
    faulty = FaultyBackend(MemoryBackend(storage=made))
    async with Cluster([faulty], feature_gates=GATE) as cluster:
        world = await prepared(cluster)
        grant(cluster)
        faulty.fail("provision", [FailBefore(Unavailable("no answer", retry_after=30.0))] * 3)
        before = faulty.asked["provision"]
        await ask(cluster, SNAPSHOT)
        await world.wait(lambda: faulty.asked["provision"] > before)
        send(cluster, "DELETE", f"{GRANTS}/g")
        await cluster.advance(600.0)
        assert "isn't allowed" in told(cluster)
        assert faulty.asked["provision"] == before + 1
        cluster.api.delete("persistentvolumeclaims", "copy", "theirs")
        await world.wait(lambda: cluster.api.get("persistentvolumeclaims", "copy", "theirs") is None)
        assert len(made.assets) == 1
        await world.wait(lambda: names.RESTORED_SNAPSHOT not in str(world.snapshot()))


async def test_where_the_api_server_has_the_gate_off_the_source_never_reaches_us() -> None:
    async with Cluster([MemoryBackend(storage=storage())]) as cluster:
        await prepared(cluster)
        claim = await ask(cluster, SNAPSHOT)
        assert "dataSourceRef" not in claim["spec"]
        await cluster.wait_bound(claim)
