"""The intent on a claim: the place it records, how it is written, how it ends, and what follows it. Pure.

An intent ends when its own volume is bound, or when no volume can come of it any more and no asset is left. If a person
deletes the volume before the claim is bound to it, the claim's intent names the next generation before that volume's
asset is destroyed: what is made next is another asset, and client tokens must tell the two apart.

Conflicts. A record of ours that is overwritten is written again after a growing delay. Otherwise a tenant who writes in
a loop, a process without an election beside one that was elected, or two installations that serve one driver name would
make us write without pause. A record that another installation has sealed is left to it, and nothing is started for the
claim. When it has not changed for a while (`RECORD_OF_OTHERS`), ours replaces it. An installation that is at work then
writes its own again, and no hook is called before it had time for that (`TAKEOVER_GRACE`). So two installations never
work on one claim at once, and if one was stopped, renamed or removed, the other goes on without a person. A record that
was sealed with a former key of our own names our own namespace: there is no wait for it.

Terms. Every intent that is written before a hook names the term of leadership in which it is worked on. A process that
finds another term there reads its own Lease live. If it holds the Lease, it takes the intent over by a conditional
write of its own term. So a former leader that has not noticed its loss overwrites no record of its successor. Numbers
of terms are never compared: a Lease that was created again counts from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from volplane._delays import LIVE_STATE_FORBIDS, RECORD_OF_OTHERS, RECORD_OVERWRITTEN
from volplane.assets import Segment
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Read, Run, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import claim_elsewhere, driver_named, metadata_without_node
from volplane.intents.requests import allowed_segments
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, LEASES, VOLUMES, Kind
from volplane.kube.leases import fence_of
from volplane.kube.objects import Claim, Lease, StorageClass, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, refers_to, request_of, whole_bytes
from volplane.state.naming import generation_of, volume_name_of
from volplane.state.progress import Discarded, Discarding, Pending
from volplane.state.records import (
    INTENT_VERSION,
    TAKEOVER_GRACE,
    ClaimIntent,
    Intent,
    RecordConflict,
    RecycleIntent,
    Sealer,
    named_in_record,
    write_intent,
)

# --- the place ----------------------------------------------------------------------------------------------------


def choose_segment(
    claim: Claim,
    storage_class: StorageClass,
    driver: DriverView,
    cluster: ClusterState,
    within: Sequence[Segment] = (),
    *,
    lost: bool = False,
) -> tuple[dict[str, str] | None, str]:
    """Return where the asset goes, or why it can go nowhere: the selected node's labels, else an allowed segment.

    {} = the driver chooses. That is a choice, too, which a node selected later does not change. within: what counts
    instead of the places that the class allows, where its source narrows them; the scheduler has to follow the volume.
    lost: the claim's record cannot be opened, and what another installation has sealed counts (`_place_of_others`).
    """
    keys = driver.info.topology_keys
    if not keys:
        return None, ""
    allowed = within or allowed_segments(storage_class)
    if lost and (place := _place_of_others(claim, driver, allowed, cluster)) is not None:
        return place, ""
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
        if not allowed or any(segment.items() <= labels.items() for segment in allowed):
            return {key: labels[key] for key in keys}, ""
        if not within:
            where = f'outside the allowedTopologies of class "{storage_class.name}"'
            return None, f'selected node "{selected}" is {where}'
    if not allowed:
        return {}, ""
    return dict(allowed[crc32(claim.uid.encode()) % len(allowed)]), ""


def _place_of_others(
    claim: Claim, driver: DriverView, allowed: Sequence[Segment], cluster: ClusterState
) -> dict[str, str] | None:
    """Return the place in a record that another installation has sealed, if the class allows it and a node is there.

    Any tenant may have written it, and gains nothing, as it may select any node by an annotation of the claim.
    """
    text = claim.annotation(names.INTENT)
    named = named_in_record(text)
    place = named.segment
    if not cluster.sealer.other_author(claim.uid, text) or named.driver != driver.name or place is None:
        return None
    permitted = not allowed or any(each.items() <= place.items() for each in allowed)
    there = any(place.items() <= (node.metadata.labels or {}).items() for node in cluster.nodes.values())
    complete = place.keys() == set(driver.info.topology_keys) and permitted and there
    return place if complete or (not place and not allowed) else None


def presumed_intent(claim: Claim, driver: DriverView, cluster: ClusterState) -> ClaimIntent:
    """Return what to assume for a claim whose record is lost: the first generation, where it would be put now."""
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    segment = None if storage_class is None else choose_segment(claim, storage_class, driver, cluster, lost=True)[0]
    return ClaimIntent(v=INTENT_VERSION, driver=driver.name, segment=segment)


# --- writing and ending -------------------------------------------------------------------------------------------


def provisioning_failed(claim: Claim, message: str, *, same_as: str = "") -> EventRecord:
    """Return the event that says why provisioning does not go on. same_as: see `EventRecord`."""
    return warning(CLAIMS, claim, "ProvisioningFailed", message, same_as=same_as)


def not_provisioned(claim: Claim, message: str) -> Wait:
    """Wait, with an event on the claim that says why provisioning does not go on."""
    return Wait(reason=message, events=(provisioning_failed(claim, message),))


def give_back(claim: Claim, message: str) -> Patch:
    """Ask for another node than the selected one, with an event on the claim that says why."""
    body, events = {"metadata": metadata_without_node()}, (provisioning_failed(claim, message),)
    return Patch(kind=CLAIMS, target=claim, body=body, why="ask for another node", events=events)


def class_is_gone(claim: Claim, class_name: str) -> Wait:
    """Wait for the class, without which nothing can be made."""
    if not settled_metadata(claim):
        return not_provisioned(claim, f'storageclass.storage.k8s.io "{class_name}" not found')
    gone = f'class "{class_name}" is gone while a volume is made by it'
    then = "it is finished when the class is back, and what was made is deleted with the claim"
    return not_provisioned(claim, f"{gone}: {then}")


def record_intent(
    claim: Claim,
    intent: ClaimIntent,
    cluster: ClusterState,
    *,
    why: str,
    others: Mapping[str, str | None] | None = None,
) -> Patch:
    """Return the write of an intent over the one before, with our finalizer. others: annotations to write with it."""
    if not intent.size and not claim.spec.volume_name:
        intent = replace(intent, size=whole_bytes(request_of(claim)))
    metadata: dict[str, Any] = {"annotations": {names.INTENT: cluster.sealed(claim, intent), **(others or {})}}
    # The API server refuses new finalizers on an object that is being deleted.
    if not claim.terminating and not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        metadata["finalizers"] = claim.finalizers_with(names.PROVISIONING_FINALIZER)
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why=why)


def write_record(
    kind: Kind[Any],
    item: Claim | Volume | VolumeAttachment,
    intent: Intent | None,
    *,
    why: str,
    annotation: str = names.INTENT,
    spec: Mapping[str, Any] | None = None,
    events: tuple[EventRecord, ...] = (),
) -> Patch:
    """Return the write of a record that needs no seal, with None of its end, and of these fields of the spec."""
    metadata = {"annotations": {annotation: None if intent is None else write_intent(intent)}}
    body: dict[str, Any] = {"metadata": metadata} if spec is None else {"metadata": metadata, "spec": spec}
    return Patch(kind=kind, target=item, body=body, why=why, events=events)


def settled_metadata(claim: Claim) -> dict[str, Any]:
    """Return what a write to the claim changes on its metadata to end the intent; empty if there is none."""
    metadata: dict[str, Any] = {}
    if claim.annotation(names.INTENT) is not None:
        metadata["annotations"] = {names.INTENT: None}
    if claim.has_finalizer(names.PROVISIONING_FINALIZER):
        metadata["finalizers"] = claim.finalizers_without(names.PROVISIONING_FINALIZER)
    return metadata


def left_to_end(claim: Claim, cluster: ClusterState) -> bool:
    """Return whether there is an intent to end: its record, or what was begun before a tenant removed that."""
    return bool(settled_metadata(claim)) or cluster.begun(claim.uid)


def settle(claim: Claim, cluster: ClusterState, *, moved: bool = False) -> Action | None:
    """End an intent that no longer leads to a bind of its own volume; None if there is nothing to end.

    The claim is terminating, or was bound to another volume. The asset is deleted first unless a volume holds it.
    moved: the claim went to another node, so that the volume of its name holds another asset than this intent's.
    """
    if not left_to_end(claim, cluster):
        return None
    if not claim.has_finalizer(names.PROVISIONING_FINALIZER) and not cluster.begun(claim.uid):
        # We write record and finalizer at once: this record is a tenant's. What a tenant's write has hidden from a
        # process that did not begin it is found by the leak check.
        return None if claim.terminating else _end_intent(claim)
    intent = cluster.intent_of(claim)
    name = intent.driver if intent is not None else driver_of_class(claim, cluster)
    if cluster.drivers.on_nodes(name):
        return None  # The process of its node deletes the asset; the assigner decides if there is no such process.
    made = cluster.volumes.get(volume_name_of(claim))
    held = made is not None and holds_asset(made, claim, name)
    # What a volume holds goes with that volume; what is proven absent needs no record.
    if (held and not moved) or isinstance(cluster.progress.claims.get(claim.uid).step, Discarded):
        return _end_intent(claim)
    if made is None and not claim.terminating and claim.spec.volume_name == volume_name_of(claim):
        return None  # Its volume is not in the cache yet, or a tenant wrote this name: the claim proves neither.
    if (wait := claim_conflict(claim, name, cluster)) is not None:
        return wait
    driver = cluster.drivers.get(name) if claim.has_finalizer(names.PROVISIONING_FINALIZER) else None
    if driver is not None and cluster.sealer.open(claim.uid, claim.annotation(names.INTENT)) is None:
        # A tenant has damaged the record. Without `find` the asset is looked up by making it once more: the place is
        # written down first, for the process that works on the claim next may not know it.
        lost = intent or presumed_intent(claim, driver, cluster)
        return record_intent(claim, lost, cluster, why="restore the record of what was begun")
    return discard(claim, name, cluster)


def _end_intent(claim: Claim) -> Patch:
    why = "nothing is in the making any more"
    return Patch(kind=CLAIMS, target=claim, body={"metadata": settled_metadata(claim)}, why=why)


def discard_vanished(uid: str, cluster: ClusterState) -> Action:
    """Return what becomes of what was begun for the claim of this uid, if it is gone and that had not ended."""
    claim = cluster.progress.vanished.get(uid)
    intent = cluster.intent_of(claim) if claim is not None else None
    return Settled() if claim is None or intent is None else discard(claim, intent.driver, cluster)


def discard_begun(claim: Claim, cluster: ClusterState) -> bool:
    """Return whether the asset of the claim's intent is being deleted: only its absence ends that."""
    step = cluster.progress.claims.get(claim.uid).step
    # What this process knows is newer than the record.
    if isinstance(step, Discarding | Discarded):
        return isinstance(step, Discarding)
    intent = cluster.intent_of(claim)
    return intent is not None and intent.discard is not None


