"""Plain objects of snapshots, and a state in which they exist."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, disk, put, state_with
from volplane.drivers.driver import DriverView
from volplane.kube import names
from volplane.kube.objects import Claim, KubeObject, Lease, Volume
from volplane.schemas import Parameter, ParameterSchema
from volplane.snapshots.objects import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.snapshots.state import SnapshotState

HOOKS: Final = frozenset({"describe", "owns", "provision", "delete"}) | {
    "create_snapshot",
    "find_snapshot",
    "delete_snapshot",
}
BOTH: Final = [names.SNAPSHOT_AS_SOURCE, names.SNAPSHOT_BOUND]
MARKED: Final = {names.SNAPSHOT_BEING_DELETED: "yes"}
GONE: Final = "2026-01-01T00:00:00Z"


def cutter(**more: Any) -> DriverView:
    """A driver that makes snapshots, with one parameter of its classes."""
    schema = ParameterSchema(parameters=(Parameter(name="tier", doc="Which."),))
    return disk(hooks=HOOKS, snapshot_parameters=schema, **more)


def source() -> tuple[Claim, Volume]:
    """A claim `c` that is bound to a volume that the driver has made."""
    bound = claim("c", volumeName="v", annotations={names.BIND_COMPLETED: "yes"}, status={"phase": "Bound"})
    marks = {names.PROVISIONED_BY: DRIVER, names.HANDLE: "disk-1"}
    return bound, volume("v", claim=bound, annotations=marks, status={"phase": "Bound"})


def snapshot(name: str = "s", *, of: str = "c", content: str = "", status: Any = None, **fields: Any) -> VolumeSnapshot:
    """A VolumeSnapshot of a claim, or of a content that a person wrote."""
    spec: dict[str, Any] = {"source": {"volumeSnapshotContentName": content} if content else {}}
    if of and not content:
        spec["source"]["persistentVolumeClaimName"] = of
    if "class_name" in fields:
        spec["volumeSnapshotClassName"] = fields.pop("class_name")
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1", **fields}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status or {}}, VolumeSnapshot)


def content(
    name: str = "snapcontent-uid-s", *, of: str = "s", uid: str | None = None, status: Any = None, **fields: Any
) -> VolumeSnapshotContent:
    """The content of a VolumeSnapshot. handle: of a snapshot that a person names."""
    handle, policy = fields.pop("handle", ""), fields.pop("policy", "Delete")
    spec = {
        "volumeSnapshotRef": {"namespace": "default", "name": of, "uid": f"uid-{of}" if uid is None else uid},
        "source": {"snapshotHandle": handle} if handle else {"volumeHandle": "disk-1"},
        "deletionPolicy": policy,
        "driver": fields.pop("driver", DRIVER),
        "volumeSnapshotClassName": "daily",
    }
    held = {"finalizers": [names.CONTENT_BOUND]}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", **held, **fields}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status or {}}, VolumeSnapshotContent)


def snapshot_class(name: str = "daily", *, driver: str = DRIVER, default: bool = False, **fields: Any) -> Any:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    if default:
        metadata["annotations"] = {names.DEFAULT_SNAPSHOT_CLASS: "true"}
    body = {"metadata": metadata, "driver": driver, "deletionPolicy": fields.pop("policy", "Delete"), **fields}
    return msgspec.convert(body, VolumeSnapshotClass)


def state_of(*objects: KubeObject, common: bool = True, drivers: Any = None, **more: Any) -> SnapshotState:
    """A cluster with a driver that makes snapshots, and these objects."""
    state = SnapshotState(cluster=state_with(drivers=[cutter()] if drivers is None else drivers, **more), common=common)
    state.leases.subscribe(state.lease_changed)
    for item in objects:
        match item:
            case VolumeSnapshot():
                state.snapshots.observe(item)
            case VolumeSnapshotContent():
                state.contents.observe(item)
            case VolumeSnapshotClass():
                state.classes.observe(item)
            case Lease():
                state.leases.observe(item)
            case _:
                put(state.cluster, item)
    return state


def stock_lease(holder: str = "stock") -> Lease:
    metadata = {"name": "snapshot-controller-leader", "namespace": "kube-system", "uid": "l", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": {"holderIdentity": holder}}, Lease)
