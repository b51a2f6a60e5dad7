"""Provisioning with the intent protocol: intent, hook, volume, bind, end of the intent. Pure.

1. One patch puts finalizer, intent and provisioner annotations on the claim; a driver that `plans_first` has been asked
for its state before. 2. The `provision` hook runs; what it returns waits in memory. 3. The volume is created with the
claim's uid in its reference. 4. The bind's write to the claim ends the intent. A crash after any of them repeats at
most an idempotent hook call. A claim that is deleted before its volume exists never gets one: `settle` deletes the
asset, then removes the finalizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from volplane.assets import Asset, Segment
from volplane.controller.actions import Action, Create, EventRecord, LiveReads, Patch, Read, Wait
from volplane.drivers.driver import DriverView
from volplane.intents import record
from volplane.intents.ownership import claim_elsewhere, driver_named
from volplane.intents.requests import MOST_SEGMENTS, count_segments, split_parameters, trash_of_class
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.kube.quantity import format_bytes
from volplane.snapshots import source as sources
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import (
    class_of_claim,
    mode_of,
    reference_to,
    refers_to,
    request_of,
    source_of,
    too_large,
    whole_bytes,
)
from volplane.state.naming import (
    affinity_of,
    handle_in,
    is_in_tree,
    reclaim_finalizer,
    shows_asset,
    volume_name_of,
    volume_source,
)
from volplane.state.progress import Discarded, Full, Made, Pending, Planned
from volplane.state.records import INTENT_VERSION, ClaimIntent
from volplane.trash.choice import choice_of, refusal_of

NO_PROVISIONER = "kubernetes.io/no-provisioner"


def ask_for_another_node(claim: Claim, intent: ClaimIntent, cluster: ClusterState) -> Patch:
    """Give the claim back to the scheduler and forget the place. Nothing is in the full segment."""
    return record.record_intent(claim, intent, cluster, why="ask for another node", others={names.SELECTED_NODE: None})


class Terms(NamedTuple):
    """What a role adds to the provisioning of a claim. The defaults are those beside another binder."""

    on_claim: Mapping[str, str] = MappingProxyType({})
    """Annotations to write with the intent: of a binder those that name the provisioner."""
    on_volume: Mapping[str, Mapping[str, str | None]] = MappingProxyType({})
    """Labels and annotations of the new volume."""
    reschedule: Callable[[Claim, ClaimIntent, ClusterState], Patch] = ask_for_another_node
    """Asks for another place for a claim whose place is full. The intent is the one without a place."""


def provisioner_of(storage_class: StorageClass, cluster: ClusterState) -> str:
    """Return the provisioner that serves the class: a driver of ours, else that which an in-tree plugin moved to."""
    if cluster.drivers.get(storage_class.provisioner) is not None:
        return storage_class.provisioner
    return names.MIGRATED_PLUGINS.get(storage_class.provisioner) or storage_class.provisioner


def decide_provision(
    claim: Claim, storage_class: StorageClass, cluster: ClusterState, reads: LiveReads, terms: Terms
) -> Action:
    """Return the next action for an unbound claim of this class for which no volume fits."""
    known = cluster.intent_of(claim)
    made = cluster.volumes.get(volume_name_of(claim))
    if made is None and (wait := record.claim_conflict(claim, storage_class.provisioner, cluster)) is not None:
        return wait  # Others write the record, too.
    if made is None and record.discard_begun(claim, cluster):
        # Nothing is made while an earlier asset of the claim goes.
        return record.discard(claim, known.driver if known is not None else storage_class.provisioner, cluster)
    driver = cluster.drivers.get(storage_class.provisioner)
    if driver is None:
        return _without_driver(claim, storage_class, cluster, terms)
    if made is not None:
        return _volume_exists(claim, made, cluster)
    if (waits := _not_ours_to_make(claim, storage_class, driver)) is not None:
        # The asset of an earlier, legal demand stays under the intent until the claim is settled.
        return _name_provisioner(claim, driver.name, terms) or waits
    discarded = isinstance(cluster.progress.claims.get(claim.uid).step, Discarded)
    # The class names another driver now: what the former one may have made goes first.
    if known is not None and known.driver != driver.name and not discarded:
        return record.discard(claim, known.driver, cluster)
    intent = cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
    if intent is None or discarded or not _is_complete(claim, driver, intent):
        old = known
        if known is not None and discarded:
            # The next asset is another one than the deleted one, even if that was another driver's: the class may name
            # this driver again.
            old = ClaimIntent(v=INTENT_VERSION, driver=driver.name, generation=known.generation + 1)
        return _give_back_lost_node(claim, driver, old, cluster, reads) or _declare(
            claim, storage_class, driver, old, cluster, reads=reads, terms=terms
        )
    return _after_hook(claim, storage_class, driver, intent, cluster, reads=reads, terms=terms)


def _without_driver(claim: Claim, storage_class: StorageClass, cluster: ClusterState, terms: Terms) -> Action:
    """Return the next action if no driver here serves the class: it is broken or external, or volumes are static."""
    provisioner = provisioner_of(storage_class, cluster)
    lookup = driver_named(provisioner, cluster)
    if lookup.next is not None:
        return lookup.next
    if lookup.reason:
        why = f'driver "{provisioner}" of class "{storage_class.name}" cannot work: {lookup.reason}'
        return record.not_provisioned(claim, why)
    if is_in_tree(provisioner):
        message = f"no volume plugin matched name: {provisioner}"
        if provisioner == NO_PROVISIONER:
            fits = f'class "{storage_class.name}" has no provisioner and no volume of it fits'
            reason = f"{fits}: an administrator must add one"
            return Wait(reason=reason, events=(record.provisioning_failed(claim, message),))
        return record.not_provisioned(claim, message)
    if (step := _name_provisioner(claim, provisioner, terms)) is not None:
        return step
    message = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by "
        "the system administrator. If volume creation is delayed, please verify that the provisioner is running and "
        "correctly registered."
    )
    return Wait(reason=message, events=(EventRecord(CLAIMS, claim, "Normal", "ExternalProvisioning", message),))


def _name_provisioner(claim: Claim, provisioner: str, terms: Terms) -> Patch | None:
    # A binder asks no in-tree plugin for a volume with data, which none of them makes.
    if not terms.on_claim or (is_in_tree(provisioner) and source_of(claim) is not None):
        return None
    body = {"metadata": {"annotations": dict(terms.on_claim)}}
    return Patch(kind=CLAIMS, target=claim, body=body, why=f"ask provisioner {provisioner}")


def _volume_exists(claim: Claim, made: Volume, cluster: ClusterState) -> Action:
    """Return the next action if a volume of our name exists: the binder binds it, or it is another claim's."""
    if refers_to(made, claim) and record.can_never_be_bound(made, claim):
        return record.after_deleted_volume(claim, made, cluster)
    if refers_to(made, claim):
        return record.settle(claim, cluster) or Wait(reason=f'volume "{made.name}" exists, the binder must bind it')
    message = f'volume "{made.name}" exists but does not belong to this claim; remove it or its claimRef'
    return record.not_provisioned(claim, message)


