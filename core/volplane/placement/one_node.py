"""What the process of one node decides about placement: which claims it takes, and which volumes are its own.

Without an assigner, the processes of nodes compete for claims, with the back-off of the external provisioner. Every
process of a node sees every claim. Each waits for a random time, checks whether it has room, and writes its node to the
claim. All but the first get a conflict, or see that the claim has a node.

Volumes of a node that was made again are the new node's if its storage shows that they are there. A kubelet that
registers again, after its Node was deleted, has the old disks; a machine that was replaced under the same name has not.
So the driver is asked: an asset with the marks and the very handle of the volume is the one that was there.

Source: kubernetes-csi/external-provisioner, README "Deployment on each node", and becomeOwner of pkg/controller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from volplane.assets import Asset
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Run, Wait
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import node_metadata, on_node
from volplane.intents.requests import allowed_segments, volume_identity
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.placement.capacity import measured, own_node_differs
from volplane.placement.state import unsuitable
from volplane.requests import FindRequest
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, request_of, whole_bytes
from volplane.state.naming import asset_key, volume_name_of

FULL_SECONDS = 60.0
"""Time after which a claim for which there was no room is looked at again."""


@dataclass(slots=True)
class RaceTimes:
    """Computes when the process of a node may try to take each claim.

    Attempt 0 waits up to `base` seconds, each further one up to twice as long, never longer than `longest`; of all of
    these a random part of `base` is subtracted, which follows from `node` (ours), the claim and the attempt.
    external_choice: others select the nodes of claims that bind immediately.
    """

    node: str
    base: float
    longest: float
    monotonic: Callable[[], float]
    external_choice: bool = False
    _tries: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Uid of a claim -> the attempt, and the loop time since which it waits for that."""
    _room: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """Uid of a claim -> loop time of the driver's answer, and whether there is room."""

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if new is None or new.spec.volume_name:
            uid = (new or old or Claim()).uid
            self._tries.pop(uid, None)
            self._room.pop(uid, None)
        elif new.annotation(names.SELECTED_NODE) is None:
            known = self._tries.get(new.uid)
            returned = old is not None and old.annotation(names.SELECTED_NODE) is not None
            if known is None or returned:
                self._tries[new.uid] = (known[0] + 1 if known is not None else 0, self.monotonic())

    def left(self, claim: Claim) -> float:
        """Return the seconds until this process may try."""
        now = self.monotonic()
        attempt, since = self._tries.get(claim.uid, (0, now))
        digest = hashlib.blake2b(f"{self.node} {claim.uid} {attempt}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest) / 2**64
        delay = min(self.base * 2 ** min(attempt, 32), self.longest) - drawn * self.base
        left: float = since + max(delay, 0.0) - now
        return left

    def room_seen(self, uid: str, *, enough: bool) -> None:
        self._room[uid] = (self.monotonic(), enough)

    def room(self, uid: str) -> bool | None:
        """Return whether there is room for the claim; None: the driver was not asked yet, or too long ago."""
        at, enough = self._room.get(uid, (0.0, None))
        return enough if enough is not None and self.monotonic() < at + self.longest else None


def decide_race(
    claim: Claim, storage_class: StorageClass, driver: DriverView, cluster: ClusterState, race: RaceTimes
) -> Action | None:
    """Return the next action for a claim without a node; None if there is no race for it."""
    node = cluster.own_node
    if claim.annotation(names.SELECTED_NODE) or claim.terminating:
        return None
    if node is None or storage_class.volume_binding_mode == "WaitForFirstConsumer":
        return None
    if race.external_choice:
        return Wait(reason=f"nobody has selected a node (annotation {names.SELECTED_NODE})")
    if why := unsuitable(node, driver, allowed_segments(storage_class)):
        return Wait(reason=f"node {node.name} cannot take it: it is {why}")
    if (left := race.left(claim)) > 0:
        return Wait(reason="the processes of other nodes may take it first", seconds=left)
    if driver.supports("get_capacity"):
        enough = race.room(claim.uid)
        if enough is None:
            asset = f"room for {volume_name_of(claim)}"
            return Run(verb="check-room", key=claim.key, uid=claim.uid, driver=driver.name, asset=asset)
        if not enough:
            return Wait(reason=f"there is no room for it on node {node.name}", seconds=FULL_SECONDS)
    metadata = node_metadata(node)
    metadata["annotations"][names.SELECTED_NODE] = node.name
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why=f"take it for node {node.name}")


def take_again(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next action for a claim that was taken for an earlier Node of our name, which nobody else touches."""
    node = cluster.own_node
    if node is None or claim.annotation(names.SELECTED_NODE) != node.name:
        return None
    if claim.annotation(names.NODE_UID) in (None, node.uid):
        return None
    body = {"metadata": node_metadata(node)}
    taken = Patch(kind=CLAIMS, target=claim, body=body, why=f"node {node.name} was made again")
    return own_node_differs(cluster, reads) or taken


def room_operation(run: Run, deps: OperationDeps, race: RaceTimes) -> Work:
    claim, driver = deps.claim(run), deps.driver(run)
    storage_class = deps.cluster.classes.get(class_of_claim(claim) or "")

    async def check() -> None:
        node = deps.cluster.own_node
        if node is None or storage_class is None:
            return
        labels = node.metadata.labels or {}
        segment = {key: labels[key] for key in driver.info.topology_keys if key in labels}
        capacity = await measured(deps, driver, storage_class, segment)
        limit = capacity.available_bytes
        if capacity.maximum_volume_bytes is not None:
            limit = min(limit, capacity.maximum_volume_bytes)
        race.room_seen(claim.uid, enough=limit >= whole_bytes(request_of(claim)))

    return check


def decide_recognition(volume: Volume, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next action for a volume of an earlier node of our name; None for any other volume."""
    node, uid = cluster.own_node, volume.annotation(names.NODE_UID)
    driver = cluster.drivers.get(volume.annotation(names.PROVISIONED_BY) or "")
    if node is None or driver is None or uid in (None, node.uid) or not on_node(volume, node):
        return None
    known = cluster.progress.volumes.get(volume.uid)
    if known.found_on == node.uid:
        if (first := own_node_differs(cluster, reads)) is not None:
            return first
        body = {"metadata": {"annotations": {names.NODE_UID: node.uid}}}
        message = f"the storage of node {node.name} has it, though the node was made again"
        events = (EventRecord(VOLUMES, volume, "Normal", "VolumeFound", message),)
        return Patch(kind=VOLUMES, target=volume, body=body, why="its node is back", events=events)
    if known.missing_on == node.uid or not driver.supports("find"):
        where = "and not on the storage of the present one"
        return Wait(reason=f"it is of an earlier node {node.name} (uid {uid}), {where}")
    return Run(verb="recognise", key=volume.key, uid=volume.uid, driver=driver.name, asset=asset_key(volume))


def recognise_operation(run: Run, deps: OperationDeps) -> Work:
    volume, driver, cluster = deps.volume(run), deps.driver(run), deps.cluster
    progress = cluster.progress.volumes.track(run.uid)

    async def recognise() -> None:
        node = cluster.own_node
        identity = volume_identity(volume, cluster.cluster_id)
        if node is None or identity.owner is None:
            return
        request = FindRequest(
            context=deps.context(driver, identity.owner.generation),
            name=identity.owner.volume_name,
            owner=identity.owner,
            segment=next(iter(identity.node_affinity), None),
            only_look=True,
        )
        found = await deps.hooks.call(driver, request)
        if isinstance(found, Asset) and found.handle == identity.handle:
            progress.found_on = node.uid
        else:
            progress.missing_on = node.uid

    return recognise
