"""Which node a claim of a distributed driver goes to, and its label. Pure, but for what `Assigner` holds.

A claim that nobody has begun to serve may go anywhere at any time: the write is conditional on the version that was
seen. One whose intent names a place stays with it, because an asset may be there, until the node has been gone for the
time that its class sets; then the intent goes on with the next generation, as after any asset that is given up.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from volplane.assets import Segment
from volplane.controller.actions import Action, LiveReads, Patch, Read, Settled, Wait
from volplane.drivers.view import DriverView
from volplane.intents.ownership import metadata_without_node, node_metadata
from volplane.intents.record import not_provisioned, provisioning_failed, settled_metadata
from volplane.intents.requests import allowed_segments
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, NODES
from volplane.kube.objects import Claim, Node, StorageClass
from volplane.placement.choose import choose
from volplane.placement.nodes import is_ready
from volplane.placement.parameters import read_parameters
from volplane.placement.state import PlacementState, unsuitable
from volplane.placement.usage import UNPUBLISHED_SECONDS
from volplane.state.naming import volume_name_of
from volplane.state.records import INTENT_VERSION, ClaimIntent

__all__ = ["Assigner", "decide_assignment"]


class Assigner:
    """Decides claims, counting on a node what is on its way there until the write is answered."""

    def __init__(self, state: PlacementState) -> None:
        self._state = state

    def __call__(self, key: str, reads: LiveReads) -> Action:
        state = self._state
        claim = state.cluster.claims.get(key)
        if claim is not None:
            state.usage.hold(volume_name_of(claim), None)
        state.waiting.discard(key)
        action = decide_assignment(key, state, reads)
        if claim is None:
            return action
        if isinstance(action, Patch):
            self._hold(claim, action)
        elif isinstance(action, Wait) and not claim.annotation(names.SELECTED_NODE):
            state.waiting.add(key)
        return action

    def _hold(self, claim: Claim, action: Patch) -> None:
        """The node that the claim gets with this write, if it gets one."""
        metadata: dict[str, Any] = action.body["metadata"]
        label = metadata.get("labels", {}).get(names.NODE)
        driver = self._state.driver_of_claim(claim)
        if label and driver is not None:
            self._state.usage.hold(volume_name_of(claim), self._state.promise(claim, driver, label))
            if selected := metadata.get("annotations", {}).get(names.SELECTED_NODE):
                self._state.last[claim.spec.storage_class_name or ""] = selected


def decide_assignment(key: str, state: PlacementState, reads: LiveReads) -> Action:
    """The next action of the assigner for the claim with this key."""
    claim = state.cluster.claims.get(key)
    if claim is None:
        return Settled()
    driver = state.driver_of_claim(claim)
    if driver is None:
        return _without_driver(claim, state)
    intent = state.cluster.intent_of(claim)
    if intent is not None and intent.segment and settled_metadata(claim):
        return _begun(claim, intent, state, reads)
    if claim.spec.volume_name or claim.annotation(names.BIND_COMPLETED) is not None:
        return _beside_volume(claim, state)
    if claim.terminating:
        return _ended(claim, intent, state)
    if selected := claim.annotation(names.SELECTED_NODE):
        return _selected(claim, selected, driver, state, reads)
    storage_class = state.class_of(claim)
    if storage_class is None:
        return Wait(reason="its class does not exist")
    return _unplaced(claim, storage_class, driver, state)


def _without_driver(claim: Claim, state: PlacementState) -> Action:
    """Its driver is not distributed, or is not made yet."""
    storage_class = state.class_of(claim)
    if storage_class is None or claim.spec.volume_name or not state.cluster.drivers.on_nodes(storage_class.provisioner):
        return Settled()
    return Wait(reason=f'driver "{storage_class.provisioner}" is starting')


# --- claims that have a place ------------------------------------------------------------------------------------


def _begun(claim: Claim, intent: ClaimIntent, state: PlacementState, reads: LiveReads) -> Action:
    """An asset may be at the place of the intent: its node keeps the claim, as long as there is one."""
    selected = claim.annotation(names.SELECTED_NODE) or ""
    there = state.nodes.at(intent.segment or {})
    node = next((each for each in there if each.name == selected), there[0] if there else None)
    name = node.name if node is not None else selected or ", ".join(sorted((intent.segment or {}).values()))
    waits = _while_gone(claim, name, state)
    if node is not None and (step := _belonging(claim, node)) is not None:
        return step
    if waits is not None:
        return waits
    asked = node.name if node is not None else selected
    if asked and (there_after_all := _not_gone(asked, intent.segment or {}, reads)) is not None:
        return there_after_all
    return _give_up(claim, intent, name, state)


def _not_gone(name: str, place: Segment, reads: LiveReads) -> Action | None:
    """What to do instead of giving up a node: the cache may be behind, as after a time without the API server."""
    if not reads.has(NODES, name):
        return Read(NODES, name, why="is the node really gone?")
    live = reads.get(NODES, name)
    if isinstance(live, Node) and is_ready(live) and place.items() <= (live.metadata.labels or {}).items():
        return Wait(reason=f"node {name} is there again", seconds=1.0)
    return None


def _while_gone(claim: Claim, name: str, state: PlacementState) -> Wait | None:
    """Wait while the node is there, or its time is not over."""
    away = state.nodes.away(name)
    if away == 0:
        return Wait(reason=f"the process of node {name} makes its volume")
    left = read_parameters(state.class_of(claim))[0].gone_after - away
    if left <= 0:
        return None
    return Wait(reason=f"node {name} is gone or not ready; the claim goes to another one if it stays so", seconds=left)


def _belonging(claim: Claim, node: Node, *, select: bool = False) -> Patch | None:
    """Write what makes the claim the node's, unless it is there. select: the node is chosen by this write too."""
    labels, annotations = claim.metadata.labels or {}, claim.metadata.annotations or {}
    wanted = node_metadata(node)
    if select:
        wanted["annotations"][names.SELECTED_NODE] = node.name
    if wanted["labels"].items() <= labels.items() and wanted["annotations"].items() <= annotations.items():
        return None
    return Patch(kind=CLAIMS, target=claim, body={"metadata": wanted}, why=f"it is for node {node.name}")


