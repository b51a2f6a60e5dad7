"""The driver on a mocked account, for `volplane check` and `volplane sim`: `volplane_aws_ebs.testing:subject`.

Only this module needs the testing kit, which the extra `volplane-aws-ebs[testing]` installs. It is imported when a
subject is made, so that FakeEC2 can be used without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final

from volplane import NodeIdentity, VolumeSource
from volplane_aws_ebs.backend import AwsEbsBackend
from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.faults import Fault, FaultKind
from volplane_aws_ebs.testing.in_process import InProcess

if TYPE_CHECKING:
    from volplane_testing import Subject

__all__ = ["SteppedClock", "subject"]

GIB: Final = 1 << 30
ZONE: Final = "topology.kubernetes.io/zone"
MAX_FAULTS: Final = 12
_ACTIONS: Final = ("CreateVolume", "CreateVolume", "DeleteVolume", "DescribeVolumes", "DescribeAvailabilityZones")
_CODES: Final = ("InternalError", "RequestLimitExceeded", "VolumeLimitExceeded", "UnauthorizedOperation")
_KINDS: Final = (
    FaultKind.REFUSE,
    FaultKind.LIE,
    FaultKind.DROP,
    FaultKind.LOSE,
    FaultKind.LATE,
    FaultKind.CLOSE,
)


class SteppedClock:
    """A clock in seconds that moves only when a test moves it. Safe for threads. now: its time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock by `seconds`, and by a microsecond at least, so that a loop of waits always ends."""
        with self._lock:
            self.now += max(seconds, 1e-6)


def subject(behaviour: Behaviour | None = None, *, crash_points: int = 24, **options: Any) -> Subject:
    """The driver on an empty mocked account with two instances.

    options: of the driver, in addition to those that the mock needs.

    Raises ModuleNotFoundError without the testing kit.
    """
    subject_type = _subject_type()
    behaviour = behaviour or Behaviour()
    clock = SteppedClock()
    fake = FakeEC2(behaviour, clock=clock)
    connect = InProcess(fake)
    zone = behaviour.zones[0]
    nodes = [(f"node-{n}", fake.add_instance(zone, instance_type="m7i.large").id) for n in range(2)]

    def factory(params: Mapping[str, Any]) -> AwsEbsBackend:
        return AwsEbsBackend(params, connect_to=connect, clock=clock)

    factory.options_schema = AwsEbsBackend.options_schema  # type: ignore[attr-defined]
    return subject_type(
        factory,
        {"region": behaviour.region, "attach": True, "mutations_per_second": 1000, **options},
        driver_name=AwsEbsBackend.default_driver_name,
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
        trouble=lambda random: _trouble(fake, random),
        storage_modules=("volplane_aws_ebs.testing",),
        crash_points=crash_points,
    )


def _subject_type() -> type[Subject]:
    try:
        from volplane_testing import Subject  # noqa: PLC0415 - the extra `testing`
    except ModuleNotFoundError as error:
        if error.name != "volplane_testing":
            raise
        raise ModuleNotFoundError(
            'subject() needs the testing kit of volplane: pip install "volplane-aws-ebs[testing]"', name=error.name
        ) from None
    return Subject


@contextmanager
def _trouble(fake: FakeEC2, random: Random) -> Iterator[None]:
    """Slow changes of state, delayed visibility, and random faults while the block runs."""
    fake.behave(
        visible_after=random.choice((0.0, 0.0, 2.0, 8.0)),
        create_seconds=random.choice((0.0, 1.5, 12.0)),
        delete_seconds=random.choice((0.0, 1.5, 90.0)),
        token_seconds=random.choice((86_400.0, 600.0)),
    )
    for _ in range(random.randrange(MAX_FAULTS)):
        fake.faults.add(_fault(random))
    yield
    fake.faults.clear()


def _fault(random: Random) -> Fault:
    action, kind = random.choice(_ACTIONS), random.choice(_KINDS)
    if kind is FaultKind.LATE and action.startswith("Describe"):
        kind = FaultKind.DROP
    return Fault(
        action=action,
        kind=kind,
        code=random.choice(_CODES),
        times=random.choice((1, 1, 2, 5)),
        skip=random.randrange(6),
        seconds=random.uniform(0.1, 40.0),
    )
