"""A mocked project on a clock of its own, a driver on it, and requests with sensible defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    AdoptRequest,
    Asset,
    AttachRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    ExpandRequest,
    FindRequest,
    FindSnapshotRequest,
    InProgress,
    ListRequest,
    ListSnapshotsRequest,
    ModifyRequest,
    NodeIdentity,
    Ownership,
    OwnsRequest,
    ProbeRequest,
    ProvisionRequest,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    StartRequest,
    ValidateRequest,
    VolumeIdentity,
    VolumeSource,
)
from volplane.drivers.parameters import check
from volplane_gce_pd import GcePdBackend
from volplane_gce_pd.parameters import PARAMETERS
from volplane_gce_pd.snapshot_parameters import PARAMETERS as SNAPSHOT_PARAMETERS
from volplane_gce_pd.testing import Behaviour, DiskRecord, FakeCompute, InProcess, InstanceRecord
from volplane_testing.cloud import Fault, FaultKind, SteppedClock

DRIVER = "pd.volplane.dev"
PROJECT = "test-project"
REGION = "europe-test1"
ZONE = "topology.gke.io/zone"
ZONES = ("europe-test1-a", "europe-test1-b", "europe-test1-c")
GIB = 1 << 30
LONG = 3_600.0


def typed(parameters: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a class, as the core hands them over."""
    values, flaws = check(PARAMETERS, parameters, "parameter")
    assert flaws == ()
    return values


def typed_snapshot(parameters: Mapping[str, str]) -> dict[str, Any]:
    """The same of a VolumeSnapshotClass."""
    values, flaws = check(SNAPSHOT_PARAMETERS, parameters, "parameter")
    assert flaws == ()
    return values


