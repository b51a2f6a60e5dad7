"""The claim by which a scrubber pod gets a volume with a csi source. Pure.

A pod mounts such a volume only through a claim. So during the scrub the released volume refers to a claim in our
namespace instead of the one it was released from, which its intent keeps. The reference is restored before the volume
is offered again, or the scrub is given up. The volume is never free meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from volplane.controller.actions import Action, Create, Delete, LiveReads, Read, Wait, warning
from volplane.intents.record import write_record
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, ObjectReference, Volume
from volplane.reclaim.scrub_pod import SEAL, pod_name
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, mode_of
from volplane.state.naming import volume_source
from volplane.state.records import RecycleIntent, Sealer, recycle_intent_of


def held_for_scrub(volume: Volume) -> bool:
    intent = recycle_intent_of(volume)
    return intent is not None and _holds(volume, intent)


def _holds(volume: Volume, intent: RecycleIntent) -> bool:
    reference = volume.spec.claim_ref
    return bool(intent.held_by) and reference is not None and reference.uid == intent.held_by


def released_from(volume: Volume, intent: RecycleIntent | None) -> ObjectReference | None:
    """Return the claim that the volume was released from, also while it refers to that of its scrub."""
    return volume.spec.claim_ref if intent is None or not _holds(volume, intent) else _former(intent)


def _former(intent: RecycleIntent) -> ObjectReference:
    namespace, _, name = intent.released.partition("/")
    return ObjectReference(namespace=namespace, name=name, uid=intent.claim)


def hold(volume: Volume, intent: RecycleIntent, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next step until the volume is bound to a claim of ours; None then."""
    key = scrub_key(volume, cluster)
    claim = cluster.claims.get(key)
    if _holds(volume, intent):
        # A claim of its name with another uid is not bound to the volume.
        if claim is None or claim.uid != intent.held_by:
            return _restore(volume, intent, cluster, reads, why="the claim of its scrub is gone")
        if claim.terminating:
            return Wait(reason=f"the scrub's claim {key} is going away")
        bound = claim.status.phase == "Bound" and claim.spec.volume_name == volume.name
        return None if bound else Wait(reason=f"the scrub's claim {key} is being bound")
    if claim is None:
        if not reads.has(CLAIMS, key):
            return Read(CLAIMS, key, why="does a claim of this name exist?")
        refused = warning(VOLUMES, volume, "VolumeFailedRecycle", "The claim that scrubs it cannot be created")
        body = _body(volume, cluster)
        return Create(kind=CLAIMS, body=body, why="a claim for the scrubber pod", failure_event=refused)
    if claim.terminating:
        return Wait(reason=f"claim {key}, left from an earlier scrub, is going away")
    # Its pods could read the volume.
    if not _is_ours(claim, volume, cluster.sealer):
        failed = f"claim {key} was not made by volplane and has the name of the scrub's; delete it"
        return write_record(VOLUMES, volume, replace(intent, failed=failed), why="the scrub failed")
    # The volume may be bound to a living claim by now, unlike in the cache.
    if not reads.has(VOLUMES, volume.key):
        return Read(VOLUMES, volume.key, why="is it still ours to scrub?")
    reference = volume.spec.claim_ref
    kept = replace(intent, held_by=claim.uid, released=reference.key if reference is not None else "")
    wanted = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name}
    spec = {"claimRef": {**wanted, "uid": claim.uid, "resourceVersion": None}}
    return write_record(VOLUMES, volume, kept, why=f"hold it by claim {key}", spec=spec)


def claim_lost(volume: Volume, intent: RecycleIntent, cluster: ClusterState) -> str:
    """Return why the pod may not erase this volume, though it is the pod that was made; "" if nothing is wrong."""
    if not intent.held_by:
        return "the pod has no claim" if volume_source(volume).kind == "csi" else ""
    key = scrub_key(volume, cluster)
    claim = cluster.claims.get(key)
    right = claim is not None and claim.uid == intent.held_by and claim.spec.volume_name == volume.name
    return "" if right and _holds(volume, intent) else f"claim {key} is not the one it was made with"


def give_back(volume: Volume, intent: RecycleIntent, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next step until claim and reference are the former ones again, without a pod; then None."""
    claim = cluster.claims.get(scrub_key(volume, cluster))
    # A claim of this name that others made is left where it is.
    if claim is not None and _is_ours(claim, volume, cluster.sealer):
        if claim.terminating:
            return Wait(reason=f"the scrub's claim {claim.key} is going away")
        return Delete(kind=CLAIMS, target=claim, why="the scrub is over", exact=False)
    # Else it refers to what it was released from, or to what a person has written.
    return _restore(volume, intent, cluster, reads, why="the scrub is over") if _holds(volume, intent) else None


def scrub_key(volume: Volume, cluster: ClusterState) -> str:
    """Return `namespace/name` of the claim, and of the pod."""
    return f"{cluster.namespace}/{pod_name(volume)}"


def _restore(volume: Volume, intent: RecycleIntent, cluster: ClusterState, reads: LiveReads, *, why: str) -> Action:
    """Let the volume refer to what it was released from, once a live read has shown that the scrub's claim is gone."""
    key = scrub_key(volume, cluster)
    # As long as that claim exists, the volume is bound to it.
    if not reads.has(CLAIMS, key):
        return Read(CLAIMS, key, why="is the claim of the scrub really gone?")
    former = _former(intent)
    reference = {"namespace": former.namespace, "name": former.name, "uid": former.uid, "resourceVersion": None}
    spec = {"claimRef": reference if former.name else None}
    return write_record(VOLUMES, volume, replace(intent, held_by="", released="", pod=""), why=why, spec=spec)


def sealed_uid(claim: Claim, sealer: Sealer) -> str:
    """Return the uid of the volume that this claim scrubs; "" if volplane did not make the claim."""
    uid, seal = claim.annotation(names.SCRUB_VOLUME_UID), claim.annotation(SEAL)
    return uid if uid and seal and sealer.signed(f"scrub claim {claim.name}", uid.encode(), seal) else ""


def _is_ours(claim: Claim, volume: Volume, sealer: Sealer) -> bool:
    return sealed_uid(claim, sealer) == volume.uid and claim.spec.volume_name == volume.name


def _body(volume: Volume, cluster: ClusterState) -> dict[str, Any]:
    """Return the claim, which this volume satisfies and no other one can."""
    name, spec = pod_name(volume), volume.spec
    wanted: dict[str, Any] = {
        "accessModes": list(spec.access_modes or ("ReadWriteOnce",)),
        "resources": {"requests": {"storage": (spec.capacity or {}).get("storage", "1")}},
        "storageClassName": class_of_claim(volume) or "",
        "volumeMode": mode_of(volume),
        "volumeName": volume.name,
    }
    if spec.volume_attributes_class_name:
        wanted["volumeAttributesClassName"] = spec.volume_attributes_class_name
    seal = cluster.sealer.sign(f"scrub claim {name}", volume.uid.encode())
    annotations = {names.SCRUB_VOLUME_UID: volume.uid, SEAL: seal}
    metadata = {"name": name, "namespace": cluster.namespace, "annotations": annotations}
    return CLAIMS.body(metadata=metadata, spec=msgspec.to_builtins(wanted))
