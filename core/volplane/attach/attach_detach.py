"""Attach-detach: the next step for a volume on a node, and for the report of a node.

The decisions are pure. `AttachDetach` keeps what they need between passes, records each Event once, and follows the
caches.

A volume is attached by creating its VolumeAttachment, and reported in `volumesAttached` of the node once that is
attached. It is detached in the opposite order: the report is withdrawn, the node is read live, and only if its kubelet
does not use the volume then is the attachment deleted. The kubelet writes `volumesInUse` before it reads
`volumesAttached`, both on one object, so that at least one of the two sees the other.
Source: reconciler.go and node_status_updater.go of pkg/controller/volume/attachdetach of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from volplane.attach import desired
from volplane.attach.attacher import declared
from volplane.attach.desired import Pair
from volplane.controller.actions import Action, Create, Delete, LiveReads, Patch, Queue, Read, Settled, Wait
from volplane.controller.metrics import Metrics
from volplane.kube import names
from volplane.kube.events import EventRecord
from volplane.kube.kinds import ATTACHMENTS, NODES, PODS, VOLUMES
from volplane.kube.objects import Claim, CsiDriver, KubeObject, Node, Pod, Volume, VolumeAttachment
from volplane.state.cluster_state import CSI_PREFIX, ClusterState, asset_name, csi_parts, finished, unique_name
from volplane.state.records import attachment_intent_of

ATTACH_TIMEOUT: Final = 120.0
"""Seconds after which, again and again, events on the pods report that no attacher answers."""
DELETION_LASTS: Final = 120.0
"""Seconds after which a request whose answer never came cannot take effect any more."""
_REPORT_TOGETHER: Final = 0.5
"""Seconds for which a volume's report waits at most for others that are about to be attached to its node.

A kubelet asks for a volume up to ten seconds after it was wanted.
"""
_WITHDRAW_TOGETHER: Final = 0.1
"""The same for one that is to be detached: the period of the stock controller's loop."""

ObjectT = TypeVar("ObjectT", bound=KubeObject)


@dataclass(slots=True)
class AttachDetachState:
    """What the decisions see: the cluster, and what a restart may forget."""

    cluster: ClusterState
    force_detach_after: float | None = 360.0
    attaches_here: bool = False
    unwanted: dict[str, float] = field(default_factory=dict)
    """Key of a pair -> loop time since which no pod wants the volume on the node, while it is attached."""
    last_in_use: dict[str, frozenset[str]] = field(default_factory=dict)
    """Name of a node that is gone, with attachments -> what its kubelet used last."""
    creating: dict[str, str] = field(default_factory=dict)
    """Unique name of a volume for one node at a time -> key of the pair whose attachment is being created."""
    reports: dict[str, set[str]] = field(default_factory=dict)
    """Name of a node -> unique names whose place in `volumesAttached` is to be decided."""
    withdrawn: set[str] = field(default_factory=set)
    """Keys of pairs that were listed, and then shown as neither listed nor in use by one version of the node."""
    deleting: dict[str, float] = field(default_factory=dict)
    """Key of a pair -> loop time of the request to delete its attachment, which may take effect at any moment."""

    def deletion_pending(self, pair: Pair) -> float:
        """Return the seconds for which a deletion of the pair's attachment may still take effect; 0: none can."""
        started = self.deleting.get(pair.key)
        return 0.0 if started is None else max(started + DELETION_LASTS - self.cluster.monotonic(), 0.0)


class Decision(NamedTuple):
    """The next step for a pair, and what is to be counted and reported about it."""

    action: Action
    about: str = ""
    """Identifies the events: they are recorded once for each text while the volume is wanted on the node."""
    wanted: bool = False
    """The volume is wanted on the node."""
    forced: str = ""
    """Why it is detached though its node may use it: "timeout", "out-of-service"."""
    failed: bool = False
    """`about` is a failure to attach or to detach."""