def _give_up(claim: Claim, intent: ClaimIntent, name: str, state: PlacementState) -> Patch:
    """Go on without the node: with another asset, or, where none is wanted, with no intent."""
    metadata = metadata_without_node()
    annotations: dict[str, Any] = metadata["annotations"]
    if claim.terminating or claim.spec.volume_name:
        settled = settled_metadata(claim)
        annotations |= settled.pop("annotations", {})
        metadata |= settled
    else:
        later = ClaimIntent(v=INTENT_VERSION, driver=intent.driver, generation=intent.generation + 1)
        annotations[names.INTENT] = state.cluster.sealer.seal(claim.uid, later)
    if claim.spec.volume_name:
        del annotations[names.SELECTED_NODE]
    message = (
        f"node {name} is gone; what it may have made for the claim is left there, and its leak check finds it if the "
        "node comes back"
    )
    events = (provisioning_failed(claim, message),)
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="its node is gone", events=events)


def _beside_volume(claim: Claim, state: PlacementState) -> Action:
    """A claim that has a volume is seen by the process that has the volume: it may have to grow."""
    volume = state.cluster.volumes.get(claim.spec.volume_name)
    if volume is None or state.driver_of_volume(volume) is None:
        return Settled()
    label = (volume.metadata.labels or {}).get(names.NODE)
    if label is None or (claim.metadata.labels or {}).get(names.NODE) == label:
        return Settled()
    metadata = {"labels": {names.NODE: label}, "annotations": {names.NODE_UID: volume.annotation(names.NODE_UID)}}
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="it is where its volume is")


def _ended(claim: Claim, intent: ClaimIntent | None, state: PlacementState) -> Action:
    """A claim that is being deleted before it was placed: its record, if it names no place, needs nobody else."""
    if not settled_metadata(claim):
        return Settled()
    if intent is not None:
        return Patch(kind=CLAIMS, target=claim, body={"metadata": settled_metadata(claim)}, why="nothing was begun")
    # What a damaged record was about, the process of the selected node finds out.
    node = state.nodes.get(claim.annotation(names.SELECTED_NODE) or "")
    return (_belonging(claim, node) if node is not None else None) or Settled()


