"""Why a claim, a volume, a class or an attachment is in its state, from the decisions that the runners make.

Nothing is performed: the decision is made as for the runner, and its action is described instead of taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from volplane._messages import near
from volplane.attach.attach_detach import AttachDetachState, decide_pair
from volplane.attach.desired import pairs_wanted, volume_of_claim
from volplane.attach.identity import unique_name
from volplane.binding.matching import class_of_claim, refers_to
from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.controller.trace import trace_of
from volplane.expand.stages import decided_changes, stages
from volplane.kube import names
from volplane.kube.objects import Claim, StorageClass, Volume, VolumeAttachment
from volplane.operations import OperationState, Phase
from volplane.roles.claims import decide_claim
from volplane.roles.volumes import decide_volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import volume_name_of

__all__ = [
    "Explanation",
    "attachment_sentence",
    "explain_attachment",
    "explain_claim",
    "explain_class",
    "explain_volume",
    "what_it_does",
]


_MOST_NAMES = 10
_REFUSED_CLAIM = (
    "the claim of a generic ephemeral volume or of a StatefulSet is made by its controller: where that is refused, for"
    " a quota for example, an event FailedBinding of the pod or FailedCreate of the StatefulSet says why"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """found: whether the object exists. situation: where it stands. tried: its operations, with their last errors.
    next: what happens next, and when.
    """

    kind: str
    name: str
    found: bool = True
    situation: tuple[str, ...]
    tried: tuple[str, ...]
    next: tuple[str, ...]


def explain_claim(
    key: str,
    cluster: ClusterState,
    operations: Iterable[OperationState],
    *,
    now: float,
    node: str = "",
    drivers: Sequence[str] = (),
) -> Explanation:
    """Explain the claim `namespace/name`.

    now: loop time that the operations' times refer to. node: what the assigner waits for, or "". drivers: names of all
    configured ones, usable or not.
    """
    claim = cluster.claims.get(key)
    if claim is None:
        return _absent("claim", key)
    uids = {claim.uid, *(each.uid for each in _attachments(claim.spec.volume_name, cluster))}
    running = [state for state in operations if state.uid in uids]
    action = decide_claim(key, cluster, LiveReads())
    changes = [told for decided in decided_changes(claim, cluster) for told in _next(decided, "")]
    nothing = "" if changes and isinstance(action, Settled) else _nothing(claim, cluster)
    return Explanation(
        kind="claim",
        name=key,
        situation=(
            *_situation(claim, cluster, drivers),
            *stages(claim, cluster),
            *([f"its node: {node}"] if node else []),
            _traced(claim, cluster),
        ),
        tried=tuple(_tried(running, now)),
        next=tuple(_waits(running, now) or [told for told in (*_next(action, nothing), *changes) if told]),
    )


def explain_volume(
    name: str, cluster: ClusterState, operations: Iterable[OperationState], *, now: float, lost: str = ""
) -> Explanation:
    """Explain the volume with this name. lost: why nobody can reach what it is, or ""."""
    volume = cluster.volumes.get(name)
    if volume is None:
        return _absent("volume", name)
    uids = {volume.uid, *(each.uid for each in cluster.attachments_of(volume))}
    running = [state for state in operations if state.uid in uids]
    action = decide_volume(name, cluster, LiveReads())
    return Explanation(
        kind="volume",
        name=name,
        situation=(*_volume_situation(volume, cluster), *([lost] if lost else []), _traced(volume, cluster)),
        tried=tuple(_tried(running, now)),
        next=tuple(_waits(running, now) or _next(action, "nothing until something changes")),
    )


def explain_class(name: str, cluster: ClusterState, *, drivers: Sequence[str] = ()) -> Explanation:
    """Explain the class with this name: whether its driver is served, and how many claims wait for it.

    drivers: as of `explain_claim`.
    """
    storage_class = cluster.classes.get(name)
    if storage_class is None:
        return _absent("class", name)
    waiting = [
        claim.key
        for claim in cluster.claims.values()
        if class_of_claim(claim) == name and claim.status.phase != "Bound" and not claim.terminating
    ]
    shown = ", ".join(sorted(waiting)[:_MOST_NAMES]) + (", …" if len(waiting) > _MOST_NAMES else "")
    return Explanation(
        kind="class",
        name=name,
        situation=(
            f"class {name} {_served(storage_class, cluster, drivers)}",
            f"volumes made for it have policy {storage_class.reclaim_policy}",
        ),
        tried=(),
        next=(f"claims that are not bound yet: {shown}" if waiting else "no claim waits for it",),
    )


def _traced(found: Claim | Volume, cluster: ClusterState) -> str:
    trace = trace_of(found, {cluster.volumes.kind.plural: cluster.volumes})
    return f"in logs as JSON all lines about it have the trace {trace}"


def explain_attachment(attachment: VolumeAttachment) -> Explanation:
    """Explain an attachment by what it says itself."""
    volume = attachment.spec.source.persistent_volume_name or "(inline)"
    return Explanation(
        kind="attachment",
        name=attachment.name,
        situation=(
            f"volume {volume} is for node {attachment.spec.node_name}",
            attachment_sentence(attachment),
        ),
        tried=(),
        next=(_attachment_next(attachment),),
    )


def _attachment_next(attachment: VolumeAttachment) -> str:
    attacher = attachment.spec.attacher
    if attachment.terminating:
        holders = ", ".join(attachment.metadata.finalizers or ()) or "nobody"
        return f"attacher {attacher} detaches it from node {attachment.spec.node_name}; it is held by {holders}"
    if attachment.status.attached:
        return "nothing: it is attached"
    return f"attacher {attacher} attaches it to node {attachment.spec.node_name}"


def _absent(kind: str, name: str) -> Explanation:
    return Explanation(
        kind=kind,
        name=name,
        found=False,
        situation=(f"there is no {kind} {name}",),
        tried=(),
        next=("nothing, until somebody creates it", *((_REFUSED_CLAIM,) if kind == "claim" else ())),
    )


def _volume_situation(volume: Volume, cluster: ClusterState) -> Iterable[str]:
    yield f"volume {volume.name} is {volume.status.phase or 'Pending'}" + (
        ", and is being deleted" if volume.terminating else ""
    )
    if volume.terminating:
        yield f"its deletion waits for: {', '.join(volume.metadata.finalizers or ()) or 'nobody'}"
    if volume.status.message:
        yield f"its status says: {volume.status.message}"
    maker = volume.annotation(names.PROVISIONED_BY)
    if maker:
        served = "a driver of this process" if cluster.has_driver(maker) else "not a driver of this process"
        yield f"it was made by {maker}, which is {served}"
    else:
        yield "it was made by a person: it is static"
    reference = volume.spec.claim_ref
    if reference is None:
        yield "no claim is named by it"
    else:
        key = f"{reference.namespace}/{reference.name}"
        claim = cluster.claims.get(key)
        state = "does not exist" if claim is None else f"is {claim.status.phase or 'Pending'}"
        yield f"it names claim {key}, which {state}"
    yield f"its policy is {volume.spec.persistent_volume_reclaim_policy or 'Retain'}"
    yield from _attachment_sentences(volume.name, cluster)


def _situation(claim: Claim, cluster: ClusterState, drivers: Sequence[str]) -> Iterable[str]:
    phase = claim.status.phase or "Pending"
    yield f"claim {claim.key} is {phase}" + (", and is being deleted" if claim.terminating else "")
    if claim.terminating:
        holders = ", ".join(claim.metadata.finalizers or ()) or "nobody"
        yield f"its deletion waits for: {holders}"
    yield _class_sentence(claim, cluster, drivers)
    if claim.spec.volume_name:
        yield _volume_sentence(claim, cluster)
        yield from _attachment_sentences(claim.spec.volume_name, cluster)
        yield from _waiting_nodes(claim, cluster)
    elif volume := cluster.volumes.get(volume_name_of(claim)):
        yield f"volume {volume.name} was made for it and is {volume.status.phase}"
    if node := claim.annotation(names.SELECTED_NODE):
        yield f"the scheduler selected node {node}"
    if claim.has_finalizer(names.PROVISIONING_FINALIZER):
        yield "an asset may be in the making: an intent is recorded on the claim"


def _class_sentence(claim: Claim, cluster: ClusterState, drivers: Sequence[str]) -> str:
    named = class_of_claim(claim)
    if named is None:
        default = cluster.default_class()
        return "it names no class; " + (f"the default class is {default.name}" if default else "none is default")
    if not named:
        return "it asks for a volume without a class, so nothing is provisioned for it"
    storage_class = cluster.classes.get(named)
    if storage_class is None:
        return f"its class {named} does not exist"
    return f"its class {named} {_served(storage_class, cluster, drivers)}"


def _served(storage_class: StorageClass, cluster: ClusterState, drivers: Sequence[str]) -> str:
    driver = cluster.drivers.get(storage_class.provisioner)
    broken = cluster.drivers.broken(storage_class.provisioner)
    unknown = f"not a driver of this process{near(storage_class.provisioner, drivers)}"
    if driver is None and cluster.drivers.on_nodes(storage_class.provisioner):
        unknown = "served by the processes of the nodes"
    served = "served here" if driver else f"not usable here: {broken}" if broken else unknown
    mode = storage_class.volume_binding_mode or "Immediate"
    return f"binds {mode} and is provisioned by {storage_class.provisioner}, which is {served}"


def _volume_sentence(claim: Claim, cluster: ClusterState) -> str:
    name = claim.spec.volume_name
    volume = cluster.volumes.get(name)
    if volume is None:
        return f"it points at volume {name}, which does not exist"
    if refers_to(volume, claim):
        return f"it and volume {name} ({volume.status.phase}) point at each other"
    reference = volume.spec.claim_ref
    other = f"at {reference.namespace}/{reference.name}" if reference is not None else "at no claim"
    return f"it points at volume {name} ({volume.status.phase}), which points {other}"


def _attachment_sentences(volume: str, cluster: ClusterState) -> Iterable[str]:
    return map(attachment_sentence, _attachments(volume, cluster))


def _attachments(volume: str, cluster: ClusterState) -> list[VolumeAttachment]:
    """Those of the asset of the volume with this name."""
    found = cluster.volumes.get(volume)
    return cluster.attachments_of(found) if found is not None else list(cluster.attachments.by_index("volume", volume))


def _waiting_nodes(claim: Claim, cluster: ClusterState) -> Iterable[str]:
    """Where a pod needs the volume, and no attachment can be made yet."""
    volume = volume_of_claim(claim, cluster) if cluster.settings.attach_detach else None
    for pair in sorted(pairs_wanted(unique_name(volume), cluster)) if volume is not None else ():
        if pair.attachment not in cluster.attachments:
            action = decide_pair(pair, AttachDetachState(cluster), LiveReads()).action
            if isinstance(action, Wait):
                yield f"node {pair.node}, where a pod needs it, waits for it: {action.reason}"


def attachment_sentence(attachment: VolumeAttachment) -> str:
    """Where the attachment stands, and how the last try failed."""
    status, error = attachment.status, attachment.status.attach_error
    if attachment.terminating:
        state, error = "is being detached", status.detach_error
    else:
        state = "is attached" if status.attached else f"waits for attacher {attachment.spec.attacher}"
    failed = f"; the last try failed at {error.time}: {error.message}" if error is not None else ""
    return f"attachment {attachment.name} to node {attachment.spec.node_name} {state}{failed}"


def what_it_does(state: OperationState, now: float) -> str:
    """What an operation does now, with the time of the next try if it waits for that."""
    told = _told(state, now)
    if state.phase is Phase.WAITING and state.next_try is not None:
        return f"{told}; it is tried again in {max(0.0, state.next_try - now):.1f} s"
    return told


def _tried(running: Iterable[OperationState], now: float) -> Iterable[str]:
    return (_told(state, now) for state in running)


def _told(state: OperationState, now: float) -> str:
    seconds = f"{max(0.0, now - state.since):.1f} s"
    match state.phase:
        case Phase.QUEUED:
            return f"{state.name} waits for its turn on driver {state.driver} for {seconds}"
        case Phase.OVERRUN:
            return f"{state.name} waits for {seconds} for a hook of driver {state.driver} that does not return"
        case Phase.WAITING:
            return f"{state.name} failed {state.failures} times, the last with: {state.error}"
    return f"{state.name} is running for {seconds} on driver {state.driver}"


def _waits(running: Iterable[OperationState], now: float) -> list[str]:
    """What the operations of the claim that is known of lead to."""
    return [
        f"{state.name} ends, then this is decided anew"
        if state.next_try is None
        else f"{state.name} is tried again in {max(state.next_try - now, 0.0):.1f} s"
        for state in running
    ]


def _next(action: Action, nothing: str) -> Iterable[str]:
    """nothing: what it means that there is nothing to do."""
    match action:
        case Settled():
            yield nothing
        case Wait(reason=reason, seconds=seconds, events=events):
            when = "nothing until something changes" if seconds is None else f"in {seconds:.1f} s again"
            yield f"{when}: {reason}"
            yield from _advice(events, reason)
        case Patch(kind=kind, target=target, why=why):
            yield f"a write to {kind.kind} {target.key}: {why}"
        case Create(kind=kind, why=why):
            yield f"a new {kind.kind}: {why}"
        case Delete(kind=kind, target=target, why=why):
            yield f"the deletion of {kind.kind} {target.key}: {why}"
        case Read(why=why):
            yield f"a live read: {why}"
        case Run(driver=driver):
            yield f"{action.name} starts on driver {driver}"


def _nothing(claim: Claim, cluster: ClusterState) -> str:
    """What it means that there is nothing to do."""
    if claim.status.phase == "Bound" and not claim.terminating:
        pending = [
            _attachment_next(each)
            for each in _attachments(claim.spec.volume_name, cluster)
            if each.terminating or not each.status.attached
        ]
        idle = "nothing until something changes" if any(_waiting_nodes(claim, cluster)) else ""
        return "; ".join(pending) or idle or "nothing: everything is as it should be"
    if cluster.settings.binder:
        return "nothing until something changes"
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    maker = storage_class.provisioner if storage_class is not None else ""
    if maker and cluster.drivers.get(maker) is None:
        return f"nothing here: a volume for it is {maker}'s to make, and the stock kube-controller-manager's to bind"
    return "nothing here: binding is the stock kube-controller-manager's work"


def _advice(events: Iterable[EventRecord], reason: str) -> Iterable[str]:
    for event in events:
        if event.message != reason:
            yield f"{event.type.lower()} event {event.reason}: {event.message}"
