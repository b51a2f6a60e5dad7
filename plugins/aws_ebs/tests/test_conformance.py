"""The promises that every backend makes, judged on a mocked EC2 in virtual time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from volplane import NodeIdentity, VolumeSource
from volplane.testing import BackendConformance, Subject
from volplane.testing.conformance import RULES
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour, FakeEC2, InProcess

GIB = 1 << 30
SECRET = "known-to-two-accounts"
ZONE = "topology.kubernetes.io/zone"


class Clock:
    """Seconds that pass when somebody lets them."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += max(seconds, 1e-6)


LATE = tuple(
    rule
    for rule in RULES
    if rule.check.__module__.rpartition(".")[2] in ("making", "deleting", "interrupted", "together", "attaching")
    # It takes what an earlier demand made, and what becomes visible only now, for something that a crash has left.
    and rule.name != "a-crash-in-the-middle-of-provision-leaves-nothing-unseen"
)
"""Rules that hold or break by when things happen."""


def subject(behaviour: Behaviour, *, crash_points: int = 24, **options: Any) -> Subject:
    clock = Clock()
    fake = FakeEC2(behaviour, clock=clock)
    connect = InProcess(fake)
    zone = behaviour.zones[0]
    nodes = [(f"node-{n}", fake.add_instance(zone, kind="m7i.large").id) for n in range(2)]

    def factory(given: Any) -> AwsEbsBackend:
        return AwsEbsBackend(given, connect_to=connect, clock=clock)

    factory.options_schema = AwsEbsBackend.options_schema  # type: ignore[attr-defined]
    return Subject(
        factory,
        {
            "region": behaviour.region,
            "attach": True,
            "mutations_per_second": 1000,
            "role_external_id": SECRET,
            **options,
        },
        driver_name="ebs.volplane.dev",
        other_parameters={"type": "gp3", "iops": "4000"},
        mutable_parameters={"iops": "5000", "throughput": "200"},
        capacity_bytes=20 * GIB,
        segments=({ZONE: zone}, {ZONE: behaviour.zones[1]}),
        nodes=tuple(NodeIdentity(name=name, instance_id=f"aws:///{zone}/{id_}") for name, id_ in nodes),
        static_source=VolumeSource(
            kind="csi", fields={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-0123456789abcdef0"}
        ),
        foreign_sources=(
            VolumeSource(kind="csi", fields={"driver": "efs.csi.aws.com", "volumeHandle": "vol-0123456789abcdef0"}),
            VolumeSource(kind="awsElasticBlockStore", fields={"volumeID": "disk-1"}),
        ),
        advance=clock.advance,
        inspect=lambda: sorted(
            (each.id, each.state, each.size, tuple(each.tags.items())) for each in fake.volumes.values()
        ),
        secrets=(SECRET,),
        storage_modules=("volplane_aws_ebs.testing",),
        crash_points=crash_points,
    )


class TestAwsEbs(BackendConformance):
    @pytest.fixture
    def backend(self) -> Subject:
        return subject(Behaviour(most_results=5))


class TestAwsEbsSeenLate(BackendConformance):
    """What was made or tagged is not seen by Describe calls for a while."""

    rules = LATE

    @pytest.fixture
    def backend(self) -> Subject:
        return subject(Behaviour(most_results=5, visible_after=3.0), crash_points=8)


class TestAwsEbsSlowAndFew(BackendConformance):
    """Slow changes, and one call a second of each kind."""

    rules = LATE

    @pytest.fixture
    def backend(self) -> Subject:
        behaviour = Behaviour(most_results=5, create_seconds=20.0, attach_seconds=9.0, delete_seconds=40.0)
        return subject(behaviour, crash_points=8, mutations_per_second=1, mutation_burst=1)
