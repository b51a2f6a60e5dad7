"""The intent on a claim: the place it records, how it is written, how it ends, and what follows it. Pure.

An intent ends when its own volume is bound, or when no volume can come of it any more and no asset is left. Where a
person deletes the volume before the claim is bound to it, the claim's intent names the next generation before that
volume's asset is destroyed: what is made next is another asset, and must be told apart from this one, by a client token
too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from volplane.assets import Segment
from volplane.controller.actions import Action, EventRecord, Patch, Run, Wait, warning
from volplane.drivers.view import DriverView
from volplane.intents.conflict import claim_conflict
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, refers_to
from volplane.state.naming import volume_name_of
from volplane.state.progress import Discarded, Discarding, Pending
from volplane.state.records import INTENT_VERSION, ClaimIntent, Sealer, named_in_record

__all__ = [
    "after_deleted_volume",
    "allowed_segments",
    "can_never_be_bound",
    "choose_segment",
    "class_is_gone",
    "discard",
    "discard_begun",
    "driver_of_class",
    "has_newer_intent",
    "holds_asset",
    "not_provisioned",
    "presumed_intent",
    "presumed_segment",
    "provisioning_failed",
    "record_intent",
    "run_provision",
    "settle",
    "settled_metadata",
]


# --- the place ----------------------------------------------------------------------------------------------------


def choose_segment(
    claim: Claim, storage_class: StorageClass, driver: DriverView, cluster: ClusterState
) -> tuple[dict[str, str] | None, str]:
    """Where the asset goes: the selected node's labels, else an allowed segment by the claim's uid; or why not.

    {} = wherever the driver likes; that is a choice too, which a node selected later does not change.
    """
    keys = driver.info.topology_keys
    if not keys:
        return None, ""
    allowed = allowed_segments(storage_class)
    selected = claim.annotation(names.SELECTED_NODE)
    if selected:
        node = cluster.nodes.get(selected)
        if node is None:
            return None, f'selected node "{selected}" does not exist'
        labels = node.metadata.labels or {}
        missing = [key for key in keys if key not in labels]
        if missing:
            lacks = f'lacks the label {missing[0]}, by which driver "{driver.name}" places volumes'
            return None, f'selected node "{selected}" {lacks}'
        if allowed and not any(segment.items() <= labels.items() for segment in allowed):
            return None, f'selected node "{selected}" is outside the allowedTopologies of class "{storage_class.name}"'
        return {key: labels[key] for key in keys}, ""
    if not allowed:
        return {}, ""
    return dict(allowed[crc32(claim.uid.encode()) % len(allowed)]), ""


def presumed_segment(
    claim: Claim, storage_class: StorageClass, driver: DriverView, cluster: ClusterState
) -> tuple[dict[str, str] | None, str]:
    """As `choose_segment`, for a claim whose record cannot be opened: where another installation has begun it.

    Only if that is a place that the class allows and a node has: anybody may have written it. It gives a tenant
    nothing, who may select any node by an annotation of the claim.
    """
    text, keys = claim.annotation(names.INTENT), driver.info.topology_keys
    if keys and cluster.sealer.other_author(claim.uid, text):
        named = named_in_record(text)
        place = named.segment if named.driver == driver.name else None
        if place is not None and _may_be_begun(place, keys, allowed_segments(storage_class), cluster):
            return place, ""
    return choose_segment(claim, storage_class, driver, cluster)


def _may_be_begun(place: Segment, keys: Collection[str], allowed: Collection[Segment], cluster: ClusterState) -> bool:
    """Whether something may have been begun in this place. {} = wherever the driver likes, where all is allowed."""
    if not place:
        return not allowed
    permitted = not allowed or any(each.items() <= place.items() for each in allowed)
    there = any(place.items() <= (node.metadata.labels or {}).items() for node in cluster.nodes.values())
    return permitted and there and place.keys() == set(keys)


def allowed_segments(storage_class: StorageClass) -> tuple[Segment, ...]:
    """`allowedTopologies` as single segments; terms are alternatives, keys of a term hold together."""
    segments: list[Segment] = []
    for term in storage_class.allowed_topologies or ():
        expressions = term.match_label_expressions or []
        keys = [expression.key for expression in expressions]
        choices = product(*[expression.values or [] for expression in expressions])
        segments.extend(dict(zip(keys, values, strict=True)) for values in choices)
    return tuple(segments)


def presumed_intent(claim: Claim, driver: DriverView, cluster: ClusterState) -> ClaimIntent:
    """What was begun for a claim whose record is lost: the first generation, where it would be put now."""
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    segment = None if storage_class is None else presumed_segment(claim, storage_class, driver, cluster)[0]
    return ClaimIntent(v=INTENT_VERSION, driver=driver.name, segment=segment)


# --- writing and ending -------------------------------------------------------------------------------------------


def provisioning_failed(claim: Claim, message: str, *, same_as: str = "") -> EventRecord:
    """The event that tells why provisioning does not go on. same_as: see `EventRecord`."""
    return warning(CLAIMS, claim, "ProvisioningFailed", message, same_as=same_as)


def not_provisioned(claim: Claim, message: str) -> Wait:
    """Wait, and tell on the claim why provisioning does not go on."""
    return Wait(reason=message, events=(provisioning_failed(claim, message),))


def class_is_gone(claim: Claim, class_name: str) -> Wait:
    """Nothing can be made without the class. What was begun by it belongs to the claim, and goes with it."""
    if not settled_metadata(claim):
        return not_provisioned(claim, f'storageclass.storage.k8s.io "{class_name}" not found')
    message = (
        f'class "{class_name}" is gone while a volume is made by it: it is finished when the class is back, '
        "and what was made is deleted with the claim"
    )
    return not_provisioned(claim, message)


def record_intent(
    claim: Claim,
    intent: ClaimIntent,
    cluster: ClusterState,
    *,
    why: str,
    others: Mapping[str, str | None] | None = None,
) -> Patch:
    """Write an intent over the one before; on a claim that is not being deleted with its finalizer.

    others: annotations that change with it.
    """
    metadata: dict[str, Any] = {"annotations": {names.INTENT: cluster.sealed(claim, intent), **(others or {})}}
    if not claim.terminating and not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        metadata["finalizers"] = [*(claim.metadata.finalizers or ()), names.PROVISIONING_FINALIZER]
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why=why)


def settled_metadata(claim: Claim) -> dict[str, Any]:
    """What a write to the claim changes on its metadata to end the intent; empty if there is none."""
    metadata: dict[str, Any] = {}
    if claim.annotation(names.INTENT) is not None:
        metadata["annotations"] = {names.INTENT: None}
    if claim.has_finalizer(names.PROVISIONING_FINALIZER):
        kept = [name for name in claim.metadata.finalizers or () if name != names.PROVISIONING_FINALIZER]
        metadata["finalizers"] = kept or None
    return metadata


def settle(claim: Claim, cluster: ClusterState, *, moved: bool = False) -> Action | None:
    """End an intent that no longer leads to a bind of its own volume; None if there is nothing to end.

    moved: the claim went to another node, so that the volume of its name holds another asset than this intent's.

    The asset is deleted first unless a volume holds it: the claim is terminating, or was bound to another volume.
    """
    if not settled_metadata(claim):
        return None
    if not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        # Record and finalizer are written at once: this one is a tenant's. What one takes from us is for the leak
        # check.
        return None if claim.terminating else _end_intent(claim)
    intent = cluster.intent_of(claim)
    name = intent.driver if intent is not None else driver_of_class(claim, cluster)
    if cluster.drivers.on_nodes(name):
        return None  # The process of its node knows what is left, and the assigner what becomes of it without one.
    made = cluster.volumes.get(volume_name_of(claim))
    used = claim.annotation(names.BIND_COMPLETED) is not None and claim.spec.volume_name == volume_name_of(claim)
    held = made is not None and holds_asset(made, claim, name)
    if ((used or held) and not moved) or isinstance(cluster.progress.claims.get(claim.uid).step, Discarded):
        return _end_intent(claim)
    if (wait := claim_conflict(claim, name, cluster)) is not None:
        return wait
    return _restore_record(claim, name, intent, cluster) or discard(claim, name, cluster)


def _restore_record(claim: Claim, name: str, known: ClaimIntent | None, cluster: ClusterState) -> Patch | None:
    """Write down where an asset is looked for, if a tenant has damaged that: looking may make it, where it was not yet.

    known: what this process knows; whoever works on the claim next may know nothing.
    """
    driver = cluster.drivers.get(name)
    if driver is None or cluster.sealer.open(claim.uid, claim.annotation(names.INTENT)) is not None:
        return None
    intent = known or presumed_intent(claim, driver, cluster)
    return record_intent(claim, intent, cluster, why="restore the record of what was begun")


def _end_intent(claim: Claim) -> Patch:
    why = "nothing is in the making any more"
    return Patch(kind=CLAIMS, target=claim, body={"metadata": settled_metadata(claim)}, why=why)


def discard_begun(claim: Claim, cluster: ClusterState) -> bool:
    """Whether the asset of the claim's intent is being deleted: from then on nothing but its absence ends that."""
    step = cluster.progress.claims.get(claim.uid).step
    if isinstance(step, Discarding | Discarded):
        return isinstance(step, Discarding)
    intent = cluster.intent_of(claim)
    return intent is not None and intent.discard is not None