def discard(claim: Claim, name: str, cluster: ClusterState) -> Action:
    """Make sure that no asset of the claim is left on the driver of this name."""
    lookup = driver_named(name, cluster)
    if lookup.next is not None:
        return lookup.next
    if lookup.driver is None:
        why = lookup.reason or "it is not configured here"
        advice = f"Configure the driver, or remove the finalizer {names.PROVISIONING_FINALIZER} to accept a leak"
        message = f'an asset may be left on driver "{name}", which cannot be asked: {why}. {advice}'
        return not_provisioned(claim, message)
    step, intent = cluster.progress.claims.get(claim.uid).step, cluster.intent_of(claim)
    known = intent if intent is not None and intent.driver == name else None
    # A claim whose finalizer is gone is, or may be, gone with the next write: there is nowhere to record anything.
    held = claim.has_finalizer(names.PROVISIONING_FINALIZER)
    if held and isinstance(step, Pending) and known is not None and step.unrecorded(known.state):
        # Until the job has ended `find` proves nothing: the next process must know of it.
        kept = replace(known, v=INTENT_VERSION, state=dict(step.state))
        return record_intent(claim, kept, cluster, why="keep the driver's state")
    if isinstance(step, Discarding) and step.call is not None:
        if held and known is not None and step.call.unrecorded(known.discard):
            kept = replace(known, v=INTENT_VERSION, discard=dict(step.call.state))
            return record_intent(claim, kept, cluster, why="keep the driver's state of the deletion")
        if left := step.call.left(cluster.monotonic()):
            return Wait(reason=f'driver "{name}" is deleting an asset that is not wanted any more', seconds=left)
    asset = volume_name_of(claim)
    key = claim.uid if claim.uid in cluster.progress.vanished else claim.key
    return Run(verb="discard", key=key, uid=claim.uid, driver=name, asset=asset, group="discard")


