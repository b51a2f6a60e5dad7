"""Explains why a claim, a volume, a class or an attachment is in its state, by the decisions that the runners make.

Nothing is performed: the decision is made as for the runner, and its action is described instead of taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volplane._messages import near
from volplane.controller.actions import Action, Create, Delete, LiveReads, Patch, Read, Run, Wait
from volplane.controller.controller import Controller
from volplane.controller.logs import trace_of
from volplane.expand.modify import stages
from volplane.intents.requests import segments_of, split_parameters, trash_of_class
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim, KubeObject, StorageClass, Volume, VolumeAttachment
from volplane.leaks.comparison import Finding
from volplane.operations.operation import OperationState, Phase
from volplane.protection.finalizers import uses
from volplane.snapshots.groups_objects import VolumeGroupSnapshot, group_content_name_of
from volplane.snapshots.groups_operation import GROUP_QUEUE
from volplane.snapshots.situation import situation_of, situation_of_group
from volplane.snapshots.state import content_name_of
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, refers_to
from volplane.state.naming import handle_of, volume_name_of, volume_source
from volplane.trash.choice import after_claim
from volplane.trash.decide import in_trash, seconds_left, trash_sentence

_MOST_NAMES = 10
_REFUSED_CLAIM = (
    "the claim of a generic ephemeral volume or of a StatefulSet is made by its controller: where that is refused, for"
    " a quota for example, an event FailedBinding of the pod or FailedCreate of the StatefulSet says why"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    kind: str
    name: str
    found: bool = True
    situation: tuple[str, ...]
    tried: tuple[str, ...] = ()
    """Its operations, with their last errors."""
    next: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    """By what its lines in logs are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    cluster: ClusterState
    controllers: Mapping[str, Controller]
    """By their queues."""
    reason: Callable[[str, str], str] = lambda _queue, _key: ""
    """(queue, key) -> why the key waits, by the last pass over it."""
    operations: Sequence[OperationState] = ()
    binds: bool = True
    expands: bool = True
    """Whether this process changes the volumes of bound claims."""
    drivers: Sequence[str] = ()
    """Names of all configured drivers, usable or not."""
    findings: Callable[[], Iterable[Finding]] = tuple

    def explain(self, kind: str, key: str) -> Explanation:
        """Explain an object. kind: claim, volume, class, snapshot or group. key: `namespace/name`, or the name."""
        if kind in ("snapshot", "group"):
            return self._snapshot(kind, key)
        caches: Mapping[str, Cache[Any]] = {
            "claim": self.cluster.claims,
            "volume": self.cluster.volumes,
            "class": self.cluster.classes,
        }
        item = caches[kind].get(key)
        if item is None:
            then = ("nothing, until somebody creates it", *((_REFUSED_CLAIM,) if kind == "claim" else ()))
            situation = (f"there is no {kind} {key}", *(self._found(key) if kind == "volume" else ()))
            return Explanation(kind=kind, name=key, found=False, situation=situation, next=then)
        return self._class(item) if isinstance(item, StorageClass) else self._decided(item)

    def _decided(self, item: Claim | Volume) -> Explanation:
        """Explain an object by what all controllers decide whose keys name it, and by its operations."""
        nothing = "nothing until something changes"
        if isinstance(item, Claim):
            kind, mine = "claim", self.controllers["claims"]
            unused = next((each for each in item.status.conditions or () if each.get("type") == "Unused"), {})
            idle = [f"no pod has used it since {unused.get('lastTransitionTime')}"] * (unused.get("status") == "True")
            situation = [*self._claim(item), *idle, *stages(item, expands=self.expands)]
            attachments = _attachments(item.spec.volume_name, self.cluster)
            nothing = self._idle(item, attachments) or nothing
        else:
            kind, mine = "volume", self.controllers["volumes"]
            situation = [*_volume(item, self.cluster), *self._found(item.name)]
            attachments = self.cluster.attachments_of(item)
        now = self.cluster.monotonic()
        then: list[str] = []
        for each in self.controllers.values():
            if each.cache is mine.cache and each.explained == "reason" and (why := self.reason(each.queue, item.key)):
                situation.append(f"{each.topic}{why}")
            elif each.cache is mine.cache and each.explained == "decided":
                action = (each.explain or each.decide)(item.key, LiveReads())
                decided = list(_next(action))
                if isinstance(action, Read) and (why := self.reason(each.queue, item.key)):
                    decided.append(f"by the last one: {why}")
                then = [*decided, *then] if each is mine else [*then, *decided]
        trace = trace_of(item, {self.cluster.volumes.kind.plural: self.cluster.volumes})
        uids = {item.uid, *(each.uid for each in attachments)}
        running = [state for state in self.operations if state.uid in uids]
        waits = [
            f"{_short(state)} ends, then this is decided anew"
            if state.next_try is None
            else f"{_short(state)} is tried again in {max(state.next_try - now, 0.0):.1f} s"
            for state in running
        ]
        return Explanation(
            kind=kind,
            name=item.key,
            situation=tuple(situation),
            tried=tuple(what_it_does(state, now, tries=False) for state in running),
            next=tuple(waits or then or (nothing,)),
            logs=(f"the trace {trace}, of all lines as JSON", *(f"the operation {state.name}" for state in running)),
        )

    def _found(self, volume: str) -> Iterator[str]:
        """Yield what the leak check found out about the asset of a volume, or one that has its name."""
        for each in self.findings():
            if volume in (each.volume, each.listed.name if each.listed is not None else None):
                yield f"the leak check calls its asset on driver {each.driver} {each.verdict}: {each.detail}"

    def _snapshot(self, kind: str, key: str) -> Explanation:
        """Explain a VolumeSnapshot, or a group of them, by what is decided about it and its content."""
        queues = ("snapshots", "snapshot-contents") if kind == "snapshot" else ("group-snapshots", GROUP_QUEUE)
        mine, theirs = (self.controllers.get(queue) for queue in queues)
        snapshot = mine.cache.get(key) if mine is not None else None
        if mine is None or snapshot is None:
            why = f"there is no {kind} {key}" if mine is not None else "this process binds no snapshots"
            return Explanation(kind=kind, name=key, found=False, situation=(why,))
        grouped = isinstance(snapshot, VolumeGroupSnapshot)
        name = group_content_name_of(snapshot) if grouped else content_name_of(snapshot)
        content = theirs.cache.get(name) if theirs is not None else None
        decided = [*_next(mine.decide(key, LiveReads()))]
        if theirs is not None and content is not None:
            decided += _next(theirs.decide(content.key, LiveReads()))
        uids, now = {snapshot.uid, content.uid if content is not None else ""}, self.cluster.monotonic()
        running = [each for each in self.operations if each.uid in uids]
        told = situation_of_group(snapshot, content) if grouped else situation_of(snapshot, content)
        return Explanation(
            kind=kind,
            name=key,
            situation=tuple(told),
            tried=tuple(what_it_does(each, now) for each in running),
            next=tuple(decided) or ("nothing: everything is as it should be",),
            logs=tuple(f"the operation {each.name}" for each in running),
        )

    def _class(self, storage_class: StorageClass) -> Explanation:
        name = storage_class.name
        waiting = [
            claim.key
            for claim in self.cluster.claims.values()
            if class_of_claim(claim) == name and claim.status.phase != "Bound" and not claim.terminating
        ]
        shown = ", ".join(sorted(waiting)[:_MOST_NAMES]) + (", …" if len(waiting) > _MOST_NAMES else "")
        driver = self.cluster.drivers.get(storage_class.provisioner)
        flaw = driver.parameters_flaw(split_parameters(storage_class)[0]) if driver is not None else ""
        policy = f"volumes made for it have policy {storage_class.reclaim_policy}"
        if (kept := trash_of_class(storage_class)) is not None:
            policy += f", and are kept for {kept} once their claim is deleted"
        return Explanation(
            kind="class",
            name=name,
            situation=(
                f"class {name} {self._served(storage_class)}",
                *([f"nothing is made for it: {flaw}"] if flaw else ()),
                policy,
            ),
            next=(f"claims that are not bound yet: {shown}" if waiting else "no claim waits for it",),
        )

    def _claim(self, claim: Claim) -> Iterator[str]:
        cluster = self.cluster
        yield f"claim {claim.key} is {claim.status.phase or 'Pending'}" + going(claim)
        if claim.terminating:
            pods = [each.name for each in cluster.pods.by_index("claim", claim.key) if uses(each, claim)]
            more = f", and {len(pods) - _MOST_NAMES} more" if len(pods) > _MOST_NAMES else ""
            users = f"; pods use it: {', '.join(sorted(pods)[:_MOST_NAMES])}{more}" if pods else ""
            yield f"its deletion waits for: {_holders(claim)}{users}"
        named = class_of_claim(claim)
        if named is None:
            default = cluster.default_class()
            yield "it names no class; " + (f"the default class is {default.name}" if default else "none is default")
        elif not named:
            yield "it asks for a volume without a class, so nothing is provisioned for it"
        else:
            storage_class = cluster.classes.get(named)
            lacks = f"does not exist{near(named, (each.name for each in cluster.classes.values()))}"
            yield f"its class {named} {self._served(storage_class) if storage_class is not None else lacks}"
        if name := claim.spec.volume_name:
            volume = cluster.volumes.get(name)
            if volume is None:
                yield f"it points at volume {name}, which does not exist"
            elif refers_to(volume, claim):
                yield f"it and volume {name} ({volume.status.phase}) point at each other"
                yield from self._found(name)
                yield from after_claim(volume)
            else:
                reference = volume.spec.claim_ref
                other = f"at {reference.key}" if reference is not None else "at no claim"
                yield f"it points at volume {name} ({volume.status.phase}), which points {other}"
            yield from map(attachment_sentence, _attachments(name, cluster))
            yield from self._awaited(claim)
        elif volume := cluster.volumes.get(volume_name_of(claim)):
            yield f"volume {volume.name} was made for it and is {volume.status.phase}"
        if node := claim.annotation(names.SELECTED_NODE):
            yield f"the scheduler selected node {node}"
        if claim.has_finalizer(names.PROVISIONING_FINALIZER):
            yield "an asset may be in the making: an intent is recorded on the claim"

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

    def _awaited(self, claim: Claim) -> Iterator[str]:
        return (sentence for each in self.controllers.values() for sentence in each.awaited(claim))

    def _idle(self, claim: Claim, attachments: Iterable[VolumeAttachment]) -> str:
        """Return what it means that nothing is to do for the claim; "" = something may change."""
        if claim.status.phase == "Bound" and not claim.terminating:
            pending = [_attachment_next(each) for each in attachments if each.terminating or not each.status.attached]
            idle = "" if any(self._awaited(claim)) else "nothing: everything is as it should be"
            return "; ".join(pending) or idle
        if self.binds:
            return ""
        storage_class = self.cluster.classes.get(class_of_claim(claim) or "")
        maker = storage_class.provisioner if storage_class is not None else ""
        if not maker or self.cluster.drivers.get(maker) is not None:
            return "nothing here: binding is the stock kube-controller-manager's work"
        return f"nothing here: a volume for it is {maker}'s to make, and the stock kube-controller-manager's to bind"