def discard(claim: Claim, name: str, cluster: ClusterState) -> Action:
    """Make sure that nothing of the claim is left on the driver of this name."""
    driver = cluster.drivers.get(name)
    if driver is None and cluster.drivers.starting(name):
        return Wait(reason=f'driver "{name}" is starting')
    if driver is None:
        reason = cluster.drivers.broken(name) or "it is not configured here"
        message = (
            f'an asset may be left on driver "{name}", which cannot be asked: {reason}. Configure the driver, '
            f"or remove the finalizer {names.PROVISIONING_FINALIZER} to accept a leak"
        )
        return not_provisioned(claim, message)
    step, intent = cluster.progress.claims.get(claim.uid).step, cluster.intent_of(claim)
    known = intent if intent is not None and intent.driver == name else None
    now = cluster.monotonic()
    if isinstance(step, Pending) and known is not None and step.resume(known.state, now).write:
        # Until the job has ended `find` proves nothing; whoever goes on after a crash must know of it.
        kept = replace(known, v=INTENT_VERSION, state=dict(step.state))
        return record_intent(claim, kept, cluster, why="keep the driver's state")
    if isinstance(step, Discarding) and step.call is not None:
        resume = step.call.resume(known.discard if known is not None else None, now)
        if known is not None and resume.write:
            kept = replace(known, v=INTENT_VERSION, discard=dict(step.call.state))
            return record_intent(claim, kept, cluster, why="keep the driver's state of the deletion")
        if resume.seconds:
            reason = f'driver "{name}" is deleting an asset that is not wanted any more'
            return Wait(reason=reason, seconds=resume.seconds)
    asset = volume_name_of(claim)
    return Run(verb="discard", key=claim.key, uid=claim.uid, driver=driver.name, asset=asset, group="discard")


