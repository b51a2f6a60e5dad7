"""The informers of scheduler and kubelet: caches that follow the API server, and the indexes that both read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import (
    ATTACHMENTS,
    CAPACITIES,
    CLAIMS,
    CSI_DRIVERS,
    NODES,
    STORAGE_CLASSES,
    VOLUME_ATTRIBUTES_CLASSES,
    VOLUMES,
)
from volplane.kube.names import PROVISIONED_BY
from volplane.kube.objects import (
    Claim,
    CsiDriver,
    CsiStorageCapacity,
    Node,
    StorageClass,
    Volume,
    VolumeAttachment,
    VolumeAttributesClass,
)
from volplane.kube.reflector import Reflector
from volplane.state.matching import place_of
from volplane_embedded.objects import (
    CONTROLLER_REVISIONS,
    CSI_NODES,
    DEPLOYMENTS,
    PODS,
    QUOTAS,
    REPLICA_SETS,
    STATEFUL_SETS,
    ControllerRevision,
    CsiNode,
    Pod,
    ResourceQuota,
    Workload,
    claim_names,
    is_finished,
    key_of_controller,
    needs_node,
)


class Informers:
    """The caches. Pods are indexed by `pending`, `node` and `claim`, volumes by `candidates`, `claim` and
    `provisioner`; pods, ReplicaSets and ControllerRevisions by `controller`.
    """

    def __init__(self) -> None:
        controller = {"controller": key_of_controller}
        self.pods: Cache[Pod] = Cache(PODS, {"pending": _pending, "node": _node, "claim": _claims_of_pod, **controller})
        self.nodes: Cache[Node] = Cache(NODES)
        self.claims: Cache[Claim] = Cache(CLAIMS)
        self.volumes: Cache[Volume] = Cache(
            VOLUMES, {"candidates": _candidate_key, "claim": _claim_of_volume, "provisioner": _provisioner}
        )
        self.classes: Cache[StorageClass] = Cache(STORAGE_CLASSES)
        self.attachments: Cache[VolumeAttachment] = Cache(ATTACHMENTS)
        self.csi_drivers: Cache[CsiDriver] = Cache(CSI_DRIVERS)
        self.capacities: Cache[CsiStorageCapacity] = Cache(CAPACITIES, {"class": lambda one: [one.storage_class_name]})
        self.csi_nodes: Cache[CsiNode] = Cache(CSI_NODES)
        self.attributes_classes: Cache[VolumeAttributesClass] = Cache(VOLUME_ATTRIBUTES_CLASSES)
        self.quotas: Cache[ResourceQuota] = Cache(QUOTAS, {"namespace": lambda one: [one.namespace]})
        self.stateful_sets: Cache[Workload] = Cache(STATEFUL_SETS)
        self.deployments: Cache[Workload] = Cache(DEPLOYMENTS)
        self.replica_sets: Cache[Workload] = Cache(REPLICA_SETS, controller)
        self.revisions: Cache[ControllerRevision] = Cache(CONTROLLER_REVISIONS, controller)

    @property
    def caches(self) -> dict[str, Cache[Any]]:
        """By plural."""
        listed: tuple[Cache[Any], ...] = (
            self.pods,
            self.nodes,
            self.claims,
            self.volumes,
            self.classes,
            self.attachments,
            self.csi_drivers,
            self.capacities,
            self.csi_nodes,
            self.attributes_classes,
            self.quotas,
            self.stateful_sets,
            self.deployments,
            self.replica_sets,
            self.revisions,
        )
        return {cache.kind.plural: cache for cache in listed}

    def pending(self) -> list[Pod]:
        """Return the pods that wait for a node."""
        return self.pods.by_index("pending", "yes")

    def on_node(self, node: str) -> list[Pod]:
        return self.pods.by_index("node", node)

    def users(self, claim_key: str) -> list[Pod]:
        """Unfinished pods that use a claim."""
        return self.pods.by_index("claim", claim_key)

    def candidates(self, claim: Claim) -> list[Volume]:
        """Return the volumes with the class and volume mode that the claim asks for."""
        return self.volumes.by_index("candidates", repr(place_of(claim)))

    def reserved(self, claim_key: str) -> list[Volume]:
        """Return the volumes with a reference to this claim."""
        return self.volumes.by_index("claim", claim_key)

    def provisioned(self, provisioner: str) -> list[Volume]:
        """Return the volumes that this provisioner made."""
        return self.volumes.by_index("provisioner", provisioner)

    def room(self, storage_class: str) -> list[CsiStorageCapacity]:
        """Published room for volumes of this class."""
        return self.capacities.by_index("class", storage_class)

    def quotas_of(self, namespace: str) -> list[ResourceQuota]:
        return self.quotas.by_index("namespace", namespace)

    async def follow(self, client: Client, random: Random) -> None:
        """List and watch all kinds until cancelled."""
        async with asyncio.TaskGroup() as reflectors:
            for plural, cache in self.caches.items():
                reflectors.create_task(Reflector(client, cache, random=random).run(), name=f"node-{plural}")

    async def wait_synced(self) -> None:
        for cache in self.caches.values():
            await cache.listed.wait()


@contextmanager
def unsubscribing(*subscriptions: Callable[[], None]) -> Iterator[None]:
    """End subscriptions when the block ends. They are what `Cache.subscribe` returned."""
    try:
        yield
    finally:
        for unsubscribe in subscriptions:
            unsubscribe()


def _pending(pod: Pod) -> list[str]:
    return ["yes"] if needs_node(pod) else []


def _node(pod: Pod) -> list[str]:
    return [pod.spec.node_name] if pod.spec.node_name else []


def _claims_of_pod(pod: Pod) -> list[str]:
    return [] if is_finished(pod) else [f"{pod.namespace}/{name}" for name in claim_names(pod)]


def _candidate_key(volume: Volume) -> list[str]:
    return [repr(place_of(volume))]


def _provisioner(volume: Volume) -> list[str]:
    maker = volume.annotation(PROVISIONED_BY)
    return [maker] if maker else []


def _claim_of_volume(volume: Volume) -> list[str]:
    reference = volume.spec.claim_ref
    return [reference.key] if reference is not None else []
