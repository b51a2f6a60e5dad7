"""A volume's whole life over HTTP, with boto3 and the clock as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    Asset,
    AttachRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DetachRequest,
    Done,
    ExpandRequest,
    InProgress,
    NodeIdentity,
    Ownership,
    ProvisionRequest,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    Unavailable,
    VolumeIdentity,
)
from volplane_aws_ebs import AwsEbsBackend, api
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server, Fault, FaultKind, InProcess

GIB = 1 << 30
CONTEXT = Context(driver="ebs.volplane.dev", cluster_id="cluster-1")


class Hurried:
    """A clock that runs fifty times as fast, so that what waits a second waits a moment."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self) -> float:
        return (time.monotonic() - self._begun) * 50

    def wait(self, seconds: float) -> None:
        end = self() + seconds
        while self() < end:
            time.sleep(0.001)


@pytest.fixture
def clock() -> Hurried:
    return Hurried()


@pytest.fixture
def fake(clock: Hurried) -> FakeEC2:
    return FakeEC2(Behaviour(region="eu-test-1"), clock=clock)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, fake: FakeEC2, clock: Hurried) -> Iterator[AwsEbsBackend]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with FakeEC2Server(fake) as server:
        options = {"region": "eu-test-1", "endpoint": server.url, "mutations_per_second": 1000}
        driver = AwsEbsBackend(options, connect_to=api.connect, clock=clock)
        driver.start(StartRequest(context=CONTEXT))
        yield driver
        driver.stop(StopRequest(context=CONTEXT))


def finish(clock: Hurried, hook: Callable[[Any], Any], request: Any) -> Any:
    while isinstance(result := hook(request), InProgress):
        clock.wait(result.retry_after)
        request = replace(request, context=replace(request.context, state=dict(result.state)))
    return result


def demand(uid: str) -> ProvisionRequest:
    owner = Ownership(cluster_id="cluster-1", claim_uid=uid, volume_name=f"pvc-{uid}")
    claim = ClaimIdentity(namespace="default", name=f"<{uid}> & co", uid=uid)
    return ProvisionRequest(context=CONTEXT, name=owner.volume_name, capacity_bytes=GIB, owner=owner, claim=claim)


def identity(asset: Asset, uid: str) -> VolumeIdentity:
    request = demand(uid)
    return VolumeIdentity(
        name=request.name,
        uid=uid,
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=GIB,
        owner=request.owner,
    )


def life(backend: AwsEbsBackend, fake: FakeEC2, clock: Hurried, uid: str) -> str:
    request = demand(uid)
    asset = finish(clock, backend.provision, request)
    volume = identity(asset, uid)
    zone = asset.node_affinity[0]["topology.kubernetes.io/zone"]
    instance = fake.add_instance(zone)
    node = NodeIdentity(name=f"node-{uid}", instance_id=f"aws:///{zone}/{instance.id}")
    attached = finish(clock, backend.attach, AttachRequest(context=CONTEXT, volume=volume, node=node))
    assert attached.metadata["devicePath"].startswith("/dev/xvd")
    grown = finish(clock, backend.expand, ExpandRequest(context=CONTEXT, volume=volume, capacity_bytes=2 * GIB))
    assert grown.capacity_bytes == 2 * GIB
    assert finish(clock, backend.detach, DetachRequest(context=CONTEXT, volume=volume, node=node)) == Done()
    assert finish(clock, backend.delete, DeleteRequest(context=CONTEXT, volume=volume)) == Done()
    return str(asset.handle)


def test_volumes_live_and_go(backend: AwsEbsBackend, fake: FakeEC2, clock: Hurried) -> None:
    with ThreadPoolExecutor(8) as threads:
        lives = [threads.submit(life, backend, fake, clock, f"u{number}") for number in range(16)]
        handles = {each.result(60) for each in lives}
    assert len(handles) == 16
    assert fake.volumes == {}
    assert fake.calls["CreateVolume"] == 16


def test_both_faces_are_the_same_ec2(backend: AwsEbsBackend, fake: FakeEC2, clock: Hurried) -> None:
    asset = finish(clock, backend.provision, demand("u1"))
    beside = AwsEbsBackend({"region": "eu-test-1"}, connect_to=InProcess(fake), clock=clock)
    beside.start(StartRequest(context=CONTEXT))
    assert finish(clock, beside.provision, demand("u1")) == asset


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.LATE])
def test_a_snapshot_whose_answer_is_lost_is_not_made_twice_by_the_sdk(
    backend: AwsEbsBackend, fake: FakeEC2, clock: Hurried, kind: FaultKind
) -> None:
    """CreateSnapshot has no client token: boto3 may not repeat it."""
    asset = finish(clock, backend.provision, demand("u1"))
    volume = identity(asset, "u1")
    owner = SnapshotOwnership(cluster_id=CONTEXT.cluster_id, snapshot_uid="1", content_name="snapcontent-1")
    made_for = SnapshotIdentity(namespace="team-a", name="before", content="snapcontent-1")
    request = SnapshotRequest(context=CONTEXT, name="snap-a", volume=volume, owner=owner, snapshot=made_for)
    fake.faults.add(Fault(action="CreateSnapshot", kind=kind, seconds=1.0))
    with pytest.raises(Unavailable, match="no answer came"):
        finish(clock, backend.create_snapshot, request)
    assert fake.calls["CreateSnapshot"] == 1
    snapshot = finish(clock, backend.create_snapshot, request)
    assert list(fake.snapshots) == [snapshot.handle]


def test_a_modification_whose_answer_is_lost_is_not_made_twice_by_the_sdk(
    backend: AwsEbsBackend, fake: FakeEC2, clock: Hurried
) -> None:
    """ModifyVolume has no client token either, and EC2 counts the changes of a day."""
    asset = finish(clock, backend.provision, demand("u1"))
    volume = identity(asset, "u1")
    request = ExpandRequest(context=CONTEXT, volume=volume, capacity_bytes=2 * GIB)
    fake.faults.add(Fault(action="ModifyVolume", kind=FaultKind.LOSE))
    with pytest.raises(Unavailable, match="no answer came"):
        finish(clock, backend.expand, request)
    assert finish(clock, backend.expand, request).capacity_bytes == 2 * GIB
    assert fake.calls["ModifyVolume"] == 1
