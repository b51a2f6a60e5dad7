"""What becomes of a released volume that is kept, instead of its deletion. Pure.

It is put into the trash by a record on it. When the time in the record is over, it is deleted as any other. Before that
it can be given to a claim, of its owner or of an administrator's choice, by one write that ends the record too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Read, Wait, warning
from volplane.intents.ownership import driver_of
from volplane.intents.record import write_record
from volplane.intents.requests import segments_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, NAMESPACES, VOLUMES
from volplane.kube.objects import Claim, KubeObject, Volume, timestamp
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of, class_of_claim, reference_to, refusal, request_of
from volplane.state.naming import volume_name_of
from volplane.state.records import INTENT_VERSION, NEVER, TrashRecord, may_be_kept, time_of, trashed
from volplane.trash.choice import OLDEST_FIRST, flaw_of, kept_for

_MOST_TOLD: Final = 10
"""Claims that are told at once why they do not get the volume: tenants may write many."""
_LOOKED_AT_AGAIN: Final = 86_400.0
"""Seconds after which the clocks are asked again at the latest."""
_NAME_TAKEN: Final = 10.0
"""Seconds after which it is looked again whether a claim that an administrator has named can have the volume."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_KEY: Final = 317
"""Characters of a namespace, a slash and a name."""


def decide_trash(volume: Volume, cluster: ClusterState, reads: LiveReads, *, keeps: bool = True) -> Action | None:
    """Return what is done with a released volume instead of its deletion; None: nothing, or its time is over.

    keeps: whether this process sees all claims, and so writes the record and undeletes; another one only waits.
    """
    claim = cluster.claim_of(volume)
    if volume.terminating or not may_be_kept(volume) or (claim is not None and volume.name == volume_name_of(claim)):
        return None  # The claim for which it was made lives, and is bound elsewhere: nobody has used it.
    record, reference = trashed(volume), volume.spec.claim_ref
    if record is None or (reference is not None and reference.uid not in ("", record.claim)):
        if flaw := flaw_of(volume):
            # Nobody can say how long it was to be kept.
            return Wait(reason=flaw, events=(warning(VOLUMES, volume, "TrashRefused", flaw),))
        seconds = kept_for(volume)
        if not seconds:
            return None
        return _put_in(volume, cluster, seconds) if keeps else Wait(reason="the central process puts it into the trash")
    if keeps and (given := _undelete(volume, record, cluster, reads)) is not None:
        return given
    left = seconds_left(record, cluster)
    if left <= 0 or (record.claim and cluster.progress.volumes.get(volume.uid).in_the_way == record.claim):
        return None
    events = tuple(_told(volume, record, cluster)) if keeps else ()
    return Wait(reason=trash_sentence(volume, record), seconds=min(left, _LOOKED_AT_AGAIN), events=events)


def in_trash(volume: Volume) -> TrashRecord | None:
    """Return the record of a volume that is in the trash and is not being deleted; None for every other one."""
    return None if volume.terminating else trashed(volume)


def trash_sentence(volume: Volume, record: TrashRecord) -> str:
    """Return the sentence about a volume in the trash."""
    how = f"`volplane undelete {volume.name} --claim NAMESPACE/NAME` gives it to a claim"
    return f"it is in the trash until {record.until or 'a person decides'}; {how}"


def seconds_left(record: TrashRecord, cluster: ClusterState) -> float:
    """Return how long the volume stays in the trash; over only if it is so by our clock and by the server's."""
    return (time_of(record.until, NEVER) - cluster.surely_now()).total_seconds()