def _not_ours_to_make(claim: Claim, storage_class: StorageClass, driver: DriverView) -> Wait | None:
    """Wait if the driver cannot serve this claim of this class at all, or a populator has to."""
    source = source_of(claim)
    if source is not None and sources.is_populated(source):
        return sources.left_to_populator(claim, source)
    of_source = sources.obstacle_of(claim, source, driver) if source is not None else ""
    obstacle = of_source or _obstacle(claim, storage_class, driver) or _obstacle_of_trash(claim, storage_class)
    return record.not_provisioned(claim, obstacle) if obstacle else None


def _obstacle(claim: Claim, storage_class: StorageClass, driver: DriverView) -> str:
    """Return why this driver cannot serve this claim of this class at all, with what to change; or ""."""
    (parameters, release), info = split_parameters(storage_class), driver.info
    of_class, of_driver = f'class "{storage_class.name}"', f'driver "{driver.name}"'
    if release not in ("delete", "recycle"):
        return f'{of_class}: parameter {names.ON_RELEASE} is "{release}"; valid values are "delete" and "recycle"'
    if flaw := driver.parameters_flaw(parameters):
        return f"{of_class}: {flaw}"
    if (count := count_segments(storage_class)) > MOST_SEGMENTS:
        return f"{of_class}: allowedTopologies stands for {count:,} places; at most {MOST_SEGMENTS:,} are supported"
    if (mode := mode_of(claim)) not in info.volume_modes:
        supported = ", ".join(sorted(info.volume_modes))
        return f"{of_driver} does not support volumeMode {mode} (it supports {supported})"
    refused = [mode for mode in claim.spec.access_modes or () if mode not in info.access_modes]
    if refused:
        supported = ", ".join(sorted(info.access_modes))
        return f"{of_driver} does not support access mode {refused[0]} (it supports {supported})"
    if storage_class.mount_options and not info.supports_mount_options:
        return f"{of_class} has mountOptions, which {of_driver} does not support"
    if reason := too_large(request_of(claim)):
        return reason
    if claim.spec.selector is not None:
        unmet = "spec.selector matches no available volume and cannot be met by provisioning a new one"
        return f"{unmet}; remove the selector or add a volume with these labels"
    if claim.spec.volume_attributes_class_name and not (driver.supports("modify") and info.csi_driver_name):
        return f"{of_driver} knows no VolumeAttributesClass; remove spec.volumeAttributesClassName"
    return ""


