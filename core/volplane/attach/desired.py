"""Volumes on nodes: their names, and the desired and actual state of the world as lookups in the caches. Pure.

A volume is wanted on a node if a pod that has not ended uses it through a bound claim. It is attached if a
VolumeAttachment says so. Names are as Kubernetes makes them: kubelets and other attachers look for these.
Source: pkg/controller/volume/attachdetach/cache, pkg/volume/csi/csi_attacher.go (getAttachmentName) and pkg/volume/util
(GetUniqueVolumeName) of Kubernetes.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from volplane.controller.metrics import Metrics
from volplane.intents.requests import node_id
from volplane.kube import names
from volplane.kube.objects import Node, Pod, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState, claims_of_pod, csi_parts, finished, mounts, unique_name
from volplane.state.records import attachment_intent_of

_MANY = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_FIRST_REPORT = 10.0
_NAME = re.compile("csi-[0-9a-f]{64}")


class Pair(NamedTuple):
    """A volume on a node, the unit of attach-detach."""

    node: str
    volume: str
    """What `unique_name` returns; the name of the attachment, if the volume is not known any more."""

    @property
    def key(self) -> str:
        """The key in a work queue. Names of nodes have no slash."""
        return f"{self.node}/{self.volume}"

    @property
    def attachment(self) -> str:
        driver, handle = csi_parts(self.volume)
        return attachment_name(driver, handle, self.node) if driver else self.volume


@functools.lru_cache(16_384)
def attachment_name(driver: str, handle: str, node: str) -> str:
    return "csi-" + hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()


def named_by_controller(attachment: VolumeAttachment) -> bool:
    """Return whether the name has the form of `attachment_name`. Others are never deleted by us."""
    return _NAME.fullmatch(attachment.name) is not None


def shares_nodes(volume: Volume) -> bool:
    """Return whether it may be attached to several nodes at once: an access mode allows that, or none is given."""
    modes = volume.spec.access_modes
    return not modes or not _MANY.isdisjoint(modes)


def plugin_label(driver: str) -> str:
    """Return the stock controllers' label for a CSI driver in metrics."""
    return f"kubernetes.io/csi:{driver}"


# --- pods --------------------------------------------------------------------------------------------------------


NODE_INDEX = {"node": lambda pod: [pod.spec.node_name] if pod.spec.node_name and claims_of_pod(pod) else []}
"""node: pods that use claims, by their node."""


def needs_attaching(unique: str, cluster: ClusterState) -> bool:
    # A CSI driver without a CSIDriver object needs attaching, as in the stock controller.
    driver = cluster.csi_drivers.get(csi_parts(unique)[0])
    return driver is None or driver.spec.attach_required


def pairs_of_pod(pod: Pod, cluster: ClusterState) -> Iterator[Pair]:
    if not pod.spec.node_name:
        return  # It is not known where it will need its volumes.
    for key in claims_of_pod(pod):
        claim = cluster.claims.get(key)
        volume = cluster.volume_of(claim) if claim is not None else None
        if volume is not None and (name := unique_name(volume)):
            yield Pair(pod.spec.node_name, name)


def users_of(pair: Pair, cluster: ClusterState) -> list[tuple[Pod, Volume]]:
    """Return the pods for which the volume must be attached to the node, with the PersistentVolume that they use."""
    return list(_users(pair.volume, cluster, pair.node))


def pairs_wanted(unique: str, cluster: ClusterState) -> set[Pair]:
    """Return the pairs for which the volume is wanted. unique: see `VOLUME_INDEXES`."""
    return {Pair(pod.spec.node_name, unique_name(volume)) for pod, volume in _users(unique, cluster)}


def _users(unique: str, cluster: ClusterState, node: str = "") -> Iterator[tuple[Pod, Volume]]:
    """Yield the pods that need the volume on this node, or on any, with the PersistentVolume that they use."""
    if not needs_attaching(unique, cluster):
        return  # Pods use it without an attachment.
    for volume in cluster.volumes.by_index("unique", unique):
        claim = cluster.claim_of(volume)
        if claim is None or cluster.volume_of(claim) is not volume:
            continue  # No claim is bound to it: its pods mount something else, or nothing.
        for pod in cluster.pods.by_index("claim", claim.key):
            placed = pod.spec.node_name
            if placed and (not node or placed == node) and not finished(pod) and mounts(pod, claim):
                yield pod, volume


# --- attachments --------------------------------------------------------------------------------------------------


def pair_of_attachment(attachment: VolumeAttachment, cluster: ClusterState) -> Pair | None:
    """Return the pair that it stands for, by its volume, else by what its node reports; None if its name is not ours.

    If the volume is gone, or was made again for another asset, the pair has the name of the attachment instead.
    """
    node, name = attachment.spec.node_name, attachment.spec.source.persistent_volume_name
    volume = cluster.volumes.get(name or "")
    if volume is not None and (unique := unique_name(volume)):
        pair = Pair(node, unique)
        if pair.attachment == attachment.name:
            return pair
    if name is None or not named_by_controller(attachment):
        return None  # Another controller made it, and has to delete it.
    reported = cluster.nodes.get(node)
    for unique in (*listed_volumes(reported), *volumes_in_use(reported)) if reported is not None else ():
        pair = Pair(node, unique)
        if pair.attachment == attachment.name:
            return pair
    return Pair(node, attachment.name)


