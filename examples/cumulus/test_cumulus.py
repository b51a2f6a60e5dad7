from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from fake_cumulus import ZONES, FakeCumulus
from fake_cumulus_snapshots import FakeCumulusWithSnapshots
from volplane_cumulus import MACHINE, CumulusBackend
from volplane_cumulus_snapshots import CumulusWithSnapshots

from volplane import (
    ClaimIdentity,
    Context,
    InProgress,
    NodeIdentity,
    Ownership,
    ProvisionRequest,
    StartRequest,
    Unavailable,
    VolumeSource,
)
from volplane_testing import BackendConformance, Subject
from volplane_testing.cloud import FakeCloudServer, Fault, FaultKind, SteppedClock

CONTEXT = Context(driver="cumulus.example.com", cluster_id="here")
DEMAND = ProvisionRequest(
    context=CONTEXT,
    name="pvc-1",
    capacity_bytes=1 << 30,
    owner=Ownership(cluster_id="here", claim_uid="1", volume_name="pvc-1"),
    claim=ClaimIdentity(namespace="default", name="data", uid="1"),
)


class TestCumulus(BackendConformance):
    @pytest.fixture
    def backend(self) -> Subject:
        return subject()


class TestCumulusWithSnapshots(BackendConformance):
    @pytest.fixture
    def backend(self) -> Subject:
        return subject(CumulusWithSnapshots, FakeCumulusWithSnapshots)


def subject(kind: type[CumulusBackend] = CumulusBackend, faked: type[FakeCumulus] = FakeCumulus) -> Subject:
    clock = SteppedClock()
    fake = faked(clock=clock, machines=dict.fromkeys(("m-1", "m-2"), ZONES[0]))

    def factory(options: Any) -> CumulusBackend:
        return kind(options, send=fake.send, clock=clock)

    factory.options_schema = CumulusBackend.options_schema
    return Subject(
        factory,
        {"region": "sky", "attach": True},
        driver_name=CumulusBackend.default_driver_name,
        other_parameters={"kind": "hdd"},
        segments=tuple({"topology.cumulus.example.com/zone": zone} for zone in ZONES),
        nodes=tuple(NodeIdentity(name=f"node-{each[-1]}", instance_id=MACHINE + each) for each in fake.machines),
        static_source=VolumeSource(
            kind="csi", fields={"driver": "disks.cumulus.example.com", "volumeHandle": "by-hand"}
        ),
        foreign_sources=(VolumeSource(kind="csi", fields={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}),),
        advance=clock.advance,
        inspect=fake.picture,
        outage=fake.outage,
        storage_modules=("fake_cumulus", "fake_cumulus_snapshots", "volplane_testing.cloud"),
        crash_points=3,
    )


def made(backend: CumulusBackend, clock: SteppedClock) -> Any:
    """Call until the disk is there, as volplane does."""
    backend.start(StartRequest(context=CONTEXT))
    result: Any = InProgress(retry_after=0.0)
    while isinstance(result, InProgress):
        clock.advance(result.retry_after)
        with suppress(Unavailable):  # Its outcome is unknown: the next call looks.
            result = backend.provision(replace(DEMAND, context=replace(CONTEXT, state=result.state)))
    return result


def test_a_lost_answer_makes_no_second_disk() -> None:
    clock = SteppedClock()
    fake = FakeCumulus(clock=clock)
    fake.faults.add(Fault(action="POST /disks", kind=FaultKind.LOSE))
    assert made(CumulusBackend({"region": "sky"}, send=fake.send, clock=clock), clock).handle == "pvc-1-1"
    assert fake.calls["POST /disks"] == 1


def test_it_works_over_http() -> None:
    clock = SteppedClock()
    fake = FakeCumulus(clock=clock)
    with FakeCloudServer(fake.answer) as server:
        backend = CumulusBackend({"region": "sky", "endpoint": server.url}, clock=clock)
        assert made(backend, clock).capacity_bytes == 1 << 30
    assert list(fake.disks) == ["pvc-1-1"]
