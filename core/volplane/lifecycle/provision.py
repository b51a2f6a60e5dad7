"""Provisioning with the intent protocol: intent, hook, volume, bind, end of the intent. Pure.

1. One patch puts finalizer, intent and provisioner annotations on the claim. 2. The `provision` hook runs; what it
returns waits in memory. 3. The volume is created with the claim's uid in its reference. 4. The bind's write to the claim
ends the intent. A crash after any of them repeats at most an idempotent hook call. A claim that is deleted before its
volume exists never gets one: `settle` deletes the asset, then lets the claim go.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from volplane.assets import Asset, Segment
from volplane.binding.matching import class_of_claim, refers_to
from volplane.controller.actions import Action, Create, Notice, Patch, Read, Reads, Run, Wait
from volplane.drivers.view import DriverView
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.lifecycle.finalizers import is_in_tree
from volplane.lifecycle.intents import INTENT_VERSION, ClaimIntent
from volplane.lifecycle.made import split_parameters, volume_body, volume_name_of
from volplane.lifecycle.migration import csi_driver_of
from volplane.lifecycle.outliving import can_never_be_bound, outlive
from volplane.lifecycle.world import Pending, Reschedule, World

__all__ = [
    "allowed_segments",
    "decide_provision",
    "driver_of_class",
    "failed",
    "holds_asset",
    "presumed_intent",
    "settle",
    "settled_metadata",
]

NO_PROVISIONER = "kubernetes.io/no-provisioner"


def decide_provision(claim: Claim, storage_class: StorageClass, world: World, reads: Reads) -> Action:
    """The next action for an unbound claim of this class for which no volume fits."""
    driver = world.drivers.get(storage_class.provisioner)
    if driver is None:
        return _without_driver(claim, storage_class, world)
    made = world.volumes.get(volume_name_of(claim))
    if made is not None:
        return _volume_exists(claim, made, world)
    if claim.spec.data_source is not None or claim.spec.data_source_ref is not None:
        message = f'driver "{driver.name}" makes empty volumes only; remove spec.dataSource'
        return Wait(reason=message, notices=(failed(claim, message),))
    obstacle = _obstacle(claim, storage_class, driver)
    if obstacle:
        if (step := _name_provisioner(claim, driver.name, world)) is not None:
            return step
        # Whatever an earlier, legal demand left behind stays under the intent until the claim is settled.
        return Wait(reason=obstacle, notices=(failed(claim, obstacle),))
    known = world.intent_of(claim)
    if known is not None and known.driver != driver.name and claim.uid not in world.outcomes.discarded:
        return _discard(claim, known.driver, world)
    intent = world.sealer.open(claim.uid, claim.annotation(names.INTENT))
    placed = intent is not None and (intent.segment is not None or not driver.info.topology_keys)
    if (
        intent is None
        or not placed
        or intent.driver != driver.name
        or not claim.has_finalizer(names.PROVISIONING_FINALIZER)
    ):
        old = known if known is not None and known.driver == driver.name else None
        return _give_back_lost_node(claim, driver, old, world, reads) or _declare(
            claim, storage_class, driver, old, world
        )
    return _after_hook(claim, storage_class, driver, intent, world)


def failed(claim: Claim, message: str) -> Notice:
    """The event that tells why provisioning does not go on."""
    return Notice(CLAIMS, claim, "Warning", "ProvisioningFailed", message)


def _without_driver(claim: Claim, storage_class: StorageClass, world: World) -> Action:
    """Nobody here serves the class: a broken driver, an external provisioner, or volumes made by hand."""
    provisioner = csi_driver_of(storage_class.provisioner) or storage_class.provisioner
    if broken := world.drivers.broken(provisioner):
        message = f'driver "{provisioner}" of class "{storage_class.name}" cannot work: {broken}'
        return Wait(reason=message, notices=(failed(claim, message),))
    if is_in_tree(provisioner):
        message = f"no volume plugin matched name: {provisioner}"
        if provisioner == NO_PROVISIONER:
            reason = f'class "{storage_class.name}" has no provisioner and no volume of it fits: an administrator must add one'
            return Wait(reason=reason, notices=(failed(claim, message),))
        return Wait(reason=message, notices=(failed(claim, message),))
    if (step := _name_provisioner(claim, provisioner, world)) is not None:
        return step
    message = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system "
        "administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    )
    return Wait(reason=message, notices=(Notice(CLAIMS, claim, "Normal", "ExternalProvisioning", message),))


def _provisioner_annotations(claim: Claim, provisioner: str, world: World) -> dict[str, str]:
    """Who is to provision, as the binder writes it: where we are not the binder, that is not ours to say."""
    if not world.settings.binder:
        return {}
    wanted = {names.STORAGE_PROVISIONER: provisioner, names.BETA_STORAGE_PROVISIONER: provisioner}
    return wanted if claim.annotation(names.STORAGE_PROVISIONER) != provisioner else {}


def _name_provisioner(claim: Claim, provisioner: str, world: World) -> Patch | None:
    annotations = _provisioner_annotations(claim, provisioner, world)
    if not annotations:
        return None
    body = {"metadata": {"annotations": annotations}}
    return Patch(kind=CLAIMS, target=claim, body=body, why=f"ask provisioner {provisioner}")


def _volume_exists(claim: Claim, made: Volume, world: World) -> Action:
    """A volume of our name is there: it is this claim's (then the binder's turn) or it is in the way."""
    if refers_to(made, claim) and can_never_be_bound(made, claim):
        return outlive(claim, made, world)
    if refers_to(made, claim):
        return settle(claim, world) or Wait(reason=f'volume "{made.name}" exists, the binder must bind it')
    message = f'volume "{made.name}" exists but does not belong to this claim; remove it or its claimRef'
    return Wait(reason=message, notices=(failed(claim, message),))


def _obstacle(claim: Claim, storage_class: StorageClass, driver: DriverView) -> str:
    """Why this driver cannot serve this claim of this class at all, with what to change; or ""."""
    parameters, release = split_parameters(storage_class)
    if release not in ("delete", "recycle"):
        return (
            f'class "{storage_class.name}": parameter {names.ON_RELEASE} is "{release}"; '
            'valid values are "delete" and "recycle"'
        )
    if flaw := driver.parameters_flaw(parameters):
        return f'class "{storage_class.name}": {flaw}'
    mode = claim.spec.volume_mode or "Filesystem"
    if mode not in driver.info.volume_modes:
        return f'driver "{driver.name}" does not support volumeMode {mode} ({_listed(driver.info.volume_modes)})'
    refused = [mode for mode in claim.spec.access_modes or () if mode not in driver.info.access_modes]
    if refused:
        return f'driver "{driver.name}" does not support access mode {refused[0]} ({_listed(driver.info.access_modes)})'
    if storage_class.mount_options and not driver.info.supports_mount_options:
        return f'class "{storage_class.name}" has mountOptions, which driver "{driver.name}" does not support'
    if claim.spec.selector is not None:
        return (
            "spec.selector matches no available volume and cannot be met by provisioning a new one; remove the selector "
            "or add a volume with these labels"
        )
    if claim.spec.volume_attributes_class_name and not driver.supports("modify"):
        return f'driver "{driver.name}" knows no VolumeAttributesClass; remove spec.volumeAttributesClassName'
    return ""


def _listed(values: frozenset[Any]) -> str:
    return "it supports " + ", ".join(sorted(values))


def _must_place(claim: Claim, driver: DriverView) -> bool:
    return bool(driver.info.topology_keys and claim.annotation(names.SELECTED_NODE))


def _declare(
    claim: Claim, storage_class: StorageClass, driver: DriverView, old: ClaimIntent | None, world: World
) -> Action:
    """Write the intent before any side effect; one patch with the finalizer and the provisioner annotations."""
    intent = replace(old, v=INTENT_VERSION) if old is not None else ClaimIntent(v=INTENT_VERSION, driver=driver.name)
    if intent.segment is None:  # else sticky: an asset may be there already
        segment, why_not = _choose_segment(claim, storage_class, driver, world)
        if why_not:
            return Wait(reason=why_not, notices=(failed(claim, why_not),))
        intent = replace(intent, segment=segment)
    annotations = _provisioner_annotations(claim, driver.name, world)
    annotations[names.INTENT] = world.sealer.seal(claim.uid, intent)
    metadata: dict[str, Any] = {"annotations": annotations}
    if not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        metadata["finalizers"] = [*(claim.metadata.finalizers or ()), names.PROVISIONING_FINALIZER]
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="declare the intent to provision")


def _give_back_lost_node(
    claim: Claim, driver: DriverView, old: ClaimIntent | None, world: World, reads: Reads
) -> Action | None:
    """Ask for another node where the selected one is no more: no scheduler would ever look at this claim again."""
    selected = claim.annotation(names.SELECTED_NODE) or ""
    placed = old is not None and old.segment is not None
    if placed or not _must_place(claim, driver) or world.nodes.get(selected) is not None:
        return None
    if not reads.has(NODES, selected):
        return Read(NODES, selected, why="does the selected node exist?")
    if reads.get(NODES, selected) is not None:
        return None
    message = f'selected node "{selected}" does not exist; another one is asked for'
    body = {"metadata": {"annotations": {names.SELECTED_NODE: None}}}
    return Patch(kind=CLAIMS, target=claim, body=body, why="the node is gone", notices=(failed(claim, message),))


def _choose_segment(
    claim: Claim, storage_class: StorageClass, driver: DriverView, world: World
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
        node = world.nodes.get(selected)
        if node is None:
            return None, f'selected node "{selected}" does not exist'
        labels = node.metadata.labels or {}
        missing = [key for key in keys if key not in labels]
        if missing:
            return (
                None,
                f'selected node "{selected}" lacks the label {missing[0]}, by which driver "{driver.name}" places volumes',
            )
        if allowed and not any(segment.items() <= labels.items() for segment in allowed):
            return None, f'selected node "{selected}" is outside the allowedTopologies of class "{storage_class.name}"'
        return {key: labels[key] for key in keys}, ""
    if not allowed:
        return {}, ""
    return dict(allowed[crc32(claim.uid.encode()) % len(allowed)]), ""


def allowed_segments(storage_class: StorageClass) -> tuple[Segment, ...]:
    """`allowedTopologies` as single segments; terms are alternatives, keys of a term hold together."""
    segments: list[Segment] = []
    for term in storage_class.allowed_topologies or ():
        expressions = term.match_label_expressions or []
        keys = [expression.key for expression in expressions]
        choices = product(*[expression.values or [] for expression in expressions])
        segments.extend(dict(zip(keys, values, strict=True)) for values in choices)
    return tuple(segments)


def _after_hook(
    claim: Claim, storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, world: World
) -> Action:
    match world.outcomes.made.get(claim.uid):
        case Asset() as asset:
            return _save(claim, volume_body(claim, storage_class, driver, intent, asset), driver, world)
        case Pending(state=state, due=due):
            if (intent.state or {}) != state:
                return _keep_state(claim, intent, dict(state), world)
            if due > world.monotonic():
                return Wait(reason=f'driver "{driver.name}" is making the volume', seconds=due - world.monotonic())
        case Reschedule():
            return _reschedule(claim, intent, world)
        case None:
            pass
    return Run(
        verb="provision",
        key=claim.key,
        uid=claim.uid,
        driver=driver.name,
        asset=volume_name_of(claim),
        group=f"provision {storage_class.name}",
    )


def _save(claim: Claim, body: dict[str, Any], driver: DriverView, world: World) -> Create:
    if world.settings.binder:
        # An external provisioner leaves this mark to the binder.
        body["metadata"]["annotations"][names.BOUND_BY_CONTROLLER] = "yes"
    message = f"Successfully provisioned volume {volume_name_of(claim)} using {driver.name}"
    notice = Notice(CLAIMS, claim, "Normal", "ProvisioningSucceeded", message)
    complaint = failed(claim, f"Error creating provisioned PV object for claim {claim.key}, whose asset is kept")
    return Create(kind=VOLUMES, body=body, why=f"volume for claim {claim.key}", notices=(notice,), complaint=complaint)


def _keep_state(claim: Claim, intent: ClaimIntent, state: dict[str, Any], world: World) -> Patch:
    told = ClaimIntent(
        v=INTENT_VERSION, driver=intent.driver, generation=intent.generation, segment=intent.segment, state=state
    )
    return _record(claim, told, world, why="keep the driver's state")


def _reschedule(claim: Claim, intent: ClaimIntent, world: World) -> Patch:
    """Nothing is in the full segment: give the claim back to the scheduler and forget the place."""
    fresh = ClaimIntent(v=INTENT_VERSION, driver=intent.driver, generation=intent.generation)
    return _record(claim, fresh, world, why="ask for another node", others={names.SELECTED_NODE: None})


def _record(
    claim: Claim, intent: ClaimIntent, world: World, *, why: str, others: Mapping[str, str | None] | None = None
) -> Patch:
    """Write an intent over the one before. others: annotations that change with it."""
    annotations = {names.INTENT: world.sealer.seal(claim.uid, intent), **(others or {})}
    return Patch(kind=CLAIMS, target=claim, body={"metadata": {"annotations": annotations}}, why=why)


# --- the end of an intent ---------------------------------------------------------------------------------------


def settled_metadata(claim: Claim) -> dict[str, Any]:
    """What a write to the claim changes on its metadata to end the intent; empty if there is none."""
    metadata: dict[str, Any] = {}
    if claim.annotation(names.INTENT) is not None:
        metadata["annotations"] = {names.INTENT: None}
    if claim.has_finalizer(names.PROVISIONING_FINALIZER):
        kept = [name for name in claim.metadata.finalizers or () if name != names.PROVISIONING_FINALIZER]
        metadata["finalizers"] = kept or None
    return metadata


def settle(claim: Claim, world: World) -> Action | None:
    """End an intent that no longer leads to a bind of its own volume; None if there is nothing to end.

    The asset is deleted first unless a volume holds it: the claim is terminating, or was bound to another volume.
    """
    if not settled_metadata(claim) or not world.settings.provisioner:
        return None
    if not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        # Record and finalizer are written at once: this one is a tenant's. What one takes from us is for the leak check.
        return None if claim.terminating else _end_intent(claim)
    intent = world.intent_of(claim)
    name = intent.driver if intent is not None else driver_of_class(claim, world)
    made = world.volumes.get(volume_name_of(claim))
    used = claim.annotation(names.BIND_COMPLETED) is not None and claim.spec.volume_name == volume_name_of(claim)
    if used or (made is not None and holds_asset(made, claim, name)) or claim.uid in world.outcomes.discarded:
        return _end_intent(claim)
    return _restore_record(claim, name, intent, world) or _discard(claim, name, world)


def _restore_record(claim: Claim, name: str, known: ClaimIntent | None, world: World) -> Patch | None:
    """Write down where an asset is looked for, if a tenant has damaged that: looking may make it, where it was not yet.

    known: what this process knows; whoever works on the claim next may know nothing.
    """
    driver = world.drivers.get(name)
    if driver is None or world.sealer.open(claim.uid, claim.annotation(names.INTENT)) is not None:
        return None
    intent = known or presumed_intent(claim, driver, world)
    return _record(claim, intent, world, why="restore the record of what was begun")


def _end_intent(claim: Claim) -> Patch:
    why = "nothing is in the making any more"
    return Patch(kind=CLAIMS, target=claim, body={"metadata": settled_metadata(claim)}, why=why)


def _discard(claim: Claim, name: str, world: World) -> Action:
    """Make sure that nothing of the claim is left on the driver of this name."""
    driver = world.drivers.get(name)
    if driver is None:
        reason = world.drivers.broken(name) or "it is not configured here"
        message = (
            f'an asset may be left on driver "{name}", which cannot be asked: {reason}. Configure the driver, or remove '
            f"the finalizer {names.PROVISIONING_FINALIZER} to accept a leak"
        )
        return Wait(reason=message, notices=(failed(claim, message),))
    return Run(
        verb="discard",
        key=claim.key,
        uid=claim.uid,
        driver=driver.name,
        asset=volume_name_of(claim),
        group="discard",
    )


def holds_asset(made: Volume, claim: Claim, driver: str) -> bool:
    """Whether the volume of our name is what was made for the claim, whoever it refers to now."""
    return refers_to(made, claim) or made.annotation(names.PROVISIONED_BY) == driver


def presumed_intent(claim: Claim, driver: DriverView, world: World) -> ClaimIntent:
    """What was begun for a claim whose record is lost: the first generation, where it would be put now."""
    storage_class = world.classes.get(class_of_claim(claim) or "")
    segment = None if storage_class is None else _choose_segment(claim, storage_class, driver, world)[0]
    return ClaimIntent(v=INTENT_VERSION, driver=driver.name, segment=segment)


def driver_of_class(claim: Claim, world: World) -> str:
    """Who provisions for the claim by its class; where that is gone, by what the binder noted. "" = unknown."""
    storage_class = world.classes.get(class_of_claim(claim) or "")
    return storage_class.provisioner if storage_class else claim.annotation(names.STORAGE_PROVISIONER) or ""
