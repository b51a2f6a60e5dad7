"""The driver on a mocked account, for `volplane check` and `volplane sim`: `volplane_aws_ebs.testing:subject`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, Final

from volplane import NodeIdentity, VolumeSource
from volplane_aws_ebs.backend import AwsEbsBackend
from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.in_process import InProcess
from volplane_testing import Subject
from volplane_testing.cloud import FaultKind, RandomFaults, SteppedClock

GIB: Final = 1 << 30
ZONE: Final = "topology.kubernetes.io/zone"
_FAULTS: Final = RandomFaults(
    changes=("CreateVolume", "CreateVolume", "DeleteVolume"),
    reads=("DescribeVolumes", "DescribeAvailabilityZones"),
    kinds=(FaultKind.REFUSE, FaultKind.LIE, FaultKind.DROP, FaultKind.LOSE, FaultKind.LATE, FaultKind.CLOSE),
    codes=("InternalError", "RequestLimitExceeded", "VolumeLimitExceeded", "UnauthorizedOperation"),
)
_ATTACHMENTS: Final = ("AttachVolume", "AttachVolume", "DetachVolume", "DetachVolume")
_OF_ATTACHMENTS: Final = replace(
    _FAULTS,
    changes=(*_FAULTS.changes, *_ATTACHMENTS),
    reads=(*_FAULTS.reads, "DescribeInstances"),
    attachments=_ATTACHMENTS,
)


def attaching_subject() -> Subject:
    """Return the same in one zone with more instances, and attachments that fail and dawdle: for `volplane sim
    --scenario attach`.
    """
    return subject(Behaviour(zones=("eu-test-1a",)), instances=8, faults=_OF_ATTACHMENTS)


def subject(
    behaviour: Behaviour | None = None,
    *,
    crash_points: int = 24,
    instances: int = 2,
    faults: RandomFaults = _FAULTS,
    **options: Any,
) -> Subject:
    """Return the driver on an empty mocked account with some instances.

    options: of the driver, in addition to those that the mock needs. faults: of actions of EC2, in simulated runs.
    """
    behaviour = behaviour or Behaviour()
    clock = SteppedClock()
    fake = FakeEC2(behaviour, clock=clock)
    connect = InProcess(fake)
    zone = behaviour.zones[0]
    nodes = [(f"node-{n}", fake.add_instance(zone, instance_type="m7i.large").id) for n in range(instances)]

    def factory(params: Mapping[str, Any]) -> AwsEbsBackend:
        return AwsEbsBackend(params, connect_to=connect, clock=clock)

    factory.options_schema = AwsEbsBackend.options_schema  # type: ignore[attr-defined]
    return Subject(
        factory,
        {"region": behaviour.region, "attach": True, "mutations_per_second": 1000, **options},
        driver_name=AwsEbsBackend.default_driver_name,
        other_parameters={"type": "gp3", "iops": "4000"},
        snapshot_parameters={"tagSpecification_1": "of={{ .VolumeSnapshotName }}"},
        mutable_parameters={"iops": "5000", "throughput": "200"},
        capacity_bytes=20 * GIB,
        segments=tuple({ZONE: each} for each in behaviour.zones[:2]),
        nodes=tuple(NodeIdentity(name=name, instance_id=f"aws:///{zone}/{id_}") for name, id_ in nodes),
        static_source=VolumeSource(
            kind="csi", fields={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-0123456789abcdef0"}
        ),
        foreign_sources=(
            VolumeSource(kind="csi", fields={"driver": "efs.csi.aws.com", "volumeHandle": "vol-0123456789abcdef0"}),
            VolumeSource(kind="awsElasticBlockStore", fields={"volumeID": "disk-1"}),
        ),
        advance=clock.advance,
        now=fake.unix_time,
        inspect=lambda: sorted(
            (each.id, each.state, each.size, tuple(each.tags.items())) for each in fake.volumes.values()
        ),
        fill=lambda asset: fake.contents.write(asset.handle, "data"),
        is_empty=lambda asset: not fake.contents.written(asset.handle),
        attachments=lambda: {
            volume: [f"aws:///{zone}/{instance}" for instance in held] for volume, held in fake.attached().items()
        },
        trouble=lambda random: _trouble(fake, random, faults),
        outage=fake.outage,
        storage_modules=("volplane_aws_ebs.testing",),
        crash_points=crash_points,
    )


@contextmanager
def _trouble(fake: FakeEC2, random: Random, faults: RandomFaults) -> Iterator[None]:
    """Slow changes of state, delayed visibility, and random faults while the block runs."""
    fake.behave(
        visible_after=random.choice((0.0, 0.0, 2.0, 8.0)),
        create_seconds=random.choice((0.0, 1.5, 12.0)),
        delete_seconds=random.choice((0.0, 1.5, 90.0)),
        token_seconds=random.choice((86_400.0, 600.0)),
    )
    faults.plan(fake.faults, random)
    yield
    fake.faults.clear()
