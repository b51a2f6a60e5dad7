"""The decisions of attach-detach: the next step for a volume on a node, and for the report of a node. Pure.

A volume is attached by creating its VolumeAttachment, and reported in `volumesAttached` of the node once that is
attached. It is detached in the opposite order: the report is withdrawn, the node is read live, and only if its kubelet
does not use the volume then is the attachment deleted. The kubelet writes `volumesInUse` before it reads
`volumesAttached`, both on one object, so that at least one of the two sees the other.
Source: reconciler.go and node_status_updater.go of pkg/controller/volume/attachdetach of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from volplane.attach.attacher import declared
from volplane.attach.desired import (
    Pair,
    elsewhere,
    has_reported,
    is_managed,
    is_ready,
    listed_volumes,
    may_use_unreported,
    named_by_controller,
    out_of_service,
    pair_of_attachment,
    pairs_wanted,
    same_machine,
    users_of,
    volumes_in_use,
)
from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Read, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, NODES, PODS, VOLUMES
from volplane.kube.objects import Claim, Node, Pod, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState, csi_parts, unique_name

ATTACH_TIMEOUT: Final = 120.0
"""Seconds after which, again and again, events on the pods report that no attacher answers."""
DELETION_LASTS: Final = 120.0
"""Seconds after which a request whose answer never came cannot take effect any more."""


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
    if found := users_of(pair, state.cluster):
        users, volume = [pod for pod, _ in found], found[0][1]
        decision, node = _wanted(pair, attachment, volume, users, state), state.cluster.nodes.get(pair.node)
        # Without proof that its machine is another one, the kubelet may be about to mount it.
        if attachment and node and isinstance(decision.action, Delete) and same_machine(attachment, node) is None:
            first = _unwanted(pair, attachment, state, reads)
            decision = decision if isinstance(first.action, Delete) else first
        return decision._replace(wanted=True)
    if attachment is None or not named_by_controller(attachment):
        return Decision(Settled())  # An attachment with another name is not ours to delete.
    if not csi_parts(pair.volume)[0]:
        name = attachment.spec.source.persistent_volume_name or ""
        if pair_of_attachment(attachment, state.cluster) != pair:
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
    if node is None or not is_managed(node) or pair.volume in listed_volumes(node):
        # Pods are told where this controller writes the node's list, and before the node lists the volume.
        return Decision(Settled())
    text = f'AttachVolume.Attach succeeded for volume "{volume.name}" '
    events = tuple(EventRecord(PODS, pod, "Normal", "SuccessfulAttachVolume", text) for pod in users)
    return Decision(Settled(events=events), about=f"attached {attachment.uid}")


def _create(pair: Pair, volume: Volume, users: Sequence[Pod], state: AttachDetachState) -> Decision:
    node = state.cluster.nodes.get(pair.node)
    if node is None:
        return Decision(Wait(reason=f"node {pair.node} does not exist"))
    if not is_managed(node):
        return Decision(Settled())  # Its kubelet attaches for itself.
    # On two nodes at once, both would write to the file system of the volume.
    if others := elsewhere(pair, state.cluster):
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
    theirs = [pod for other in others for pod, _ in users_of(Pair(other.spec.node_name, pair.volume), state.cluster)]
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
    same = same_machine(attachment, node)
    if same is None and unique not in volumes_in_use(node):
        return True if has_reported(node) else None
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
    if node is not None and is_managed(node) and _among(pair, listed_volumes(node)):
        return Decision(Wait(reason=f"the report of node {pair.node} still lists it"))
    if not forced and pair.key not in state.withdrawn and not reads.has(NODES, pair.node):
        return Decision(Read(NODES, pair.node, why="does its kubelet use the volume?"))
    why = f"no pod needs it on {pair.node}" + (f"; forced: {forced}" if forced else "")
    return Decision(Delete(kind=ATTACHMENTS, target=attachment, why=why, exact=False), forced=forced)


def _mounted(pair: Pair, state: AttachDetachState) -> bool:
    """Return whether its kubelet may use it. For a node that is gone its last report counts; without one it may."""
    node, attachment = state.cluster.nodes.get(pair.node), state.cluster.attachments.get(pair.attachment)
    if node is not None:
        unreported = attachment is not None and may_use_unreported(attachment, node)
        return unreported or _among(pair, volumes_in_use(node))
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
    if out_of_service(node):
        return ("timeout" if expired else "out-of-service"), None
    if is_ready(node) or never:
        return "", None  # A healthy kubelet unmounts it. By force, what it has not written yet would be lost.
    return ("timeout", None) if expired else ("", left)


# --- the report of a node -----------------------------------------------------------------------------------------


def decide_node(name: str, state: AttachDetachState) -> Action:
    """Return the write of the node's `volumesAttached`: what is attached and not about to be detached.

    One write for all volumes of `reports`; the others are as they should be. It carries the version of the node that it
    was computed from, because a list is replaced as a whole.
    """
    node = state.cluster.nodes.get(name)
    if node is None or not is_managed(node):
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
    if node is None or not is_managed(node):
        return False  # The kubelet writes the list itself.
    return not _stays(pair, node, state) if _among(pair, listed_volumes(node)) else _appears(pair, node, state)


def _stays(pair: Pair, node: Node, state: AttachDetachState) -> bool:
    if not csi_parts(pair.volume)[0]:
        return True  # It is no CSI volume: others have written it.
    attachment, wanted = state.cluster.attachments.get(pair.attachment), bool(users_of(pair, state.cluster))
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
    if not users_of(pair, cluster):
        return bool(csi_parts(pair.volume)[0]) and may_use_unreported(attachment, node)
    return _of_former_machine(attachment, node, pair.volume) is False


def waiting_nodes(claim: Claim, cluster: ClusterState) -> Iterator[str]:
    """Yield, for explain, the nodes where a pod needs the claim's volume and no attachment can be made yet."""
    volume = cluster.volume_of(claim)
    for pair in sorted(pairs_wanted(unique_name(volume), cluster)) if volume is not None else ():
        if pair.attachment not in cluster.attachments:
            action = decide_pair(pair, AttachDetachState(cluster), LiveReads()).action
            if isinstance(action, Wait):
                yield f"node {pair.node}, where a pod needs it, waits for it: {action.reason}"