def run_provision(claim: Claim, storage_class: StorageClass, driver: DriverView) -> Run:
    """The operation that asks the driver for the claim's asset."""
    return Run(
        verb="provision",
        key=claim.key,
        uid=claim.uid,
        driver=driver.name,
        asset=volume_name_of(claim),
        group=f"provision {storage_class.name}",
    )


def holds_asset(made: Volume, claim: Claim, driver: str) -> bool:
    """Whether the volume of our name is what was made for the claim, whoever it refers to now."""
    return refers_to(made, claim) or made.annotation(names.PROVISIONED_BY) == driver


def driver_of_class(claim: Claim, cluster: ClusterState) -> str:
    """Who provisions for the claim by its class; where that is gone, by what the binder noted. "" = unknown."""
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    return storage_class.provisioner if storage_class else claim.annotation(names.STORAGE_PROVISIONER) or ""


# --- deleted before it was bound ----------------------------------------------------------------------------------


def can_never_be_bound(volume: Volume, claim: Claim) -> bool:
    """Whether a person deleted the volume before the claim it was made for got it.

    A binder writes the phase first, on a version of the volume that it has seen; that of a terminating one it refuses.
    """
    pointed = claim.spec.volume_name or claim.annotation(names.BIND_COMPLETED) is not None
    return volume.terminating and volume.status.phase != "Bound" and not pointed


def has_newer_intent(volume: Volume, claim: Claim, sealer: Sealer) -> bool:
    """Whether the claim's intent leads to another asset than this volume's, which may go then."""
    if volume.name != volume_name_of(claim) or volume.annotation(names.PROVISIONED_BY) is None:
        return True
    intent = sealer.open(claim.uid, claim.annotation(names.INTENT))
    held = claim.has_finalizer(names.PROVISIONING_FINALIZER)
    return held and intent is not None and intent.generation > _generation_of(volume)


def after_deleted_volume(claim: Claim, volume: Volume, cluster: ClusterState) -> Action:
    """The next action for a claim whose volume `can_never_be_bound`."""
    if has_newer_intent(volume, claim, cluster.sealer):
        reason = f'volume "{volume.name}" was deleted before it was bound; when it is gone another one is made'
        return Wait(reason=reason)
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    if (wait := claim_conflict(claim, maker, cluster)) is not None:
        return wait
    intent = ClaimIntent(v=INTENT_VERSION, driver=maker, generation=_generation_of(volume) + 1)
    return record_intent(claim, intent, cluster, why="declare the intent to provision anew")


def _generation_of(volume: Volume) -> int:
    text = volume.annotation(names.GENERATION) or ""
    return int(text) if text.isdecimal() else 1
