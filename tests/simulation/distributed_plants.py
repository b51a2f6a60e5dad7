"""Known bugs of storage on nodes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from simulation.planting import by_name, replace
from volplane.controller.actions import Action, Patch, Settled, Wait
from volplane.intents import operation, ownership
from volplane.kube import names
from volplane.placement import assign, capacity
from volplane.placement import one_node as placing
from volplane.placement.room import PlacementParameters, Usage
from volplane.placement.state import PlacementState
from volplane.roles import node as one_node
from volplane.roles.node import OneNode
from volplane.state.records import INTENT_VERSION, ClaimIntent


def forget_what_was_given_up_and_deleted(stack: ExitStack) -> None:
    """Nobody ends the intent of a claim that is deleted between two nodes."""
    replace(stack, assign, "_ended", lambda *_: Settled())


def leave_labels_as_they_are(stack: ExitStack) -> None:
    """Do not put labels of volumes right."""
    replace(stack, assign, "_node_of", lambda *_: None)


def delete_by_the_label_alone(stack: ExitStack) -> None:
    """Take a volume for one's own because it is in the watch, wherever its node affinity puts it."""
    for module in (ownership, operation, one_node):
        replace(stack, module, "volume_elsewhere", lambda *_: "")


def take_a_node_made_again_for_the_old_one(stack: ExitStack) -> None:
    """Know a node by its name."""
    replace(stack, ownership, "_of_earlier_node", lambda *_: "")
    replace(stack, placing, "decide_recognition", lambda *_: None)


def move_claims_on_at_once(stack: ExitStack) -> None:
    """Leave a node that is not ready before the time of the class."""
    begun = assign._begun

    def hasty(*args: Any) -> Action:
        with ExitStack() as during:
            replace(during, assign, "read_parameters", lambda _: (PlacementParameters(gone_after=0.0), ""))
            return begun(*args)

    replace(stack, assign, "_begun", hasty)


def go_on_with_the_same_generation(stack: ExitStack) -> None:
    """Make the asset on the next node as the same as that on the one that is gone."""
    give_up = assign._give_up

    def same(claim: Any, intent: Any, name: str, state: Any) -> Patch:
        step = give_up(claim, intent, name, state)
        if claim.terminating or claim.spec.volume_name:
            return step
        again = ClaimIntent(v=INTENT_VERSION, driver=intent.driver, generation=intent.generation)
        step.body["metadata"]["annotations"][names.INTENT] = state.cluster.sealer.seal(claim.uid, again)
        return step

    replace(stack, assign, "_give_up", same)


def promise_room_twice(stack: ExitStack) -> None:
    """Go by published room alone, and forget what is on its way to a node."""
    note = Usage.set

    def forgets(self: Usage, *given: Any) -> None:
        note(self, *given)
        self.reserved.clear()

    replace(stack, Usage, "set", forgets)


def keep_claims_on_a_full_node(stack: ExitStack) -> None:
    """Wait on a full node until it has room."""

    def waits(*_: Any) -> Wait:
        return Wait(reason="there is no room", seconds=5.0)

    replace(stack, OneNode, "_give_back", waits)


def take_claims_from_the_scheduler(stack: ExitStack) -> None:
    """Give a claim that waits for a pod back to the assigner, with the node that the scheduler selected."""
    give_back = OneNode._give_back

    def keeps(self: OneNode, claim: Any, intent: Any, cluster: Any) -> Patch:
        step = give_back(self, claim, intent, cluster)
        storage_class = cluster.classes.get(claim.spec.storage_class_name or "")
        if storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer":
            step.body["metadata"]["annotations"].pop(names.SELECTED_NODE, None)
        return step

    replace(stack, OneNode, "_give_back", keeps)


def forget_generations_on_a_full_node(stack: ExitStack) -> None:
    """Drop the record of a claim that a full node gives back, and with it how often it was begun elsewhere."""
    give_back = OneNode._give_back

    def forgets(self: OneNode, claim: Any, intent: Any, cluster: Any) -> Patch:
        return give_back(self, claim, msgspec.structs.replace(intent, generation=1), cluster)

    replace(stack, OneNode, "_give_back", forgets)


def take_the_time_from_ones_own_clock(stack: ExitStack) -> None:
    """Tell what is new by the clock of the machine, which may be minutes off."""
    replace(stack, PlacementState, "_server_time", lambda self: self.cluster.now().timestamp())


def publish_for_a_node_that_is_gone(stack: ExitStack) -> None:
    """Publish room because the cache has the node."""
    replace(stack, capacity, "own_node_differs", lambda *_: None)


DISTRIBUTED_PLANTS = by_name(
    forget_what_was_given_up_and_deleted,
    leave_labels_as_they_are,
    delete_by_the_label_alone,
    take_a_node_made_again_for_the_old_one,
    move_claims_on_at_once,
    go_on_with_the_same_generation,
    promise_room_twice,
    keep_claims_on_a_full_node,
    take_claims_from_the_scheduler,
    forget_generations_on_a_full_node,
    take_the_time_from_ones_own_clock,
    publish_for_a_node_that_is_gone,
)
