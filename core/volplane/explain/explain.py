"""Explains why a claim, a volume, a class or an attachment is in its state, by the decisions that the runners make.

Nothing is performed: the decision is made as for the runner, and its action is described instead of taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from volplane._messages import near
from volplane.controller.actions import Action, Create, Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.controller.controller import Controller
from volplane.controller.logs import trace_of
from volplane.expand.modify import stages
from volplane.kube import names
from volplane.kube.objects import Claim, StorageClass, Volume, VolumeAttachment
from volplane.operations import OperationState, Phase
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, refers_to
from volplane.state.naming import volume_name_of

__all__ = ["Explainer", "Explanation", "attachment_sentence", "explain_attachment", "what_it_does"]


_MOST_NAMES = 10
_REFUSED_CLAIM = (
    "the claim of a generic ephemeral volume or of a StatefulSet is made by its controller: where that is refused, for"
    " a quota for example, an event FailedBinding of the pod or FailedCreate of the StatefulSet says why"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An explanation of one object, in sentences."""

    kind: str
    name: str
    found: bool = True
    """Whether the object exists."""
    situation: tuple[str, ...]
    """Where it stands."""
    tried: tuple[str, ...]
    """Its operations, with their last errors."""
    next: tuple[str, ...]
    """What happens next, and when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """What explanations are made of. Nothing is performed: decisions are made as for the runners, and described."""

    cluster: ClusterState
    controllers: Mapping[str, Controller]
    """By their queues."""
    reason: Callable[[str, str], str] = lambda _queue, _key: ""
    """(queue, key) -> why the key waits, by the last pass over it."""
    operations: Sequence[OperationState] = ()
    now: float = 0.0
    """Loop time that the times of the operations refer to."""
    binds: bool = True
    """Whether this process is the binder."""
    expands: bool = True
    """Whether this process changes the volumes of bound claims."""
    drivers: Sequence[str] = ()
    """Names of all configured drivers, usable or not."""

    def explain(self, kind: str, key: str) -> Explanation:
        """Explain an object. kind: claim, volume or class. key: `namespace/name` of a claim, else the name.

        Raises ValueError for another kind.
        """
        cluster = self.cluster
        match kind:
            case "claim":
                claim = cluster.claims.get(key)
                return self._claim(claim) if claim is not None else _absent(kind, key)
            case "volume":
                volume = cluster.volumes.get(key)
                return self._volume(volume) if volume is not None else _absent(kind, key)
            case "class":
                storage_class = cluster.classes.get(key)
                return self._class(storage_class) if storage_class is not None else _absent(kind, key)
        raise ValueError(f"kind {kind!r} is none of claim, volume, class")

    def _claim(self, claim: Claim) -> Explanation:
        situation = (*self._situation(claim), *stages(claim, expands=self.expands))
        attachments = _attachments(claim.spec.volume_name, self.cluster)
        return self._explained(claim, attachments, situation, self._nothing(claim))

    def _volume(self, volume: Volume) -> Explanation:
        situation, attachments = _volume_situation(volume, self.cluster), self.cluster.attachments_of(volume)
        nothing = "nothing until something changes"
        return self._explained(volume, attachments, situation, nothing)

    def _explained(
        self, item: Claim | Volume, attachments: Iterable[VolumeAttachment], situation: Iterable[str], nothing: str
    ) -> Explanation:
        """Add to the situation what all controllers say whose keys name the object, and its operations.

        nothing: what it means that the first of the controllers has nothing to do.
        """
        kind, queue = ("claim", "claims") if isinstance(item, Claim) else ("volume", "volumes")
        mine = self.controllers[queue]
        uids = {item.uid, *(each.uid for each in attachments)}
        running = [state for state in self.operations if state.uid in uids]
        reasons: list[str] = []
        others: list[str] = []
        for each in self.controllers.values():
            if each.cache is not mine.cache or each is mine:
                continue
            if each.explained == "reason" and (why := self.reason(each.queue, item.key)):
                reasons.append(f"{each.topic}{why}")
            elif each.explained == "decided" and not isinstance(decided := _decided(each, item.key), Settled):
                others += _next(decided, "")
        action = _decided(mine, item.key)
        first = () if others and isinstance(action, Settled) else _next(action, nothing)
        trace = trace_of(item, {self.cluster.volumes.kind.plural: self.cluster.volumes})
        waits = [
            f"{state.name} ends, then this is decided anew"
            if state.next_try is None
            else f"{state.name} is tried again in {max(state.next_try - self.now, 0.0):.1f} s"
            for state in running
        ]
        return Explanation(
            kind=kind,
            name=item.key,
            situation=(*situation, *reasons, f"in logs as JSON all lines about it have the trace {trace}"),
            tried=tuple(_describe(state, self.now) for state in running),
            next=tuple(waits or (*first, *others)),
        )

    def _class(self, storage_class: StorageClass) -> Explanation:
        name = storage_class.name
        waiting = [
            claim.key
            for claim in self.cluster.claims.values()
            if class_of_claim(claim) == name and claim.status.phase != "Bound" and not claim.terminating
        ]
        shown = ", ".join(sorted(waiting)[:_MOST_NAMES]) + (", …" if len(waiting) > _MOST_NAMES else "")
        return Explanation(
            kind="class",
            name=name,
            situation=(
                f"class {name} {self._served(storage_class)}",
                f"volumes made for it have policy {storage_class.reclaim_policy}",
            ),
            tried=(),
            next=(f"claims that are not bound yet: {shown}" if waiting else "no claim waits for it",),
        )

    def _situation(self, claim: Claim) -> Iterable[str]:
        cluster = self.cluster
        phase = claim.status.phase or "Pending"
        yield f"claim {claim.key} is {phase}" + (", and is being deleted" if claim.terminating else "")
        if claim.terminating:
            holders = ", ".join(claim.metadata.finalizers or ()) or "nobody"
            yield f"its deletion waits for: {holders}"
        yield self._class_sentence(claim)
        if claim.spec.volume_name:
            yield _volume_sentence(claim, cluster)
            yield from map(attachment_sentence, _attachments(claim.spec.volume_name, cluster))
            yield from self._awaited(claim)
        elif volume := cluster.volumes.get(volume_name_of(claim)):
            yield f"volume {volume.name} was made for it and is {volume.status.phase}"
        if node := claim.annotation(names.SELECTED_NODE):
            yield f"the scheduler selected node {node}"
        if claim.has_finalizer(names.PROVISIONING_FINALIZER):
            yield "an asset may be in the making: an intent is recorded on the claim"

    def _class_sentence(self, claim: Claim) -> str:
        named = class_of_claim(claim)
        if named is None:
            default = self.cluster.default_class()
            return "it names no class; " + (f"the default class is {default.name}" if default else "none is default")
        if not named:
            return "it asks for a volume without a class, so nothing is provisioned for it"
        storage_class = self.cluster.classes.get(named)
        if storage_class is None:
            return f"its class {named} does not exist"
        return f"its class {named} {self._served(storage_class)}"

    def _served(self, storage_class: StorageClass) -> str:
        cluster = self.cluster
        driver = cluster.drivers.get(storage_class.provisioner)
        broken = cluster.drivers.broken(storage_class.provisioner)
        unknown = f"not a driver of this process{near(storage_class.provisioner, self.drivers)}"
        if driver is None and cluster.drivers.on_nodes(storage_class.provisioner):
            unknown = "served by the processes of the nodes"
        served = "served here" if driver else f"not usable here: {broken}" if broken else unknown
        mode = storage_class.volume_binding_mode or "Immediate"
        return f"binds {mode} and is provisioned by {storage_class.provisioner}, which is {served}"

    def _awaited(self, claim: Claim) -> Iterable[str]:
        return (sentence for each in self.controllers.values() for sentence in each.awaited(claim))

    def _nothing(self, claim: Claim) -> str:
        """Return what it means that there is nothing to do."""
        cluster = self.cluster
        if claim.status.phase == "Bound" and not claim.terminating:
            pending = [
                _attachment_next(each)
                for each in _attachments(claim.spec.volume_name, cluster)
                if each.terminating or not each.status.attached
            ]
            idle = "nothing until something changes" if any(self._awaited(claim)) else ""
            return "; ".join(pending) or idle or "nothing: everything is as it should be"
        if self.binds:
            return "nothing until something changes"
        storage_class = cluster.classes.get(class_of_claim(claim) or "")
        maker = storage_class.provisioner if storage_class is not None else ""
        if maker and cluster.drivers.get(maker) is None:
            return (
                f"nothing here: a volume for it is {maker}'s to make, and the stock kube-controller-manager's to bind"
            )
        return "nothing here: binding is the stock kube-controller-manager's work"


def _decided(controller: Controller, key: str) -> Action:
    return (controller.explain or controller.decide)(key, LiveReads())


def explain_attachment(attachment: VolumeAttachment) -> Explanation:
    """Explain an attachment by what it says itself."""
    volume = attachment.spec.source.persistent_volume_name or "(inline)"
    return Explanation(
        kind="attachment",
        name=attachment.name,
        situation=(f"volume {volume} is for node {attachment.spec.node_name}", attachment_sentence(attachment)),
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
        key = reference.key
        claim = cluster.claims.get(key)
        state = "does not exist" if claim is None else f"is {claim.status.phase or 'Pending'}"
        yield f"it names claim {key}, which {state}"
    yield f"its policy is {volume.spec.persistent_volume_reclaim_policy or 'Retain'}"
    yield from map(attachment_sentence, _attachments(volume.name, cluster))


def _volume_sentence(claim: Claim, cluster: ClusterState) -> str:
    name = claim.spec.volume_name
    volume = cluster.volumes.get(name)
    if volume is None:
        return f"it points at volume {name}, which does not exist"
    if refers_to(volume, claim):
        return f"it and volume {name} ({volume.status.phase}) point at each other"
    reference = volume.spec.claim_ref
    other = f"at {reference.key}" if reference is not None else "at no claim"
    return f"it points at volume {name} ({volume.status.phase}), which points {other}"


def _attachments(volume: str, cluster: ClusterState) -> list[VolumeAttachment]:
    """Return the attachments of the asset of the volume with this name."""
    found = cluster.volumes.get(volume)
    return cluster.attachments_of(found) if found is not None else list(cluster.attachments.by_index("volume", volume))


def attachment_sentence(attachment: VolumeAttachment) -> str:
    """Return where the attachment stands, and how the last try failed."""
    status, error = attachment.status, attachment.status.attach_error
    if attachment.terminating:
        state, error = "is being detached", status.detach_error
    else:
        state = "is attached" if status.attached else f"waits for attacher {attachment.spec.attacher}"
    failed = f"; the last try failed at {error.time}: {error.message}" if error is not None else ""
    return f"attachment {attachment.name} to node {attachment.spec.node_name} {state}{failed}"


def what_it_does(state: OperationState, now: float) -> str:
    """Return what an operation does now, with the time of the next try if it waits for that."""
    text = _describe(state, now)
    if state.phase is Phase.WAITING and state.next_try is not None:
        return f"{text}; it is tried again in {max(0.0, state.next_try - now):.1f} s"
    return text


def _describe(state: OperationState, now: float) -> str:
    seconds = f"{max(0.0, now - state.since):.1f} s"
    match state.phase:
        case Phase.QUEUED:
            return f"{state.name} waits for its turn on driver {state.driver} for {seconds}"
        case Phase.OVERRUN:
            return f"{state.name} waits for {seconds} for a hook of driver {state.driver} that does not return"
        case Phase.WAITING:
            return f"{state.name} failed {state.failures} times, the last with: {state.error}"
    return f"{state.name} is running for {seconds} on driver {state.driver}"


def _next(action: Action, nothing: str) -> Iterable[str]:
    """Describe the action. nothing: what it means that there is nothing to do."""
    match action:
        case Settled():
            yield nothing
        case Wait(reason=reason, seconds=seconds, events=events):
            when = "nothing until something changes" if seconds is None else f"in {seconds:.1f} s again"
            yield f"{when}: {reason}"
            for event in events:
                if event.message != reason:
                    yield f"{event.type.lower()} event {event.reason}: {event.message}"
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
