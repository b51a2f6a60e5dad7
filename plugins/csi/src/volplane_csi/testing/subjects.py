"""The driver over a fake CSI driver, for `volplane check` and `volplane sim`: `volplane_csi.testing:subject`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from volplane import NodeIdentity, Ownership, VolumeSource
from volplane_csi.backend import CsiBackend
from volplane_csi.testing.behaviour import Behaviour
from volplane_csi.testing.driver import FakeDriver
from volplane_csi.testing.serving import InProcess
from volplane_testing import Subject
from volplane_testing.cloud import FaultKind, RandomFaults, SteppedClock

GIB: Final = 1 << 30
_KINDS: Final = (FaultKind.REFUSE, FaultKind.DROP, FaultKind.LOSE, FaultKind.CLOSE)
_CODES: Final = ("UNAVAILABLE", "ABORTED", "INTERNAL", "UNKNOWN", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
_FAULTS: Final = RandomFaults(
    changes=("CreateVolume", "CreateVolume", "CreateVolume", "DeleteVolume"),
    reads=("ListVolumes",),
    kinds=_KINDS,
    codes=_CODES,
)
_ATTACHMENTS: Final = ("ControllerPublishVolume", "ControllerPublishVolume", "ControllerUnpublishVolume")
_OF_ATTACHMENTS: Final = RandomFaults(
    changes=(*_FAULTS.changes, *_ATTACHMENTS),
    reads=("ListVolumes", "ControllerGetVolume"),
    attachments=_ATTACHMENTS,
    kinds=_KINDS,
    codes=_CODES,
)


def attaching_subject() -> Subject:
    """Return the same without places, with more nodes, and attachments that fail: for `volplane sim --scenario
    attach`.
    """
    return subject(Behaviour(nodes=tuple(f"id-of-node-{number}" for number in range(8))), faults=_OF_ATTACHMENTS)


def subject(
    behaviour: Behaviour | None = None, *, crash_points: int = 24, faults: RandomFaults = _FAULTS, **options: Any
) -> Subject:
    """Return the driver on an empty fake CSI driver.

    options: of the driver, in addition to those that the fake needs. faults: of its calls, in simulated runs.
    """
    behaviour = behaviour or Behaviour(zones=("a", "b"), page=5)
    clock = SteppedClock()
    fake = FakeDriver(behaviour, clock=clock)
    channel = InProcess(fake)
    key = behaviour.topology_key

    def factory(params: Mapping[str, Any]) -> CsiBackend:
        return CsiBackend(params, connect_to=channel)

    factory.options_schema = CsiBackend.options_schema  # type: ignore[attr-defined]
    given = {
        "socket": "/run/csi.sock",
        "csi_driver_name": behaviour.name,
        "topology_keys": key if behaviour.zones else "",
        **options,
    }
    return Subject(
        factory,
        {name: value for name, value in given.items() if value != ""},
        driver_name=behaviour.name,
        other_parameters={"tier": "other"},
        mutable_parameters={"iops": "5000"},
        segments=tuple({key: zone} for zone in behaviour.zones),
        nodes=tuple(
            NodeIdentity(name=id_.removeprefix("id-of-"), instance_id=f"fake://{id_}", csi_node_id=id_)
            for id_ in behaviour.nodes
        ),
        static_source=VolumeSource(kind="csi", fields={"driver": behaviour.name, "volumeHandle": "vol-by-hand"}),
        foreign_sources=(
            VolumeSource(kind="csi", fields={"driver": "another.csi.example.com", "volumeHandle": "vol-000001"}),
        ),
        advance=clock.advance,
        now=clock,
        inspect=lambda: sorted((each.id, each.name, each.size) for each in fake.volumes.values()),
        fill=lambda asset: fake.contents.write(asset.handle, "data"),
        is_empty=lambda asset: not fake.contents.written(asset.handle),
        attachments=lambda: {each.id: [f"fake://{node}" for node in each.published] for each in fake.volumes.values()},
        owners=lambda: {each.id: _owner(each.name) for each in fake.volumes.values()},
        trouble=lambda random: _trouble(fake, random, faults),
        outage=fake.outage,
        storage_modules=("volplane_csi.testing",),
        crash_points=crash_points,
    )


def _owner(name: str) -> Ownership:
    uid, _, generation = name.removeprefix("pvc-").partition("-g")
    return Ownership(cluster_id="simulated", claim_uid=uid, volume_name=f"pvc-{uid}", generation=int(generation or "1"))


@contextmanager
def _trouble(fake: FakeDriver, random: Random, faults: RandomFaults) -> Iterator[None]:
    """Slow volumes, and random faults while the block runs."""
    fake.behave(create_seconds=random.choice((0.0, 1.5, 12.0)))
    faults.plan(fake.faults, random)
    yield
    fake.faults.clear()
