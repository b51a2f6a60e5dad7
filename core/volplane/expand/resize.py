"""Growing the asset of a bound claim that asks for more than it has. Pure decisions; the hook call is in `operation`.

The order of writes is that of the stock resizer: the claim's status shows the size that is tried before the hook is
called; after the hook the volume's capacity is written, then the claim's. The node plugin grows the file system, if the
driver says that it must be grown. A size that the backend refuses may be lowered again, to one that is still more than
what the claim has.
Source: external-resizer, `expandAndRecover`; KEP-1790 (recovery from failed expansion).
"""

from __future__ import annotations

from typing import Any, Final

from volplane._delays import NODE_GROWTH_REFUSED
from volplane.assets import VolumeMode
from volplane.controller.actions import Action, EventRecord, Patch, Settled, Wait, warning
from volplane.drivers.view import DriverView
from volplane.expand.change import (
    CONTROLLER_RESIZE_ERROR,
    FILE_SYSTEM_RESIZE_PENDING,
    NODE_RESIZE_ERROR,
    RESIZE_CONDITIONS,
    RESIZING,
    bound_volume,
    conditions_since,
    conditions_with,
    conditions_without,
    resume_change,
    since_when,
)
from volplane.intents.ownership import driver_of, run_on_asset
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import format_bytes, parse
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of, held_by, refers_to, request_of
from volplane.state.progress import Changed, Changing, Refused, Untouched

__all__ = ["EXPAND", "decide_resize", "expansion_target", "notes_size_before", "recorded_target", "wants_more"]

EXPAND: Final = "expand"
IN_PROGRESS: Final = "ControllerResizeInProgress"
INFEASIBLE: Final = "ControllerResizeInfeasible"
NODE_PENDING: Final = "NodeResizePending"
NODE_IN_PROGRESS: Final = "NodeResizeInProgress"
NODE_INFEASIBLE: Final = "NodeResizeInfeasible"
NANOS: Final = 10**9


def wants_more(claim: Claim) -> bool:
    """Return whether the claim is bound and asks for more than its status says that it has."""
    if claim.status.phase != "Bound" or not claim.spec.volume_name or claim.terminating:
        return False
    asked = claim.spec.resources.requests if claim.spec.resources else None
    return asked != claim.status.capacity and request_of(claim) > held_by(claim)


def decide_resize(key: str, cluster: ClusterState, *, whole: bool) -> Action:
    """Return the next action for the size of the claim `namespace/name`.

    whole: there is no stock kube-controller-manager that speaks of volumes of other drivers.
    """
    claim = cluster.claims.get(key)
    if claim is None:
        return Settled()
    if not wants_more(claim):
        return _forget_size_before(claim, cluster)
    volume = bound_volume(claim, cluster)
    if volume is None:
        return Settled()
    lookup = driver_of(volume, cluster)
    if lookup.driver is None:
        return lookup.next or _without_driver(lookup.reason, claim, volume, whole=whole)
    step = cluster.progress.changes.get((volume.uid, EXPAND)).step
    untouched = isinstance(step, Untouched) and step.target == str(_allocated(claim))
    target = expansion_target(claim, volume, untouched=untouched)
    if target is None:
        return _wait_for_node(claim, cluster)
    if not lookup.driver.supports(EXPAND):
        message = f'driver "{lookup.driver.name}" cannot grow volumes, so the claim keeps its size'
        return Wait(reason=message, events=(warning(CLAIMS, claim, "VolumeResizeFailed", message),))
    return _towards(target, claim, volume, lookup.driver, cluster)


def _without_driver(why: str, claim: Claim, volume: Volume, *, whole: bool) -> Action:
    """Say on the claim why its volume does not grow. why: "" if it is another controller's."""
    if why:
        reason = f"it cannot grow: {why}"
        return Wait(reason=reason, events=(warning(CLAIMS, claim, "VolumeResizeFailed", reason),))
    if not whole:
        return Settled()
    # The words of the expand controller of kube-controller-manager.
    text = (
        f"no driver here serves volume {volume.name}, so nothing here can grow it; "
        "waiting for an external controller to process this PVC"
    )
    return Wait(reason=text, events=(warning(CLAIMS, claim, "ExternalExpanding", text),))


