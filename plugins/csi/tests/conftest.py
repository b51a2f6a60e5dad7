"""A fake CSI driver on a clock of its own, the backend on it, and requests with sensible defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    AccessMode,
    Asset,
    AttachRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DetachRequest,
    ExpandRequest,
    FindSnapshotRequest,
    InProgress,
    InspectRequest,
    ListRequest,
    ModifyRequest,
    NodeIdentity,
    Ownership,
    ProvisionRequest,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    StartRequest,
    VolumeIdentity,
    VolumeSource,
)
from volplane.drivers.parameters import driver_options
from volplane_csi import CsiBackend
from volplane_csi.testing import Behaviour, FakeDriver, InProcess
from volplane_testing.cloud import Fault, FaultKind

DRIVER = "fake.csi.example.com"
GIB = 1 << 30
NODE = NodeIdentity(name="node-1", csi_node_id="id-of-node-1")
OTHER = NodeIdentity(name="node-2", csi_node_id="id-of-node-2")


class World:
    """A driver and one process with the backend; `again` is the next process."""

    def __init__(self, behaviour: Behaviour | None = None, **options: Any) -> None:
        self.fake = FakeDriver(behaviour or Behaviour())
        self.options = {"socket": "/run/csi.sock", **options}
        self.backend = self._process()

    def _process(self) -> CsiBackend:
        typed = driver_options(CsiBackend.options_schema, self.options, "driver fake")
        backend = CsiBackend(typed, connect_to=InProcess(self.fake))
        backend.start(StartRequest(context=self.context()))
        return backend

    def again(self) -> World:
        """As after a crash: nothing of the old process is left."""
        self.backend = self._process()
        return self

    def fault(self, method: str, kind: FaultKind, **fields: Any) -> Fault:
        return self.fake.faults.add(Fault(action=method, kind=kind, **fields))

    def refuse(self, method: str, code: str, message: str = "Because.", **fields: Any) -> Fault:
        return self.fault(method, FaultKind.REFUSE, code=code, message=message, **fields)

    def sent(self, method: str) -> list[Any]:
        return [request for action, request in self.fake.requests if action == method]

    # --- calls --------------------------------------------------------------------------------------------------

    def context(self, **fields: Any) -> Context:
        return Context(**{"driver": DRIVER, "cluster_id": "cluster-1", **fields})

    def finish(self, hook: Callable[[Any], Any], request: Any) -> Any:
        """Call until it is over, as the core does."""
        while isinstance(result := hook(request), InProgress):
            self.fake.clock.advance(max(result.retry_after, 0.2))  # type: ignore[attr-defined]
            request = self.with_state(request, result.state)
        return result

    def with_state(self, request: Any, state: Mapping[str, Any]) -> Any:
        return replace(request, context=replace(request.context, state=dict(state)))

    def saved(self, request: ProvisionRequest) -> ProvisionRequest:
        """The request as it is made again once its state is on the claim."""
        answer = self.backend.provision(request)
        assert isinstance(answer, InProgress)
        return self.with_state(request, answer.state)

    def demand(self, uid: str = "u1", size: int = GIB, **fields: Any) -> ProvisionRequest:
        generation, parameters = fields.pop("generation", 1), fields.pop("parameters", {})
        return ProvisionRequest(
            **{
                "context": self.context(generation=generation),
                "name": f"pvc-{uid}",
                "capacity_bytes": size,
                "owner": Ownership(
                    cluster_id="cluster-1", claim_uid=uid, volume_name=f"pvc-{uid}", generation=generation
                ),
                "claim": ClaimIdentity(
                    namespace="team", name=f"data-{uid}", uid=uid, annotations={"team.example.com/user": "ann"}
                ),
                "parameters": {"": parameters},
                **fields,
            }
        )

    def provision(self, uid: str = "u1", size: int = GIB, **fields: Any) -> Asset:
        asset: Asset = self.finish(self.backend.provision, self.demand(uid, size, **fields))
        return asset

    def identity(self, asset: Asset | str, uid: str = "u1", **fields: Any) -> VolumeIdentity:
        handle = asset if isinstance(asset, str) else asset.handle
        source = VolumeSource(kind="csi", fields={"driver": DRIVER, "volumeHandle": handle})
        given = {
            "name": f"pvc-{uid}",
            "uid": f"pv-{uid}",
            "handle": handle,
            "source": source if isinstance(asset, str) else asset.source,
            "capacity_bytes": GIB if isinstance(asset, str) else asset.capacity_bytes,
            "attributes": {} if isinstance(asset, str) else asset.attributes,
            "access_modes": (AccessMode.READ_WRITE_ONCE,),
        }
        return VolumeIdentity(**{**given, **fields})

    def delete(self, asset: Asset | str, **fields: Any) -> Any:
        return self.backend.delete(DeleteRequest(context=self.context(), volume=self.identity(asset, **fields)))

    def attach(self, asset: Asset | str, node: NodeIdentity = NODE, *, read_only: bool = False, **fields: Any) -> Any:
        volume = self.identity(asset, **fields)
        return self.backend.attach(AttachRequest(context=self.context(), volume=volume, node=node, read_only=read_only))

    def detach(self, asset: Asset | str, node: NodeIdentity = NODE) -> Any:
        return self.backend.detach(DetachRequest(context=self.context(), volume=self.identity(asset), node=node))

    def expand(self, asset: Asset | str, size: int, **fields: Any) -> Any:
        volume = self.identity(asset, **fields)
        return self.backend.expand(ExpandRequest(context=self.context(), volume=volume, capacity_bytes=size))

    def modify(self, asset: Asset | str, **parameters: str) -> Any:
        request = ModifyRequest(context=self.context(), volume=self.identity(asset), parameters=parameters)
        return self.backend.modify(request)

    def listed(self) -> list[Any]:
        assets: list[Any] = []
        page = None
        while True:
            answer = self.backend.list_assets(ListRequest(context=self.context(), page=page))
            assets += answer.assets
            page = answer.next_page
            if page is None:
                return assets

    def look(self, handle: str) -> Any:
        return self.backend.inspect(InspectRequest(context=self.context(), handle=handle))

    def cut(self, asset: Asset | str, uid: str = "s1", **fields: Any) -> SnapshotRequest:
        parameters = fields.pop("parameters", {})
        content = f"snapcontent-{uid}"
        return SnapshotRequest(
            **{
                "context": self.context(),
                "name": f"snapshot-{uid}",
                "volume": self.identity(asset),
                "owner": SnapshotOwnership(cluster_id="cluster-1", snapshot_uid=uid, content_name=content),
                "snapshot": SnapshotIdentity(namespace="team", name="before", content=content),
                "parameters": {"": parameters},
                **fields,
            }
        )

    def snapshot(self, asset: Asset | str, uid: str = "s1", **fields: Any) -> Any:
        return self.finish(self.backend.create_snapshot, self.cut(asset, uid, **fields))

    def find_snapshot(self, handle: str) -> Any:
        return self.backend.find_snapshot(FindSnapshotRequest(context=self.context(), handle=handle))

    def delete_snapshot(self, handle: str) -> Any:
        return self.backend.delete_snapshot(DeleteSnapshotRequest(context=self.context(), handle=handle))


@pytest.fixture
def world() -> World:
    """A driver that behaves well, and a started backend."""
    return World()


@pytest.fixture
def new_world() -> type[World]:
    """Makes drivers that behave otherwise, and backends with other options."""
    return World