def run_provision(claim: Claim, storage_class: StorageClass, driver: DriverView) -> Run:
    """Return the operation that asks the driver for the claim's asset."""
    asset, group = volume_name_of(claim), f"provision {storage_class.name}"
    return Run(verb="provision", key=claim.key, uid=claim.uid, driver=driver.name, asset=asset, group=group)


def holds_asset(made: Volume, claim: Claim, driver: str) -> bool:
    """Return whether the volume of our name is what was made for the claim, whatever claim it refers to now."""
    return refers_to(made, claim) or made.annotation(names.PROVISIONED_BY) == driver


def driver_of_class(claim: Claim, cluster: ClusterState) -> str:
    """Return the provisioner of the claim's class; if that is gone, what the binder noted. "" = unknown."""
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    return storage_class.provisioner if storage_class else claim.annotation(names.STORAGE_PROVISIONER) or ""


# --- deleted before it was bound ----------------------------------------------------------------------------------


def can_never_be_bound(volume: Volume, claim: Claim) -> bool:
    """Return whether a person deleted the volume before the claim that it was made for got it.

    A binder writes the phase first, on a version of the volume that it has seen; it refuses a terminating one.
    """
    pointed = claim.spec.volume_name or claim.bound
    return volume.terminating and volume.status.phase != "Bound" and not pointed