def notes_size_before(volume: Volume) -> bool:
    """Return whether the volume says which size its file system had before the asset grew.

    A claim that is bound to it before the node has grown the file system shows this size.
    """
    return volume.annotation(names.PRE_RESIZE_CAPACITY) is not None


def _forget_size_before(claim: Claim, cluster: ClusterState) -> Action:
    """Remove that size once the file system has grown; write another one if it has grown to less than its asset."""
    volume = cluster.volumes.get(claim.spec.volume_name)
    if volume is None or volume.terminating or not notes_size_before(volume) or not refers_to(volume, claim):
        return Settled()
    has = (claim.status.capacity or {}).get("storage") if held_by(claim) < capacity_of(volume) else None
    unchanged = has is not None and (_status(claim) or has == volume.annotation(names.PRE_RESIZE_CAPACITY))
    if unchanged or driver_of(volume, cluster).driver is None:
        return Settled()
    body = {"metadata": {"annotations": {names.PRE_RESIZE_CAPACITY: has}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why="its file system has grown, too")


def expansion_target(claim: Claim, volume: Volume, *, untouched: bool = False) -> int | None:
    """Return the size in bytes that the asset shall have, or None while the node has to grow the file system.

    A recorded attempt goes on, whatever is asked for meanwhile, unless the backend has refused it, or its last call did
    nothing (untouched).
    """
    status, allocated = _status(claim), _allocated(claim)
    asked = _asked(claim)
    enough = capacity_of(volume) >= request_of(claim)
    if status in (NODE_PENDING, NODE_IN_PROGRESS) and (enough or capacity_of(volume) >= (allocated or 0) * NANOS):
        return None
    if status == NODE_INFEASIBLE and enough:
        return None
    if allocated is None or status in ("", INFEASIBLE, NODE_INFEASIBLE) or (untouched and not enough):
        return asked
    return allocated


def recorded_target(claim: Claim) -> int | None:
    """Return the size in bytes that the claim's status says is being tried; None if it says nothing."""
    return _allocated(claim) if _status(claim) in (IN_PROGRESS, INFEASIBLE) else None


def _status(claim: Claim) -> str:
    return (claim.status.allocated_resource_statuses or {}).get("storage", "")


def _asked(claim: Claim) -> int:
    """Return the requested size in bytes."""
    return -(-request_of(claim) // NANOS)


def _allocated(claim: Claim) -> int | None:
    text = (claim.status.allocated_resources or {}).get("storage")
    return parse(text).as_bytes() if text else None


def _wait_for_node(claim: Claim, cluster: ClusterState) -> Action:
    """Wait for the node. A kubelet that gave up starts again only when it is asked again."""
    if _status(claim) != NODE_INFEASIBLE:
        return Wait(reason="the node grows the file system once a pod uses the volume there")
    if (asked := _asked(claim)) != _allocated(claim):
        status = {"allocatedResources": {"storage": format_bytes(asked)}, **_node_pending(claim, cluster)}
        return _status_patch(claim, status, why="another size is asked for than the one that the node refused")
    reason = "the node cannot grow the file system; see the events of the claim and its pods"
    since = since_when(claim, NODE_RESIZE_ERROR)
    if since is None:
        return Wait(reason=reason)
    if since > cluster.now():
        # The clock of the node is ahead, by an unknown time: the delay starts now, by our clock.
        status = {"conditions": conditions_since(claim, NODE_RESIZE_ERROR, cluster.now())}
        return _status_patch(claim, status, why="the node dates its refusal later than now")
    left = NODE_GROWTH_REFUSED.delay() - (cluster.now() - since).total_seconds()
    if left > 0:
        return Wait(reason=reason, seconds=left)
    return _status_patch(claim, _node_pending(claim, cluster), why="the node may try again to grow the file system")


def _node_pending(claim: Claim, cluster: ClusterState) -> dict[str, Any]:
    conditions = conditions_with(claim, RESIZE_CONDITIONS, FILE_SYSTEM_RESIZE_PENDING, cluster.now())
    return {"allocatedResourceStatuses": {"storage": NODE_PENDING}, "conditions": conditions}


def _towards(target: int, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    """Return the next step towards a size that the driver shall give the asset."""
    step = cluster.progress.changes.get((volume.uid, EXPAND)).for_target(str(target))
    if recorded_target(claim) != target:
        # Also for a size that was reached or refused earlier: nodes grow file systems to the declared size.
        return _begin(target, claim, volume, cluster)
    if isinstance(step, Changed):
        return _finish(step, claim, volume, driver, cluster)
    if isinstance(step, Refused) and _status(claim) != INFEASIBLE:
        return _refused(step, target, claim, cluster)
    if isinstance(step, Changing):
        doing = f'driver "{driver.name}" is growing the asset to {format_bytes(target)}'
        if (pause := resume_change(step, volume, names.EXPANSION, cluster, doing=doing)) is not None:
            return pause
    return run_on_asset(EXPAND, volume, driver, about=claim)


def _begin(target: int, claim: Claim, volume: Volume, cluster: ClusterState) -> Patch:
    status = {
        "allocatedResources": {"storage": format_bytes(target)},
        "allocatedResourceStatuses": {"storage": IN_PROGRESS},
        "conditions": conditions_with(claim, RESIZE_CONDITIONS, RESIZING, cluster.now()),
    }
    event = EventRecord(CLAIMS, claim, "Normal", "Resizing", f"resizing volume {volume.name} to {format_bytes(target)}")
    return _status_patch(claim, status, event, why=f"declare the growth to {format_bytes(target)}", by_node=True)


def _refused(step: Refused, target: int, claim: Claim, cluster: ClusterState) -> Patch:
    """Write that this size is refused: from then on a smaller one may be asked for."""
    conditions = conditions_with(claim, RESIZE_CONDITIONS, CONTROLLER_RESIZE_ERROR, cluster.now(), message=step.message)
    status = {
        "allocatedResources": {"storage": format_bytes(target)},
        "allocatedResourceStatuses": {"storage": INFEASIBLE},
        "conditions": conditions,
    }
    return _status_patch(claim, status, why="the backend refuses this size")


def _finish(done: Changed, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    """Write that the asset has grown: the volume's capacity first, then the claim's status."""
    mode = volume.spec.volume_mode or "Filesystem"
    on_node = driver.info.node_expansion_required and mode == VolumeMode.FILESYSTEM
    grows = capacity_of(volume) < done.capacity_bytes * NANOS
    if grows or volume.annotation(names.EXPANSION) is not None:
        body: dict[str, Any] = {}
        annotations: dict[str, Any] = {}
        if grows:
            body["spec"] = {"capacity": {"storage": format_bytes(done.capacity_bytes)}}
            if on_node and (not notes_size_before(volume) or held_by(claim) >= capacity_of(volume)):
                annotations[names.PRE_RESIZE_CAPACITY] = (volume.spec.capacity or {})["storage"]
        if volume.annotation(names.EXPANSION) is not None:
            annotations[names.EXPANSION] = None
        if annotations:
            body["metadata"] = {"annotations": annotations}
        return Patch(kind=VOLUMES, target=volume, body=body, why="the asset has grown")
    if on_node:
        status = _node_pending(claim, cluster)
        message = "Require file system resize of volume on node"
        event = EventRecord(CLAIMS, claim, "Normal", "FileSystemResizeRequired", message)
        return _status_patch(claim, status, event, why="the node grows the file system")
    status = {
        "capacity": {"storage": (volume.spec.capacity or {})["storage"]},
        "allocatedResourceStatuses": None,
        "conditions": conditions_without(claim, RESIZE_CONDITIONS),
    }
    event = EventRecord(CLAIMS, claim, "Normal", "VolumeResizeSuccessful", "Resize volume succeeded")
    by_node = volume.spec.csi is None  # Kubelets grow only volumes of CSI drivers.
    return _status_patch(claim, status, event, why="the claim has what it asks for", by_node=by_node)


def _status_patch(
    claim: Claim, status: dict[str, Any], *events: EventRecord, why: str, by_node: bool | None = None
) -> Patch:
    """Return the write. by_node: False tells kubelets that they have nothing to grow, True undoes that."""
    body: dict[str, Any] = {"status": status}
    told = claim.annotation(names.NODE_EXPANSION_NOT_REQUIRED) is not None
    if by_node is not None and told == by_node:
        body["metadata"] = {"annotations": {names.NODE_EXPANSION_NOT_REQUIRED: None if by_node else "true"}}
    return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=why, events=events)
