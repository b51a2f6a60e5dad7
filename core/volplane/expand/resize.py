"""Growing the asset of a bound claim that asks for more than it has. Pure decisions; the hook call is in `operation`.

The order of writes is that of the stock resizer: the claim's status shows the size that is tried before the hook is
called; after the hook the volume's capacity is written, then the claim's. The node plugin grows the file system, if the
driver says that it must be grown. A size that the backend refuses may be lowered again, to one that is still more than
what the claim has. What `modify` shares is at the end: the state of a long call, and the conditions of the claim.
Source: external-resizer, `expandAndRecover`; KEP-1790 (recovery from failed expansion); `MergeResizeConditionOnPVC`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from volplane._delays import NODE_GROWTH_REFUSED
from volplane.assets import VolumeMode
from volplane.controller.actions import Action, EventRecord, Patch, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import driver_of, run_on_asset
from volplane.intents.record import write_record
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume, timestamp
from volplane.kube.quantity import format_bytes, parse
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import NANOS, capacity_of, held_by, mode_of, request_of, too_large, whole_bytes
from volplane.state.progress import Changed, Changing, Refused, Untouched
from volplane.state.records import INTENT_VERSION, ChangeIntent, read_intent

EXPAND: Final = "expand"
IN_PROGRESS: Final = "ControllerResizeInProgress"
INFEASIBLE: Final = "ControllerResizeInfeasible"
NODE_PENDING: Final = "NodeResizePending"
NODE_IN_PROGRESS: Final = "NodeResizeInProgress"
NODE_INFEASIBLE: Final = "NodeResizeInfeasible"
RESIZING: Final = "Resizing"
FILE_SYSTEM_RESIZE_PENDING: Final = "FileSystemResizePending"
CONTROLLER_RESIZE_ERROR: Final = "ControllerResizeError"
NODE_RESIZE_ERROR: Final = "NodeResizeError"
RESIZE_CONDITIONS: Final = frozenset({RESIZING, FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR})


def wants_more(claim: Claim) -> bool:
    """Return whether the claim is bound and asks for more than its status says that it has."""
    if claim.status.phase != "Bound" or not claim.spec.volume_name or claim.terminating:
        return False
    asked = claim.spec.resources.requests if claim.spec.resources else None
    return asked != claim.status.capacity and request_of(claim) > held_by(claim)


def notes_size_before(volume: Volume) -> bool:
    """Return whether it says which size its file system had before the asset grew: claims bound to it show that."""
    return volume.annotation(names.PRE_RESIZE_CAPACITY) is not None


def decide_resize(key: str, cluster: ClusterState, *, whole: bool) -> Action:
    """Return the next action for the size of the claim `namespace/name`.

    whole: there is no stock kube-controller-manager that speaks of volumes of other drivers.
    """
    claim = cluster.claims.get(key)
    if claim is None:
        return Settled()  # It is gone; its asset is another duty's.
    # Only a volume that refers to the claim is the claim's: another one's asset is not to grow.
    volume = cluster.volume_of(claim)
    if volume is None or volume.terminating:
        return Settled()
    if not wants_more(claim):
        return _forget_size_before(claim, volume, cluster)
    lookup = driver_of(volume, cluster)
    driver = lookup.driver
    if lookup.next is not None:
        return lookup.next
    if lookup.reason and driver is None:
        reason = f"it cannot grow: {lookup.reason}"
        return Wait(reason=reason, events=(warning(CLAIMS, claim, "VolumeResizeFailed", reason),))
    if driver is None and (not whole or cluster.drivers.on_nodes(volume.annotation(names.PROVISIONED_BY) or "")):
        return Settled()  # Another controller, or the process of its node, grows it and reports that.
    if driver is None:
        # The words of the expand controller of kube-controller-manager.
        text = (
            f"no driver here serves volume {volume.name}, so nothing here can grow it; "
            "waiting for an external controller to process this PVC"
        )
        return Wait(reason=text, events=(warning(CLAIMS, claim, "ExternalExpanding", text),))
    step = cluster.progress.changes.get((volume.uid, EXPAND)).step
    untouched = isinstance(step, Untouched) and step.target == str(_allocated(claim))
    target = expansion_target(claim, volume, untouched=untouched)
    if target is None:
        return _wait_for_node(claim, cluster)
    cannot = (
        "" if driver.supports(EXPAND) else f'driver "{driver.name}" cannot grow volumes, so the claim keeps its size'
    )
    if message := cannot or too_large(target * NANOS):
        return Wait(reason=message, events=(warning(CLAIMS, claim, "VolumeResizeFailed", message),))
    return _towards(target, claim, volume, driver, cluster)


def expansion_target(claim: Claim, volume: Volume, *, untouched: bool = False) -> int | None:
    """Return the size in bytes that the asset shall have, or None while the node has to grow the file system.

    A recorded attempt goes on, whatever is asked for meanwhile, unless the backend has refused it, or its last call did
    nothing (untouched).
    """
    status, allocated = _status(claim), _allocated(claim)
    has, asked = capacity_of(volume), request_of(claim)
    # The asset has what the claim asks for, or at least what the node was told to use.
    if status in (NODE_PENDING, NODE_IN_PROGRESS) and (has >= asked or has >= (allocated or 0) * NANOS):
        return None
    if status == NODE_INFEASIBLE and has >= asked:
        return None  # A larger asset would not help the node.
    # An attempt whose call may have done something is finished before another size is tried.
    if allocated is None or status in ("", INFEASIBLE, NODE_INFEASIBLE) or (untouched and has < asked):
        return whole_bytes(asked)
    return allocated


def recorded_target(claim: Claim) -> int | None:
    """Return the size in bytes that the claim's status says is being tried; None if it says nothing."""
    return _allocated(claim) if _status(claim) in (IN_PROGRESS, INFEASIBLE) else None


