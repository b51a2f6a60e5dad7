"""On which node the claims and volumes of distributed drivers are, and the labels that say so.

A claim for which nothing is made yet may go anywhere at any time: the write is conditional on the version that was
seen. One whose intent names a place stays with it, because an asset may be there, until the node has been gone for the
time that its class sets; then the intent goes on with the next generation, as after any asset that is given up.

The decisions are pure, but for what `decide_assignment` and `decide_membership` note in the state.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from volplane.assets import Segment
from volplane.binding.decide import not_asked
from volplane.controller.actions import Action, LiveReads, Patch, Read, Settled, Wait, warning
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import metadata_without_node, node_metadata, on_node
from volplane.intents.record import give_back, not_provisioned, provisioning_failed, settled_metadata
from volplane.intents.requests import allowed_segments, segments_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, NODES, VOLUMES
from volplane.kube.objects import Claim, Node, StorageClass, Volume
from volplane.placement.nodes import is_ready
from volplane.placement.room import UNPUBLISHED_SECONDS, choose, read_parameters
from volplane.placement.state import PlacementState, unsuitable
from volplane.snapshots.source import refused_on_nodes
from volplane.state.matching import class_of_claim, source_of
from volplane.state.naming import no_room_told, volume_name_of
from volplane.state.records import INTENT_VERSION, ClaimIntent

ANSWER_SECONDS = 60.0
"""Time in which the process of a node that is there begins to work on a claim."""


def decide_assignment(key: str, state: PlacementState, reads: LiveReads) -> Action:
    """Decide a claim, and count on a node what is on its way there until the write is answered."""
    state.waiting.discard(key)
    claim = state.cluster.claims.get(key)
    if claim is None:
        return Settled()
    state.usage.set(state.usage.held, volume_name_of(claim), None)
    action = _decide_assignment(claim, state, reads)
    if isinstance(action, Patch):
        metadata: dict[str, Any] = action.body["metadata"]
        label = metadata.get("labels", {}).get(names.NODE)
        driver = state.driver_of_claim(claim)
        if label and driver is not None:
            state.usage.set(state.usage.held, volume_name_of(claim), state.promise(claim, driver, label))
            if selected := metadata["annotations"].get(names.SELECTED_NODE):
                state.last[class_of_claim(claim) or ""] = selected
    elif isinstance(action, Wait) and not claim.annotation(names.SELECTED_NODE) and source_of(claim) is None:
        state.waiting.add(key)
    return action


def _decide_assignment(claim: Claim, state: PlacementState, reads: LiveReads) -> Action:
    driver, storage_class = state.driver_of_claim(claim), state.class_of(claim)
    if driver is None:
        provisioner = storage_class.provisioner if storage_class is not None else ""
        if claim.spec.volume_name or not state.cluster.drivers.on_nodes(provisioner):
            return Settled()
        return Wait(reason=f'driver "{provisioner}" is starting')
    intent, sealer = state.cluster.intent_of(claim), state.cluster.sealer
    if intent is not None and sealer.sealed_formerly(claim.uid, claim.annotation(names.INTENT)):
        metadata = {"annotations": {names.INTENT: sealer.seal(claim.uid, intent)}}
        return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="its node is to read it")
    if intent is not None and intent.segment and settled_metadata(claim):
        return _begun(claim, intent, state, reads)
    if claim.spec.volume_name or claim.bound:
        return _beside_volume(claim, state)
    if claim.terminating:
        return _ended(claim, intent, state)
    if (source := source_of(claim)) is not None:
        return refused_on_nodes(claim, source, driver.name)
    if selected := claim.annotation(names.SELECTED_NODE):
        return _selected(claim, selected, driver, state, reads)
    if storage_class is None:
        return Wait(reason="its class does not exist")
    return _unplaced(claim, storage_class, driver, state)


# --- claims that have a place ------------------------------------------------------------------------------------


def _begun(claim: Claim, intent: ClaimIntent, state: PlacementState, reads: LiveReads) -> Action:
    """Decide a claim whose asset may be at the place of its intent: the node there keeps it while there is one."""
    place = intent.segment or {}
    selected = claim.annotation(names.SELECTED_NODE) or ""
    there = state.nodes.at(place)
    node = next((each for each in there if each.name == selected), there[0] if there else None)
    name = node.name if node is not None else selected or ", ".join(sorted(place.values()))
    away = state.nodes.away(name)
    if node is not None and (step := _belonging(claim, node)) is not None:
        return step
    if away == 0:
        return Wait(reason=f"the process of node {name} makes its volume")
    # The asset may hold data and cannot be reached: it is given up only after the time that its class sets.
    if (left := read_parameters(state.class_of(claim))[0].gone_after - away) > 0:
        reason = f"node {name} is gone or not ready; the claim goes to another one if it stays so"
        return Wait(reason=reason, seconds=left)
    asked = node.name if node is not None else selected
    if asked and (there_after_all := _not_gone(asked, place, reads)) is not None:
        return there_after_all
    return _give_up(claim, intent, name, state)


def _not_gone(name: str, place: Segment, reads: LiveReads) -> Action | None:
    """Return what to do instead of giving up a node: the cache may be behind, as after a time without API server."""
    if not reads.has(NODES, name):
        return Read(NODES, name, why="is the node really gone?")
    live = reads.get(NODES, name)
    if isinstance(live, Node) and is_ready(live) and place.items() <= (live.metadata.labels or {}).items():
        return Wait(reason=f"node {name} is there again", seconds=1.0)
    return None


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
        # The next generation: what the node may have made is another asset, and is never taken for the claim's.
        generation = intent.generation + 1
        later = ClaimIntent(v=INTENT_VERSION, driver=intent.driver, generation=generation, size=intent.size)
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
    """Label a claim like its volume: the process that has the volume has to see it, because it may have to grow."""
    volume = state.cluster.volumes.get(claim.spec.volume_name)
    if volume is None or state.driver_of_volume(volume) is None:
        return Settled()
    label = (volume.metadata.labels or {}).get(names.NODE)
    if label is None or (claim.metadata.labels or {}).get(names.NODE) == label:
        return Settled()
    metadata = {"labels": {names.NODE: label}, "annotations": {names.NODE_UID: volume.annotation(names.NODE_UID)}}
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="it is where its volume is")


def _ended(claim: Claim, intent: ClaimIntent | None, state: PlacementState) -> Action:
    """Decide a claim that is deleted before it was placed: a record that names no place is not needed any more."""
    settled = settled_metadata(claim)
    if not settled:
        return Settled()
    if intent is not None:
        return Patch(kind=CLAIMS, target=claim, body={"metadata": settled}, why="nothing was begun")
    # The record is damaged: the process of the selected node finds out what it was about.
    node = state.nodes.cache.get(claim.annotation(names.SELECTED_NODE) or "")
    return (_belonging(claim, node) if node is not None else None) or Settled()


def _selected(claim: Claim, selected: str, driver: DriverView, state: PlacementState, reads: LiveReads) -> Action:
    """Decide a claim for which a node was selected, and nothing is made there yet."""
    if why := not_asked(claim, driver.name):
        return Wait(reason=why)
    node = state.nodes.cache.get(selected)
    if node is None:
        if not reads.has(NODES, selected):
            return Read(NODES, selected, why="does the selected node exist?")
        if reads.get(NODES, selected) is not None:
            return Wait(reason=f"node {selected} has just been made", seconds=1.0)
        return give_back(claim, f'selected node "{selected}" does not exist; another one is asked for')
    if (step := _belonging(claim, node)) is not None:
        return step
    gone_after = read_parameters(state.class_of(claim))[0].gone_after
    away, silent = state.nodes.away(selected), state.cluster.monotonic() - state.since[claim.uid][1]
    # A node that is there is given the time that its process needs for its first write, whatever the class says.
    silence_left, away_left = max(gone_after, ANSWER_SECONDS) - silent, gone_after - away
    gone = not is_ready(node) and away_left <= 0
    if not gone and silence_left > 0:
        left = silence_left if is_ready(node) else min(silence_left, away_left)
        return Wait(reason=f"the process of node {selected} has not begun to make its volume", seconds=left)
    if silence_left > 0 and (there_after_all := _not_gone(selected, {}, reads)) is not None:
        return there_after_all
    why = "is gone or not ready" if gone else "does not answer: no process of volplane serves it"
    return give_back(claim, f"node {selected} {why}; another one is asked for")


# --- claims that have none ---------------------------------------------------------------------------------------


def _unplaced(claim: Claim, storage_class: StorageClass, driver: DriverView, state: PlacementState) -> Action:
    if (claim.metadata.labels or {}).get(names.NODE) is not None:
        return Patch(kind=CLAIMS, target=claim, body={"metadata": node_metadata(None)}, why="it has no node any more")
    if storage_class.volume_binding_mode == "WaitForFirstConsumer":
        told = state.room.of(driver.name, storage_class.name) or not state.cluster.drivers.publishes(driver.name)
        why = "" if told else f"; {no_room_told(state.cluster.namespace)}"
        return Wait(reason=f"the scheduler has not selected a node{why}")
    if why := not_asked(claim, driver.name):
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
    node = state.nodes.cache.get(chosen)
    step = _belonging(claim, node, select=True) if node is not None else None
    return step or Settled()


def _nowhere(claim: Claim, storage_class: StorageClass, driver: DriverView, state: PlacementState) -> Wait:
    """Say why no node can take the claim, and look again when what is counted twice for a while is not any more."""
    allowed = allowed_segments(storage_class)
    now, refused = state.cluster.monotonic(), state.refused.get(claim.uid, {})
    published = state.room.of(driver.name, storage_class.name) is not None
    full = "without room for it" if published else "full, by their answer"
    lacking = Counter(unsuitable(node, driver, allowed) or full for node in state.nodes.cache.values())
    counted = ", ".join(f"{count} {why}" for why, count in sorted(lacking.items())) or "there are none"
    due = min([UNPUBLISHED_SECONDS, *(until - now for until in refused.values() if until > now)])
    wait = not_provisioned(claim, f"no node can take it; of the nodes are {counted}")
    return replace(wait, seconds=due)


# --- volumes and nodes -------------------------------------------------------------------------------------------


def decide_membership(name: str, state: PlacementState) -> Action:
    """Return the next action of the assigner for the volume with this name, and note whether it is lost."""
    volume = state.cluster.volumes.get(name)
    if why := _why_lost(volume, state) if volume is not None else "":
        state.lost[name] = why
    else:
        state.lost.pop(name, None)
    if volume is None or state.driver_of_volume(volume) is None:
        return Settled()
    if (node := _node_of(volume, state)) is not None:
        wanted = node_metadata(node)
        recorded = volume.annotation(names.NODE_UID)
        if recorded is not None:
            # The node may have been made again: its new uid would hide that the volume is lost.
            del wanted["annotations"]
        if recorded is None or not wanted["labels"].items() <= (volume.metadata.labels or {}).items():
            return Patch(kind=VOLUMES, target=volume, body={"metadata": wanted}, why=f"it lies on node {node.name}")
    if not why:
        return Settled()
    events = [warning(VOLUMES, volume, "VolumeLost", why)]
    if (claim := state.cluster.claim_of(volume)) is not None:
        events.append(warning(CLAIMS, claim, "VolumeLost", f"volume {volume.name}: {why}"))
    return Wait(reason=why, events=tuple(events))


def _why_lost(volume: Volume, state: PlacementState) -> str:
    """Return why the asset of the volume cannot be reached, or "": its node is gone, or was made again."""
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
    """Return the one node that the volume's affinity puts it on."""
    found = [node for place in segments_of(volume)[:1] for node in state.nodes.at(place) if on_node(volume, node)]
    label = (volume.metadata.labels or {}).get(names.NODE)
    return next((node for node in found if state.nodes.hashed(node.name) == label), found[0] if found else None)


def decide_node(name: str, state: PlacementState) -> Action:
    """Report other nodes whose names have the same hash as this one's."""
    node = state.nodes.cache.get(name)
    if node is None or not (others := state.nodes.sharing_hash(name)):
        return Settled()
    why = (
        f"its name has the same hash {state.nodes.hashed(name)} as {', '.join(others)}: the processes of both see each "
        "other's claims and volumes, and leave them alone; give one another name to save that"
    )
    return Wait(reason=why, events=(warning(NODES, node, "NodeHashCollision", why),))