def _obstacle_of_trash(claim: Claim, storage_class: StorageClass) -> str:
    """Return why the volume cannot be kept after its claim as class or claim want it; "" if neither wants that."""
    asked = claim.annotation(names.TRASH) is not None or claim.annotation(names.UNDELETE) is not None
    if trash_of_class(storage_class) is None and not asked:
        return ""
    return refusal_of(claim, storage_class)


def _is_complete(claim: Claim, driver: DriverView, intent: ClaimIntent) -> bool:
    """Return whether the claim's record says what is made and where, and the claim may not vanish without it."""
    placed = intent.segment is not None or not driver.info.topology_keys
    sourced = intent.source is not None or source_of(claim) is None
    return placed and sourced and claim.has_finalizer(names.PROVISIONING_FINALIZER)


def _declare(
    claim: Claim,
    storage_class: StorageClass,
    driver: DriverView,
    old: ClaimIntent | None,
    cluster: ClusterState,
    *,
    reads: LiveReads,
    terms: Terms,
) -> Action:
    """Write the intent before any side effect; one patch with the finalizer and the provisioner annotations."""
    intent = replace(old, v=INTENT_VERSION) if old is not None else ClaimIntent(v=INTENT_VERSION, driver=driver.name)
    source = source_of(claim)
    within: tuple[Segment, ...] = ()
    unplaced = intent.segment is None and bool(driver.info.topology_keys)  # Else it stays: an asset may be there.
    if source is not None and (unplaced or intent.source is None):
        wanted = sources.Wanted(claim, source, storage_class, driver)
        found = sources.resolve(wanted, cluster, reads)
        if isinstance(found, Wait):
            return _name_provisioner(claim, driver.name, terms) or found
        if not isinstance(found, sources.Source):
            return found
        if unplaced and found.places:
            narrowed = sources.narrowed(wanted, found.places, cluster)
            if not isinstance(narrowed, tuple):
                return narrowed
            within = narrowed
        intent = replace(intent, source=found.record)
    if unplaced:
        segment, why_not = record.choose_segment(claim, storage_class, driver, cluster, within, lost=old is None)
        if why_not:
            return record.not_provisioned(claim, why_not)
        intent = replace(intent, segment=segment)
    if old is None and driver.info.plans_first:
        step = cluster.progress.claims.get(claim.uid).step
        sized = replace(intent, size=whole_bytes(request_of(claim)))
        # The claim may have changed since.
        if not isinstance(step, Planned) or replace(step.intent, state=None) != sized:
            return replace(record.run_provision(claim, storage_class, driver), planned=sized)
        intent = step.intent
    return record.record_intent(claim, intent, cluster, why="declare the intent to provision", others=terms.on_claim)


