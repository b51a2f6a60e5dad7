"""Which volume a claim is bound to: as syncUnboundClaim and syncBoundClaim of pv_controller.go, but for the listed
differences.
"""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, volume
from unit.deciding import state_with
from volplane.binding.decide import Bind, decide_bound, decide_unbound
from volplane.controller.actions import Patch, Wait
from volplane.kube.objects import Claim, Volume

DONE = {"pv.kubernetes.io/bind-completed": "yes"}
CHOSEN = {"pv.kubernetes.io/bound-by-controller": "yes"}
SCRUB = {"volplane.dev/intent": "{}"}
DYING = "2026-01-01T00:00:00Z"


def bound_to(outcome: Any) -> str:
    assert isinstance(outcome, Bind), outcome
    return outcome.volume.name


def unbound(item: Claim, *volumes: Volume, delayed: bool = False) -> Any:
    return decide_unbound(item, state_with(*volumes), delayed=delayed)


def bound(item: Claim, *volumes: Volume) -> Any:
    return decide_bound(item, state_with(*volumes))


# --- a claim that names no volume --------------------------------------------------------------------------------


def test_a_free_volume_that_fits_is_taken() -> None:
    assert bound_to(unbound(claim(), volume())) == "v"


def test_without_a_volume_that_fits_nothing_matches() -> None:
    assert unbound(claim(size="2Gi"), volume()) is None


def test_a_delayed_claim_leaves_free_volumes_alone() -> None:
    assert unbound(claim(), volume(), delayed=True) is None


@pytest.mark.parametrize("delayed", [True, False])
def test_a_reservation_is_taken_before_any_free_volume_and_also_by_a_delayed_claim(delayed: bool) -> None:
    """Item 21.4: it does not lose to a free volume with fewer access modes or a better size."""
    wide = volume("reserved", size="9Gi", accessModes=["ReadWriteOnce", "ReadOnlyMany"], reserved="c")
    assert bound_to(unbound(claim(), volume("exact"), wide, delayed=delayed)) == "reserved"


@pytest.mark.parametrize(
    "ignored",
    [
        {"storageClassName": "other"},
        {"status": {"phase": "Released"}},
        {"status": {"phase": "Pending"}},
        {"labels": {}},
    ],
)
def test_a_reservation_overrules_class_phase_and_selector(ignored: Any) -> None:
    wanting = claim(selector={"matchLabels": {"a": "b"}})
    assert bound_to(unbound(wanting, volume(reserved="c", **ignored))) == "v"


@pytest.mark.parametrize(
    "unfit",
    [
        {"size": "1Mi"},
        {"volumeMode": "Block"},
        {"volumeAttributesClassName": "gold"},
        {"accessModes": ["ReadOnlyMany"]},
        {"storageClassName": "other", "volumeMode": "Block"},
    ],
)
@pytest.mark.parametrize("uid", ["", "uid-c"])
def test_a_reservation_does_not_overrule_size_modes_or_attributes(unfit: Any, uid: str) -> None:
    ref = {"namespace": "default", "name": "c", "uid": uid}
    assert bound_to(unbound(claim(), volume("reserved", claimRef=ref, **unfit), volume("free"))) == "free"


def test_a_reservation_does_not_hold_for_a_volume_that_is_being_deleted() -> None:
    assert bound_to(unbound(claim(), volume("dying", reserved="c", deletionTimestamp=DYING), volume("free"))) == "free"


def test_a_bind_whose_phase_is_written_is_completed_though_the_volume_is_being_deleted() -> None:
    """Else neither goes on: the volume may not go while it is bound, the claim not take what is to go."""
    dying = volume("dying", claim=claim(), status={"phase": "Bound"}, deletionTimestamp=DYING)
    assert bound_to(unbound(claim(), dying, volume("free"))) == "dying"


def test_a_bind_whose_phase_is_not_written_is_given_up_when_the_volume_is_being_deleted() -> None:
    dying = volume("dying", claim=claim(), status={"phase": "Available"}, deletionTimestamp=DYING)
    assert bound_to(unbound(claim(), dying, volume("free"))) == "free"


