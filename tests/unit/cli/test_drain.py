"""Whether a controller is at work, and how a release is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volplane.asking.leader import Leader, held_lease
from volplane.cli.drain import Drain
from volplane.cli.framework.console import Console
from volplane.kube import names
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, LEASES, NAMESPACES, PODS, VOLUMES
from volplane_testing import clock

OURS = "volplane-system"
Wire = Callable[[], Any]


def lease_of(age: float, holder: str) -> dict[str, Any]:
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 0}


async def with_namespace(line: Any) -> None:
    await line.client.create(NAMESPACES, NAMESPACES.body(metadata={"name": OURS}))


@pytest.mark.parametrize(
    ("age", "holder", "renewed_later", "expected"),
    [
        (0, "them", False, "them"),
        (3600, "them", False, ""),
        (3600, "them", True, "them"),
        (-3600, "them", True, "them"),
        (0, "", False, ""),
    ],
)
async def test_who_renews_its_lease_is_at_work_whatever_its_clock_says(
    wire: Wire, age: float, holder: str, renewed_later: bool, expected: str
) -> None:
    line = wire()
    await with_namespace(line)
    assert await held_lease(line.client, OURS) is None
    body = LEASES.body(metadata={"name": "volplane", "namespace": OURS}, spec=lease_of(age, holder))
    await line.client.create(LEASES, body)

    async def renew() -> None:
        await asyncio.sleep(2)
        fresh = {"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}}
        await line.client.patch(LEASES, f"{OURS}/volplane", fresh)

    renewing = asyncio.ensure_future(renew()) if renewed_later else None
    held = await held_lease(line.client, OURS)
    assert (held.spec.holder_identity if held is not None else "") == expected
    if renewing is not None:
        await renewing


async def test_a_release_overcomes_conflicts_and_takes_scrubber_pods_with_it(wire: Wire) -> None:
    line = wire()
    await with_namespace(line)
    annotations = {names.PROVISIONED_BY: "d", names.HANDLE: "h", names.INTENT: "{}"}
    volume = VOLUMES.body(
        metadata={"name": "v", "finalizers": [names.RECLAIM_FINALIZER], "annotations": annotations},
        spec={
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
    )
    await line.client.create(VOLUMES, volume)
    claim = CLAIMS.body(
        metadata={"name": "c", "namespace": "default", "finalizers": [names.PROVISIONING_FINALIZER]},
        spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    )
    await line.client.create(CLAIMS, claim)
    labels = {"labels": {"volplane.dev/scrub": "x"}, "annotations": {"volplane.dev/scrub-volume": "v"}}
    for name, metadata in (("scrub", labels), ("other", {"labels": {"volplane.dev/scrub": "y"}})):
        spec = {"containers": [{"name": "c", "image": "i"}]}
        await line.client.create(PODS, PODS.body(metadata={"name": name, "namespace": OURS, **metadata}, spec=spec))

    interfered = []

    def interfere(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/v") and not interfered:
            interfered.append(path)
            line.server.handle(
                "PATCH",
                path,
                {},
                {"content-type": "application/merge-patch+json"},
                b'{"metadata": {"labels": {"somebody": "was-here"}}}',
            )

    line.before = interfere
    work = Drain("", OURS, 10.0)
    assert {held.key for _, held in await work.find(line.client)} == {"v", "default/c"}
    recorder = EventRecorder(line.client, instance="test", now=clock.now)
    await work.release(Console(), line.client, recorder)
    assert interfered
    assert await work.find(line.client) == []
    left = await line.client.get(VOLUMES, "v")
    assert left.spec.persistent_volume_reclaim_policy == "Retain"
    assert left.metadata.labels == {"somebody": "was-here"}
    assert left.metadata.finalizers == [names.VOLUME_PROTECTION]
    assert left.annotation(names.INTENT) is None
    assert [pod.name for pod in (await line.client.list(PODS)).items] == ["other"]


RECORD = {"v": 1, "driver": "d", "asset": "a", "volume": "v", "uid": "u", "handle": "vol-1", "source": "csi"}


async def attached_and_used(line: Any) -> None:
    """A volume of a driver of ours, its claim, a pod of the claim, and the volume's attachment."""
    reference = {"namespace": "default", "name": "c", "uid": "x"}
    spec = {
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "x", "volumeHandle": "vol-1"},
        "claimRef": reference,
    }
    await line.client.create(VOLUMES, VOLUMES.body(metadata={"name": "v"}, spec=spec))
    intent = {names.INTENT: json.dumps({**RECORD, "fields": {}, "capacity": 1})}
    metadata = {"name": "csi-1", "annotations": intent, "finalizers": ["external-attacher/x"]}
    where = {"attacher": "x", "nodeName": "node-1", "source": {"persistentVolumeName": "v"}}
    await line.client.create(ATTACHMENTS, ATTACHMENTS.body(metadata=metadata, spec=where))
    used = {"containers": [{"name": "c", "image": "i"}]}
    used["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    await line.client.create(PODS, PODS.body(metadata={"name": "user", "namespace": "default"}, spec=used))


async def test_a_deletion_waits_for_attachments_and_detaches_nothing_by_itself(wire: Wire) -> None:
    line = wire()
    await attached_and_used(line)
    work = Drain("", OURS, 60.0)
    recorder = EventRecorder(line.client, instance="test", now=clock.now)
    deleting = asyncio.ensure_future(work.delete(Console(), line.client, recorder, Leader(OURS)))
    await asyncio.sleep(10.0)
    assert not deleting.done()
    attachment = await line.client.get(ATTACHMENTS, "csi-1")
    assert not attachment.terminating
    await line.client.patch(ATTACHMENTS, "csi-1", {"metadata": {"finalizers": None}})
    await line.client.delete(ATTACHMENTS, "csi-1")
    assert await deleting == []


def provisioned(name: str, claim: str) -> dict[str, Any]:
    """A volume with a finalizer and the marks of ours, bound to a claim of a uid."""
    marks = {names.PROVISIONED_BY: "x", names.HANDLE: name}
    spec = {
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": f"/srv/{name}"},
        "claimRef": {"namespace": "default", "name": claim, "uid": f"uid-{claim}"},
    }
    metadata = {"name": name, "finalizers": [names.RECLAIM_FINALIZER], "annotations": marks}
    return VOLUMES.body(metadata=metadata, spec=spec)


async def let_go(line: Any, name: str) -> None:
    await line.client.patch(VOLUMES, name, {"metadata": {"finalizers": None}})
    await line.client.delete(VOLUMES, name)


def begin_to_delete(line: Any) -> asyncio.Future[Any]:
    """`drain --delete` of everything, with a minute of patience."""
    recorder = EventRecorder(line.client, instance="test", now=clock.now)
    return asyncio.ensure_future(Drain("", OURS, 60.0).delete(Console(), line.client, recorder, Leader(OURS)))


async def test_what_came_during_a_deletion_is_left_alone_and_said_to_be_held(wire: Wire) -> None:
    line = wire()
    await line.client.create(VOLUMES, provisioned("old", "a"))
    deleting = begin_to_delete(line)
    await asyncio.sleep(5.0)
    await line.client.create(VOLUMES, provisioned("new", "b"))
    await let_go(line, "old")
    [left] = await deleting
    assert left.held.key == "new"
    assert not (await line.client.get(VOLUMES, "new")).terminating


async def test_a_claim_in_the_making_that_becomes_a_volume_is_waited_for(wire: Wire) -> None:
    line = wire()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    metadata = {"name": "a", "namespace": "default", "finalizers": [names.PROVISIONING_FINALIZER]}
    await line.client.create(CLAIMS, CLAIMS.body(metadata=metadata, spec=spec))
    deleting = begin_to_delete(line)
    await asyncio.sleep(2.0)
    await line.client.create(VOLUMES, provisioned("made", "a"))
    await line.client.patch(CLAIMS, "default/a", {"metadata": {"finalizers": None}})
    await asyncio.sleep(10.0)
    assert not deleting.done()
    await let_go(line, "made")
    assert await deleting == []


async def test_a_deletion_goes_on_after_the_api_server_was_away(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    line = wire()
    await line.client.create(VOLUMES, provisioned("old", "a"))
    deleting = begin_to_delete(line)
    await asyncio.sleep(2.0)
    line.fail(("GET", "/"), times=5)
    await asyncio.sleep(20.0)
    await let_go(line, "old")
    assert await deleting == []


async def test_an_attachment_that_stays_is_said_with_its_node_and_who_uses_it(wire: Wire) -> None:
    line = wire()
    await attached_and_used(line)
    recorder = EventRecorder(line.client, instance="test", now=clock.now)
    [left] = await Drain("d", OURS, 3.0).delete(Console(), line.client, recorder, Leader(OURS))
    assert left.held.kind == "attachment"
    assert left.by == ("finalizer external-attacher/x", "node node-1", "claim default/c", "pod default/user")


async def test_a_release_keeps_what_is_attached_for_another_attacher(wire: Wire) -> None:
    line = wire()
    await attached_and_used(line)
    recorder = EventRecorder(line.client, instance="test", now=clock.now)
    work = Drain("", OURS, 10.0)
    await work.release(Console(), line.client, recorder)
    assert await work.find(line.client) == []
    attachment = await line.client.get(ATTACHMENTS, "csi-1")
    assert attachment.metadata.finalizers == ["external-attacher/x"]
    assert attachment.annotation(names.INTENT) is None