def has_newer_intent(volume: Volume, claim: Claim, sealer: Sealer) -> bool:
    """Return whether the claim's intent leads to another asset than this volume's, which may go then."""
    # A volume that was not made for this claim holds nothing of its intent.
    if volume.name != volume_name_of(claim) or volume.annotation(names.PROVISIONED_BY) is None:
        return True
    intent = sealer.open(claim.uid, claim.annotation(names.INTENT))
    held = claim.has_finalizer(names.PROVISIONING_FINALIZER)
    return held and intent is not None and intent.generation > generation_of(volume)


def after_deleted_volume(claim: Claim, volume: Volume, cluster: ClusterState) -> Action:
    """Return the next action for a claim whose volume `can_never_be_bound`."""
    if has_newer_intent(volume, claim, cluster.sealer):
        reason = f'volume "{volume.name}" was deleted before it was bound; when it is gone another one is made'
        return Wait(reason=reason)
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    if (wait := claim_conflict(claim, maker, cluster)) is not None:
        return wait
    intent = ClaimIntent(v=INTENT_VERSION, driver=maker, generation=generation_of(volume) + 1)
    return record_intent(claim, intent, cluster, why="declare the intent to provision anew")


# --- conflicts ----------------------------------------------------------------------------------------------------


def claim_conflict(claim: Claim, driver: str, cluster: ClusterState) -> Wait | None:
    """Return why the claim's record may be neither written nor acted upon now; None if it may. driver: its name."""
    known = cluster.record_conflicts.by_uid.get(claim.uid)
    if known is None or not cluster.has_driver(driver):
        return None
    ours = cluster.record_conflicts.is_ours(claim.uid, claim.annotation(names.INTENT))
    left = _ends(known, ours=ours) - cluster.monotonic()
    if left <= 0:
        return None
    if ours:
        reason = f"the installation in namespace {known.other} has time to answer that it works on the claim"
        return Wait(reason=reason, seconds=left)
    if not known.was_ours and named_in_record(claim.annotation(names.INTENT)).driver not in ("", driver):
        reason = f"the installation in namespace {known.other} removes what it has begun for it with another driver"
        return Wait(reason=reason, seconds=left)
    if known.other:
        message = (
            f'the installation of volplane in namespace {known.other} works on this claim: it serves driver "{driver}" '
            "too; give each installation driver names of its own, or stop one of them"
        )
        return _wait(CLAIMS, claim, "DriverServedTwice", message, left)
    message = (
        "the record of what is made for this claim (annotation volplane.dev/intent) is written over again and again; "
        "find out who writes it besides the volplane that leads"
    )
    return _wait(CLAIMS, claim, "IntentOverwritten", message, left)