def test_a_volume_with_our_uid_comes_before_one_that_only_names_us() -> None:
    """What a bind has begun is finished, not begun anew with another volume."""
    assert bound_to(unbound(claim(), volume("a", reserved="c"), volume("z", claim=claim()))) == "z"


def test_of_two_reservations_the_first_by_name_is_taken() -> None:
    """Item 21.18."""
    assert bound_to(unbound(claim(), volume("b", reserved="c"), volume("a", reserved="c"))) == "a"


def test_a_volume_of_a_dead_namesake_is_not_taken() -> None:
    assert unbound(claim(), volume(claim=claim(uid="old"))) is None


def test_a_reserved_volume_that_is_being_scrubbed_is_not_taken_before_it_is_clean() -> None:
    assert unbound(claim(), volume(reserved="c", annotations=SCRUB)) is None


# --- a claim that names its volume -------------------------------------------------------------------------------


def test_a_named_volume_is_taken_even_if_another_fits_better() -> None:
    assert bound_to(unbound(claim(volumeName="large"), volume("small"), volume("large", size="9Gi"))) == "large"


def test_a_named_volume_that_does_not_exist_is_waited_for_without_an_event() -> None:
    waits = unbound(claim(volumeName="v"))
    assert isinstance(waits, Wait)
    assert waits.events == ()
    assert '"v"' in waits.reason


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"deletionTimestamp": DYING}, 'the volume is marked for deletion "v"'),
        ({"size": "1Mi"}, "requested PV is too small"),
        ({"storageClassName": "x"}, "storageClassName does not match"),
        ({"volumeAttributesClassName": "x"}, "volumeAttributesClassName does not match"),
        ({"volumeMode": "Block"}, "incompatible volumeMode"),
        ({"accessModes": ["ReadOnlyMany"]}, "incompatible accessMode"),
    ],
)
def test_a_named_volume_that_does_not_fit_is_refused_with_the_reason(spec: Any, why: str) -> None:
    waits = unbound(claim(volumeName="v"), volume(**spec))
    assert isinstance(waits, Wait)
    (event,) = waits.events
    assert (event.type, event.reason) == ("Warning", "VolumeMismatch")
    assert event.message == f'Cannot bind to requested volume "v": {why}'


@pytest.mark.parametrize("uid", ["", "uid-c"])
def test_a_named_volume_that_names_the_claim_is_taken_without_a_look_at_its_shape(uid: str) -> None:
    ref = {"namespace": "default", "name": "c", "uid": uid}
    unfit = volume(claimRef=ref, size="1Mi", volumeMode="Block", storageClassName="x", accessModes=["ReadOnlyMany"])
    assert bound_to(unbound(claim(volumeName="v"), unfit)) == "v"


def test_a_named_volume_of_somebody_else_is_refused_and_the_status_reset() -> None:
    stale = claim(volumeName="v", status={"phase": "Bound", "capacity": {"storage": "1Gi"}})
    step = unbound(stale, volume(reserved="other"))
    assert isinstance(step, Patch)
    assert step.body == {"status": {"phase": "Pending", "capacity": None}}
    waits = unbound(claim(volumeName="v"), volume(reserved="other"))
    assert isinstance(waits, Wait)
    assert waits.events[0].message == 'volume "v" already bound to a different claim.'


def test_a_volume_that_the_controller_chose_and_lost_leaves_the_status_as_it_is() -> None:
    stale = claim(volumeName="v", annotations=CHOSEN, status={"phase": "Bound", "capacity": {"storage": "1Gi"}})
    waits = unbound(stale, volume(reserved="other"))
    assert isinstance(waits, Wait)
    assert (waits.events[0].type, waits.events[0].reason) == ("Warning", "FailedBinding")


def test_a_named_volume_that_is_being_scrubbed_is_waited_for() -> None:
    waits = unbound(claim(volumeName="v"), volume(annotations=SCRUB))
    assert isinstance(waits, Wait)
    assert waits.reason == 'volume "v" is being scrubbed'


