"""The driver on a mocked project, for `volplane check` and `volplane sim`: `volplane_gce_pd.testing:subject`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, Final

from volplane import NodeIdentity, VolumeSource
from volplane_gce_pd.backend import GcePdBackend
from volplane_gce_pd.settings import ZONE_LABEL
from volplane_gce_pd.testing.behaviour import Behaviour
from volplane_gce_pd.testing.fake import FakeCompute
from volplane_gce_pd.testing.in_process import InProcess
from volplane_testing import Subject
from volplane_testing.cloud import FaultKind, RandomFaults, SteppedClock

GIB: Final = 1 << 30
_FAST: Final[Mapping[str, object]] = {"attach": True, "mutations_per_second": 1000}
_FAULTS: Final = RandomFaults(
    changes=("disks.insert", "disks.insert", "disks.delete"),
    reads=(
        "disks.get",
        "disks.list",
        "disks.aggregatedList",
        "zoneOperations.get",
        "zoneOperations.list",
        "globalOperations.aggregatedList",
        "zones.list",
    ),
    kinds=(
        FaultKind.REFUSE,
        FaultKind.LIE,
        FaultKind.DROP,
        FaultKind.LOSE,
        FaultKind.LATE,
        FaultKind.CLOSE,
        FaultKind.FAIL,
    ),
    codes=("backendError", "rateLimitExceeded", "quotaExceeded", "forbidden"),
    failures=("INTERNAL_ERROR", "QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED"),
)
_ATTACHMENTS: Final = ("instances.attachDisk", "instances.attachDisk", "instances.detachDisk", "instances.detachDisk")
_OF_ATTACHMENTS: Final = replace(
    _FAULTS,
    changes=(*_FAULTS.changes, *_ATTACHMENTS),
    reads=(*_FAULTS.reads, "instances.get", "instances.list", "instances.aggregatedList"),
    attachments=_ATTACHMENTS,
)


def attaching_subject() -> Subject:
    """Return the same in one zone with more machines, and attachments that fail and dawdle: for `volplane sim
    --scenario attach`.
    """
    behaviour = Behaviour(zones=("europe-test1-a",), operation_seconds={})
    return subject(behaviour, instances=8, faults=_OF_ATTACHMENTS)


def subject(
    behaviour: Behaviour | None = None,
    *,
    hyperdisks: bool = False,
    images: bool = False,
    crash_points: int = 24,
    instances: int = 2,
    faults: RandomFaults = _FAULTS,
    **options: Any,
) -> Subject:
    """Return the driver on an empty mocked project with some virtual machines.

    hyperdisks: its class asks for them, so that `modify` can be judged. images: its snapshots are images. options: of
    the driver, in addition to those that the mock needs. faults: of methods of Compute Engine, in simulated
    runs.
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
        trouble=lambda random: _trouble(fake, random, faults),
        outage=fake.outage,
        storage_modules=("volplane_gce_pd.testing", "volplane_testing.cloud"),
        crash_points=crash_points,
    )


@contextmanager
def _trouble(fake: FakeCompute, random: Random, faults: RandomFaults) -> Iterator[None]:
    """Slow operations, short memory, and random faults while the block runs."""
    fake.behave(
        default_seconds=random.choice((0.0, 1.0, 12.0, 45.0)),
        shape=random.choice(("operation", "http")),
        operation_kept=random.choice((1_209_600.0, 5.0)),
    )
    faults.plan(fake.faults, random)
    yield
    fake.faults.clear()
