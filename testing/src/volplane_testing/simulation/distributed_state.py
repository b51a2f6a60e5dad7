"""What must hold of the whole cluster while nodes come and go, by rules that share no decision with the controllers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from volplane.kube import names
from volplane.kube.quantity import parse
from volplane.state.naming import node_hash
from volplane_testing.distributed import DistributedCluster
from volplane_testing.memory_storage import MemoryStorage

__all__ = ["Broken", "Json", "all_disks", "check_end", "check_state", "node_of", "size_of"]

Json = dict[str, Any]

_CLAIMS: Final = "persistentvolumeclaims"
_VOLUMES: Final = "persistentvolumes"


class Broken(Exception):
    """What must hold does not. invariant: which; the text says what happened."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


def node_of(volume: Json) -> str:
    """Return the node on which the volume is, by its affinity."""
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    node: str = term["matchExpressions"][0]["values"][0]
    return node


def size_of(claim: Json) -> int:
    """Return the bytes that a claim asks for."""
    return parse(claim["spec"]["resources"]["requests"]["storage"]).as_bytes()


def check_state(cluster: DistributedCluster) -> None:
    """Check that a bound claim's data is on the disk of its node, and no disk is overfull. Raises Broken."""
    volumes = {each["metadata"]["name"]: each for each in cluster.api.all(_VOLUMES)}
    for claim in cluster.api.all(_CLAIMS):
        if not claim["spec"].get("volumeName") or claim["status"].get("phase") != "Bound":
            continue
        name = claim["metadata"]["name"]
        volume = volumes.get(claim["spec"]["volumeName"])
        if volume is None:
            raise Broken("bound-stays-bound", f"claim {name} has lost its volume")
        handle = volume["metadata"]["annotations"][names.HANDLE]
        node = node_of(volume)
        places = [disk for disk in all_disks(cluster) if disk.by_handle(handle) is not None]
        if not places:
            raise Broken("no-ghost", f"claim {name} is bound to {handle} of {node}, which is on no disk")
        if list(places[0].zones) != [node]:
            raise Broken("where-it-says", f"{handle} is on the disk of {places[0].zones}, its volume says {node}")
    _check_assets(cluster)
    for disk in all_disks(cluster):
        if disk.room() < 0:
            raise Broken("no-overfull-disk", f"the disk of {disk.zones} is overfull")


def all_disks(cluster: DistributedCluster) -> list[MemoryStorage]:
    """Return the disks of the nodes, and those that were taken out."""
    return [*cluster.disks.values(), *cluster.old_disks]


def check_end(cluster: DistributedCluster, given_up: Collection[str]) -> None:
    """Check a run at rest: each claim has its asset, once, and nothing is left over. Raises Broken.

    given_up: uids of claims for which something may have been left on a node that was gone.
    """
    claims = {each["metadata"]["uid"]: each for each in cluster.api.all(_CLAIMS)}
    volumes = {each["metadata"]["annotations"][names.HANDLE]: each for each in cluster.api.all(_VOLUMES)}
    room = max(disk.room() for disk in cluster.disks.values())
    for claim in claims.values():
        name = claim["metadata"]["name"]
        if "deletionTimestamp" in claim["metadata"]:
            held = claim["metadata"].get("finalizers")
            raise Broken("no-stuck-finalizer", f"claim {name} is still being deleted; finalizers {held}")
        if claim["status"].get("phase") != "Bound" and size_of(claim) <= room:
            text = f"claim {name} is not bound, though there is room for it: {cluster.why(name)}"
            raise Broken("what-can-proceed-does", text)
    _check_leftovers(cluster, volumes, given_up)
    for handle, volume in volumes.items():
        reference = volume["spec"].get("claimRef") or {}
        living = reference.get("uid") in claims
        on_disk = any(disk.by_handle(handle) is not None for disk in cluster.disks.values())
        name, node = volume["metadata"]["name"], cluster.api.get("nodes", node_of(volume)) or {"metadata": {}}
        known = volume["metadata"]["annotations"].get(names.NODE_UID) == node["metadata"].get("uid")
        if known and cluster.disks[node_of(volume)].by_handle(handle) is None:
            text = f"volume {name} counts as there, but node {node_of(volume)} does not have it"
            raise Broken("lost-is-said", text)
        if not living and on_disk and "deletionTimestamp" in volume["metadata"]:
            raise Broken("no-stuck-finalizer", f"volume {name} is still being deleted: {cluster.why(name)}")
        if volume["metadata"].get("labels", {}).get(names.NODE) != node_hash(node_of(volume)):
            raise Broken("labels-tell-the-truth", f"the label of volume {name} was not put right")


def _check_leftovers(cluster: DistributedCluster, volumes: Mapping[str, Json], given_up: Collection[str]) -> None:
    """Check that all assets have volumes, but for those given up with their node. volumes: by handle."""
    latest = {
        each["metadata"]["name"].removeprefix("pvc-"): int(each["metadata"]["annotations"][names.GENERATION])
        for each in volumes.values()
    }
    for node, disk in cluster.disks.items():
        for asset in disk.assets.values():
            owner = asset.owner.claim_uid if asset.owner is not None else ""
            generation = asset.owner.generation if asset.owner is not None else 1
            excused = owner in given_up and generation < latest.get(owner, generation + 1)
            if asset.handle not in volumes and not excused:
                raise Broken("no-leak", f"{asset.handle} on node {node} belongs to nobody")


def _check_assets(cluster: DistributedCluster) -> None:
    """Check that no two disks have assets for one generation of a claim."""
    seen: dict[tuple[str, int], str] = {}
    for disk in cluster.disks.values():
        for asset in disk.assets.values():
            if asset.owner is None:
                continue
            key = (asset.owner.claim_uid, asset.owner.generation)
            if key in seen:
                text = f"{asset.handle} and {seen[key]} were both made for generation {key[1]} of one claim"
                raise Broken("one-asset-per-generation", text)
            seen[key] = asset.handle