def growth(claim: Claim) -> str:
    """Return, in a sentence, what the claim asks for and how far that is; "" if it has that."""
    if not wants_more(claim):
        return ""
    asked, held = (format_bytes(whole_bytes(size)) for size in (request_of(claim), held_by(claim)))
    size = (claim.status.allocated_resources or {}).get("storage", "the new size")
    failure, on_node = message_of(claim, CONTROLLER_RESIZE_ERROR), message_of(claim, NODE_RESIZE_ERROR)
    stages = {
        IN_PROGRESS: f"the asset is being grown to {size}{failure}",
        INFEASIBLE: f"the backend refuses {size}{failure}; ask for less, yet more than it has",
        NODE_PENDING: f"the asset has {size}; the node grows the file system when a pod uses the volume there",
        NODE_IN_PROGRESS: f"the asset has {size}; the node is growing the file system{on_node}",
        NODE_INFEASIBLE: f"the asset has {size}, but the node cannot grow the file system{on_node}",
    }
    stage = stages.get(_status(claim), "nothing has been done towards it yet")
    return f"it asks for {asked} and has {held}: {stage}"


def _forget_size_before(claim: Claim, volume: Volume, cluster: ClusterState) -> Action:
    """Remove that size once the file system has grown; write another one if it has grown to less than its asset."""
    if not notes_size_before(volume):
        return Settled()  # There is nothing to remove.
    has = (claim.status.capacity or {}).get("storage") if held_by(claim) < capacity_of(volume) else None
    unchanged = has is not None and (_status(claim) or has == volume.annotation(names.PRE_RESIZE_CAPACITY))
    # The annotation on a volume of another controller is that controller's.
    if unchanged or driver_of(volume, cluster).driver is None:
        return Settled()
    body = {"metadata": {"annotations": {names.PRE_RESIZE_CAPACITY: has}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why="its file system has grown, too")


def _wait_for_node(claim: Claim, cluster: ClusterState) -> Action:
    """Wait for the node. A kubelet that gave up starts again only when it is asked again."""
    if _status(claim) != NODE_INFEASIBLE:
        return Wait(reason="the node grows the file system once a pod uses the volume there")
    if (asked := whole_bytes(request_of(claim))) != _allocated(claim):
        status = {"allocatedResources": {"storage": format_bytes(asked)}, **_node_pending(claim, cluster)}
        return _status_patch(claim, status, why="another size is asked for than the one that the node refused")
    reason = "the node cannot grow the file system; see the events of the claim and its pods"
    when, now = _condition(claim, NODE_RESIZE_ERROR).get("lastTransitionTime"), cluster.now()
    if not when:
        return Wait(reason=reason)
    since = datetime.fromisoformat(when)
    if since > now:
        # The clock of the node is ahead, by an unknown time: the delay starts now, by our clock.
        dated = {"lastTransitionTime": timestamp(now)}
        conditions = claim.status.conditions or ()
        status = {
            "conditions": [each | dated if each.get("type") == NODE_RESIZE_ERROR else each for each in conditions]
        }
        return _status_patch(claim, status, why="the node dates its refusal later than now")
    left = NODE_GROWTH_REFUSED.delay() - (now - since).total_seconds()
    if left > 0:
        return Wait(reason=reason, seconds=left)
    return _status_patch(claim, _node_pending(claim, cluster), why="the node may try again to grow the file system")


def _node_pending(claim: Claim, cluster: ClusterState) -> dict[str, Any]:
    conditions = conditions_with(claim, RESIZE_CONDITIONS, FILE_SYSTEM_RESIZE_PENDING, cluster.now())
    return {"allocatedResourceStatuses": {"storage": NODE_PENDING}, "conditions": conditions}


def _towards(target: int, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    step = cluster.progress.changes.get((volume.uid, EXPAND)).for_target(str(target))
    text = format_bytes(target)
    tried: dict[str, Any] = {"allocatedResources": {"storage": text}}
    if recorded_target(claim) != target:
        # Also for a size that was reached or refused earlier: nodes grow file systems to the declared size.
        tried["allocatedResourceStatuses"] = {"storage": IN_PROGRESS}
        tried["conditions"] = conditions_with(claim, RESIZE_CONDITIONS, RESIZING, cluster.now())
        event = EventRecord(CLAIMS, claim, "Normal", "Resizing", f"resizing volume {volume.name} to {text}")
        return _status_patch(claim, tried, event, why=f"declare the growth to {text}", by_node=True)
    if isinstance(step, Changed):  # Only what the hook has done is shown as done.
        return _finish(step, claim, volume, driver, cluster)
    if isinstance(step, Refused) and _status(claim) != INFEASIBLE:
        # From now on a smaller size may be asked for.
        tried["allocatedResourceStatuses"] = {"storage": INFEASIBLE}
        tried["conditions"] = conditions_with(
            claim, RESIZE_CONDITIONS, CONTROLLER_RESIZE_ERROR, cluster.now(), message=step.message
        )
        return _status_patch(claim, tried, why="the backend refuses this size")
    if isinstance(step, Changing):
        doing = f'driver "{driver.name}" is growing the asset to {text}'
        if (pause := resume_change(step, volume, names.EXPANSION, cluster, doing=doing)) is not None:
            return pause
    return run_on_asset(EXPAND, volume, driver, about=claim)


def _finish(done: Changed, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
    """Write that the asset has grown: the volume's capacity first, then the claim's status."""
    wanted = driver.info.node_expansion_required if done.on_node is None else done.on_node
    on_node = wanted and mode_of(volume) == VolumeMode.FILESYSTEM
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
        message = "Require file system resize of volume on node"
        event = EventRecord(CLAIMS, claim, "Normal", "FileSystemResizeRequired", message)
        return _status_patch(claim, _node_pending(claim, cluster), event, why="the node grows the file system")
    status = {
        "capacity": {"storage": (volume.spec.capacity or {})["storage"]},
        "allocatedResourceStatuses": None,
        "conditions": conditions_without(claim, RESIZE_CONDITIONS),
    }
    event = EventRecord(CLAIMS, claim, "Normal", "VolumeResizeSuccessful", "Resize volume succeeded")
    by_node = volume.spec.csi is None  # Kubelets grow only volumes of CSI drivers.
    return _status_patch(claim, status, event, why="the claim has what it asks for", by_node=by_node)


def _status(claim: Claim) -> str:
    return (claim.status.allocated_resource_statuses or {}).get("storage", "")


def _allocated(claim: Claim) -> int | None:
    text = (claim.status.allocated_resources or {}).get("storage")
    return parse(text).as_bytes() if text else None


def _status_patch(
    claim: Claim, status: dict[str, Any], *events: EventRecord, why: str, by_node: bool | None = None
) -> Patch:
    """Return the write. by_node: False tells kubelets that they have nothing to grow, True undoes that."""
    body: dict[str, Any] = {"status": status}
    told = claim.annotation(names.NODE_EXPANSION_NOT_REQUIRED) is not None
    if by_node is not None and told == by_node:
        body["metadata"] = {"annotations": {names.NODE_EXPANSION_NOT_REQUIRED: None if by_node else "true"}}
    return Patch(kind=CLAIMS, target=claim, body=body, subresource="status", why=why, events=events)


# --- shared with `modify` -----------------------------------------------------------------------------------------


def resume_change(
    step: Changing, volume: Volume, annotation: str, cluster: ClusterState, *, doing: str, former: tuple[str, ...] = ()
) -> Action | None:
    """Go on with a long call: keep its state on the volume, or wait until it is due; None: call the hook now.

    annotation: the one that keeps the state. doing: the reason of the wait. former: of `ChangeIntent`.
    """
    if step.unrecorded(recorded_state(volume.annotation(annotation), step.target)):
        kept = ChangeIntent(v=INTENT_VERSION, target=step.target, state=dict(step.state), former=former)
        return write_record(VOLUMES, volume, kept, annotation=annotation, why="keep the driver's state")
    left = step.left(cluster.monotonic())
    return Wait(reason=doing, seconds=left) if left else None


def recorded_state(saved: str | None, target: str) -> dict[str, Any] | None:
    """Return the state that an earlier call for this target returned; None without one. saved: the annotation."""
    known = read_intent(ChangeIntent, saved)
    return known.state if known is not None and known.target == target else None


def conditions_with(
    claim: Claim, family: Collection[str], condition: str, now: datetime, *, message: str = ""
) -> list[dict[str, Any]] | None:
    """Return the conditions with `condition` ("" = none) in place of its family. One that exists keeps its time."""
    if not condition:
        return conditions_without(claim, family)
    when = _condition(claim, condition).get("lastTransitionTime") or timestamp(now)
    made = {"type": condition, "status": "True", "lastTransitionTime": when}
    return [*(conditions_without(claim, family) or ()), made | ({"message": message} if message else {})]


def conditions_without(claim: Claim, family: Collection[str]) -> list[dict[str, Any]] | None:
    """Return the claim's conditions without a family. None instead of an empty list, for a merge patch."""
    return [each for each in claim.status.conditions or () if each.get("type") not in family] or None


def message_of(claim: Claim, condition: str) -> str:
    """Return the message of a condition, as the end of a sentence; "" without it."""
    message = _condition(claim, condition).get("message")
    return f" ({message})" if message else ""


def _condition(claim: Claim, name: str) -> dict[str, Any]:
    return next((each for each in claim.status.conditions or () if each.get("type") == name), {})
