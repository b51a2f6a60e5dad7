"""The driver on a mocked account, for `volplane check` and `volplane sim`: `volplane_aws_ebs.testing:subject`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from volplane import NodeIdentity, VolumeSource
from volplane_aws_ebs.backend import AwsEbsBackend
from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.in_process import InProcess
from volplane_testing import Subject
from volplane_testing.cloud import Fault, FaultKind, SteppedClock

GIB: Final = 1 << 30
ZONE: Final = "topology.kubernetes.io/zone"
MAX_FAULTS: Final = 12
_ACTIONS: Final = ("CreateVolume", "CreateVolume", "DeleteVolume", "DescribeVolumes", "DescribeAvailabilityZones")
_ATTACHMENTS: Final = ("AttachVolume", "AttachVolume", "DetachVolume", "DetachVolume", "DescribeInstances")
_CODES: Final = ("InternalError", "RequestLimitExceeded", "VolumeLimitExceeded", "UnauthorizedOperation")
_KINDS: Final = (
    FaultKind.REFUSE,
    FaultKind.LIE,
    FaultKind.DROP,
    FaultKind.LOSE,
    FaultKind.LATE,
    FaultKind.CLOSE,
)


def attaching_subject() -> Subject:
    """Return the same in one zone with more instances, and attachments that fail and dawdle: for `volplane sim
    --scenario attach`.
    """
    return subject(Behaviour(zones=("eu-test-1a",)), instances=8, troubled=(*_ACTIONS, *_ATTACHMENTS))


def subject(
    behaviour: Behaviour | None = None,
    *,
    crash_points: int = 24,
    instances: int = 2,
    troubled: Sequence[str] = _ACTIONS,
    **options: Any,
) -> Subject:
    """Return the driver on an empty mocked account with some instances.

    options: of the driver, in addition to those that the mock needs. troubled: actions of EC2 that may fail.
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
        trouble=lambda random: _trouble(fake, random, troubled),
        storage_modules=("volplane_aws_ebs.testing",),
        crash_points=crash_points,
    )


@contextmanager
def _trouble(fake: FakeEC2, random: Random, actions: Sequence[str]) -> Iterator[None]:
    """Slow changes of state, delayed visibility, and random faults while the block runs."""
    fake.behave(
        visible_after=random.choice((0.0, 0.0, 2.0, 8.0)),
        create_seconds=random.choice((0.0, 1.5, 12.0)),
        delete_seconds=random.choice((0.0, 1.5, 90.0)),
        token_seconds=random.choice((86_400.0, 600.0)),
    )
    for _ in range(random.randrange(MAX_FAULTS)):
        fake.faults.add(_fault(random, actions))
    yield
    fake.faults.clear()


def _fault(random: Random, actions: Sequence[str]) -> Fault:
    action, kind = random.choice(actions), random.choice(_KINDS)
    if kind is FaultKind.LATE and not action.endswith("Volume"):
        kind = FaultKind.DROP
    if kind is FaultKind.LATE and action in _ATTACHMENTS:
        # No client could tell an attachment that begins half a minute later from one that somebody else made.
        kind = FaultKind.LOSE
    return Fault(
        action=action,
        kind=kind,
        code=random.choice(_CODES),
        times=random.choice((1, 1, 2, 5)),
        skip=random.randrange(6),
        seconds=random.uniform(0.1, 40.0),
    )
