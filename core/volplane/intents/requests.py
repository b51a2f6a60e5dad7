"""Requests of hooks, built from Kubernetes objects. Pure."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, islice, product
from math import prod

import msgspec

from volplane.assets import AccessMode, Asset, Ownership, Segment, VolumeMode
from volplane.drivers.driver import DriverView
from volplane.kube import names
from volplane.kube.objects import Claim, Node, StorageClass, Volume, VolumeAttributesClass
from volplane.requests import ClaimIdentity, Context, NodeIdentity, ProvisionRequest, VolumeIdentity
from volplane.state.cluster_state import NodePlaces
from volplane.state.matching import capacity_of, mode_of, request_of, whole_bytes
from volplane.state.naming import generation_of, handle_of, volume_name_of, volume_source
from volplane.state.records import ClaimIntent, SourceRecord

MOST_SEGMENTS = 10_000
"""Of a class: a few keys with many values each would stand for more than memory holds."""
NAME_PREFIX = "pvc-"
_ACCESS_MODES = frozenset(AccessMode)


def split_parameters(storage_class: StorageClass) -> tuple[dict[str, str], str]:
    """Return the class's parameters for the backend, and what is ours: the value of `volplane.dev/on-release`."""
    parameters = dict(storage_class.parameters or {})
    for name in (names.PLACEMENT, names.NODE_GONE_AFTER, names.TRASH, names.TRASH_EARLY):
        parameters.pop(name, None)
    return parameters, parameters.pop(names.ON_RELEASE, "delete")


def trash_of_class(storage_class: StorageClass, key: str = names.TRASH) -> str | None:
    """Return how long the class has deleted volumes kept, as it is written there; None: they are not kept.

    The annotation can be added to a class that exists; of the two the parameter counts, which nobody can change.
    key: `TRASH_EARLY` for whether they leave the trash early.
    """
    return (storage_class.parameters or {}).get(key) or storage_class.annotation(key)


def allowed_segments(storage_class: StorageClass) -> tuple[Segment, ...]:
    """Return `allowedTopologies` as single segments; terms are alternatives. At most `MOST_SEGMENTS` of a class."""
    terms = [term.match_label_expressions or () for term in storage_class.allowed_topologies or ()]
    labels = [[[(each.key, value) for value in each.values or ()] for each in term] for term in terms]
    choices = chain.from_iterable(product(*term) for term in labels)
    return tuple(map(dict, islice(choices, MOST_SEGMENTS)))


def count_segments(storage_class: StorageClass) -> int:
    """Return for how many segments `allowedTopologies` stands."""
    terms = [term.match_label_expressions or () for term in storage_class.allowed_topologies or ()]
    return sum(prod(len(expression.values or ()) for expression in term) for term in terms)


def owner_of_claim(claim: Claim, context: Context) -> Ownership:
    """Return the marks of the asset that is made for the claim."""
    cluster_id, name = context.cluster_id, volume_name_of(claim)
    return Ownership(cluster_id=cluster_id, claim_uid=claim.uid, volume_name=name, generation=context.generation)


def _modes(names_of_modes: list[str] | None) -> tuple[AccessMode, ...]:
    # A mode of a later Kubernetes is left out: it must not keep a volume from being deleted.
    return tuple(AccessMode(mode) for mode in names_of_modes or () if mode in _ACCESS_MODES)