def decide_pair(pair: Pair, state: AttachDetachState, reads: LiveReads) -> Decision:
    attachment = state.cluster.attachments.get(pair.attachment)
    if found := desired.users_of(pair, state.cluster):
        users, volume = [pod for pod, _ in found], found[0][1]
        decision, node = _wanted(pair, attachment, volume, users, state), state.cluster.nodes.get(pair.node)
        # Without proof that its machine is another one, the kubelet may be about to mount it.
        deletes = isinstance(decision.action, Delete)
        if deletes and attachment and node and desired.same_machine(attachment, node) is None:
            first = _unwanted(pair, attachment, state, reads)
            decision = decision if isinstance(first.action, Delete) else first
        return decision._replace(wanted=True)
    if attachment is None or not desired.named_by_controller(attachment):
        return Decision(Settled())  # An attachment with another name is not ours to delete.
    if not csi_parts(pair.volume)[0]:
        name = attachment.spec.source.persistent_volume_name or ""
        if desired.pair_of_attachment(attachment, state.cluster) != pair:
            return Decision(Settled())  # Its volume is known by now: it is decided by the volume's name.
        if not reads.has(VOLUMES, name):
            return Decision(Read(VOLUMES, name, why="is its volume really gone?"))
    return _unwanted(pair, attachment, state, reads)


def _wanted(
    pair: Pair, attachment: VolumeAttachment | None, volume: Volume, users: Sequence[Pod], state: AttachDetachState
) -> Decision:
    if attachment is None:
        return _create(pair, volume, users, state)
    if attachment.terminating:
        text = "volume attachment is being deleted"
        return _attach_failed(volume, users, text, about=f"deleted {attachment.uid}")
    node = state.cluster.nodes.get(pair.node)
    former = node is not None and _of_former_machine(attachment, node, pair.volume)
    if former is None:
        return Decision(Wait(reason=f"node {pair.node} was registered again, and has not reported yet what it uses"))
    if former:
        # Another machine has the node's name now, and does not have the volume.
        return Decision(Delete(kind=ATTACHMENTS, target=attachment, why="it is of a former node", exact=False))
    if not attachment.status.attached:
        return _awaited(attachment, volume, users, state.cluster)
    if node is None or not desired.is_managed(node) or pair.volume in desired.listed_volumes(node):
        # Pods are told where this controller writes the node's list, and before the node lists the volume.
        return Decision(Settled())
    text = f'AttachVolume.Attach succeeded for volume "{volume.name}" '
    events = tuple(EventRecord(PODS, pod, "Normal", "SuccessfulAttachVolume", text) for pod in users)
    return Decision(Settled(events=events), about=f"attached {attachment.uid}")


def _create(pair: Pair, volume: Volume, users: Sequence[Pod], state: AttachDetachState) -> Decision:
    node = state.cluster.nodes.get(pair.node)
    if node is None:
        return Decision(Wait(reason=f"node {pair.node} does not exist"))
    if not desired.is_managed(node):
        return Decision(Settled())  # Its kubelet attaches for itself.
    # On two nodes at once, both would write to the file system of the volume.
    if others := desired.elsewhere(pair, state.cluster):
        return _blocked(pair, volume, users, others, state)
    if state.creating.get(pair.volume, pair.key) != pair.key:
        return Decision(Wait(reason="it is about to be attached to another node"))
    driver, _ = csi_parts(pair.volume)
    ours = declared(volume, node, driver, state.cluster) if state.attaches_here else {}
    annotations = {names.NODE_UID: node.uid, **ours.get("annotations", {})}
    spec = {"attacher": driver, "nodeName": pair.node, "source": {"persistentVolumeName": volume.name}}
    body = ATTACHMENTS.body(metadata={"name": pair.attachment, **ours, "annotations": annotations}, spec=spec)
    text = f'AttachVolume.Attach failed for volume "{volume.name}"'
    failure = EventRecord(PODS, users[0], "Warning", "FailedAttachVolume", text)
    why = f"pod {users[0].key} needs it on {pair.node}"
    return Decision(Create(kind=ATTACHMENTS, body=body, why=why, failure_event=failure))


