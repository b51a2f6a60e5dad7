"""Reconciles for attach-detach: keeps state between pure decisions, records each Event once, and follows the caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec.structs import replace

from volplane.attach.attach_detach import AttachDetachState, Decision, decide_node, decide_pair, report_differs
from volplane.attach.desired import (
    Pair,
    has_reported,
    is_managed,
    is_ready,
    listed_volumes,
    may_share,
    out_of_service,
    pair_of_attachment,
    pairs_of_pod,
    pairs_wanted,
    plugin_label,
    volumes_in_use,
)
from volplane.controller.actions import Action, Create, Delete, LiveReads, Queue, Settled, Wait
from volplane.controller.metrics import Metrics
from volplane.kube import names
from volplane.kube.objects import Claim, CsiDriver, KubeObject, Node, Pod, Volume, VolumeAttachment
from volplane.state.cluster_state import CSI_PREFIX, asset_name, csi_parts, finished, unique_name
from volplane.state.records import attachment_intent_of

_REPORT_TOGETHER: Final = 0.5
"""Seconds for which a volume's report waits at most for others that are about to be attached to its node.

A kubelet asks for a volume up to ten seconds after it was wanted.
"""
_WITHDRAW_TOGETHER: Final = 0.1
"""The same for one that is to be detached: the period of the stock controller's loop."""

ObjectT = TypeVar("ObjectT", bound=KubeObject)


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
        if isinstance(decision.action, Create) and not may_share(pair.volume, cluster):
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
            plugin = plugin_label(csi_parts(pair.volume)[0])
            self.metrics.attach_detach_ended(plugin, operation, seconds, failed=failed)

    def reconcile_node(self, key: str, _reads: LiveReads) -> Action:
        """Return the write of a node's report. Once nothing is to be written, nothing of it is to be decided."""
        action = decide_node(key, self.state)
        if isinstance(action, Settled):
            self.state.reports.pop(key, None)
        return action

    def subscribe(self) -> None:
        cluster = self.state.cluster
        cluster.pods.subscribe(self.pod_changed)
        cluster.claims.subscribe(self.claim_changed)
        cluster.volumes.subscribe(self.volume_changed)
        cluster.nodes.subscribe(self.node_changed)
        cluster.attachments.subscribe(self.attachment_changed)
        cluster.csi_drivers.subscribe(self.driver_changed)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if _unchanged(old, new, lambda pod: (pod.spec.node_name, finished(pod))):
            return
        for pod in (old, new):
            if pod is not None:
                self._queue(*pairs_of_pod(pod, self.state.cluster))

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

    def driver_changed(self, old: CsiDriver | None, new: CsiDriver | None) -> None:
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
        self._queue(pair_of_attachment(present, cluster))
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
            state.last_in_use[name] = frozenset(volumes_in_use(old or Node()))
        facts = (is_managed, is_ready, out_of_service, has_reported)
        same = _unchanged(old, new, lambda node: [fact(node) for fact in facts])
        # These facts concern every volume on the node.
        if old is None or new is None or not same:
            self.nodes.enqueue(name)
            for attachment in cluster.attachments.by_index("node", name):
                self._queue(pair_of_attachment(attachment, cluster))
            self._queue_named(name, listed_volumes(new) if new is not None else ())
            for pod in cluster.pods.by_index("node", name):
                self._queue(*pairs_of_pod(pod, self.state.cluster))
            return
        self._queue_named(name, set(volumes_in_use(old)) ^ set(volumes_in_use(new)))
        if old.status.volumes_attached != new.status.volumes_attached:
            before, now = set(listed_volumes(old)), set(listed_volumes(new))
            withdrawn, added = before - now, now - before
            # What is withdrawn and not in use may be detached.
            state.withdrawn.update(Pair(name, each).key for each in withdrawn.difference(volumes_in_use(new)))
            state.withdrawn.difference_update(Pair(name, each).key for each in added)
            self._queue_named(name, withdrawn | (added - state.reports.get(name, set())))

    def _queue_named(self, node: str, volumes: Iterable[str]) -> None:
        self._queue(*(Pair(node, volume) for volume in volumes if volume.startswith(CSI_PREFIX)))

    def _queue_volume(self, volume: Volume) -> None:
        unique, cluster = unique_name(volume), self.state.cluster
        self._queue_wanted(unique)  # Through another PersistentVolume of the disk, too.
        for attachment in cluster.attachments.by_index("volume", volume.name):
            self._queue(pair_of_attachment(attachment, cluster), Pair(attachment.spec.node_name, unique))
        if volume.spec.claim_ref is not None:
            self._queue_claim(volume.spec.claim_ref.key)

    def _queue_claim(self, key: str) -> None:
        for pod in self.state.cluster.pods.by_index("claim", key):
            self._queue(*pairs_of_pod(pod, self.state.cluster))

    def _queue_wanted(self, unique: str, but: Pair | None = None) -> None:
        if unique:  # Volumes that are not attached have none, and would be looked through together.
            self._queue(*sorted(pairs_wanted(unique, self.state.cluster) - {but}))

    def _queue(self, *pairs: Pair | None) -> None:
        for pair in pairs:
            if pair is not None and pair.volume:
                self.pairs.enqueue(pair.key)


def _unchanged(old: ObjectT | None, new: ObjectT | None, facts: Callable[[ObjectT], object]) -> bool:
    """Return whether it is the same object, of which these facts are as they were."""
    return old is not None and new is not None and old.uid == new.uid and facts(old) == facts(new)
