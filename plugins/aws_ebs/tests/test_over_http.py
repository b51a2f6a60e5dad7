"""A volume's whole life over HTTP, with boto3 and the clock as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
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
    StartRequest,
    StopRequest,
    VolumeIdentity,
)
from volplane_aws_ebs import AwsEbsBackend, api
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server, InProcess

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


def life(backend: AwsEbsBackend, fake: FakeEC2, clock: Hurried, uid: str) -> str:
    request = demand(uid)
    asset = finish(clock, backend.provision, request)
    volume = VolumeIdentity(
        name=request.name,
        uid=uid,
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=GIB,
        owner=request.owner,
    )
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
