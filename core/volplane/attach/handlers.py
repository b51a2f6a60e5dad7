"""Event handlers of attach-detach and the attacher: they queue what a change of the caches concerns."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.attach.attach_detach import AttachDetachState
from volplane.attach.desired import (
    CSI_PREFIX,
    Pair,
    is_managed,
    is_ready,
    listed_volumes,
    out_of_service,
    pair_of_attachment,
    pairs_of_node,
    pairs_of_pod,
    pairs_wanted,
    unique_name,
    volumes_in_use,
)
from volplane.controller.actions import Queue
from volplane.kube import names
from volplane.kube.objects import Claim, CsiDriver, KubeObject, Node, Pod, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState, asset_name, finished
from volplane.state.records import attachment_intent_of

__all__ = ["AttachDetachHandlers", "AttacherHandlers"]


class AttacherHandlers:
    """Queues attachments for the attacher."""

    def __init__(self, cluster: ClusterState, attachments: Queue) -> None:
        self._cluster = cluster
        self._attachments = attachments

    def subscribe(self) -> None:
        """Follow the caches."""
        self._cluster.attachments.subscribe(self.attachment_changed)
        self._cluster.volumes.subscribe(self.volume_changed)
        self._cluster.nodes.subscribe(self.node_changed)

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        progress = self._cluster.progress
        if (present := new or old) is not None:
            progress.unrecorded.pop(present.name, None)
        if new is None:
            if old is not None:
                progress.attachments.forget(old.uid)
            return
        if old is not None and old.status != new.status:
            known = progress.attachments.get(new.uid)
            error = new.status.detach_error if new.terminating else new.status.attach_error
            if known.unreported is not None and error is not None and error.message:
                known.reported()
        self._attachments.enqueue(new.key)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if old is not None and new is not None and old.terminating == new.terminating and old.uid == new.uid:
            return
        present = new or old
        if present is not None:
            for attachment in self._cluster.attachments.by_index("volume", present.name):
                self._attachments.enqueue(attachment.key)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        same = old is not None and new is not None and old.spec.provider_id == new.spec.provider_id
        if not same:
            for attachment in self._cluster.attachments.by_index("node", (new or old or Node()).name):
                self._attachments.enqueue(attachment.key)


class AttachDetachHandlers:
    """Queues pairs and nodes for attach-detach."""

    def __init__(self, state: AttachDetachState, *, pairs: Queue, nodes: Queue) -> None:
        self._state = state
        self._cluster = state.cluster
        self._pairs = pairs
        self._nodes = nodes

    def subscribe(self) -> None:
        cluster = self._cluster
        cluster.pods.subscribe(self.pod_changed)
        cluster.claims.subscribe(self.claim_changed)
        cluster.volumes.subscribe(self.volume_changed)
        cluster.nodes.subscribe(self.node_changed)
        cluster.attachments.subscribe(self.attachment_changed)
        cluster.csi_drivers.subscribe(self.driver_changed)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if _same(old, new) and _place(old) == _place(new):
            return
        for pod in (old, new):
            if pod is not None:
                self._queue_pod(pod)

    def _queue_pod(self, pod: Pod) -> None:
        for pair in pairs_of_pod(pod, self._cluster):
            self._queue(pair)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        present = new or old
        if present is None:
            return
        if _same(old, new) and _bond(old) == _bond(new):
            return
        for name in {each.spec.volume_name for each in (old, new) if each is not None} - {""}:
            volume = self._cluster.volumes.get(name)
            if volume is not None:
                self._queue_volume(volume)
        self._queue_claim(present.key)

    def _queue_claim(self, key: str) -> None:
        for pod in self._cluster.pods.by_index("claim", key):
            self._queue_pod(pod)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if _same(old, new) and _source(old) == _source(new):
            return
        for volume in (old, new):
            if volume is not None:
                self._queue_volume(volume)
                reference = volume.spec.claim_ref
                if reference is not None:
                    self._queue_claim(reference.key)

    def _queue_volume(self, volume: Volume) -> None:
        unique = unique_name(volume)
        for pair in pairs_wanted(unique, self._cluster) if unique else ():
            self._queue(pair)  # Through another PersistentVolume of the disk, too.
        for attachment in self._cluster.attachments.by_index("volume", volume.name):
            self._queue(pair_of_attachment(attachment, self._cluster))
            self._queue(Pair(attachment.spec.node_name, unique))

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        present = new or old
        if present is None or (_same(old, new) and _shown(old) == _shown(new)):
            return
        pair = pair_of_attachment(present, self._cluster)
        self._queue(pair)
        concerns_others = new is None or (old is not None and _place_shown(old) != _place_shown(new))
        if concerns_others and (unique := self._unique_name(present)):
            for waiting in pairs_wanted(unique, self._cluster):
                self._queue(waiting)

    def _unique_name(self, attachment: VolumeAttachment) -> str:
        """Return its volume's unique name; if that is gone its record's, as another volume may be of the same asset."""
        volume = self._cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
        if volume is not None:
            return unique_name(volume)
        record = attachment_intent_of(attachment)
        return f"{CSI_PREFIX}{asset_name(attachment.spec.attacher, record.handle)}" if record is not None else ""

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        present = new or old
        if present is None:
            return
        name = present.name
        if new is None:
            self._state.last_in_use[name] = frozenset(volumes_in_use(present))
        else:
            self._state.last_in_use.pop(name, None)
        if old is None or new is None or _condition(old) != _condition(new):
            self._queue_node(name)
            return
        self._queue_named(name, set(volumes_in_use(old)) ^ set(volumes_in_use(new)))
        if old.status.volumes_attached != new.status.volumes_attached:
            self._report_changed(new, set(listed_volumes(old)), set(listed_volumes(new)))

    def _report_changed(self, node: Node, before: set[str], now: set[str]) -> None:
        """Note and queue what is withdrawn, and so may be detached, and what others have listed."""
        withdrawn = before - now
        in_use = volumes_in_use(node)
        for volume in withdrawn:
            if volume not in in_use:
                self._state.withdrawn.add(Pair(node.name, volume).key)
        for volume in now - before:
            self._state.withdrawn.discard(Pair(node.name, volume).key)
        self._queue_named(node.name, withdrawn | (now - before - self._state.reports.get(node.name, set())))

    def _queue_node(self, name: str) -> None:
        self._nodes.enqueue(name)
        for pair in pairs_of_node(name, self._cluster):
            self._queue(pair)
        node = self._cluster.nodes.get(name)
        self._queue_named(name, listed_volumes(node) if node is not None else ())
        for pod in self._cluster.pods.by_index("node", name):
            self._queue_pod(pod)

    def _queue_named(self, node: str, volumes: Iterable[str]) -> None:
        for volume in volumes:
            if volume.startswith(CSI_PREFIX):
                self._queue(Pair(node, volume))

    def driver_changed(self, old: CsiDriver | None, new: CsiDriver | None) -> None:
        """Queue the volumes of a driver whose CSIDriver says otherwise now whether they need attaching."""
        if old is not None and new is not None and old.spec == new.spec:
            return
        prefix = f"{CSI_PREFIX}{(new or old or CsiDriver()).name}^"
        for volume in self._cluster.volumes.values():
            if unique_name(volume).startswith(prefix):
                self._queue_volume(volume)
                if volume.spec.claim_ref is not None:
                    self._queue_claim(volume.spec.claim_ref.key)

    def _queue(self, pair: Pair | None) -> None:
        if pair is not None and pair.volume:
            self._pairs.enqueue(pair.key)


def _same(old: KubeObject | None, new: KubeObject | None) -> bool:
    return old is not None and new is not None and old.uid == new.uid


def _place(pod: Pod | None) -> object:
    return pod and (pod.spec.node_name, finished(pod))


def _bond(claim: Claim | None) -> object:
    return claim and (claim.status.phase, claim.spec.volume_name)


def _place_shown(attachment: VolumeAttachment) -> tuple[bool, bool]:
    """Return what events of pods that wait for the volume elsewhere depend on."""
    return attachment.status.attached, attachment.status.detach_error is not None


def _shown(attachment: VolumeAttachment | None) -> object:
    """Return what decisions depend on, without what its attacher records on it."""
    return attachment and (attachment.terminating, attachment.status, attachment.annotation(names.NODE_UID))


def _source(volume: Volume | None) -> object:
    return volume and (volume.spec.claim_ref, volume.spec.csi, volume.spec.access_modes)


def _condition(node: Node) -> object:
    """Return what of a node concerns every volume on it."""
    return node.uid, is_managed(node), is_ready(node), out_of_service(node)
