"""Whether a controller is at work, and how a release is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volplane.cli.controller_client import lease_holder
from volplane.cli.drain_steps import Drain
from volplane.cli.framework.console import Console
from volplane.kube import names
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import CLAIMS, LEASES, NAMESPACES, PODS, VOLUMES
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
    assert await lease_holder(line.client, OURS) == ""
    body = LEASES.body(metadata={"name": "volplane", "namespace": OURS}, spec=lease_of(age, holder))
    await line.client.create(LEASES, body)

    async def renew() -> None:
        await asyncio.sleep(2)
        fresh = {"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}}
        await line.client.patch(LEASES, f"{OURS}/volplane", fresh)

    renewing = asyncio.ensure_future(renew()) if renewed_later else None
    assert await lease_holder(line.client, OURS) == expected
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
    assert {held.key for held in await work.find(line.client)} == {"v", "default/c"}
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
