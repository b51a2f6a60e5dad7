"""The indexes that the caches of the volume controllers need, and where nodes are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volplane.assets import Segment
from volplane.kube import names
from volplane.kube.cache import Cache, IndexFunction
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
    """Return the key of the claim that the pod's volume stands for; "" if it is no claim."""
    if volume.persistent_volume_claim is not None:
        return f"{pod.namespace}/{volume.persistent_volume_claim.claim_name}"
    # The claim of a generic ephemeral volume is named after pod and volume.
    return f"{pod.namespace}/{pod.name}-{volume.name}" if volume.ephemeral is not None else ""


def claims_of_pod(pod: Pod) -> list[str]:
    """Return the keys of the claims a pod mounts."""
    return [key for volume in pod.spec.volumes or () if (key := claim_of_volume(pod, volume))]


def finished(pod: Pod) -> bool:
    """Return whether the pod has succeeded or failed, or is terminating without a running container."""
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
    """Return the name of the volume that a scrubber pod names in its annotation."""
    return pod.annotation(SCRUB_VOLUME)


def asset_name(attacher: str, handle: str) -> str:
    """Return the key that all attachments of one asset share, whatever PersistentVolume they name."""
    return f"{attacher}^{handle}"


def _asset_of_attachment(attachment: VolumeAttachment) -> list[str]:
    record = attachment_intent_of(attachment)
    return [asset_name(attachment.spec.attacher, record.handle)] if record is not None else []


def _unbound(claim: Claim) -> bool:
    return claim.annotation(names.BIND_COMPLETED) is None


def _text(value: str | None) -> list[str]:
    return [value] if value else []


ATTACHMENT_INDEXES: Mapping[str, IndexFunction[VolumeAttachment]] = {
    "volume": lambda attachment: _text(attachment.spec.source.persistent_volume_name),
    "node": lambda attachment: [attachment.spec.node_name],
    "asset": _asset_of_attachment,
}
"""volume: by the volume, node: by the node that an attachment names; asset: by CSI driver and recorded handle."""
POD_INDEXES: Mapping[str, IndexFunction[Pod]] = {
    "claim": claims_of_pod,
    "scrubs": lambda pod: _text(scrubbed_volume(pod)),
}
"""claim: by the claims a pod mounts; scrubs: by the volume that a scrubber pod names."""
CLAIM_INDEXES: Mapping[str, IndexFunction[Claim]] = {
    "volume": lambda claim: _text(claim.spec.volume_name),
    "unbound": lambda claim: [class_of_claim(claim) or ""] if _unbound(claim) else [],
    "node": lambda claim: _text(claim.annotation(names.SELECTED_NODE)) if _unbound(claim) else [],
    "own": lambda claim: [volume_name_of(claim)] if _unbound(claim) else [],
}
"""volume: by the volume a claim names. Of unbound claims, unbound: by class ("" = none); node: by the selected node;
own: by the name of the volume that is made for them."""


class NodePlaces:
    """Follows a cache of nodes. The places are computed again only after the labels of a node have changed."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self._nodes = nodes
        self._known: dict[tuple[str, ...], tuple[Segment, ...]] = {}
        nodes.subscribe(self._changed)

    def get(self, name: str) -> Node | None:
        """Return the node of this name."""
        return self._nodes.get(name)

    def segments(self, keys: Sequence[str]) -> tuple[Segment, ...]:
        """Return the places of nodes by labels with these keys, each once, in order. Nodes may have none."""
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
