"""Released volumes that are being scrubbed, and the pods that do it, as the tests of decisions want them."""

from __future__ import annotations

from typing import Any

import msgspec

from unit.binding.objects import claim, volume
from unit.deciding import decide_recycle, decide_volume, disk, put, read, state_with
from volplane.controller.actions import EventRecord, LiveReads, Patch, Run, warning
from volplane.controller.config import ScrubberSettings
from volplane.kube.kinds import CLAIMS, VOLUMES, WHOLE_PODS
from volplane.kube.objects import Pod, Volume, WholePod
from volplane.reclaim.scrub_pod import SCRUB_GATE, pod_body, pod_name
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key
from volplane.state.records import (
    INTENT_VERSION,
    RecycleIntent,
    ScrubPlan,
    Sealer,
    read_intent,
    recycle_intent_of,
    write_intent,
)

INTENT = "volplane.dev/intent"
GONE = claim("gone")
DISK = disk()
OURS = "volplane-system"
SEALER = Sealer(b"k" * 32)
HELD = {"claimRef": {"namespace": OURS, "name": pod_name(volume()), "uid": "uid-scrub"}, "claim": None}
"""A volume that refers to the claim of its scrub."""
BY_CLAIM = {"held_by": "uid-scrub", "released": "default/gone"}
SCRUB_CLAIM = f"{OURS}/{pod_name(volume())}"
RECYCLE = Run(verb="recycle", key="v", uid="uid-v", driver=DISK.name, asset=asset_key(volume()), group="recycle ")


def dirty(spec: dict[str, Any] | None = None, **intent: Any) -> Volume:
    """A released volume with this intent. spec: fields of its own."""
    return with_record(write_intent(RecycleIntent(v=INTENT_VERSION, **{"claim": GONE.uid, **intent})), **(spec or {}))


def with_record(text: str, **spec: Any) -> Volume:
    """A released volume with this text as its record."""
    marks = {INTENT: text, "pv.kubernetes.io/bound-by-controller": "yes"}
    failed = {"phase": "Failed", "message": "Recycle failed: failed to recycle volume: disk error"}
    status = failed if '"failed"' in text else {"phase": "Released"}
    given = {"annotations": marks, "claim": GONE, "persistentVolumeReclaimPolicy": "Recycle", "status": status}
    return volume(**{**given, **spec})


def body_of(item: Volume, *, sealer: Sealer = SEALER) -> dict[str, Any]:
    """What we would create for this volume and intent."""
    intent = recycle_intent_of(item)
    assert intent is not None
    body = pod_body(item, intent, ScrubPlan(None), ScrubberSettings(), namespace=OURS, sealer=sealer)
    body["metadata"] |= {"uid": "uid-pod", "resourceVersion": "1"}
    return body


def pod_of(item: Volume, *, gated: bool = False, phase: str = "Pending", **changes: Any) -> Pod:
    """The pod that we would make for this volume and intent, as the server has it."""
    body = body_of(item, sealer=changes.pop("sealer", SEALER))
    body["metadata"]["annotations"] = {**body["metadata"]["annotations"], **changes.pop("annotations", {})}
    body["metadata"] |= changes
    body["spec"]["schedulingGates"] = [{"name": SCRUB_GATE}] if gated else []
    return msgspec.convert({**body, "status": {"phase": phase}}, Pod)


def whole(item: Volume, **spec: Any) -> LiveReads:
    """The pod that we would make, read live with its whole spec, in which these fields were changed."""
    body = body_of(item)
    body["spec"] |= spec
    return read(WHOLE_PODS, f"{OURS}/{pod_name(item)}", msgspec.convert(body, WholePod))


def decided(item: Volume, *pods: Pod, reads: LiveReads | None = None, made: ClusterState | None = None) -> Any:
    into = made or state_with(drivers=(DISK,))
    put(into, item, *pods)
    known = reads or LiveReads()
    known.put(CLAIMS, "default/gone", None)
    return decide_volume("v", into, known)


def told(item: Volume, message: str) -> EventRecord:
    """The warning that says why a volume is not erased."""
    return warning(VOLUMES, item, "VolumeFailedRecycle", message)


def failed(item: Volume, message: str) -> Patch:
    """The phase Failed with an event."""
    body = {"status": {"phase": "Failed", "message": message, "reason": None}}
    events = (told(item, message),)
    return Patch(kind=VOLUMES, target=item, body=body, subresource="status", why="phase Failed", events=events)


def noted(action: Any) -> RecycleIntent:
    """What is written down about the scrub."""
    assert isinstance(action, Patch), action
    assert action.kind is VOLUMES
    assert action.target.uid == "uid-v"
    intent = read_intent(RecycleIntent, action.body["metadata"]["annotations"][INTENT])
    assert intent is not None
    return intent


def state(*objects: Any, **more: Any) -> ClusterState:
    """A cluster with these objects, and a driver that can erase."""
    return state_with(*objects, **{"drivers": (DISK,), **more})


def erased(item: Volume, *others: Any, reads: LiveReads | None = None, **more: Any) -> Any:
    """What is decided about a released volume that is to be erased, among these objects."""
    return decide_recycle(item, state(item, *others, **more), reads or LiveReads())


def with_status(item: Volume, message: str) -> Volume:
    """The volume once it shows this failure."""
    status = msgspec.structs.replace(item.status, phase="Failed", message=message)
    return msgspec.structs.replace(item, status=status)
