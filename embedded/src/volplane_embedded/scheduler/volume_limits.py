"""Keeps pods off nodes to which no more volumes of a CSI driver can be attached. Pure.

Source: pkg/scheduler/framework/plugins/nodevolumelimits/csi.go. The limit is `allocatable.count` of the driver in the
node's CSINode; what pods of the node use and what is attached to it counts once a volume.

In one point it is not that source: a claim without a volume counts for the CSI driver of the volumes that its
provisioner has made so far. kube-scheduler looks for a limit under the name of the provisioner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from volplane.kube.objects import Volume, VolumeAttachment
from volplane.state.cluster_state import csi_parts, unique_name
from volplane.state.matching import class_of_claim
from volplane_embedded.objects import CsiNode, Pod, claim_names, is_finished
from volplane_embedded.scheduler.volume_binding import StorageState

TOO_MANY = "node(s) exceed max volume count"


@dataclass(frozen=True, slots=True)
class LimitState:
    """csi_nodes: by name of the node. attachments: all of them. provisioned: the volumes that a provisioner made."""

    csi_nodes: Callable[[str], CsiNode | None]
    attachments: Callable[[], Iterable[VolumeAttachment]]
    provisioned: Callable[[str], Iterable[Volume]]


def full_nodes(
    pod: Pod, pods: Iterable[Pod], assumed: Mapping[str, str], storage: StorageState, limits: LimitState
) -> frozenset[str]:
    """Return the names of the nodes that cannot take all volumes of the pod.

    assumed: nodes of pods that are not bound yet.
    """
    wanted = dict(_volumes(pod, storage, limits))
    limited = {node: counts for node in storage.nodes if (counts := _limits(limits.csi_nodes(node)))} if wanted else {}
    if not limited:
        return frozenset()
    held: dict[str, dict[str, str]] = {node: {} for node in limited}
    for other in pods:
        node = other.spec.node_name or assumed.get(other.key, "")
        if node in held and other.key != pod.key and not is_finished(other):
            held[node].update(_volumes(other, storage, limits))
    for attachment in limits.attachments():
        volume = storage.volumes(attachment.spec.source.persistent_volume_name or "")
        if volume is not None and attachment.spec.node_name in held and (unique := unique_name(volume)):
            held[attachment.spec.node_name][unique] = csi_parts(unique)[0]
    return frozenset(node for node, most in limited.items() if _is_full(held[node], wanted, most))


def _is_full(held: Mapping[str, str], wanted: Mapping[str, str], most: Mapping[str, int]) -> bool:
    fresh = Counter(driver for unique, driver in wanted.items() if unique not in held)
    there = Counter(held.values())
    return any(there[driver] + count > most[driver] for driver, count in fresh.items() if driver in most)


def _limits(node: CsiNode | None) -> dict[str, int]:
    drivers = (node.spec.drivers or ()) if node is not None else ()
    counts = ((each.name, (each.allocatable or {}).get("count")) for each in drivers)
    return {name: count for name, count in counts if count is not None}


def _volumes(pod: Pod, storage: StorageState, limits: LimitState) -> Iterator[tuple[str, str]]:
    """Return (unique name, driver) of the volumes to attach. A claim without a volume counts by its class."""
    for name in claim_names(pod):
        claim = storage.claims(f"{pod.namespace}/{name}")
        if claim is None:
            continue
        volume = storage.volumes(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            if unique := unique_name(volume):
                yield unique, csi_parts(unique)[0]
        elif (found := storage.classes(class_of_claim(claim) or "")) is not None:
            uniques = map(unique_name, limits.provisioned(found.provisioner))
            driver = next((csi_parts(unique)[0] for unique in uniques if unique), found.provisioner)
            yield f"{driver}/{claim.key}", driver
