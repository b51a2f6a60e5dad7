"""A mocked region on a clock of its own, a driver on it, and requests with sensible defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.client import ClientCreator

from volplane import (
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
    ProbeRequest,
    ProvisionRequest,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    StartRequest,
    VolumeIdentity,
    VolumeSource,
)
from volplane.drivers.parameters import check
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.snapshot_parameters import PARAMETERS as SNAPSHOT_PARAMETERS
from volplane_aws_ebs.testing import Behaviour, FakeEC2, Fault, FaultKind, InProcess, Instance, SteppedClock

DRIVER = "ebs.volplane.dev"
REGION = "eu-test-1"
ZONE = "topology.kubernetes.io/zone"
ZONES = ("eu-test-1a", "eu-test-1b", "eu-test-1c")
GIB = 1 << 30
LONG = 3_600.0


class Region:
    """A mocked region and one process with a driver; `again` is the next process."""

    def __init__(self, behaviour: Behaviour | None = None, **options: Any) -> None:
        self.clock = SteppedClock()
        self.fake = FakeEC2(behaviour or Behaviour(), clock=self.clock)
        self.connect = InProcess(self.fake)
        self.options = {"region": REGION, **options}
        self.backend = self._driver()

    def _driver(self) -> AwsEbsBackend:
        backend = AwsEbsBackend(self.options, connect_to=self.connect, clock=self.clock)
        backend.start(StartRequest(context=self.context()))
        return backend

    def again(self, **options: Any) -> Region:
        """As after a crash: nothing of the old process is left."""
        self.options.update(options)
        self.backend = self._driver()
        return self

    def fault(self, action: str, kind: FaultKind, **fields: Any) -> Fault:
        return self.fake.faults.add(Fault(action=action, kind=kind, **fields))

    def refuse(self, action: str, code: str, message: str = "Because.", **fields: Any) -> Fault:
        return self.fault(action, FaultKind.REFUSE, code=code, message=message, **fields)

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
            self.clock.advance(result.retry_after)
            assert self.clock.now < end, f"still in progress after {limit} s"
            request = replace(request, context=replace(request.context, state=dict(result.state)))

    def owner(self, uid: str = "u1", generation: int = 1) -> Ownership:
        return Ownership(cluster_id="cluster-1", claim_uid=uid, volume_name=f"pvc-{uid}", generation=generation)

    def demand(self, uid: str = "u1", size: int = GIB, **fields: Any) -> ProvisionRequest:
        generation = fields.pop("generation", 1)
        return ProvisionRequest(
            **{
                "context": self.context(generation=generation),
                "name": f"pvc-{uid}",
                "capacity_bytes": size,
                "owner": self.owner(uid, generation),
                "claim": ClaimIdentity(namespace="default", name=f"data-{uid}", uid=uid),
                "segment": {ZONE: ZONES[0]},
                **fields,
            }
        )

    def provision(self, uid: str = "u1", size: int = GIB, **fields: Any) -> Asset:
        asset: Asset = self.finish(self.backend.provision, self.demand(uid, size, **fields))
        return asset

    def identity(self, asset: Asset | str, uid: str = "u1", **fields: Any) -> VolumeIdentity:
        handle = asset if isinstance(asset, str) else asset.handle
        given = {
            "name": f"pvc-{uid}",
            "uid": f"pv-{uid}",
            "handle": handle,
            "source": VolumeSource(kind="csi", fields={"driver": "ebs.csi.aws.com", "volumeHandle": handle}),
            "capacity_bytes": GIB if isinstance(asset, str) else asset.capacity_bytes,
            "owner": self.owner(uid),
        }
        return VolumeIdentity(**{**given, **fields})

    def deletion(self, asset: Asset | str, uid: str = "u1", **fields: Any) -> DeleteRequest:
        return DeleteRequest(context=self.context(), volume=self.identity(asset, uid, **fields))

    def delete(self, asset: Asset | str, uid: str = "u1", **fields: Any) -> Any:
        return self.finish(self.backend.delete, self.deletion(asset, uid, **fields))

    def find(self, uid: str = "u1", generation: int = 1) -> Any:
        request = FindRequest(context=self.context(), name=f"pvc-{uid}", owner=self.owner(uid, generation))
        return self.backend.find(request)

    def node(self, instance: Instance, name: str = "node-a") -> NodeIdentity:
        return NodeIdentity(name=name, instance_id=f"aws:///{instance.zone}/{instance.id}")

    def attachment(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **context: Any) -> AttachRequest:
        return AttachRequest(context=self.context(**context), volume=self.identity(asset, uid), node=node)

    def attach(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **context: Any) -> Any:
        return self.finish(self.backend.attach, self.attachment(asset, node, uid, **context))

    def detachment(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **context: Any) -> DetachRequest:
        return DetachRequest(context=self.context(**context), volume=self.identity(asset, uid), node=node)

    def detach(self, asset: Asset | str, node: NodeIdentity, uid: str = "u1", **context: Any) -> Any:
        return self.finish(self.backend.detach, self.detachment(asset, node, uid, **context))

    def expansion(self, asset: Asset | str, size: int, **fields: Any) -> ExpandRequest:
        return ExpandRequest(context=self.context(), volume=self.identity(asset, **fields), capacity_bytes=size)

    def expand(self, asset: Asset | str, size: int, **fields: Any) -> Any:
        return self.finish(self.backend.expand, self.expansion(asset, size, **fields))

    def modify(self, asset: Asset | str, **parameters: str) -> Any:
        request = ModifyRequest(context=self.context(), volume=self.identity(asset), parameters=parameters)
        return self.finish(self.backend.modify, request)

    def snapshot_owner(self, name: str = "snap-a", cluster: str = "cluster-1") -> SnapshotOwnership:
        return SnapshotOwnership(cluster_id=cluster, snapshot_uid=f"uid-{name}", content_name=f"snapcontent-{name}")

    def typed_snapshot(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The parameters of a VolumeSnapshotClass, as the core hands them over."""
        values, flaws = check(SNAPSHOT_PARAMETERS, parameters, "parameter")
        assert flaws == ()
        return values

    def cut(self, asset: Asset | str, name: str = "snap-a", uid: str = "u1", **fields: Any) -> SnapshotRequest:
        return SnapshotRequest(
            **{
                "context": self.context(),
                "name": name,
                "volume": self.identity(asset, uid),
                "owner": self.snapshot_owner(name),
                "snapshot": SnapshotIdentity(namespace="team-a", name="before", content=f"snapcontent-{name}"),
                **fields,
                "parameters": self.typed_snapshot(fields.get("parameters", {})),
            }
        )

    def snapshot(self, asset: Asset | str, name: str = "snap-a", uid: str = "u1", **fields: Any) -> Any:
        return self.finish(self.backend.create_snapshot, self.cut(asset, name, uid, **fields))

    def find_snapshot(self, handle: str = "", **fields: Any) -> Any:
        parameters = self.typed_snapshot(fields.pop("parameters", {}))
        request = FindSnapshotRequest(
            **{"context": self.context(), "handle": handle, "parameters": parameters, **fields}
        )
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

    def probe(self) -> Any:
        return self.backend.probe(ProbeRequest(context=self.context()))

    def describe(self) -> Any:
        return self.backend.describe(DescribeRequest(context=self.context()))


@pytest.fixture(scope="session", autouse=True)
def _one_class_of_clients() -> Iterator[None]:
    """botocore makes a class of 800 methods for each client, half of the time of most tests: here one a service."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_load_service_model", "_create_client_class"):
            patch.setattr(ClientCreator, name, _once_a_service(getattr(ClientCreator, name)))
        yield


def _once_a_service(method: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[str, Any] = {}

    def first(creator: ClientCreator, service_name: str, *more: Any) -> Any:
        if service_name not in made:
            made[service_name] = method(creator, service_name, *more)
        return made[service_name]

    return first


@pytest.fixture
def region() -> Region:
    """A region that behaves as EC2 does, and a started driver."""
    return Region()


@pytest.fixture
def new_region() -> type[Region]:
    """Makes regions that behave otherwise, with other options of the driver."""
    return Region
