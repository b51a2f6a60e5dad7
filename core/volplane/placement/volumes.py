"""To which node a volume of a distributed driver belongs: its label, and whether that node is lost. Pure.

`Membership`, which the runner calls, keeps which volumes are lost.
"""

from __future__ import annotations

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Settled, Wait, warning
from volplane.intents.ownership import node_metadata, on_node
from volplane.intents.requests import segments_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Node, Volume
from volplane.placement.state import PlacementState

__all__ = ["Membership", "decide_membership", "decide_node", "why_lost"]


class Membership:
    """Decides volumes, and keeps which are lost."""

    def __init__(self, state: PlacementState) -> None:
        self._state = state

    def __call__(self, name: str, _reads: LiveReads) -> Action:
        volume = self._state.cluster.volumes.get(name)
        why = why_lost(volume, self._state) if volume is not None else ""
        if why:
            self._state.lost[name] = why
        else:
            self._state.lost.pop(name, None)
        return decide_membership(name, self._state)


def decide_membership(name: str, state: PlacementState) -> Action:
    """The next action of the assigner for the volume with this name."""
    volume = state.cluster.volumes.get(name)
    if volume is None or state.driver_of_volume(volume) is None:
        return Settled()
    if (node := _node_of(volume, state)) is not None:
        wanted = node_metadata(node)
        recorded = volume.annotation(names.NODE_UID)
        if recorded is not None:
            del wanted["annotations"]  # The node may have been made again since.
        if recorded is None or not wanted["labels"].items() <= (volume.metadata.labels or {}).items():
            return Patch(kind=VOLUMES, target=volume, body={"metadata": wanted}, why=f"it lies on node {node.name}")
    why = why_lost(volume, state)
    return Wait(reason=why, events=_told(volume, why, state)) if why else Settled()


def why_lost(volume: Volume, state: PlacementState) -> str:
    """Why nobody can reach what the volume is, or "": its node is gone, or was made again."""
    if state.driver_of_volume(volume) is None or not (places := segments_of(volume)):
        return ""
    node = _node_of(volume, state)
    if node is None:
        place = " or ".join(", ".join(f"{k}={v}" for k, v in sorted(each.items())) for each in places)
        return f"its node ({place}) is gone: it is lost, unless the node comes back"
    uid = volume.annotation(names.NODE_UID)
    if uid in (None, node.uid):
        return ""
    return (
        f"its node {node.name} was made again (uid {node.uid}, before {uid}): it is lost, unless the storage there "
        "shows that it is the same"
    )


def _node_of(volume: Volume, state: PlacementState) -> Node | None:
    """The one node that the volume's affinity puts it on."""
    found = [node for place in segments_of(volume)[:1] for node in state.nodes.at(place) if on_node(volume, node)]
    label = (volume.metadata.labels or {}).get(names.NODE)
    return next((node for node in found if state.nodes.hashed(node.name) == label), found[0] if found else None)


def _told(volume: Volume, why: str, state: PlacementState) -> tuple[EventRecord, ...]:
    """An event on the volume, and on the claim that is bound to it."""
    event = warning(VOLUMES, volume, "VolumeLost", why)
    reference = volume.spec.claim_ref
    claim = state.cluster.claims.get(reference.key) if reference is not None else None
    if claim is None or reference is None or claim.uid != reference.uid:
        return (event,)
    return (event, warning(CLAIMS, claim, "VolumeLost", f"volume {volume.name}: {why}"))


def decide_node(name: str, state: PlacementState) -> Action:
    """Say that another node's name has the same hash, where that is so."""
    node = state.nodes.get(name)
    if node is None or not (others := state.nodes.sharing_hash(name)):
        return Settled()
    why = (
        f"its name has the same hash {state.nodes.hashed(name)} as {', '.join(others)}: the processes of both see each "
        "other's claims and volumes, and leave them alone; give one another name to save that"
    )
    return Wait(reason=why, events=(warning(NODES, node, "NodeHashCollision", why),))