class Site:
    """A mocked project and one process with a driver; `again` is the next process."""

    def __init__(self, behaviour: Behaviour | None = None, **options: Any) -> None:
        self.clock = SteppedClock()
        self.fake = FakeCompute(behaviour or Behaviour(), clock=self.clock)
        self.connect = InProcess(self.fake)
        self.options = {"project": PROJECT, "region": REGION, **options}
        self.states: list[Mapping[str, Any]] = []
        self.backend = self._driver()

    def _driver(self) -> GcePdBackend:
        backend = GcePdBackend(self.options, connect_to=self.connect, clock=self.clock)
        backend.start(StartRequest(context=self.context()))
        return backend

    def again(self, **options: Any) -> Site:
        """As after a crash: nothing of the old process is left."""
        self.options.update(options)
        self.backend = self._driver()
        return self

    def fault(self, action: str, kind: FaultKind, **fields: Any) -> Fault:
        return self.fake.faults.add(Fault(action=action, kind=kind, **fields))

    def refuse(self, action: str, code: str, message: str = "Because.", **fields: Any) -> Fault:
        return self.fault(action, FaultKind.REFUSE, code=code, message=message, **fields)

    def fail(self, action: str, code: str, message: str = "Because.", **fields: Any) -> Fault:
        return self.fault(action, FaultKind.FAIL, code=code, message=message, **fields)

    # --- calls --------------------------------------------------------------------------------------------------

    def context(self, **fields: Any) -> Context:
        return Context(**{"driver": DRIVER, "cluster_id": "cluster-1", **fields})

    def finish(self, hook: Callable[[Any], Any], request: Any, *, limit: float = LONG) -> Any:
        """Call until it is over, as the core does; `limit` seconds at most."""
        end = self.clock.now + limit
        while True:
            result = hook(request)
            if not isinstance(result, InProgress):
                return result
            self.states.append(result.state)
            self.clock.advance(result.retry_after)
            assert self.clock.now < end, f"still in progress after {limit} s"
            request = replace(request, context=replace(request.context, state=dict(result.state)))

    def owner(self, uid: str = "u1", generation: int = 1) -> Ownership:
        return Ownership(cluster_id="cluster-1", claim_uid=uid, volume_name=f"pvc-{uid}", generation=generation)

    def demand(self, uid: str = "u1", size: int = 10 * GIB, **fields: Any) -> ProvisionRequest:
        generation, parameters = fields.pop("generation", 1), fields.pop("parameters", {})
        return ProvisionRequest(
            **{
                "context": self.context(generation=generation),
                "name": f"pvc-{uid}",
                "capacity_bytes": size,
                "owner": self.owner(uid, generation),
                "claim": ClaimIdentity(namespace="default", name=f"data-{uid}", uid=uid),
                "segment": {ZONE: ZONES[0]},
                "parameters": typed(parameters),
                **fields,
            }
        )

    def provision(self, uid: str = "u1", size: int = 10 * GIB, **fields: Any) -> Asset:
        asset: Asset = self.finish(self.backend.provision, self.demand(uid, size, **fields))
        return asset

    def identity(self, asset: Asset | str, uid: str = "u1", **fields: Any) -> VolumeIdentity:
        handle = asset if isinstance(asset, str) else asset.handle
        given = {
            "name": f"pvc-{uid}",
            "uid": f"pv-{uid}",
            "handle": handle,
            "source": VolumeSource(kind="csi", fields={"driver": "pd.csi.storage.gke.io", "volumeHandle": handle}),
            "capacity_bytes": GIB if isinstance(asset, str) else asset.capacity_bytes,
            "owner": self.owner(uid),
            "attributes": {} if isinstance(asset, str) else asset.attributes,
        }
        return VolumeIdentity(**{**given, **fields})

    def delete(self, asset: Asset | str, uid: str = "u1", **fields: Any) -> Any:
        request = DeleteRequest(context=self.context(), volume=self.identity(asset, uid, **fields))
        return self.finish(self.backend.delete, request)

    def find(self, uid: str = "u1", generation: int = 1) -> Any:
        request = FindRequest(context=self.context(), name=f"pvc-{uid}", owner=self.owner(uid, generation))
        return self.backend.find(request)

    def vm(self, name: str = "node-a", zone: str = ZONES[0], **fields: Any) -> InstanceRecord:
        return self.fake.add_instance(name, zone, **fields)

    def node(self, vm: InstanceRecord, **fields: Any) -> NodeIdentity:
        given = {"name": vm.name, "instance_id": f"gce://{PROJECT}/{vm.zone}/{vm.name}"}
        return NodeIdentity(**{**given, **fields})

    def attachment(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **fields: Any) -> AttachRequest:
        context = self.context(**fields.pop("context", {}))
        volume = self.identity(asset, uid, **fields.pop("volume", {}))
        return AttachRequest(context=context, volume=volume, node=node, **fields)

    def attach(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **fields: Any) -> Any:
        return self.finish(self.backend.attach, self.attachment(asset, node, uid, **fields))

    def detachment(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **context: Any) -> DetachRequest:
        return DetachRequest(context=self.context(**context), volume=self.identity(asset, uid), node=node)

    def detach(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **context: Any) -> Any:
        return self.finish(self.backend.detach, self.detachment(asset, node, uid, **context))

    def expand(self, asset: Asset | str, size: int, **fields: Any) -> Any:
        request = ExpandRequest(context=self.context(), volume=self.identity(asset, **fields), capacity_bytes=size)
        return self.finish(self.backend.expand, request)

    def modify(self, asset: Asset | str, **parameters: str) -> Any:
        request = ModifyRequest(context=self.context(), volume=self.identity(asset), parameters=parameters)
        return self.finish(self.backend.modify, request)

    def snapshot_owner(self, name: str = "snap-a", cluster: str = "cluster-1") -> SnapshotOwnership:
        return SnapshotOwnership(cluster_id=cluster, snapshot_uid=f"uid-{name}", content_name=f"snapcontent-{name}")

    def cut(self, asset: Asset | str, name: str = "snap-a", uid: str = "u1", **fields: Any) -> SnapshotRequest:
        parameters = typed_snapshot(fields.pop("parameters", {}))
        return SnapshotRequest(
            **{
                "context": self.context(),
                "name": name,
                "volume": self.identity(asset, uid),
                "owner": self.snapshot_owner(name),
                "snapshot": SnapshotIdentity(namespace="team-a", name="before", content=f"snapcontent-{name}"),
                "parameters": parameters,
                **fields,
            }
        )

    def snapshot(self, asset: Asset | str, name: str = "snap-a", uid: str = "u1", **fields: Any) -> Any:
        return self.finish(self.backend.create_snapshot, self.cut(asset, name, uid, **fields))

    def find_snapshot(self, handle: str = "", **fields: Any) -> Any:
        request = FindSnapshotRequest(**{"context": self.context(), "handle": handle, **fields})
        return self.backend.find_snapshot(request)

    def ready(self, handle: str, **fields: Any) -> Any:
        """Look as the core does, until it is ready."""
        end = self.clock.now + LONG
        while not (found := self.find_snapshot(handle, **fields)).ready:
            self.clock.advance(found.retry_after)
            assert self.clock.now < end, f"not ready after {LONG} s: {found}"
        return found

    def delete_snapshot(self, handle: str, name: str | None = "snap-a", **context: Any) -> Any:
        """name: None = of a content that a person wrote."""
        owner = self.snapshot_owner(name) if name is not None else None
        request = DeleteSnapshotRequest(context=self.context(**context), handle=handle, owner=owner)
        return self.finish(self.backend.delete_snapshot, request)

    def listed_snapshots(self, **context: Any) -> list[Any]:
        snapshots: list[Any] = []
        page = None
        while True:
            answer = self.backend.list_snapshots(ListSnapshotsRequest(context=self.context(**context), page=page))
            snapshots += answer.snapshots
            page = answer.next_page
            if page is None:
                return snapshots

    def listed(self) -> list[Any]:
        assets: list[Any] = []
        page = None
        while True:
            answer = self.backend.list_assets(ListRequest(context=self.context(), page=page))
            assets += answer.assets
            page = answer.next_page
            if page is None:
                return assets

    def adoption(self, asset: Asset, former: Ownership, **context: Any) -> AdoptRequest:
        return AdoptRequest(context=self.context(**context), volume=self.identity(asset), former=former)

    def probe(self) -> Any:
        return self.backend.probe(ProbeRequest(context=self.context()))

    def describe(self) -> Any:
        return self.backend.describe(DescribeRequest(context=self.context()))

    def owns(self, kind: str, **fields: Any) -> bool:
        request = OwnsRequest(context=self.context(), source=VolumeSource(kind=kind, fields=fields))
        return self.backend.owns(request)

    def validate(self, **parameters: str) -> Any:
        return self.backend.validate(ValidateRequest(context=self.context(), parameters=typed(parameters)))

    @property
    def disk(self) -> DiskRecord:
        """The only disk."""
        (disk,) = self.fake.disks.values()
        return disk


@pytest.fixture
def site() -> Site:
    """A project that behaves as Compute Engine does, and a started driver."""
    return Site()


@pytest.fixture
def new_site() -> type[Site]:
    """Makes projects that behave otherwise, with other options of the driver."""
    return Site
