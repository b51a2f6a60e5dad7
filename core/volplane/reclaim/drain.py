"""Leaving a cluster: what our finalizers hold, and the writes that release it with its asset kept. Pure.

If assets are to be deleted instead, the running controllers do that: once a claim is deleted, they settle its intent,
detach and delete the asset, and remove their finalizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from volplane.controller.actions import Patch
from volplane.intents.record import settled_metadata
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume, VolumeAttachment
from volplane.state.naming import volume_name_of
from volplane.state.records import attachment_intent_of, named_in_record

Target = Claim | Volume | VolumeAttachment
TargetT = TypeVar("TargetT", Claim, Volume, VolumeAttachment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    kind: str
    key: str
    driver: str
    """"" = unknown."""
    phase: str
    asset: str
    """The handle, or the name that the asset will have."""
    why: str
    """What holds it, for messages."""


def held_of(objects: Iterable[TargetT], driver: str = "") -> Iterator[tuple[TargetT, Held]]:
    """Yield those that we hold; driver: of this one only.

    Volumes stay until their asset is gone or their scrub has ended. For claims an asset may be in the making.
    Attachments were made by us at the storage, or may have been.
    """
    for target in objects:
        found = _held(target)
        if found is not None and driver in ("", found.driver):
            yield target, found


def _held(target: Target) -> Held | None:
    if isinstance(target, VolumeAttachment):
        record = attachment_intent_of(target)
        if record is None:
            return None
        phase = "Detaching" if target.terminating else "Attached" if target.status.attached else "Attaching"
        why = f"annotation {names.INTENT}: to node {target.spec.node_name}"
        return Held(kind="attachment", key=target.name, driver=record.driver, phase=phase, asset=record.handle, why=why)
    text, maker, begun = target.annotation(names.INTENT), "", f"annotation {names.INTENT}"
    if isinstance(target, Volume):
        kind, phase, asset = "volume", target.status.phase, target.annotation(names.HANDLE) or ""
        finalizer, makers = names.RECLAIM_FINALIZER, (names.PROVISIONED_BY, names.DRIVER)
        begun += ": a scrub"
    else:
        kind, phase, asset = "claim", target.status.phase or "Pending", volume_name_of(target)
        finalizer, makers = names.PROVISIONING_FINALIZER, (names.STORAGE_PROVISIONER, names.BETA_STORAGE_PROVISIONER)
        # By a record whose seal is not checked: to select by, not to act on.
        maker = named_in_record(text).driver
    held = target.has_finalizer(finalizer)
    if not held and text is None:
        return None
    why = f"finalizer {finalizer}" if held else begun
    maker = maker or next((name for each in makers if (name := target.annotation(each))), "")
    phase = "Terminating" if target.terminating else phase
    return Held(kind=kind, key=target.key, driver=maker, phase=phase, asset=asset, why=why)


def released(target: Target) -> Patch:
    """Return the write that removes what holds the object. Its asset stays, also one that was in the making."""
    if isinstance(target, VolumeAttachment):
        # The finalizer, which is the same for all attachers, is kept for the next one.
        body: dict[str, Any] = {"metadata": {"annotations": {names.INTENT: None}}}
        return Patch(kind=ATTACHMENTS, target=target, body=body, why="released by drain, it stays attached")
    if isinstance(target, Claim):
        body = {"metadata": settled_metadata(target)}
        return Patch(kind=CLAIMS, target=target, body=body, why="released by drain, an asset in the making is left")
    metadata: dict[str, Any] = {"finalizers": target.finalizers_without(names.RECLAIM_FINALIZER)}
    if target.annotation(names.INTENT) is not None:
        metadata["annotations"] = {names.INTENT: None}
    body = {"metadata": metadata}
    # Under policy Delete another controller would delete the asset with the object.
    if target.spec.persistent_volume_reclaim_policy == "Delete":
        body["spec"] = {"persistentVolumeReclaimPolicy": "Retain"}
    return Patch(kind=VOLUMES, target=target, body=body, why="released by drain, the asset is kept")