def provision_request(
    claim: Claim,
    storage_class: StorageClass,
    driver: DriverView,
    intent: ClaimIntent,
    context: Context,
    *,
    places: NodePlaces,
    attributes: VolumeAttributesClass | None = None,
    copied: VolumeIdentity | None = None,
) -> ProvisionRequest:
    """Return what to make for the claim, perhaps as a copy of `copied`. Raises InvalidArgument for its parameters."""
    source = intent.source or SourceRecord()
    selected = claim.annotation(names.SELECTED_NODE)
    parameters, _ = split_parameters(storage_class)
    return ProvisionRequest(
        context=context,
        name=volume_name_of(claim),
        capacity_bytes=intent.size or whole_bytes(request_of(claim)),
        owner=owner_of_claim(claim, context),
        claim=ClaimIdentity(
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.uid,
            labels=dict(claim.metadata.labels or {}),
            annotations=dict(claim.metadata.annotations or {}),
        ),
        access_modes=_modes(claim.spec.access_modes),
        volume_mode=VolumeMode(mode_of(claim)),
        parameters=driver.typed_parameters(parameters),
        mutable_parameters=dict((attributes.parameters if attributes is not None else None) or {}),
        segment=intent.segment or None,
        allowed_segments=allowed_segments(storage_class),
        node_segments=places.segments(driver.info.topology_keys),
        selected_node=node_identity(places.nodes.get(selected) if selected else None),
        mount_options=tuple(storage_class.mount_options or ()),
        class_name=storage_class.name,
        source_snapshot=source.snapshot or None,
        source_volume=source.volume or None,
        source_asset=copied,
    )


def node_identity(node: Node | None, csi_driver: str = "") -> NodeIdentity | None:
    if node is None:
        return None
    labels, id_, machine = dict(node.metadata.labels or {}), node_id(node, csi_driver, csi=True), node.spec.provider_id
    return NodeIdentity(name=node.name, uid=node.uid, instance_id=machine, labels=labels, csi_node_id=id_)


def node_id(node: Node, csi_driver: str, *, csi: bool) -> str:
    """Return the id of the machine, or that of the node with a CSI driver; "" = it is not known."""
    if not csi:
        return node.spec.provider_id
    with suppress(msgspec.DecodeError):  # A damaged annotation says nothing.
        return msgspec.json.decode(node.annotation(names.CSI_NODE_IDS) or "{}", type=dict[str, str]).get(csi_driver, "")
    return ""


def asset_identity(asset: Asset, claim: Claim, context: Context) -> VolumeIdentity:
    """Return an asset that never became a volume, as `delete` wants it. context: of the call."""
    return VolumeIdentity(
        name=volume_name_of(claim),
        uid="",
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=asset.capacity_bytes,
        owner=owner_of_claim(claim, context),
        attributes=dict(asset.attributes),
        volume_mode=VolumeMode(mode_of(claim)),
        access_modes=_modes(claim.spec.access_modes),
        node_affinity=asset.node_affinity,
    )


def volume_identity(volume: Volume, cluster_id: str) -> VolumeIdentity:
    """Return the volume as hooks see it; marks are expected only on what a driver of ours made."""
    source, owner = volume_source(volume), None
    if volume.annotation(names.PROVISIONED_BY) is not None and volume.name.startswith(NAME_PREFIX):
        owner = Ownership(
            cluster_id=cluster_id,
            claim_uid=volume.name.removeprefix(NAME_PREFIX),
            volume_name=volume.name,
            generation=generation_of(volume),
        )
    attributes = dict((volume.spec.csi or {}).get("volumeAttributes") or {})
    if volume.spec.csi is None:
        with suppress(msgspec.DecodeError):  # A damaged annotation says nothing.
            attributes = msgspec.json.decode(volume.annotation(names.ATTRIBUTES) or "{}", type=dict[str, str])
    return VolumeIdentity(
        name=volume.name,
        uid=volume.uid,
        handle=handle_of(volume),
        source=source,
        capacity_bytes=whole_bytes(capacity_of(volume)),
        owner=owner,
        attributes=attributes,
        volume_mode=VolumeMode(mode_of(volume)),
        access_modes=_modes(volume.spec.access_modes),
        node_affinity=segments_of(volume),
        mount_options=tuple(volume.spec.mount_options or ()),
    )


def segments_of(volume: Volume) -> tuple[Segment, ...]:
    """Return the node affinity as segments, without terms that are none: `In` with a single value each."""
    segments: list[Segment] = []
    for term in volume.node_terms:
        needs = term.match_expressions or []
        if needs and all(need.operator == "In" and len(need.values or ()) == 1 for need in needs):
            segments.append({need.key: (need.values or [""])[0] for need in needs})
    return tuple(segments)