def _blocked(
    pair: Pair, volume: Volume, users: Sequence[Pod], others: Sequence[VolumeAttachment], state: AttachDetachState
) -> Decision:
    """Wait for another node that has it. Events say so if it stays there for a while, and why no detach succeeds."""
    nodes = ", ".join(sorted({each.spec.node_name for each in others}))
    reason = f"it is attached to {nodes}, and may be on one node at a time"
    there = (Pair(each.spec.node_name, pair.volume) for each in others)
    theirs = [pod for other in there for pod, _ in desired.users_of(other, state.cluster)]
    kept = (
        each.status.detach_error
        if each.terminating
        else theirs or _mounted(Pair(each.spec.node_name, pair.volume), state)
        for each in others
        if each.status.attached
    )
    # Unless a failure, a pod or the node keeps it there, its detach is about to begin.
    if not any(kept):
        return Decision(Wait(reason=reason))
    errors = ((each.spec.node_name, each.status.detach_error) for each in others if each.terminating)
    why = (f"; it cannot be detached from {node}: {error.message}" for node, error in errors if error is not None)
    failures = "".join(why)
    texts = ((pod, _multi_attach_text(volume, pod, theirs) + failures) for pod in users)
    events = tuple(EventRecord(PODS, pod, "Warning", "FailedAttachVolume", text) for pod, text in texts)
    about = "multi-attach, and no detach" if failures else "multi-attach"
    return Decision(Wait(reason=f"{reason}{failures}", events=events), about=about)


def _multi_attach_text(volume: Volume, pod: Pod, others: Sequence[Pod]) -> str:
    """Return the message for a pod. It does not disclose names of pods in other namespaces."""
    same = [other.name for other in others if other.namespace == pod.namespace]
    users = [f"pod(s) {', '.join(same)}"] if same else []
    if foreign := len(others) - len(same):
        users.append(f"{foreign} pod(s) in different namespaces")
    exclusive = "exclusively attached to one node and can't be attached to another"
    use = f"used by {' and '.join(users)}" if users else exclusive
    return f'Multi-Attach error for volume "{volume.name}" Volume is already {use}'


