"""The indexes that the caches of the volume controllers need, and where nodes are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.assets import Segment
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim, Node, Pod, PodVolume, VolumeAttachment
from volplane.state.matching import class_of_claim
from volplane.state.naming import volume_name_of
from volplane.state.records import attachment_intent_of

__all__ = [
    "ATTACHMENT_INDEXES",
    "CLAIM_INDEXES",
    "POD_INDEXES",
    "SCRUB_VOLUME",
    "NodePlaces",
    "asset_name",
    "claim_of_volume",
    "claims_of_pod",
    "finished",
    "scrubbed_volume",
]

SCRUB_VOLUME = "volplane.dev/scrub-volume"
"""Annotation of a scrubber pod: name of the volume that it scrubs."""


def claim_of_volume(pod: Pod, volume: PodVolume) -> str:
    """Key of the claim that a volume of the pod is; "" if it is none. The claim of a generic ephemeral volume is named
    after pod and volume.
    """
    if volume.persistent_volume_claim is not None:
        return f"{pod.namespace}/{volume.persistent_volume_claim.claim_name}"
    return f"{pod.namespace}/{pod.name}-{volume.name}" if volume.ephemeral is not None else ""


def claims_of_pod(pod: Pod) -> list[str]:
    """Keys of the claims a pod mounts."""
    return [key for volume in pod.spec.volumes or () if (key := claim_of_volume(pod, volume))]


def finished(pod: Pod) -> bool:
    """Succeeded, failed, or terminating without a running container."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return True
    statuses = [
        *(pod.status.init_container_statuses or ()),
        *(pod.status.container_statuses or ()),
        *(pod.status.ephemeral_container_statuses or ()),
    ]
    running = any(status.state is not None and status.state.running is not None for status in statuses)
    return pod.terminating and not running


def scrubbed_volume(pod: Pod) -> str | None:
    """Name of the volume that a scrubber pod names in its annotation."""
    return pod.annotation(SCRUB_VOLUME)


def _volume_of_claim(claim: Claim) -> list[str]:
    return [claim.spec.volume_name] if claim.spec.volume_name else []


def _class_while_unbound(claim: Claim) -> list[str]:
    if claim.annotation(names.BIND_COMPLETED) is not None:
        return []
    return [class_of_claim(claim) or ""]


def _own_name_while_unbound(claim: Claim) -> list[str]:
    return [volume_name_of(claim)] if claim.annotation(names.BIND_COMPLETED) is None else []


def _node_while_unbound(claim: Claim) -> list[str]:
    node = claim.annotation(names.SELECTED_NODE)
    return [node] if node and claim.annotation(names.BIND_COMPLETED) is None else []


def _volume_to_scrub(pod: Pod) -> list[str]:
    volume = scrubbed_volume(pod)
    return [volume] if volume else []


def _volume_of_attachment(attachment: VolumeAttachment) -> list[str]:
    name = attachment.spec.source.persistent_volume_name
    return [name] if name else []


def _node_of_attachment(attachment: VolumeAttachment) -> list[str]:
    return [attachment.spec.node_name]


def asset_name(attacher: str, handle: str) -> str:
    """What attachments of one asset have in common, whatever PersistentVolume they name."""
    return f"{attacher}^{handle}"


def _asset_of_attachment(attachment: VolumeAttachment) -> list[str]:
    record = attachment_intent_of(attachment)
    return [asset_name(attachment.spec.attacher, record.handle)] if record is not None else []


ATTACHMENT_INDEXES = {"volume": _volume_of_attachment, "node": _node_of_attachment, "asset": _asset_of_attachment}
"""volume: by the volume, node: by the node that an attachment names; asset: by CSI driver and recorded handle."""
POD_INDEXES = {"claim": claims_of_pod, "scrubs": _volume_to_scrub}
"""claim: by the claims a pod mounts; scrubs: by the volume that a scrubber pod names."""
CLAIM_INDEXES = {
    "volume": _volume_of_claim,
    "unbound": _class_while_unbound,
    "node": _node_while_unbound,
    "own": _own_name_while_unbound,
}
"""volume: by the volume a claim names. Of unbound claims, unbound: by class ("" = none); node: by the selected node;
own: by the name of the volume that is made for them."""


class NodePlaces:
    """Follows a cache of nodes. What the labels of all say is computed anew only after one of them has changed."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self._nodes = nodes
        self._known: dict[tuple[str, ...], tuple[Segment, ...]] = {}
        nodes.subscribe(self._changed)

    def get(self, name: str) -> Node | None:
        """The node of this name."""
        return self._nodes.get(name)

    def segments(self, keys: Sequence[str]) -> tuple[Segment, ...]:
        """Where nodes are, by labels with these keys: each place once, in order. A node that lacks one is nowhere."""
        if not keys:
            return ()
        asked = tuple(keys)
        if asked not in self._known:
            labels = [node.metadata.labels or {} for node in self._nodes.values()]
            places = {tuple(each[key] for key in asked) for each in labels if all(key in each for key in asked)}
            self._known[asked] = tuple(dict(zip(asked, place, strict=True)) for place in sorted(places))
        return self._known[asked]

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._known.clear()