def explain_attachment(attachment: VolumeAttachment) -> Explanation:
    volume = attachment.spec.source.persistent_volume_name or "(inline)"
    return Explanation(
        kind="attachment",
        name=attachment.name,
        situation=(f"volume {volume} is for node {attachment.spec.node_name}", attachment_sentence(attachment)),
        next=(_attachment_next(attachment),),
    )


def _attachment_next(attachment: VolumeAttachment) -> str:
    attacher = attachment.spec.attacher
    if attachment.terminating:
        node = attachment.spec.node_name
        return f"attacher {attacher} detaches it from node {node}; it is held by {_holders(attachment)}"
    if attachment.status.attached:
        return "nothing: it is attached"
    return f"attacher {attacher} attaches it to node {attachment.spec.node_name}"


def going(item: KubeObject) -> str:
    return ", and is being deleted" if item.terminating else ""


def _holders(item: KubeObject) -> str:
    return ", ".join(item.metadata.finalizers or ()) or "nobody"


def _volume(volume: Volume, cluster: ClusterState) -> Iterator[str]:
    yield f"volume {volume.name} is {volume.status.phase or 'Pending'}" + going(volume)
    if volume.terminating:
        yield f"its deletion waits for: {_holders(volume)}"
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
        claim = cluster.claims.get(reference.key)
        state = "does not exist" if claim is None else f"is {claim.status.phase or 'Pending'}"
        yield f"it names claim {reference.key}, which {state}"
    source, places = volume_source(volume), segments_of(volume)
    path = ":".join(str(source.fields[key]) for key in ("server", "path") if key in source.fields)
    within = " or ".join("/".join(each.values()) for each in places)
    parts = [handle_of(volume), f"at {path}" if path else "", f"in {within}" if within else ""]
    yield f"its asset is {', '.join(filter(None, parts)) or 'unknown'}"
    yield f"its policy is {volume.spec.persistent_volume_reclaim_policy or 'Retain'}"
    if (record := in_trash(volume)) is not None and seconds_left(record, cluster) <= 0:
        yield f"its time in the trash is over since {record.until}: it is deleted as any other"
    elif record is not None:
        yield f"{trash_sentence(volume, record)}; deleting the object destroys its data at once"
    else:
        yield from after_claim(volume)
    yield from map(attachment_sentence, _attachments(volume.name, cluster))


def _attachments(volume: str, cluster: ClusterState) -> list[VolumeAttachment]:
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


def what_it_does(state: OperationState, now: float, *, tries: bool = True) -> str:
    """Return what an operation does now. tries: with the time of the next try if it waits for that."""
    seconds, name = f"{max(0.0, now - state.since):.1f} s", _short(state)
    match state.phase:
        case Phase.QUEUED:
            return f"{name} waits for its turn on driver {state.driver} for {seconds}"
        case Phase.OVERRUN:
            return f"{name} waits for {seconds} for a hook of driver {state.driver} that does not return"
        case Phase.WAITING:
            failed = f"{name} failed {state.failures} times, the last with: {state.error}"
            if not tries or state.next_try is None:
                return failed
            return f"{failed}; it is tried again in {max(0.0, state.next_try - now):.1f} s"
    progress = f"; {state.progress}" if state.progress else ""
    return f"{name} is running for {seconds} on driver {state.driver}{progress}"


def _short(state: OperationState) -> str:
    """Return what an operation of the object is called; logs have its whole name."""
    return f"{state.verb} ({state.node})" if state.node else state.verb


def _next(action: Action) -> Iterator[str]:
    match action:
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
            yield f"{action.verb} starts on driver {driver}"
