"""Which claims a change queues for growing and for other attributes, and what is forgotten then."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, volume
from unit.deciding import put, state_with
from unit.placement.world import Keys
from volplane.expand.modify import ExpandHandlers
from volplane.kube import names
from volplane.kube.objects import Claim, Volume

VERBS = ("expand", "modify")


def bound(version: int, *, size: str = "1Gi", wanted: str | None = None, shown: str | None = None) -> Claim:
    """Claim `c` with 1Gi. wanted, shown: the class of attributes that it names, and has."""
    status: dict[str, Any] = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    if shown is not None:
        status["currentVolumeAttributesClassName"] = shown
    more = {} if wanted is None else {"volumeAttributesClassName": wanted}
    return claim(size=size, volumeName="v", status=status, resourceVersion=str(version), **more)


class World:
    def __init__(self, *objects: Claim | Volume) -> None:
        self.cluster = state_with(*objects)
        self.resizer, self.modifier = Keys(), Keys()
        self.forgotten: list[tuple[str, str, str]] = []
        self.cluster.follow(
            ExpandHandlers(self.cluster, self.resizer, self.modifier, lambda *it: self.forgotten.append(it))
        )
        for verb in VERBS:
            self.cluster.progress.changes.track(("uid-v", verb))

    def after(self, *objects: Claim | Volume) -> tuple[list[str], list[str]]:
        """Keys that were queued by these changes: to grow, for other attributes."""
        put(self.cluster, *objects)
        return self.resizer.taken(), self.modifier.taken()

    @property
    def known(self) -> list[str]:
        """Of which changes there is progress."""
        return [verb for verb in VERBS if ("uid-v", verb) in self.cluster.progress.changes.records]


ITS = volume("v", claim=claim())
C = "default/c"


def test_a_claim_that_asks_for_more_is_queued_and_another_size_is_tried_at_once() -> None:
    world = World(bound(1), ITS)
    assert world.after(bound(2)) == ([], [])
    assert world.after(bound(3, size="2Gi")) == ([C], [])
    assert world.forgotten == [("expand", C, "uid-c")]
    assert world.after(bound(4, size="2Gi")) == ([C], [])
    assert world.forgotten == [("expand", C, "uid-c")], "the size is the same"
    assert world.known == ["expand", "modify"]
    assert world.after(bound(5)) == ([], [])
    assert world.known == ["modify"]


def test_a_claim_that_is_seen_first_forgets_nothing() -> None:
    world = World(ITS)
    assert world.after(bound(1, size="2Gi", wanted="gold")) == ([C], [C])
    assert world.forgotten == []
    world.cluster.claims.observe_deleted(C, "uid-c")
    assert world.after() == ([], [])
    assert world.known == ["expand", "modify"], "its volume says when that ends"


def test_a_claim_that_names_other_attributes_is_queued_and_another_class_is_tried_at_once() -> None:
    world = World(bound(1, wanted="gold", shown="gold"), ITS)
    assert world.after(bound(2, wanted="iron", shown="gold")) == ([], [C])
    assert world.forgotten == [("modify", C, "uid-c")]
    assert world.after(bound(3, wanted="iron", shown="gold")) == ([], [C])
    assert world.forgotten == [("modify", C, "uid-c")], "the class is the same"
    assert world.known == ["expand", "modify"]
    assert world.after(bound(4, wanted="iron", shown="iron")) == ([], [])
    assert world.known == ["expand"]


def test_what_was_not_wanted_before_leaves_what_is_known() -> None:
    world = World(bound(1, wanted="gold", shown="gold"), ITS)
    world.after(bound(2, wanted="gold", shown="gold"))
    assert world.known == ["expand", "modify"]


def noting(version: int) -> Volume:
    return volume("v", claim=claim(), annotations={names.PRE_RESIZE_CAPACITY: "1Gi"}, resourceVersion=str(version))


def test_a_claim_whose_volume_notes_a_former_size_is_queued() -> None:
    world = World(bound(1), ITS)
    assert world.after(noting(2)) == ([C], [])
    assert world.after(bound(2)) == ([C], [])


@pytest.mark.parametrize("item", [bound(1, size="2Gi", wanted="gold"), bound(1)])
def test_a_volume_queues_the_claim_that_is_bound_to_it_if_that_wants_something(item: Claim) -> None:
    world = World(item)
    wants = [C] if item.spec.volume_attributes_class_name else []
    assert world.after(ITS) == (wants, wants)
    assert world.after(volume("w", claim=claim("other"))) == ([], [])
    assert world.known == ["expand", "modify"]
    world.cluster.volumes.observe_deleted("v", "uid-v")
    assert world.known == []
    assert world.after() == ([], [])