def _give_back_lost_node(
    claim: Claim, driver: DriverView, old: ClaimIntent | None, cluster: ClusterState, reads: LiveReads
) -> Action | None:
    """Ask for another node if the selected one is gone: no scheduler would look at this claim again."""
    selected = claim.annotation(names.SELECTED_NODE)
    placed = old is not None and old.segment is not None
    if placed or not driver.info.topology_keys or not selected or cluster.nodes.get(selected) is not None:
        return None
    if not reads.has(NODES, selected):
        return Read(NODES, selected, why="does the selected node exist?")
    if reads.get(NODES, selected) is not None:
        return None
    return record.give_back(claim, f'selected node "{selected}" does not exist; another one is asked for')


def _after_hook(
    claim: Claim,
    storage_class: StorageClass,
    driver: DriverView,
    intent: ClaimIntent,
    cluster: ClusterState,
    *,
    reads: LiveReads,
    terms: Terms,
) -> Action:
    """Return what follows from the answer of the hook: its volume, a record of its state, or the next call."""
    match cluster.progress.claims.get(claim.uid).step:
        case Made(asset=asset):
            body = volume_body(claim, storage_class, driver, intent, asset)
            annotations = body["metadata"]["annotations"]
            if labels := terms.on_volume.get("labels"):
                body["metadata"]["labels"] = labels
            annotations |= terms.on_volume.get("annotations", {})
            if names.ON_RELEASE in annotations:
                # An external provisioner leaves this mark to the binder, unless it will take the reference away itself.
                annotations[names.BOUND_BY_CONTROLLER] = "yes"
            message = f"Successfully provisioned volume {volume_name_of(claim)} using {driver.name}"
            event = EventRecord(CLAIMS, claim, "Normal", "ProvisioningSucceeded", message)
            failure = f"Error creating provisioned PV object for claim {claim.key}, whose asset is kept"
            failed, named = record.provisioning_failed(claim, failure), f"volume for claim {claim.key}"
            return Create(kind=VOLUMES, body=body, why=named, events=(event,), failure_event=failed)
        case Pending() as pending:
            if pending.unrecorded(intent.state):
                kept = replace(intent, v=INTENT_VERSION, state=dict(pending.state))
                return record.record_intent(claim, kept, cluster, why="keep the driver's state")
            if left := pending.left(cluster.monotonic()):
                return Wait(reason=pending.said(f'driver "{driver.name}" is making the volume'), seconds=left)
            return replace(record.run_provision(claim, storage_class, driver), progress=pending.progress)
        case Full():
            fresh = replace(intent, v=INTENT_VERSION, segment=None, state=None, discard=None, fence="")
            return terms.reschedule(claim, fresh, cluster)
        case None | Planned() if (source := source_of(claim)) is not None:
            if (step := sources.hold(claim, source, cluster, reads)) is not None:
                return step
    return record.run_provision(claim, storage_class, driver)


# --- the PersistentVolume -----------------------------------------------------------------------------------------


def volume_body(
    claim: Claim, storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, asset: Asset
) -> dict[str, Any]:
    annotations = _annotations(storage_class, driver, intent, asset)
    if names.TRASH in annotations and (chosen := choice_of(claim)) is not None:
        annotations[names.TRASH_CHOICE] = chosen
    metadata: dict[str, Any] = {"name": volume_name_of(claim), "annotations": annotations}
    if storage_class.reclaim_policy == "Delete":
        metadata["finalizers"] = [reclaim_finalizer(driver.name)]
    fields = dict(asset.source.fields)
    if asset.source.kind == "csi" and asset.attributes:
        fields["volumeAttributes"] = {**asset.attributes, **fields.get("volumeAttributes", {})}
    spec: dict[str, Any] = {
        "capacity": {"storage": format_bytes(asset.capacity_bytes)},
        "accessModes": list(claim.spec.access_modes or ()),
        "claimRef": reference_to(claim),
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy,
        "storageClassName": storage_class.name,
        "volumeMode": mode_of(claim),
        asset.source.kind: fields,
        **affinity_of(asset.node_affinity),
    }
    mount_options = [*(storage_class.mount_options or ()), *asset.mount_options]
    if mount_options:
        spec["mountOptions"] = mount_options
    if claim.spec.volume_attributes_class_name:
        spec["volumeAttributesClassName"] = claim.spec.volume_attributes_class_name
    return VOLUMES.body(metadata=metadata, spec=spec)


