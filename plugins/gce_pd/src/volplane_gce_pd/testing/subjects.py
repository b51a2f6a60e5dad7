"""The driver on a mocked project, for `volplane check` and `volplane sim`: `volplane_gce_pd.testing:subject`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from volplane import NodeIdentity, VolumeSource
from volplane_gce_pd.backend import GcePdBackend
from volplane_gce_pd.settings import ZONE_LABEL
from volplane_gce_pd.testing.behaviour import Behaviour
from volplane_gce_pd.testing.fake import FakeCompute
from volplane_gce_pd.testing.in_process import InProcess
from volplane_testing import Subject
from volplane_testing.cloud import Fault, FaultKind, SteppedClock

GIB: Final = 1 << 30
MAX_FAULTS: Final = 12
_FAST: Final[Mapping[str, object]] = {"attach": True, "mutations_per_second": 1000}
_ACTIONS: Final = (
    "disks.insert",
    "disks.insert",
    "disks.delete",
    "disks.get",
    "disks.list",
    "disks.aggregatedList",
    "zoneOperations.get",
    "zoneOperations.list",
    "zones.list",
)
_ATTACHMENTS: Final = (
    "instances.attachDisk",
    "instances.attachDisk",
    "instances.detachDisk",
    "instances.detachDisk",
    "instances.get",
    "instances.list",
)
_CODES: Final = ("backendError", "rateLimitExceeded", "quotaExceeded", "forbidden")
_KINDS: Final = (
    FaultKind.REFUSE,
    FaultKind.LIE,
    FaultKind.DROP,
    FaultKind.LOSE,
    FaultKind.LATE,
    FaultKind.CLOSE,
    FaultKind.FAIL,
)


def attaching_subject() -> Subject:
    """Return the same in one zone with more machines, and attachments that fail and dawdle: for `volplane sim
    --scenario attach`.
    """
    behaviour = Behaviour(zones=("europe-test1-a",), operation_seconds={})
    return subject(behaviour, instances=8, troubled=(*_ACTIONS, *_ATTACHMENTS))


def subject(
    behaviour: Behaviour | None = None,
    *,
    hyperdisks: bool = False,
    images: bool = False,
    crash_points: int = 24,
    instances: int = 2,
    troubled: Sequence[str] = _ACTIONS,
    **options: Any,
) -> Subject:
    """Return the driver on an empty mocked project with some virtual machines.

    hyperdisks: its class asks for them, so that `modify` can be judged. images: its snapshots are images. options: of
    the driver, in addition to those that the mock needs. troubled: methods of Compute Engine that may fail.
    """
    behaviour = behaviour or Behaviour()
    clock = SteppedClock()
    fake = FakeCompute(behaviour, clock=clock)
    connect = InProcess(fake)
    zone = behaviour.zones[0]
    nodes = [fake.add_instance(f"node-{number}", zone).name for number in range(instances)]

    def factory(params: Mapping[str, Any]) -> GcePdBackend:
        return GcePdBackend(params, connect_to=connect, clock=clock)

    factory.options_schema = GcePdBackend.options_schema  # type: ignore[attr-defined]
    handle = f"projects/{behaviour.project}/zones/{zone}/disks"
    return Subject(
        factory,
        {
            "project": behaviour.project,
            "region": behaviour.region,
            "attach": True,
            "mutations_per_second": 1000,
            **options,
        },
        driver_name=GcePdBackend.default_driver_name,
        parameters={"type": "hyperdisk-balanced"} if hyperdisks else {},
        other_parameters={"type": "pd-ssd"},
        snapshot_parameters={"labels": "team=storage", **({"snapshot-type": "images"} if images else {})},
        mutable_parameters={"iops": "4000", "throughput": "200"} if hyperdisks else {},
        capacity_bytes=20 * GIB,
        segments=tuple({ZONE_LABEL: each} for each in behaviour.zones[:2]),
        nodes=tuple(NodeIdentity(name=name, instance_id=f"gce://{behaviour.project}/{zone}/{name}") for name in nodes),
        static_source=VolumeSource(
            kind="csi", fields={"driver": "pd.csi.storage.gke.io", "volumeHandle": f"{handle}/by-hand"}
        ),
        foreign_sources=(
            VolumeSource(
                kind="csi",
                fields={
                    "driver": "pd.csi.storage.gke.io",
                    "volumeHandle": f"projects/another-project/zones/{zone}/disks/d",
                },
            ),
            VolumeSource(kind="gcePersistentDisk", fields={"pdName": "disk-1"}),
        ),
        advance=clock.advance,
        now=fake.unix_time,
        inspect=lambda: sorted(
            (disk.place, disk.name, disk.status, disk.size, str(sorted(disk.labels.items())))
            for disk in fake.disks.values()
        ),
        fill=lambda asset: fake.contents.write(asset.handle, "data"),
        is_empty=lambda asset: not fake.contents.written(asset.handle),
        attachments=lambda: {
            disk.path(behaviour.project): [f"gce://{behaviour.project}/{zone}/{name}" for zone, name in disk.users]
            for disk in fake.disks.values()
        },
        trouble=lambda random: _trouble(fake, random, troubled),
        storage_modules=("volplane_gce_pd.testing", "volplane_testing.cloud"),
        crash_points=crash_points,
    )


@contextmanager
def _trouble(fake: FakeCompute, random: Random, actions: Sequence[str]) -> Iterator[None]:
    """Slow operations, short memory, and random faults while the block runs."""
    fake.behave(
        default_seconds=random.choice((0.0, 1.0, 12.0, 45.0)),
        shape=random.choice(("operation", "http")),
        operation_kept=random.choice((1_209_600.0, 5.0)),
    )
    for _ in range(random.randrange(MAX_FAULTS)):
        fake.faults.add(_fault(random, actions))
    yield
    fake.faults.clear()


def _fault(random: Random, actions: Sequence[str]) -> Fault:
    action, kind = random.choice(actions), random.choice(_KINDS)
    reads = action.endswith(("get", "ist"))
    if reads and kind in (FaultKind.LATE, FaultKind.FAIL):
        kind = FaultKind.DROP
    if kind is FaultKind.LATE and action in _ATTACHMENTS:
        # No client could tell an attachment that begins half a minute later from one that somebody else made.
        kind = FaultKind.LOSE
    code = random.choice(_CODES)
    if kind is FaultKind.FAIL:
        code = random.choice(("INTERNAL_ERROR", "QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED"))
    return Fault(
        action=action,
        kind=kind,
        code=code,
        times=random.choice((1, 1, 2, 5)),
        skip=random.randrange(6),
        seconds=random.uniform(0.1, 40.0),
    )