def may_share(unique: str, cluster: ClusterState) -> bool:
    """Return whether it may be on several nodes at once: every PersistentVolume of it allows that."""
    volumes = [*cluster.volumes.by_index("unique", unique)]
    return bool(volumes) and all(shares_nodes(volume) for volume in volumes)


def elsewhere(pair: Pair, cluster: ClusterState) -> list[VolumeAttachment]:
    """Return the attachments of a wanted volume to other nodes, if it may be on one node at a time only."""
    if may_share(pair.volume, cluster):
        return []  # Others do not keep it from this node.
    volumes = cluster.volumes.by_index("unique", pair.volume)
    found = {each.name: each for volume in volumes for each in cluster.attachments_of(volume)}
    return [each for each in found.values() if each.spec.node_name != pair.node]


def wanted_or_attached(cluster: ClusterState) -> Iterator[str]:
    """Yield the keys of all pairs that there is something to decide about, and "" for each pod."""
    for pod in cluster.pods.values():
        yield from ("", *(pair.key for pair in pairs_of_pod(pod, cluster)))
    attached = (pair_of_attachment(each, cluster) for each in cluster.attachments.values())
    yield from (pair.key for pair in attached if pair is not None)
    for node in cluster.nodes.values():
        yield from (Pair(node.name, each).key for each in listed_volumes(node) if csi_parts(each)[0])


def show_volumes(cluster: ClusterState, metrics: Metrics) -> None:
    """Show in metrics the pairs by plugin and state of the world, and the volumes of pods by node and plugin."""
    pairs = [(pair, pod) for pod in cluster.pods.values() for pair in pairs_of_pod(pod, cluster)]
    metrics.attachable_in_use.show(Counter((pair.node, plugin_label(csi_parts(pair.volume)[0])) for pair, _ in pairs))
    wanted = {pair for pair, pod in pairs if not finished(pod)}
    worlds = Counter((plugin_label(csi_parts(pair.volume)[0]), "desired_state_of_world") for pair in wanted)
    ours = (each for each in cluster.attachments.values() if named_by_controller(each))
    worlds.update((plugin_label(each.spec.attacher), "actual_state_of_world") for each in ours)
    metrics.attached_volumes.show(worlds)


# --- nodes --------------------------------------------------------------------------------------------------------


def is_managed(node: Node) -> bool:
    """Return whether its kubelet leaves attaching to the controller."""
    return names.ATTACH_BY_CONTROLLER in (node.metadata.annotations or {})


def is_ready(node: Node | None) -> bool:
    """Return whether it exists, and its kubelet reports that it works."""
    conditions = node.status.conditions if node is not None else None
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions or ())


def out_of_service(node: Node | None) -> bool:
    """Return whether a person declared that the machine is off: the key of the taint counts, whatever its effect."""
    return node is not None and any(taint.key == names.OUT_OF_SERVICE for taint in node.spec.taints or ())


def listed_volumes(node: Node) -> list[str]:
    """Return the unique names in `volumesAttached`."""
    return [each.name for each in node.status.volumes_attached or ()]


def volumes_in_use(node: Node) -> list[str]:
    """Return the unique names in `volumesInUse`."""
    return node.status.volumes_in_use or []


def registered_again(attachment: VolumeAttachment, node: Node) -> bool:
    """Return whether the Node was made after the attachment. One of another controller has no uid of the Node on it."""
    if made_for := attachment.annotation(names.NODE_UID):
        return made_for != node.uid
    return (node.metadata.creation_timestamp or "") > (attachment.metadata.creation_timestamp or "")


def same_machine(attachment: VolumeAttachment, node: Node) -> bool | None:
    """Return whether the node is the machine that the attachment was made for; None if nothing proves that or the
    contrary.

    A kubelet that registers again gives its Node another uid. Some clouds give a new machine the id of a former one of
    its name, so that only the id and the boot together prove that it is the same.
    """
    if not registered_again(attachment, node):
        return True
    # Other attachers write another kind of id.
    record = attachment_intent_of(attachment)
    was = attachment.annotation(names.NODE_ID) if record is not None else ""
    now = node_id(node, attachment.spec.attacher, csi=record is not None and record.csi_node)
    if not was or not now:
        return None
    if was != now:
        return False
    booted = node.status.node_info.boot_id
    return True if booted and booted == attachment.annotation(names.BOOT_ID) else None


def has_reported(node: Node) -> bool:
    """Return whether `volumesInUse` shows what the kubelet uses.

    A kubelet that registers its Node leaves the list empty until it knows what is mounted there: that takes less than
    ten seconds from when it is ready. Without a change, it writes its status again after five minutes.
    """
    if volumes_in_use(node):
        return True
    ready = next((each for each in node.status.conditions or () if each.get("type") == "Ready"), {})
    try:
        since, last = (datetime.fromisoformat(str(ready.get(f"last{key}Time"))) for key in ("Transition", "Heartbeat"))
    except ValueError:
        return False
    return is_ready(node) and (last - since).total_seconds() >= _FIRST_REPORT


def may_use_unreported(attachment: VolumeAttachment, node: Node) -> bool:
    """Return whether the volume may be mounted though `volumesInUse` does not list it yet."""
    again = registered_again(attachment, node)
    return again and not has_reported(node) and same_machine(attachment, node) is not False