def finish(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return what is still to be done when the claim's volume is made, or none is to be; None if that is nothing."""
    step = restore_annotations(claim, cluster)
    if step is not None or (source_of(claim) is None and not claim.has_finalizer(names.CLONED_CLAIM)):
        return step
    return sources.release(claim, cluster, reads)


def restore_annotations(claim: Claim, cluster: ClusterState) -> Action | None:
    """Restore what an admission webhook removed from the claim's new volume: without it the asset is never deleted.

    Only while the claim has its record. A process that does not know the asset asks the driver first. None if nothing
    is missing.
    """
    volume = cluster.volumes.get(volume_name_of(claim))
    if volume is None or not record.settled_metadata(claim) or not refers_to(volume, claim):
        return None
    step, intent = cluster.progress.claims.get(claim.uid).step, cluster.intent_of(claim)
    if intent is None:
        return None
    driver = cluster.drivers.get(intent.driver)
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    if driver is None or storage_class is None:
        return None
    if step is None and awaits_recognition(claim, volume, cluster):
        return record.run_provision(claim, storage_class, driver)
    # Only a volume that holds the very asset which this process knows.
    if not isinstance(step, Made) or handle_in(step.asset.source) != handle_in(volume_source(volume)):
        return None
    wanted = _annotations(storage_class, driver, intent, step.asset)
    missing = {name: value for name, value in wanted.items() if volume.annotation(name) is None}
    if not missing:
        return None
    why = "the volume lacks annotations that it was made with"
    return Patch(kind=VOLUMES, target=volume, body={"metadata": {"annotations": missing}}, why=why)


def awaits_recognition(claim: Claim, volume: Volume, cluster: ClusterState) -> bool:
    """Return whether only the driver knows the asset of the claim's own volume, and this process has to ask it."""
    intent = cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
    worked_on = claim.has_finalizer(names.PROVISIONING_FINALIZER) and intent is not None
    return worked_on and refers_to(volume, claim) and not (shows_asset(volume) or claim_elsewhere(claim, cluster))


def _annotations(storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, asset: Asset) -> dict[str, str]:
    """Return what says whose the volume's asset is. Of our own, volumes of in-tree plugin names get only what is
    needed, as stock tools know them.
    """
    _, release = split_parameters(storage_class)
    in_tree = is_in_tree(driver.name)
    annotations = {**asset.annotations, names.PROVISIONED_BY: driver.name}
    if not in_tree or handle_in(asset.source) != asset.handle:
        annotations[names.HANDLE] = asset.handle
    if not in_tree or intent.generation != 1:
        annotations[names.GENERATION] = str(intent.generation)
    if not in_tree:
        annotations |= {names.DRIVER: driver.name, names.SCHEMA_VERSION: str(driver.info.parameters.version)}
    if release == "recycle":
        annotations[names.ON_RELEASE] = release
    if (kept := trash_of_class(storage_class)) is not None:
        annotations[names.TRASH] = kept
        if (early := trash_of_class(storage_class, names.TRASH_EARLY)) is not None:
            annotations[names.TRASH_EARLY] = early
    if asset.attributes and asset.source.kind != "csi":
        annotations[names.ATTRIBUTES] = json.dumps(dict(asset.attributes), ensure_ascii=False, sort_keys=True)
    if asset.backing_snapshot:
        annotations[names.BACKING_SNAPSHOT] = asset.backing_snapshot
    if asset.gid is not None:
        annotations[names.GID] = str(asset.gid)
    return annotations