@pytest.mark.parametrize("phase", ["Released", "Failed"])
def test_a_named_volume_that_is_to_be_destroyed_is_not_bound_though_it_is_reserved_anew(phase: str) -> None:
    """Found by the simulation: its object could go at any moment, and the claim would have lost it."""
    dying = volume(reserved="c", status={"phase": phase}, deletionTimestamp=DYING)
    waits = unbound(claim(volumeName="v"), dying)
    assert isinstance(waits, Wait)
    assert waits.reason == 'volume "v" is being deleted'


# --- a claim that was bound --------------------------------------------------------------------------------------


def lost(outcome: Any) -> tuple[str, str]:
    assert isinstance(outcome, Patch), outcome
    assert outcome.body["status"]["phase"] == "Lost"
    (event,) = outcome.events
    return event.reason, event.message


def test_a_bound_claim_and_its_volume_stay_together_whatever_they_look_like() -> None:
    held = claim(volumeName="v", annotations=DONE, size="9Gi")
    assert bound_to(bound(held, volume(claim=claim(), size="1Mi", status={"phase": "Released"}))) == "v"


def test_a_bound_claim_without_a_name_is_lost() -> None:
    assert lost(bound(claim(annotations=DONE))) == (
        "ClaimLost",
        "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
    )


def test_a_bound_claim_without_its_volume_is_lost() -> None:
    assert lost(bound(claim(annotations=DONE, volumeName="v"))) == (
        "ClaimLost",
        "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
    )


@pytest.mark.parametrize("uid", ["uid-other", "uid-old"])
def test_a_bound_claim_whose_volume_belongs_to_another_is_lost(uid: str) -> None:
    ref = {"namespace": "default", "name": "c", "uid": uid}
    reason, message = lost(bound(claim(annotations=DONE, volumeName="v"), volume(claimRef=ref)))
    assert reason == "ClaimMisbound"
    assert message == "Two claims are bound to the same volume, this one is bound incorrectly"


def test_a_claim_that_is_lost_already_is_not_told_so_again() -> None:
    waits = bound(claim(annotations=DONE, volumeName="v", status={"phase": "Lost"}))
    assert isinstance(waits, Wait)
    assert waits.events == ()


def test_a_claim_and_a_volume_from_a_backup_that_name_each_other_are_bound_again() -> None:
    """Item 21.8: restore tools keep bind-completed and drop or lose the uid."""
    assert bound_to(bound(claim(annotations=DONE, volumeName="v"), volume(reserved="c"))) == "v"


def test_a_restored_claim_does_not_get_a_volume_that_is_being_scrubbed() -> None:
    reason, _ = lost(bound(claim(annotations=DONE, volumeName="v"), volume(reserved="c", annotations=SCRUB)))
    assert reason == "ClaimMisbound"


@pytest.mark.parametrize("phase", ["Pending", "Bound", "Lost"])
def test_a_volume_that_lost_its_reference_is_bound_again(phase: str) -> None:
    assert bound_to(bound(claim(annotations=DONE, volumeName="v", status={"phase": phase}), volume())) == "v"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"size": "1Mi"}, "requested PV is too small"),
        ({"storageClassName": "x"}, "storageClassName does not match"),
        ({"volumeMode": "Block"}, "incompatible volumeMode"),
        ({"accessModes": ["ReadOnlyMany"]}, "incompatible accessMode"),
    ],
)
def test_another_volume_under_the_name_of_a_lost_one_is_refused(spec: Any, why: str) -> None:
    """Item 21.7: a claim is not silently bound to other data."""
    reason, message = lost(bound(claim(annotations=DONE, volumeName="v"), volume(**spec)))
    assert reason == "ClaimLost"
    assert why in message


def test_a_volume_that_is_not_yet_as_large_as_the_claim_asks_by_now_is_still_its_own() -> None:
    """A claim may ask for more while it is bound; the volume grows later."""
    growing = claim(
        annotations=DONE, volumeName="v", size="5Gi", status={"phase": "Bound", "capacity": {"storage": "1Gi"}}
    )
    assert bound_to(bound(growing, volume(size="1Gi"))) == "v"
    assert isinstance(bound(growing, volume(size="1Mi")), Patch)


def test_a_dying_volume_that_lost_its_reference_is_bound_again_so_that_it_stays() -> None:
    assert bound_to(bound(claim(annotations=DONE, volumeName="v"), volume(deletionTimestamp=DYING))) == "v"