def _put_in(volume: Volume, cluster: ClusterState, seconds: float) -> Action | None:
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    lookup, ours = driver_of(volume, cluster), cluster.has_driver(maker) or cluster.drivers.on_nodes(maker)
    if lookup.driver is None and (lookup.next is not None or not ours):
        return None  # Another controller may have its driver. Without one nothing is deleted.
    now, reference = cluster.now(), volume.spec.claim_ref
    released = time_of(volume.status.last_phase_transition_time, now)
    # In doubt longer: neither a clock that is behind may shorten it, nor times of whole seconds, `Date` and this one.
    begin = max(now, cluster.server_time() or now, min(released, NEVER - timedelta(seconds=2 * seconds)))
    until = begin + timedelta(seconds=seconds + 2)
    record = TrashRecord(
        v=INTENT_VERSION,
        claim=reference.uid if reference is not None else "",
        until=timestamp(until),
        since=timestamp(released),
        released=reference.key if reference is not None else "",
    )
    event = EventRecord(VOLUMES, volume, "Normal", "VolumeTrashed", trash_sentence(volume, record))
    return write_record(VOLUMES, volume, record, why="into the trash", annotation=names.TRASHED, events=(event,))


def first_to_go(claim: Claim, place: Mapping[str, str], cluster: ClusterState) -> Volume | None:
    """Return the volume that leaves the trash first, because the storage has no room for a claim.

    The oldest of the claim's class, if that allows it, at this place ({} = anywhere). None: all of them together are
    too small, or one of them is just being destroyed.
    """
    name, kept = class_of_claim(claim), []
    for volume in cluster.volumes.values():
        record = trashed(volume) if volume.annotation(names.TRASH_EARLY) == OLDEST_FIRST else None
        if record is None or class_of_claim(volume) != name or volume.annotation(names.UNDELETE) is not None:
            continue
        segments = segments_of(volume)
        if place and segments and not any(each.items() <= place.items() for each in segments):
            continue
        if volume.terminating:
            return None
        kept.append((record.since, volume.name, volume))
    if sum(capacity_of(volume) for _, _, volume in kept) < request_of(claim):
        return None
    return min(kept, key=lambda each: each[:2])[2] if kept else None


# --- out of the trash -------------------------------------------------------------------------------------------------


