"""Restores of snapshots in virtual time: the data of the cut, the checks by live reads, and what a crash repeats."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from scenarios.test_copies import CLAIMS, VOLUMES, Json, a_cluster, asset, now, told
from volplane import Context, SnapshotIdentity, SnapshotOwnership, SnapshotRequest
from volplane.intents.requests import volume_identity
from volplane.kube.client import Client
from volplane.kube.kinds import VOLUMES as VOLUME_KIND
from volplane.process.duties import ALL_CONTROLLERS
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import Cluster
from volplane_testing.memory import ZONE

SNAPSHOTS, CONTENTS = "volumesnapshots", "volumesnapshotcontents"
GROUP: Final = "snapshot.storage.k8s.io"
PROTECTION: Final = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
SELECTED: Final = "volume.kubernetes.io/selected-node"
SOURCE: Final[Json] = {"dataSource": {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "s"}}


async def cut(cluster: Cluster, volume: Json) -> Json:
    """Cut a snapshot of the volume, and write its objects, as the controllers of snapshots do. Return its handle."""
    snapshot = cluster.api.create(
        SNAPSHOTS, {"metadata": {"name": "s"}, "spec": {"source": {"persistentVolumeClaimName": "origin"}}}
    )
    uid = snapshot["metadata"]["uid"]
    identity = volume_identity(
        await Client(InProcessTransport(cluster.server)).get(VOLUME_KIND, volume["metadata"]["name"]),
        _cluster_id(cluster),
    )
    made = cluster.backend.create_snapshot(
        SnapshotRequest(
            context=Context(driver=cluster.driver, cluster_id=_cluster_id(cluster)),
            name=f"snapshot-{uid}",
            volume=identity,
            owner=SnapshotOwnership(cluster_id=_cluster_id(cluster), snapshot_uid=uid, content_name="content"),
            snapshot=SnapshotIdentity(namespace="default", name="s", content="content"),
        )
    )
    spec = {
        "volumeSnapshotRef": {"namespace": "default", "name": "s", "uid": uid},
        "driver": cluster.driver,
        "deletionPolicy": "Delete",
        "source": {"volumeHandle": identity.handle},
        "sourceVolumeMode": "Filesystem",
    }
    cluster.api.create(CONTENTS, {"metadata": {"name": "content"}, "spec": spec})
    known = {"snapshotHandle": made.handle, "readyToUse": True, "restoreSize": made.size_bytes}
    cluster.api.patch(CONTENTS, "content", {"status": known}, subresource="status")
    ready(cluster, restoreSize=str(made.size_bytes))
    return {"handle": made.handle, **snapshot}


def ready(cluster: Cluster, **status: Any) -> None:
    """Write the status of the VolumeSnapshot."""
    body = {"status": {"boundVolumeSnapshotContentName": "content", "readyToUse": True, **status}}
    cluster.api.patch(SNAPSHOTS, "s", body, subresource="status")


def _cluster_id(cluster: Cluster) -> str:
    return str(
        next(each for each in cluster.api.all("namespaces") if each["metadata"]["name"] == "kube-system")["metadata"][
            "uid"
        ]
    )


@asynccontextmanager
async def a_snapshot(*zones: str, origin: Json | None = None, **of_cluster: Any) -> AsyncIterator[tuple[Cluster, Json]]:
    """A cluster with a ready snapshot `s` of what was in claim `origin`, in which somebody has written since."""
    async with a_cluster(*zones, **of_cluster) as cluster:
        claim = await cluster.create_claim("origin", storage_class="fast", **(origin or {}))
        volume = await cluster.wait_bound(claim)
        await cluster.settle()
        asset(cluster, volume).contents.append("before")
        snapshot = await cut(cluster, volume)
        asset(cluster, volume).contents.append("after")
        yield cluster, snapshot


async def restored(cluster: Cluster, name: str = "restored", **more: Any) -> Json:
    return await cluster.create_claim(name, **{"storage_class": "fast", **SOURCE, **more})


def finalizers(cluster: Cluster) -> list[str]:
    found = cluster.api.get(SNAPSHOTS, "s")
    assert found is not None
    return list(found["metadata"].get("finalizers", []))


def begun(cluster: Cluster) -> bool:
    return "volplane.dev/intent" in now(cluster, "restored")["metadata"].get("annotations", {})


async def test_a_restore_has_the_data_of_the_cut_and_not_what_was_written_later() -> None:
    async with a_snapshot() as (cluster, _):
        volume = await cluster.wait_bound(await restored(cluster))
        assert asset(cluster, volume).contents == ["before"]
        await cluster.settle()
        assert finalizers(cluster) == []


async def test_a_restore_outlives_the_claim_that_was_cut() -> None:
    async with a_snapshot() as (cluster, _):
        await cluster.delete_claim(now(cluster, "origin"))
        await cluster.settle()
        assert asset(cluster, await cluster.wait_bound(await restored(cluster))).contents == ["before"]


async def test_a_claim_that_was_written_before_the_snapshot_is_ready_is_restored_when_it_is() -> None:
    async with a_snapshot() as (cluster, _):
        ready(cluster, readyToUse=False)
        claim = await restored(cluster)
        await cluster.settle(120.0)
        assert "snapshot s is not Ready" in told(cluster, claim)
        ready(cluster)
        assert asset(cluster, await cluster.wait_bound(claim, 120.0)).contents == ["before"]


async def test_a_smaller_restore_is_refused_with_both_sizes_before_any_hook() -> None:
    async with a_snapshot(origin={"capacity": "2Gi"}) as (cluster, _):
        claim = await restored(cluster)
        await cluster.settle()
        why = f"requested volume size {2**30} is less than the size {2**31} for the source snapshot s"
        assert why in told(cluster, claim)
        assert len(cluster.backend.storage.assets) == 1
        larger = await restored(cluster, "larger", capacity="3Gi")
        assert asset(cluster, await cluster.wait_bound(larger)).contents == ["before"]


async def test_the_storage_says_what_a_snapshot_needs_though_the_object_does_not() -> None:
    async with a_snapshot(origin={"capacity": "2Gi"}) as (cluster, _):
        ready(cluster, restoreSize="1Gi")
        claim = await restored(cluster)
        await cluster.settle(60.0)
        assert f"is less than the size {2**31}" in told(cluster, claim)
        assert not begun(cluster)


async def test_a_snapshot_that_the_storage_has_not_any_more_is_said_so_and_nothing_is_begun() -> None:
    async with a_snapshot() as (cluster, snapshot):
        gone = cluster.backend.storage.snapshots.pop(snapshot["handle"])
        claim = await restored(cluster)
        await cluster.settle(60.0)
        assert f'snapshot "{snapshot["handle"]}" does not exist on the storage' in told(cluster, claim)
        assert not begun(cluster)
        cluster.backend.storage.snapshots[snapshot["handle"]] = gone
        assert asset(cluster, await cluster.wait_bound(claim, 3600.0)).contents == ["before"]


async def test_another_mode_needs_the_permission_of_the_content() -> None:
    async with a_snapshot() as (cluster, _):
        claim = await restored(cluster, volumeMode="Block")
        await cluster.settle(60.0)
        assert "modifies the mode of the source volume" in told(cluster, claim)
        allowed = {"metadata": {"annotations": {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"}}}
        cluster.api.patch(CONTENTS, "content", allowed)
        assert (await cluster.wait_bound(claim))["spec"]["volumeMode"] == "Block"


async def test_a_snapshot_is_held_while_the_volume_is_made_and_can_go_then() -> None:
    async with a_snapshot() as (cluster, _):
        cluster.fail("create", VOLUMES, status=403, times=1000)
        claim = await restored(cluster)
        await cluster.settle(60.0)
        assert finalizers(cluster) == [PROTECTION]
        cluster.api.delete(SNAPSHOTS, "s")
        await cluster.restart()
        cluster.heal()
        assert asset(cluster, await cluster.wait_bound(claim, 3600.0)).contents == ["before"]
        await cluster.settle()
        assert cluster.api.get(SNAPSHOTS, "s") is None


async def test_a_claim_that_is_deleted_meanwhile_lets_the_snapshot_go() -> None:
    async with a_snapshot() as (cluster, _):
        cluster.fail("create", VOLUMES, status=403, times=1000)
        claim = await restored(cluster)
        await cluster.settle(60.0)
        assert finalizers(cluster) == [PROTECTION]
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert finalizers(cluster) == []
        assert cluster.api.get(CLAIMS, "restored") is None
        assert len(cluster.backend.storage.assets) == 1


async def test_the_last_of_several_restores_lets_it_go() -> None:
    async with a_snapshot() as (cluster, _):
        for claim in [await restored(cluster, f"restored-{number}") for number in range(4)]:
            assert asset(cluster, await cluster.wait_bound(claim)).contents == ["before"]
        await cluster.settle()
        assert finalizers(cluster) == []


async def test_a_snapshot_that_is_removed_by_force_while_the_volume_is_made_does_not_change_the_demand() -> None:
    async with a_snapshot() as (cluster, _):
        cluster.fail("create", VOLUMES, status=403, times=1000)
        claim = await restored(cluster)
        await cluster.settle(60.0)
        for resource, name in ((SNAPSHOTS, "s"), (CONTENTS, "content")):
            cluster.api.patch(resource, name, {"metadata": {"finalizers": None}})
            cluster.api.delete(resource, name)
        await cluster.restart()
        cluster.heal()
        assert asset(cluster, await cluster.wait_bound(claim, 3600.0)).contents == ["before"]


async def test_a_restore_goes_to_the_zone_of_the_snapshot() -> None:
    async with a_snapshot("a", "b", "c", origin={"selected_node": "node-b"}) as (cluster, _):
        assert asset(cluster, await cluster.wait_bound(await restored(cluster))).segment == {ZONE: "b"}


async def test_a_node_in_another_zone_than_the_snapshots_is_given_back_to_the_scheduler() -> None:
    waits = {"binding_mode": "WaitForFirstConsumer"}
    async with a_snapshot("a", "b", origin={"selected_node": "node-b"}, **waits) as (cluster, _):
        claim = await restored(cluster, selected_node="node-a")
        await cluster.settle()
        assert SELECTED not in now(cluster, "restored")["metadata"].get("annotations", {})
        assert f'VolumeSnapshot "s" can only be used at {ZONE}=b' in told(cluster, claim)
        cluster.api.patch(CLAIMS, "restored", {"metadata": {"annotations": {SELECTED: "node-b"}}})
        assert asset(cluster, await cluster.wait_bound(claim)).segment == {ZONE: "b"}


async def test_the_claims_of_the_how_to_are_bound_to_the_data_of_their_sources() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "restore-and-clone.md").read_text("utf-8")
    bodies = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)]
    async with a_snapshot() as (cluster, _):
        found = {}
        for body in bodies:
            if body["kind"] != "PersistentVolumeClaim":
                continue  # What other namespaces need: tests/integration/test_other_namespaces.py.
            claim = cluster.api.create(CLAIMS, body)
            found[claim["metadata"]["name"]] = asset(cluster, await cluster.wait_bound(claim)).contents
        assert found == {"restored": ["before"], "copy": ["before", "after"]}


@pytest.mark.parametrize("write", range(8))
async def test_a_crash_after_any_write_repeats_the_same_demand(write: int) -> None:
    async with a_snapshot() as (cluster, _):
        before = len(_writes(cluster))
        claim = await restored(cluster)
        await cluster.wait_for(lambda: len(_writes(cluster)) > before + write or _is_bound(cluster), 600.0, "a write")
        await cluster.restart()
        await cluster.wait_bound(claim)
        await cluster.settle()
        made = [each for each in cluster.backend.storage.assets.values() if each.handle != "memory-1"]
        assert [each.contents for each in made] == [["before"]]
        assert finalizers(cluster) == []
        assert not begun(cluster)


def _writes(cluster: Cluster) -> list[Any]:
    return [each for each in cluster.requests if each.verb in ("create", "patch") and each.resource != "events"]


def _is_bound(cluster: Cluster) -> bool:
    return bool(now(cluster, "restored")["status"].get("phase") == "Bound")


async def test_where_the_kinds_are_not_served_a_claim_says_so_until_they_are() -> None:
    async with a_cluster() as cluster:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        definition = json.loads(cluster.server.handle("GET", f"{path}/{SNAPSHOTS}.{GROUP}", {}, {}, b"").body)
        assert cluster.server.handle("DELETE", f"{path}/{SNAPSHOTS}.{GROUP}", {}, {}, b"").status == 200
        claim = await restored(cluster)
        await cluster.settle(60.0)
        assert "does not serve volumesnapshots.snapshot.storage.k8s.io" in told(cluster, claim)
        explained = "\n".join(cluster.controllers.plane.explain("claim", "default/restored").next)
        assert "its CRD is not installed" in explained
        await cluster.wait_bound(await cluster.create_claim("empty", storage_class="fast"))
        definition["metadata"] = {"name": definition["metadata"]["name"]}
        headers = {"content-type": "application/json"}
        assert cluster.server.handle("POST", path, {}, headers, json.dumps(definition).encode()).status == 201
        await cluster.advance(120.0)
        assert "error getting snapshot s from api server" in told(cluster, claim)


@pytest.mark.skipif("snapshot-controller" not in ALL_CONTROLLERS, reason="there is no controller of snapshots")
@pytest.mark.parametrize("early", [False, True])
async def test_what_our_own_controllers_cut_is_restored_and_may_be_deleted_at_once(*, early: bool) -> None:
    """early: the claim is there before the snapshot."""
    async with a_cluster(controllers=frozenset(ALL_CONTROLLERS)) as cluster:
        volume = await cluster.wait_bound(await cluster.create_claim("origin", storage_class="fast"))
        asset(cluster, volume).contents.append("before")
        claim = await restored(cluster) if early else None
        cut_by = {"driver": cluster.driver, "deletionPolicy": "Delete", "metadata": {"name": "cuts"}}
        cluster.api.create("volumesnapshotclasses", cut_by)
        source = {"persistentVolumeClaimName": "origin"}
        spec = {"source": source, "volumeSnapshotClassName": "cuts"}
        cluster.api.create(SNAPSHOTS, {"metadata": {"name": "s"}, "spec": spec})
        await cluster.settle(60.0)
        asset(cluster, volume).contents.append("after")
        made = await cluster.wait_bound(claim if claim is not None else await restored(cluster))
        assert asset(cluster, made).contents == ["before"]
        await cluster.settle()
        cluster.api.delete(SNAPSHOTS, "s")
        await cluster.settle()
        assert (cluster.api.get(SNAPSHOTS, "s"), cluster.backend.storage.snapshots) == (None, {})