def scrub_conflict(volume: Volume, intent: RecycleIntent | None, cluster: ClusterState) -> Wait | None:
    """Return why the scrub of this record may not be worked on now; None if it may, or there is no record.

    A scrub of another installation is never taken over: this process does not see that one's pods, so only that
    installation or a person can say that none of them erases the volume any more.
    """
    if intent is None:
        return None
    installation = cluster.sealer.installation
    if intent.installation and installation and intent.installation != installation:
        message = (
            f"the installation of volplane in namespace {intent.installation} scrubs this volume; give each "
            "installation driver names of its own. If that one is gone, and no pod of it uses the volume, remove the "
            "annotation volplane.dev/intent from the volume"
        )
        return _wait(VOLUMES, volume, "DriverServedTwice", message)
    known = cluster.record_conflicts.by_uid.get(volume.uid)
    if known is None or (left := _ends(known, ours=intent.fence == cluster.fence()) - cluster.monotonic()) <= 0:
        return None
    message = (
        "the record of the scrub (annotation volplane.dev/intent) is written over again and again; find out who "
        "writes it besides the volplane that leads"
    )
    return _wait(VOLUMES, volume, "IntentOverwritten", message, left)


def _ends(known: RecordConflict, *, ours: bool) -> float:
    """Return the loop time from which the record may be written and acted upon. ours: it is ours now."""
    if ours:
        return known.since + (TAKEOVER_GRACE if known.taking_over else 0.0)
    if known.was_ours:
        return known.since + RECORD_OVERWRITTEN.delay(known.overwrites)
    return known.since + RECORD_OF_OTHERS.delay(known.undone_takeovers + 1)


def _wait(kind: Kind[Any], about: Claim | Volume, reason: str, message: str, seconds: float | None = None) -> Wait:
    return Wait(reason=message, seconds=seconds, events=(warning(kind, about, reason, message),))


# --- terms --------------------------------------------------------------------------------------------------------


def not_leading(cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the read or wait that comes before a takeover; None if the Lease, read live, is this process's own."""
    key = cluster.lease
    if not key:
        return None  # There is no election.
    if not reads.has(LEASES, key):
        return Read(LEASES, key, why="is this process still the leader?")
    lease = reads.get(LEASES, key)
    if isinstance(lease, Lease) and str(fence_of(lease)) == cluster.fence():
        return None
    return Wait(reason="another process leads now", seconds=LIVE_STATE_FORBIDS.delay())


def take_over(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next step of a takeover; None if the claim has no intent, or one of our term.

    An intent of a driver that is not configured here, or of another node, is another process's. If a tenant has removed
    the finalizer from a claim that still waits, it is added again, as no intent is worked on without it; with it the
    record, if this process has begun to make the asset.
    """
    held = claim.has_finalizer(names.PROVISIONING_FINALIZER)
    if not held and not claim.terminating and cluster.begun(claim.uid):
        lost, why = cluster.intent_of(claim), "restore the record of what was begun"
        if lost is not None and not claim_elsewhere(claim, cluster):
            # The record may be there, and a later leader's.
            other = not_leading(cluster, reads) if lost.fence not in ("", cluster.fence()) else None
            return claim_conflict(claim, lost.driver, cluster) or other or record_intent(claim, lost, cluster, why=why)
    if not held and (claim.terminating or claim.spec.volume_name or claim.bound):
        return None
    intent = cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
    if intent is None or intent.fence == cluster.fence() or not cluster.has_driver(intent.driver):
        return None
    if cluster.drivers.on_nodes(intent.driver) or claim_elsewhere(claim, cluster):
        return None  # The process that has the storage takes it over.
    if (wait := claim_conflict(claim, intent.driver, cluster)) is not None:
        return wait
    return not_leading(cluster, reads) or record_intent(claim, intent, cluster, why="take over what was begun")