def _undelete(volume: Volume, record: TrashRecord, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return what gives the volume to the claim that may have it; None if there is none."""
    if (wanted := volume.annotation(names.UNDELETE)) is not None:
        return _by_administrator(volume, wanted, cluster, reads)
    if cluster.node_name:
        return None  # Its account reads no namespaces: only an administrator undeletes here.
    for claim in cluster.claims.by_index("volume", volume.name):
        if not _proves(claim, record) or taken_or_unfit(volume, claim):
            continue
        namespace = claim.namespace
        if not reads.has(NAMESPACES, namespace):
            return Read(NAMESPACES, namespace, why="is it the namespace of the former claim?")
        if made_after(reads.get(NAMESPACES, namespace), record, volume):
            message = (
                f'namespace {namespace} was made after volume "{volume.name}" was released, so it may be another\'s; '
                f"an administrator can annotate the volume with {names.UNDELETE}={claim.key}"
            )
            left = seconds_left(record, cluster)
            return Wait(reason=message, seconds=left, events=(_refused(claim, message),)) if left > 0 else None
        return _give(volume, claim, reads)
    return None


def _by_administrator(volume: Volume, wanted: str, cluster: ClusterState, reads: LiveReads) -> Action:
    """Give it to the claim that the annotation names; if there is none yet, reserve it for the first of that name."""
    claim, (namespace, _, name) = cluster.claims.get(wanted), wanted[:_LONGEST_KEY].partition("/")
    if claim is not None and not (why := taken_or_unfit(volume, claim)):
        return _give(volume, claim, reads)
    if claim is None and _NAME.fullmatch(namespace) and _NAME.fullmatch(name):
        return _give_to(volume, {"namespace": namespace, "name": name, "uid": None, "resourceVersion": None}, wanted)
    if claim is None:
        why = f"annotation {names.UNDELETE} is {wanted[:_LONGEST_KEY]!r}; it must be NAMESPACE/NAME of a claim"
    events = (warning(VOLUMES, volume, "UndeleteRefused", why), *([_refused(claim, why)] if claim is not None else []))
    return Wait(reason=why, seconds=_NAME_TAKEN, events=events)


def _give(volume: Volume, claim: Claim, reads: LiveReads) -> Action:
    if not reads.has(CLAIMS, claim.key):
        return Read(CLAIMS, claim.key, why="is it there, and still unbound?")
    live = reads.get(CLAIMS, claim.key)
    if not isinstance(live, Claim) or live.uid != claim.uid or taken_or_unfit(volume, live):
        return Wait(reason=f"claim {claim.key} has changed", seconds=LIVE_STATE_FORBIDS.delay())
    return _give_to(volume, reference_to(live), live.key, named=live.spec.volume_name == volume.name)


def _give_to(volume: Volume, reference: Mapping[str, str | None], key: str, *, named: bool = False) -> Patch:
    """Return the write. named: the claim names the volume. Else it may yet be bound to another one, so that the record
    that the volume was used stays until it is bound to this one (`choice_step`).
    """
    # What the former claim chose is not this one's choice.
    annotations = dict.fromkeys((names.TRASH_CHOICE, names.UNDELETE, *([names.TRASHED] if named else ())))
    body = {"spec": {"claimRef": reference}, "metadata": {"annotations": annotations}}
    event = EventRecord(VOLUMES, volume, "Normal", "VolumeUndeleted", f"it is given to claim {key}")
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"out of the trash, to claim {key}", events=(event,))


def taken_or_unfit(volume: Volume, claim: Claim) -> str:
    """Return why this claim cannot have the volume, with what to do; or ""."""
    name = claim.spec.volume_name
    if (name and name != volume.name) or claim.bound:
        first = f"kubectl -n {claim.namespace} delete pvc {claim.name}"
        then = f"volplane undelete {volume.name} --claim {claim.key}"
        bound = f'claim {claim.key} is bound to volume "{name}": its name is taken'
        return f"{bound}. Stop its pods, then `{first}`, then `{then}`; or name another claim"
    if claim.terminating:
        return f"claim {claim.key} is being deleted"
    # The class says how volumes are made, and this one is.
    why = refusal(volume, claim, ignoring=("class",))
    return f'volume "{volume.name}" cannot be given to claim {claim.key}: {why}' if why else ""


def _proves(claim: Claim, record: TrashRecord) -> bool:
    """Return whether the claim shows that it has the owner of the former one."""
    same = claim.namespace == record.released.partition("/")[0]
    return same and bool(record.claim) and claim.annotation(names.UNDELETE) == record.claim


def made_after(namespace: KubeObject | None, record: TrashRecord, volume: Volume) -> bool:
    """Return whether the namespace, as read live, may not be that of the former claim; all times are the server's.

    It was made after the release; or after the volume, which was made for a claim in it: of a release while no
    controller worked only the time is known at which one saw it.
    """
    made = time_of(namespace.metadata.creation_timestamp if namespace is not None else None, NEVER)
    provisioned = volume.name == f"pvc-{record.claim}"
    times = (record.since, volume.metadata.creation_timestamp if provisioned else record.since)
    return made > min(time_of(each, datetime.min.replace(tzinfo=UTC)) for each in times)


def _told(volume: Volume, record: TrashRecord, cluster: ClusterState) -> Iterator[EventRecord]:
    """Yield an event for each claim that asks for the volume and does not get it."""
    asking = (each for each in cluster.claims.by_index("volume", volume.name) if each.annotation(names.UNDELETE))
    for claim in islice(asking, _MOST_TOLD):
        proof = f"annotation {names.UNDELETE} is not the uid of the claim that it was released from, in its namespace"
        by_person = f"an administrator can annotate the volume with {names.UNDELETE}={claim.key}"
        why = (taken_or_unfit(volume, claim) or by_person) if _proves(claim, record) else proof
        yield _refused(claim, f'volume "{volume.name}" stays in the trash: {why}')


def _refused(claim: Claim, message: str) -> EventRecord:
    return warning(CLAIMS, claim, "UndeleteRefused", message)
