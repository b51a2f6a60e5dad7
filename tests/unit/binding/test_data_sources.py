"""A claim with a data source gets a volume that was made for it, never one that is merely free."""

from __future__ import annotations

from typing import Any, Final

import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import decide_claim, decided, disk, fast, state_with
from volplane.binding.decide import Bind, ClaimReconciler, decide_bound, decide_unbound, no_volume_fits
from volplane.controller.actions import LiveReads, Patch, Wait
from volplane.kube.objects import Claim, Volume
from volplane.state.matching import NOT_FROM_SOURCE, FreeVolumes, WaitingClaims, demand_of
from volplane.trash.decide import taken_or_unfit

SNAPSHOT: Final = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
SOURCES: Final[list[dict[str, Any]]] = [
    {"dataSource": SNAPSHOT},
    {"dataSourceRef": {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "other"}},
    {"dataSourceRef": {"apiGroup": "example.com", "kind": "Hello", "name": "h"}},
]
NAMED: Final[dict[str, Any]] = {"volumeName": "v"}


def unbound(item: Claim, *others: Volume, delayed: bool = False) -> Bind | Any:
    return decide_unbound(item, state_with(item, *others), delayed=delayed)


@pytest.mark.parametrize("source", SOURCES)
def test_no_free_volume_is_chosen_for_a_claim_with_a_source(source: dict[str, Any]) -> None:
    assert unbound(claim(), volume()) == Bind(volume())
    assert unbound(claim(**source), volume()) is None


def test_a_volume_that_comes_up_wakes_the_claim_behind_one_with_a_source() -> None:
    """At the head of a queue it would keep the volume from all the others."""
    waiting = WaitingClaims()
    for item in (claim("first", size="2Gi", **SOURCES[0]), claim("second")):
        waiting.add(item, demand_of(item))
    assert waiting.wake_for(volume(size="2Gi")) == "default/second"


def test_a_volume_that_is_about_to_be_free_is_not_waited_for() -> None:
    free = FreeVolumes()
    free.changed(None, volume(status={"phase": "Pending"}))
    assert free.coming(demand_of(claim())) is not None
    assert free.coming(demand_of(claim(**SOURCES[0]))) is None


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("reference", [{"reserved": "c"}, {"claim": claim()}])
def test_a_volume_whose_reference_names_the_claim_is_bound_at_once_or_after_a_choice_of_node(
    reference: dict[str, Any], *, delayed: bool
) -> None:
    """As a populator and an administrator write it: with the uid of the claim, and without."""
    made = volume(**reference)
    assert unbound(claim(**SOURCES[2]), made, volume("free"), delayed=delayed) == Bind(made)


def test_a_volume_that_was_reserved_for_an_earlier_claim_of_the_name_is_not_bound() -> None:
    earlier = volume(claim=claim(uid="earlier"))
    assert unbound(claim(**SOURCES[0]), earlier) is None


def test_a_volume_that_only_the_claim_names_is_refused_with_the_reason() -> None:
    """A person wrote the name on the claim's side."""
    waits = unbound(claim(**NAMED, **SOURCES[0]), volume())
    assert isinstance(waits, Wait)
    assert waits.reason == f'Cannot bind to requested volume "v": {NOT_FROM_SOURCE}'
    assert [event.reason for event in waits.events] == ["VolumeMismatch"]
    assert unbound(claim(**NAMED), volume()) == Bind(volume())


@pytest.mark.parametrize("reference", [{"reserved": "c"}, {"claim": claim()}])
def test_a_volume_that_both_sides_name_is_bound(reference: dict[str, Any]) -> None:
    """Some populators write the claim's side themselves."""
    made = volume(**reference)
    assert unbound(claim(**NAMED, **SOURCES[2]), made) == Bind(made)


def test_a_claim_that_was_bound_once_keeps_the_volume_that_lost_its_reference() -> None:
    """It has its data by then."""
    bound = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}, "status": {"phase": "Bound"}}
    item = claim(**NAMED, **SOURCES[0], **bound)
    assert decide_bound(item, state_with(item, volume())) == Bind(volume())


def test_without_a_class_the_claim_says_why_no_volume_is_taken() -> None:
    item = claim(storageClassName=None, **SOURCES[0])
    waits = no_volume_fits(item, None, state_with(item, volume()))
    assert isinstance(waits, Wait)
    assert waits.reason.endswith(f"; {NOT_FROM_SOURCE}")


def test_a_recycled_volume_of_the_class_is_left_for_others() -> None:
    recycled = volume(
        storageClassName="fast",
        annotations={"pv.kubernetes.io/provisioned-by": "disk.example.com", "volplane.dev/on-release": "recycle"},
    )
    for source, taken in (({}, True), (SOURCES[0], False)):
        step = decided(fast(**source), storage_class(), recycled, drivers=(disk(),))
        assert (isinstance(step, Patch) and step.target == recycled) is taken, source


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
def test_beside_processes_of_nodes_the_binder_takes_no_free_volume_either(mode: str) -> None:
    of_class = storage_class(volumeBindingMode=mode)
    free = volume(storageClassName="fast")
    item = fast(annotations={"volume.kubernetes.io/selected-node": "n"}, **SOURCES[1])
    step = decided(item, of_class, free, distributed=(disk(),))
    assert not (isinstance(step, Patch) and step.target == free), step


def test_beside_a_stock_binder_nothing_is_bound() -> None:
    item = fast(annotations={"volume.kubernetes.io/storage-provisioner": "disk.example.com"}, **SOURCES[1])
    free = volume(storageClassName="fast")
    step = decided(item, storage_class(), free, drivers=(disk(),), without=("binder",))
    assert not (isinstance(step, Patch) and step.target == free), step


def test_the_reconciler_puts_it_in_no_queue_for_free_volumes() -> None:
    item = claim(**SOURCES[0])
    state = state_with(item)
    reconciler = ClaimReconciler(state, lambda key, reads: decide_claim(key, state, reads), claims=_Keys())
    reconciler(item.key, LiveReads())
    assert item.key not in state.waiting.claims


class _Keys:
    def enqueue(self, key: str, after: float = 0.0) -> None:
        """Nobody is woken here."""


def test_a_volume_in_the_trash_is_not_given_to_it() -> None:
    why = taken_or_unfit(volume(claim=claim("former")), claim(**SOURCES[0]))
    assert why.endswith(NOT_FROM_SOURCE)
