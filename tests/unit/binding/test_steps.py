"""The writes of a bind and of an unbind, one at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from volplane.binding.decide import bind_step, claim_status_step, reset_claim_step, unbind_patch, volume_phase_step
from volplane.controller.actions import EventRecord, Patch
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, Volume

CHOSEN = {"pv.kubernetes.io/bound-by-controller": "yes"}
DONE = {"pv.kubernetes.io/bind-completed": "yes"}


def applied(item: Any, step: Patch) -> Any:
    """The object after the server took the patch."""
    body = msgspec.to_builtins(item)
    _merge(body, step.body)
    return msgspec.convert(body, type(item))


def _merge(into: dict[str, Any], patch: Any) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def written(wanting: Claim, free: Volume) -> tuple[list[str], Claim, Volume]:
    """All steps of a bind, in order, and what the pair looks like then."""
    order: list[str] = []
    while (step := bind_step(wanting, free)) is not None:
        assert len(order) < 5
        order.append("/".join(filter(None, (step.kind.plural, step.subresource))))
        if isinstance(step.target, Claim):
            wanting = applied(wanting, step)
        else:
            free = applied(free, step)
    return order, wanting, free


ALL_FOUR = [
    "persistentvolumes",
    "persistentvolumes/status",
    "persistentvolumeclaims",
    "persistentvolumeclaims/status",
]


def test_a_bind_writes_reference_phase_pointer_and_status_in_this_order() -> None:
    order, wanting, free = written(claim(resourceVersion="7"), volume(size="2Gi", accessModes=["ReadWriteOnce"]))
    assert order == ALL_FOUR
    ref = free.spec.claim_ref
    assert ref is not None
    assert (ref.kind, ref.api_version, ref.namespace, ref.name, ref.uid) == (
        "PersistentVolumeClaim",
        "v1",
        "default",
        "c",
        "uid-c",
    )
    first = bind_step(claim(resourceVersion="7"), volume(size="2Gi"))
    assert first is not None
    assert first.body["spec"]["claimRef"]["resourceVersion"] == "7"
    assert free.metadata.annotations == CHOSEN
    assert wanting.metadata.annotations == {**CHOSEN, **DONE}
    assert (wanting.status.phase, wanting.status.capacity) == ("Bound", {"storage": "2Gi"})


def test_a_pair_that_is_bound_needs_no_write() -> None:
    _, wanting, free = written(claim(), volume())
    assert bind_step(wanting, free) is None


@pytest.mark.parametrize("done", range(4))
def test_a_bind_goes_on_with_the_first_write_that_is_missing(done: int) -> None:
    wanting, free = claim(), volume()
    for _ in range(done):
        step = bind_step(wanting, free)
        assert step is not None
        if isinstance(step.target, Claim):
            wanting = applied(wanting, step)
        else:
            free = applied(free, step)
    order, _, _ = written(wanting, free)
    assert order == ALL_FOUR[done:]


def test_a_reserved_volume_is_not_marked_as_chosen_by_the_controller() -> None:
    _, wanting, free = written(claim(), volume(reserved="c"))
    assert free.metadata.annotations is None
    assert wanting.metadata.annotations == {**CHOSEN, **DONE}


def test_a_claim_that_names_its_volume_is_not_marked_as_chosen_by_the_controller() -> None:
    _, wanting, free = written(claim(volumeName="v"), volume())
    assert free.metadata.annotations == CHOSEN
    assert wanting.metadata.annotations == DONE


def test_what_else_is_to_change_on_the_claim_goes_with_its_pointer() -> None:
    half = volume(claim=claim(), status={"phase": "Bound"})
    step = bind_step(claim(), half, claim_metadata={"annotations": {"volplane.dev/intent": None}, "finalizers": None})
    assert step is not None
    assert step.body["metadata"] == {
        "annotations": {"volplane.dev/intent": None, **CHOSEN, **DONE},
        "finalizers": None,
    }


def test_the_size_in_the_status_is_left_alone_while_the_claim_is_bound() -> None:
    """From then on it is the resizer's."""
    held = claim(status={"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}})
    assert claim_status_step(held, volume(size="5Gi")) is None


def test_access_modes_follow_the_volume_also_later() -> None:
    held = claim(status={"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}})
    step = claim_status_step(held, volume(accessModes=["ReadOnlyMany"]))
    assert step is not None
    assert step.body == {"status": {"accessModes": ["ReadOnlyMany"]}}


@pytest.mark.parametrize(("noted", "shown"), [("3Gi", "3Gi"), ("no size", "5Gi")])
def test_a_resize_of_the_file_system_that_is_due_shows_the_size_before_it(noted: str, shown: str) -> None:
    step = claim_status_step(
        claim(), volume(size="5Gi", annotations={"volume.alpha.kubernetes.io/pre-resize-capacity": noted})
    )
    assert step is not None
    assert step.body["status"]["capacity"] == {"storage": shown}


@pytest.mark.parametrize(("phase", "told"), [("Pending", True), ("Lost", False)])
def test_the_attributes_class_is_shown_when_a_pending_claim_becomes_bound(phase: str, told: bool) -> None:
    step = claim_status_step(claim(status={"phase": phase}), volume(volumeAttributesClassName="gold"))
    assert step is not None
    assert ("currentVolumeAttributesClassName" in step.body["status"]) is told


def test_a_claim_without_a_volume_shows_nothing_of_one() -> None:
    shown = {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "currentVolumeAttributesClassName": "gold",
    }
    step = reset_claim_step(claim(status=shown), "Lost")
    assert step is not None
    assert step.body["status"] == {
        "phase": "Lost",
        "accessModes": None,
        "capacity": None,
        "currentVolumeAttributesClassName": None,
    }
    assert reset_claim_step(claim(), "Pending") is None


def test_a_loss_is_told_only_when_the_phase_changes() -> None:
    event = EventRecord(VOLUMES, volume(), "Warning", "ClaimLost", "gone")
    tidied = reset_claim_step(claim(status={"phase": "Lost", "capacity": {"storage": "1Gi"}}), "Lost", events=(event,))
    assert tidied is not None
    assert tidied.events == ()


def test_a_phase_is_written_once_and_a_message_when_it_is_new() -> None:
    """Item 21.12: a failure for another reason does not keep the first one's words."""
    assert volume_phase_step(volume(status={"phase": "Released"}), "Released") is None
    failed = volume(status={"phase": "Failed", "message": "locked"})
    assert volume_phase_step(failed, "Failed", "locked") is None
    step = volume_phase_step(failed, "Failed", "filer is down")
    assert step is not None
    assert step.body["status"]["message"] == "filer is down"
    released = volume_phase_step(failed, "Released")
    assert released is not None
    assert released.body["status"] == {"phase": "Released", "message": None, "reason": None}


def test_what_the_controller_chose_is_unbound_whole_and_what_a_person_reserved_keeps_its_name() -> None:
    chosen = unbind_patch(volume(claim=claim(), annotations=CHOSEN), why="test")
    assert chosen.body == {
        "spec": {"claimRef": None},
        "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": None}},
    }
    freed = applied(volume(claim=claim()), unbind_patch(volume(claim=claim()), why="test"))
    assert freed.spec.claim_ref is not None
    assert (freed.spec.claim_ref.name, freed.spec.claim_ref.uid) == ("c", "")


def test_the_end_of_an_intent_and_the_offer_are_one_write() -> None:
    step = unbind_patch(
        volume(claim=claim(), annotations=CHOSEN), metadata={"annotations": {"volplane.dev/intent": None}}, why="test"
    )
    assert step.body["metadata"]["annotations"] == {
        "volplane.dev/intent": None,
        "pv.kubernetes.io/bound-by-controller": None,
    }