def _selected(claim: Claim, selected: str, driver: DriverView, state: PlacementState, reads: LiveReads) -> Action:
    """A node was selected, by whoever does that; nothing is begun there."""
    if why := _not_asked(claim, driver):
        return Wait(reason=why)
    node = state.nodes.get(selected)
    if node is None:
        if not reads.has(NODES, selected):
            return Read(NODES, selected, why="does the selected node exist?")
        if reads.get(NODES, selected) is not None:
            return Wait(reason=f"node {selected} has just been made", seconds=1.0)
        return _give_back(claim, f'selected node "{selected}" does not exist; another one is asked for')
    if (step := _belonging(claim, node)) is not None:
        return step
    gone_after = read_parameters(state.class_of(claim))[0].gone_after
    away, silent = state.nodes.away(selected), state.cluster.monotonic() - state.since[claim.uid][1]
    if max(away, silent) < gone_after:
        left = gone_after - max(away, silent)
        return Wait(reason=f"the process of node {selected} has not begun to make its volume", seconds=left)
    if silent < gone_after and (there_after_all := _not_gone(selected, {}, reads)) is not None:
        return there_after_all
    why = "is gone or not ready" if away >= gone_after else "does not answer: no process of volplane serves it"
    return _give_back(claim, f"node {selected} {why}; another one is asked for")


def _give_back(claim: Claim, message: str) -> Patch:
    events = (provisioning_failed(claim, message),)
    return Patch(
        kind=CLAIMS, target=claim, body={"metadata": metadata_without_node()}, why="ask for another node", events=events
    )


# --- claims that have none ---------------------------------------------------------------------------------------


def _not_asked(claim: Claim, driver: DriverView) -> str:
    asked = claim.annotation(names.STORAGE_PROVISIONER) or claim.annotation(names.BETA_STORAGE_PROVISIONER)
    return "" if asked == driver.name else f'the binder has not asked driver "{driver.name}" for a volume'


def _unplaced(claim: Claim, storage_class: StorageClass, driver: DriverView, state: PlacementState) -> Action:
    if (claim.metadata.labels or {}).get(names.NODE) is not None:
        return Patch(kind=CLAIMS, target=claim, body={"metadata": node_metadata(None)}, why="it has no node any more")
    if storage_class.volume_binding_mode == "WaitForFirstConsumer":
        return Wait(reason="the scheduler has not selected a node")
    if why := _not_asked(claim, driver):
        return Wait(reason=why)
    if state.external_choice:
        return Wait(reason=f"nobody has selected a node (annotation {names.SELECTED_NODE})")
    parameters, flaws = read_parameters(storage_class)
    if flaws:
        return not_provisioned(claim, f'class "{storage_class.name}": {flaws}')
    offers = state.offers(claim, driver, storage_class)
    if not offers:
        return _nowhere(claim, storage_class, driver, state)
    chosen = choose(parameters.strategy, offers, claim.uid, state.last.get(storage_class.name, ""))
    node = state.nodes.get(chosen)
    step = _belonging(claim, node, select=True) if node is not None else None
    return step or Settled()


def _nowhere(claim: Claim, storage_class: StorageClass, driver: DriverView, state: PlacementState) -> Wait:
    allowed = allowed_segments(storage_class)
    now, refused = state.cluster.monotonic(), state.refused.get(claim.uid, {})
    full = (
        "without room for it" if state.room.is_published(driver.name, storage_class.name) else "full, by their answer"
    )
    lacking = Counter(unsuitable(node, driver, allowed) or full for node in state.nodes.all())
    counted = ", ".join(f"{count} {why}" for why, count in sorted(lacking.items())) or "there are none"
    # What is counted twice for a while is not any more after so long.
    due = min([UNPUBLISHED_SECONDS, *(until - now for until in refused.values() if until > now)])
    wait = not_provisioned(claim, f"no node can take it; of the nodes are {counted}")
    return replace(wait, seconds=due)
