"""The process of one node: as beside a stock control plane, for claims and volumes whose assets are there. Pure.

A label selects what it watches. What it may work on follows from the sealed intent of a claim and from the node
affinity of a volume (`volplane.intents.ownership`), which no tenant can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from volplane.controller.actions import Action, LiveReads, Patch, Read, Wait
from volplane.controller.controller import Role
from volplane.intents.ownership import claim_elsewhere, metadata_without_node, node_metadata, volume_elsewhere
from volplane.intents.record import can_never_be_bound, has_newer_intent, settle, settled_metadata
from volplane.kube import names
from volplane.kube.kinds import CAPACITIES, CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.placement.one_node import RaceTimes, decide_race, decide_recognition, take_again
from volplane.provision import decide as provision
from volplane.reclaim.recycle import answer_scrub, recycles
from volplane.roles.beside import Beside
from volplane.snapshots.source import refused_on_nodes
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import refers_to, source_of
from volplane.state.naming import node_hash, volume_name_of
from volplane.state.records import ClaimIntent, recycle_intent_of


@dataclass(frozen=True)
class OneNode(Beside):
    """race: the times at which this process may take a claim that has no node; None where an assigner gives it one."""

    race: RaceTimes | None = None

    def claim_may_act(self, key: str) -> bool:
        """Return the predicate of claims. The volume of a claim may be in no watch of this process."""
        return key in self.cluster.claims or key in self.cluster.progress.vanished

    def volume_may_act(self, _key: str) -> bool:
        """Return the predicate of volumes. The node may have been made again."""
        return True

    def _end_intent(self, claim: Claim, reads: LiveReads, *, moved: bool = False) -> Action:
        name = claim.spec.volume_name
        if name and settled_metadata(claim) and name not in self.cluster.volumes and not reads.has(VOLUMES, name):
            # A volume of another node is in no watch of ours.
            return Read(VOLUMES, name, why="what is the claim bound to?")
        if name and claim.status.phase != "Bound" and not claim.terminating:
            return Wait(reason="the binder is writing the claim")
        # The asset of the intent may be on another node, whose process ends it.
        if settled_metadata(claim) and (why := claim_elsewhere(claim, self.cluster)):
            return Wait(reason=why)
        made = self.cluster.volumes.get(volume_name_of(claim))
        moved = made is not None and has_newer_intent(made, claim, self.cluster.sealer)
        return super()._end_intent(claim, reads, moved=moved)

    def _provision(self, claim: Claim, storage_class: StorageClass, reads: LiveReads) -> Action:
        if (source := source_of(claim)) is not None:
            # The assigner tells: events of every node would be too many.
            return Wait(reason=refused_on_nodes(claim, source, storage_class.provisioner).reason)
        driver = self.cluster.drivers.get(storage_class.provisioner)
        if driver is not None and self.race is not None:
            taken = decide_race(claim, storage_class, driver, self.cluster, self.race)
            if (step := taken or take_again(claim, self.cluster, reads)) is not None:
                return step
        if why := claim_elsewhere(claim, self.cluster):
            return Wait(reason=why)
        return self._provision_here(claim, storage_class, reads)

    def _provision_here(self, claim: Claim, storage_class: StorageClass, reads: LiveReads) -> Action:
        cluster, node = self.cluster, self.cluster.own_node
        driver = cluster.drivers.get(storage_class.provisioner)
        made = cluster.volumes.get(volume_name_of(claim))
        if driver is not None and made is not None and refers_to(made, claim) and not can_never_be_bound(made, claim):
            # The binder writes the claim next, and ours ends the intent with that; unless the claim went to another
            # node, and this one came back with a volume after all.
            ended = settle(claim, cluster, moved=True) if has_newer_intent(made, claim, cluster.sealer) else None
            return ended or Wait(reason=f'volume "{made.name}" exists, the binder must bind it')
        on_volume = node_metadata(node) if node is not None else {}
        terms = provision.Terms(on_volume=on_volume, reschedule=self._give_back)
        return provision.decide_provision(claim, storage_class, cluster, reads, terms)

    def _give_back(self, claim: Claim, intent: ClaimIntent, cluster: ClusterState) -> Patch:
        metadata: dict[str, Any] = metadata_without_node()
        if intent.generation > 1 and self.race is None:
            # A node that is gone may have an asset of an earlier generation. The assigner ends a record without place.
            metadata["annotations"][names.INTENT] = cluster.sealed(claim, intent)
        else:
            # Nobody watches it until it has another node: nothing may be left that somebody would have to end.
            settled = settled_metadata(claim)
            metadata["annotations"] |= settled.pop("annotations")
            metadata |= settled
        return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="ask for another node")

    def _reclaim(self, volume: Volume, reads: LiveReads) -> Action:
        if recycle_intent_of(volume) is not None or (recycles(volume) and not volume.terminating):
            return answer_scrub(volume, self.cluster, reads, self.reclaim)
        return super()._reclaim(volume, reads)

    def _made_by(self, maker: str, volume: Volume, reads: LiveReads) -> Action:
        # Its asset is on another node, or was on an earlier node of this name.
        if self.cluster.has_driver(maker) and (why := volume_elsewhere(volume, self.cluster)):
            return decide_recognition(volume, self.cluster, reads) or Wait(reason=why)
        return super()._made_by(maker, volume, reads)


def selectors(plural: str, role: Role) -> tuple[str, str]:
    """Return what selects by labels and by fields the objects of this kind that a process follows; "" for all."""
    if not role.node_name:
        return "", ""
    if plural == NODES.plural:
        return "", f"metadata.name={role.node_name}"
    # One that races for claims has to see them all, and has nobody who labels volumes.
    raced_for = role.race is not None and plural in (CLAIMS.plural, VOLUMES.plural)
    labelled = plural in (CLAIMS.plural, VOLUMES.plural, CAPACITIES.plural) and not raced_for
    return f"{names.NODE}={node_hash(role.node_name)}" if labelled else "", ""