def _awaited(attachment: VolumeAttachment, volume: Volume, users: Sequence[Pod], cluster: ClusterState) -> Decision:
    error = attachment.status.attach_error
    if error is not None:
        return _attach_failed(volume, users, error.message, about=f"error {attachment.uid} {error.time}")
    waited, attacher = cluster.seconds_since(attachment.metadata.creation_timestamp), attachment.spec.attacher
    times = int(waited // ATTACH_TIMEOUT)
    left = (times + 1) * ATTACH_TIMEOUT - waited
    if times == 0:
        return Decision(Wait(reason=f"waiting for attacher {attacher}", seconds=left))
    handle = (volume.spec.csi or {}).get("volumeHandle", "")
    text = f"timed out waiting for external-attacher of {attacher} CSI driver to attach volume {handle}"
    return _attach_failed(volume, users, text, about=f"timeout {attachment.uid} {times}", seconds=left)


def _attach_failed(
    volume: Volume, users: Sequence[Pod], why: str, *, about: str, seconds: float | None = None
) -> Decision:
    text = f'AttachVolume.Attach failed for volume "{volume.name}" : {why}'
    events = tuple(EventRecord(PODS, pod, "Warning", "FailedAttachVolume", text) for pod in users)
    return Decision(Wait(reason=why, seconds=seconds, events=events), about=about, failed=True)


def _of_former_machine(attachment: VolumeAttachment, node: Node, unique: str) -> bool | None:
    """Return whether it was made for a machine that had the node's name before; None: that is not known yet."""
    same = desired.same_machine(attachment, node)
    if same is None and unique not in desired.volumes_in_use(node):
        return True if desired.has_reported(node) else None
    return same is False


def _unwanted(pair: Pair, attachment: VolumeAttachment, state: AttachDetachState, reads: LiveReads) -> Decision:
    if attachment.terminating:
        reason = f"attacher {attachment.spec.attacher} is detaching it"
        error = attachment.status.detach_error
        if error is None:
            return Decision(Wait(reason=reason))
        about = f"error {attachment.uid} {error.time}"
        return Decision(Wait(reason=f"{reason}: {error.message}"), about=about, failed=True)
    node = state.cluster.nodes.get(pair.node)
    mounted = _mounted(pair, state)
    forced, left = _force(pair, node, state) if mounted else ("", None)
    if mounted and not forced:
        return Decision(Wait(reason=f"node {pair.node} still uses it", seconds=left))
    if node is not None and desired.is_managed(node) and _among(pair, desired.listed_volumes(node)):
        return Decision(Wait(reason=f"the report of node {pair.node} still lists it"))
    if not forced and pair.key not in state.withdrawn and not reads.has(NODES, pair.node):
        return Decision(Read(NODES, pair.node, why="does its kubelet use the volume?"))
    why = f"no pod needs it on {pair.node}" + (f"; forced: {forced}" if forced else "")
    return Decision(Delete(kind=ATTACHMENTS, target=attachment, why=why, exact=False), forced=forced)


def _mounted(pair: Pair, state: AttachDetachState) -> bool:
    """Return whether its kubelet may use it. For a node that is gone its last report counts; without one it may."""
    node, attachment = state.cluster.nodes.get(pair.node), state.cluster.attachments.get(pair.attachment)
    if node is not None:
        unreported = attachment is not None and desired.may_use_unreported(attachment, node)
        return unreported or _among(pair, desired.volumes_in_use(node))
    known = state.last_in_use.get(pair.node)
    return known is None or _among(pair, known)


def _among(pair: Pair, volumes: Iterable[str]) -> bool:
    if csi_parts(pair.volume)[0]:
        return pair.volume in volumes
    return any(Pair(pair.node, each).attachment == pair.volume for each in volumes)


def _force(pair: Pair, node: Node | None, state: AttachDetachState) -> tuple[str, float | None]:
    """Return why it may be detached all the same, or the seconds until then; None: until something changes."""
    since = state.unwanted.get(pair.key, state.cluster.monotonic())
    never = state.force_detach_after is None
    left = since + (state.force_detach_after or 0.0) - state.cluster.monotonic()
    expired = not never and left <= 0
    if desired.out_of_service(node):
        return ("timeout" if expired else "out-of-service"), None
    if desired.is_ready(node) or never:
        return "", None  # A healthy kubelet unmounts it. By force, what it has not written yet would be lost.
    return ("timeout", None) if expired else ("", left)


# --- the report of a node -----------------------------------------------------------------------------------------


def decide_node(name: str, state: AttachDetachState) -> Action:
    """Return the write of the node's `volumesAttached`: what is attached and not about to be detached.

    One write for all volumes of `reports`; the others are as they should be. It carries the version of the node that it
    was computed from, because a list is replaced as a whole.
    """
    node = state.cluster.nodes.get(name)
    if node is None or not desired.is_managed(node):
        return Settled()  # The kubelet writes the list itself.
    listed = {each.name: each.device_path for each in node.status.volumes_attached or ()}
    report = dict(listed)
    for unique in state.reports.get(name, ()):
        pair = Pair(name, unique)
        if unique not in listed and _appears(pair, node, state):
            report[unique] = ""
        elif unique in listed and not _stays(pair, node, state):
            del report[unique]
    if report.keys() == listed.keys():
        return Settled()
    attached = [{"name": unique, "devicePath": report[unique]} for unique in sorted(report)]
    more, fewer = len(report.keys() - listed.keys()), len(listed.keys() - report.keys())
    why = f"{more} volumes are attached, {fewer} are about to be detached"
    body = {"status": {"volumesAttached": attached or None}}
    return Patch(kind=NODES, target=node, body=body, subresource="status", why=why)


def report_differs(pair: Pair, state: AttachDetachState) -> bool:
    """Return whether what `decide_node` would write about this volume is not what the node lists."""
    node = state.cluster.nodes.get(pair.node)
    if node is None or not desired.is_managed(node):
        return False  # The kubelet writes the list itself.
    return not _stays(pair, node, state) if _among(pair, desired.listed_volumes(node)) else _appears(pair, node, state)


def _stays(pair: Pair, node: Node, state: AttachDetachState) -> bool:
    if not csi_parts(pair.volume)[0]:
        return True  # It is no CSI volume: others have written it.
    attachment, wanted = state.cluster.attachments.get(pair.attachment), bool(desired.users_of(pair, state.cluster))
    # What the kubelet uses stays listed: the report is withdrawn only of what is about to be detached.
    if attachment is None and not wanted:
        return _mounted(pair, state) and not _force(pair, node, state)[0]
    if attachment is None or attachment.terminating or not attachment.status.attached:
        return False  # It is not attached, or about to be detached: the kubelet must not mount it.
    # What is attached to the machine that had the node's name before is not at this one.
    if wanted:
        return not _of_former_machine(attachment, node, pair.volume)
    return _mounted(pair, state) and not _force(pair, node, state)[0]


def _appears(pair: Pair, node: Node, state: AttachDetachState) -> bool:
    """Return whether a volume that is not reported is to be: it is attached and wanted, to this very node.

    Not while a deletion of its attachment may take effect: a kubelet would mount what is about to be detached. A
    kubelet that has registered again reports as in use only what is listed, even if it is not wanted any more.
    """
    cluster = state.cluster
    attachment = cluster.attachments.get(pair.attachment)
    if attachment is None or attachment.terminating or not attachment.status.attached or state.deletion_pending(pair):
        return False
    if not desired.users_of(pair, cluster):
        return bool(csi_parts(pair.volume)[0]) and desired.may_use_unreported(attachment, node)
    return _of_former_machine(attachment, node, pair.volume) is False


def waiting_nodes(claim: Claim, cluster: ClusterState) -> Iterator[str]:
    """Yield, for explain, the nodes where a pod needs the claim's volume and no attachment can be made yet."""
    volume = cluster.volume_of(claim)
    for pair in sorted(desired.pairs_wanted(unique_name(volume), cluster)) if volume is not None else ():
        if pair.attachment not in cluster.attachments:
            action = decide_pair(pair, AttachDetachState(cluster), LiveReads()).action
            if isinstance(action, Wait):
                yield f"node {pair.node}, where a pod needs it, waits for it: {action.reason}"


# --- what is kept between decisions, and what queues them -----------------------------------------------------------


@dataclass(slots=True)
class AttachDetach:
    """Decides pairs and the reports of nodes, and queues those that a change of the caches concerns."""

    state: AttachDetachState
    pairs: Queue
    nodes: Queue
    metrics: Metrics | None = None
    _awaited: dict[str, set[str]] = field(default_factory=dict, init=False)
    """Name of a node -> keys of pairs that are about to be attached."""
    _recorded: dict[str, str] = field(default_factory=dict, init=False)
    """Key of a pair -> what was recorded or counted of it last."""
    _detached_at: dict[str, float] = field(default_factory=dict, init=False)
    """Key of a pair -> loop time at which its attachment was deleted."""

    def reconcile_pair(self, key: str, reads: LiveReads) -> Action:
        """Return the next step for a pair. Its node is queued when the node's report is to change."""
        state, cluster = self.state, self.state.cluster
        name, _, volume = key.partition("/")
        pair = Pair(name, volume)
        released = state.creating.get(pair.volume) == key
        if released:
            del state.creating[pair.volume]
        decision = decide_pair(pair, state, reads)
        attachment = cluster.attachments.get(pair.attachment)
        self._remember(pair, decision, attachment)
        if isinstance(decision.action, Create) and not desired.may_share(pair.volume, cluster):
            state.creating[pair.volume] = key
        elif released:
            # The others wait for the decision whether another node may have the volume.
            self._queue_wanted(pair.volume, but=pair)
        if report_differs(pair, state):
            state.reports.setdefault(pair.node, set()).add(pair.volume)
            # A report waits for others of its node, because each is a write.
            waits = _REPORT_TOGETHER if self._awaited.get(pair.node) else 0.0
            self.nodes.enqueue(pair.node, waits if decision.wanted else _WITHDRAW_TOGETHER)
        deletes = isinstance(decision.action, Delete)
        if deletes:
            state.deleting[key] = cluster.monotonic()
            self._detached_at.setdefault(key, cluster.monotonic())
            if decision.forced and self.metrics is not None:
                self.metrics.forced_detaches[(decision.forced,)].inc()
        elif attachment is None and key in self._detached_at:
            self._count("volume_detach", pair, cluster.monotonic() - self._detached_at.pop(key))
        # A deletion that is on its way could take effect after the pod was told that the volume is attached.
        if decision.wanted and not deletes and (left := state.deletion_pending(pair)):
            return Wait(reason="its attachment may be about to be deleted", seconds=left)
        return self._once(pair, decision, attachment)

    def _remember(self, pair: Pair, decision: Decision, attachment: VolumeAttachment | None) -> None:
        """Keep what the next decisions about the pair and the report of its node depend on."""
        state, key = self.state, pair.key
        if decision.wanted or attachment is None:
            state.unwanted.pop(key, None)
            state.withdrawn.discard(key)
        else:
            state.unwanted.setdefault(key, state.cluster.monotonic())
        if not decision.wanted and not decision.about:
            self._recorded.pop(key, None)
        if attachment is None or attachment.terminating:
            state.deleting.pop(key, None)
        waits = isinstance(decision.action, Wait) and attachment is not None and not attachment.status.attached
        awaited = self._awaited.setdefault(pair.node, set())
        if isinstance(decision.action, Create) or (waits and decision.wanted and not decision.failed):
            awaited.add(key)
        else:
            awaited.discard(key)
        if not awaited:
            del self._awaited[pair.node]

    def _once(self, pair: Pair, decision: Decision, attachment: VolumeAttachment | None) -> Action:
        """Return the action without events that were recorded already. What is recorded is counted, too."""
        action = decision.action
        if not decision.about or not isinstance(action, Wait | Settled):
            return action  # There is nothing to record.
        if self._recorded.get(pair.key) == decision.about:
            return replace(action, events=())
        self._recorded[pair.key] = decision.about
        if attachment is not None:
            since = attachment.metadata.deletion_timestamp or attachment.metadata.creation_timestamp
            operation = "volume_detach" if attachment.terminating and not decision.wanted else "volume_attach"
            self._count(operation, pair, self.state.cluster.seconds_since(since), failed=decision.failed)
        return action

    def _count(self, operation: str, pair: Pair, seconds: float, *, failed: bool = False) -> None:
        if self.metrics is not None:
            plugin = desired.plugin_label(csi_parts(pair.volume)[0])
            self.metrics.attach_detach_ended(plugin, operation, seconds, failed=failed)

    def reconcile_node(self, key: str, _reads: LiveReads) -> Action:
        """Return the write of a node's report. Once nothing is to be written, nothing of it is to be decided."""
        action = decide_node(key, self.state)
        if isinstance(action, Settled):
            self.state.reports.pop(key, None)
        return action

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if _unchanged(old, new, lambda pod: (pod.spec.node_name, finished(pod))):
            return
        for pod in (old, new):
            if pod is not None:
                self._queue(*desired.pairs_of_pod(pod, self.state.cluster))

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if _unchanged(old, new, lambda claim: (claim.status.phase, claim.spec.volume_name)):
            return
        for name in {each.spec.volume_name for each in (old, new) if each is not None}:
            volume = self.state.cluster.volumes.get(name)
            if volume is not None:
                self._queue_volume(volume)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if _unchanged(old, new, lambda volume: (volume.spec.claim_ref, volume.spec.csi, volume.spec.access_modes)):
            return
        for volume in (old, new):
            if volume is not None:
                self._queue_volume(volume)

    def csi_driver_changed(self, old: CsiDriver | None, new: CsiDriver | None) -> None:
        """Queue the volumes of a driver whose CSIDriver says otherwise now whether they need attaching."""
        if old is not None and new is not None and old.spec == new.spec:
            return  # Its volumes need attaching as before, or not.
        prefix = f"{CSI_PREFIX}{(new or old or CsiDriver()).name}^"
        for volume in self.state.cluster.volumes.values():
            if unique_name(volume).startswith(prefix):
                self._queue_volume(volume)

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        present, cluster = new or old or VolumeAttachment(), self.state.cluster
        if new is None and not cluster.attachments.by_index("node", present.spec.node_name):
            self.state.last_in_use.pop(present.spec.node_name, None)
        # What its attacher records on it decides nothing.
        if _unchanged(old, new, lambda each: (each.terminating, each.status, each.annotation(names.NODE_UID))):
            return
        self._queue(desired.pair_of_attachment(present, cluster))
        if new is not None and (
            old is None or _unchanged(old, new, lambda each: (each.status.attached, bool(each.status.detach_error)))
        ):
            return
        # Pods elsewhere may wait for the volume. If that is gone, another one may be of the asset in its record.
        volume = cluster.volumes.get(present.spec.source.persistent_volume_name or "")
        if volume is not None:
            self._queue_wanted(unique_name(volume))
        elif (record := attachment_intent_of(present)) is not None:
            self._queue_wanted(f"{CSI_PREFIX}{asset_name(present.spec.attacher, record.handle)}")

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        state, cluster, name = self.state, self.state.cluster, (new or old or Node()).name
        state.last_in_use.pop(name, None)
        if new is None and cluster.attachments.by_index("node", name):
            state.last_in_use[name] = frozenset(desired.volumes_in_use(old or Node()))
        facts = (desired.is_managed, desired.is_ready, desired.out_of_service, desired.has_reported)
        same = _unchanged(old, new, lambda node: [fact(node) for fact in facts])
        # These facts concern every volume on the node.
        if old is None or new is None or not same:
            self.nodes.enqueue(name)
            for attachment in cluster.attachments.by_index("node", name):
                self._queue(desired.pair_of_attachment(attachment, cluster))
            self._queue_named(name, desired.listed_volumes(new) if new is not None else ())
            for pod in cluster.pods.by_index("node", name):
                self._queue(*desired.pairs_of_pod(pod, self.state.cluster))
            return
        self._queue_named(name, set(desired.volumes_in_use(old)) ^ set(desired.volumes_in_use(new)))
        if old.status.volumes_attached != new.status.volumes_attached:
            before, now = set(desired.listed_volumes(old)), set(desired.listed_volumes(new))
            withdrawn, added = before - now, now - before
            # What is withdrawn and not in use may be detached.
            state.withdrawn.update(Pair(name, each).key for each in withdrawn.difference(desired.volumes_in_use(new)))
            state.withdrawn.difference_update(Pair(name, each).key for each in added)
            self._queue_named(name, withdrawn | (added - state.reports.get(name, set())))

    def _queue_named(self, node: str, volumes: Iterable[str]) -> None:
        self._queue(*(Pair(node, volume) for volume in volumes if volume.startswith(CSI_PREFIX)))

    def _queue_volume(self, volume: Volume) -> None:
        unique, cluster = unique_name(volume), self.state.cluster
        self._queue_wanted(unique)  # Through another PersistentVolume of the disk, too.
        for attachment in cluster.attachments.by_index("volume", volume.name):
            self._queue(desired.pair_of_attachment(attachment, cluster), Pair(attachment.spec.node_name, unique))
        reference = volume.spec.claim_ref
        for pod in cluster.pods.by_index("claim", reference.key) if reference is not None else ():
            self._queue(*desired.pairs_of_pod(pod, cluster))

    def _queue_wanted(self, unique: str, but: Pair | None = None) -> None:
        if unique:  # Volumes that are not attached have none, and would be looked through together.
            self._queue(*sorted(desired.pairs_wanted(unique, self.state.cluster) - {but}))

    def _queue(self, *pairs: Pair | None) -> None:
        for pair in pairs:
            if pair is not None and pair.volume:
                self.pairs.enqueue(pair.key)


def _unchanged(old: ObjectT | None, new: ObjectT | None, facts: Callable[[ObjectT], object]) -> bool:
    """Return whether it is the same object, of which these facts are as they were."""
    return old is not None and new is not None and old.uid == new.uid and facts(old) == facts(new)
