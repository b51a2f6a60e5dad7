"""What the decisions of the binder write and say, word for word."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unit.binding.objects import claim, volume
from unit.binding.test_decide import CHOSEN, DONE, DYING, bound, bound_to, unbound
from unit.deciding import state_with
from volplane.binding.decide import (
    bind_step,
    claim_status_step,
    decide_unbound,
    migration_step,
    reset_claim_step,
    unbind_patch,
    volume_phase_step,
)
from volplane.controller.actions import Patch, Wait, warning
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume

INTENT = "volplane.dev/intent"
BOUND = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
SCRUB_OF = "volplane.dev/scrub-volume-uid"


def status(item: Claim, **fields: Any) -> Patch:
    """A write of the claim's status."""
    why = f"status {fields.get('phase', 'Bound')}"
    return Patch(kind=CLAIMS, target=item, body={"status": fields}, subresource="status", why=why)


# --- waiting ------------------------------------------------------------------------------------------------------


def test_a_volume_that_does_not_exist_is_waited_for() -> None:
    assert unbound(claim(volumeName="v")) == Wait(reason='volume "v", which the claim names, does not exist')
    stale = claim(volumeName="v", status=BOUND)
    assert unbound(stale) == reset_claim_step(stale, "Pending")


def test_a_volume_that_does_not_fit_is_named_with_the_reason() -> None:
    item = claim(volumeName="v", size="2Gi")
    message = 'Cannot bind to requested volume "v": requested PV is too small'
    assert unbound(item, volume()) == Wait(reason=message, events=(warning(CLAIMS, item, "VolumeMismatch", message),))


@pytest.mark.parametrize("marks", [None, CHOSEN])
def test_a_volume_of_another_claim_is_said_to_be_so(marks: dict[str, str] | None) -> None:
    item = claim(volumeName="v", annotations=marks)
    message = 'volume "v" already bound to a different claim.'
    waits = Wait(reason=message, events=(warning(CLAIMS, item, "FailedBinding", message),))
    assert unbound(item, volume(reserved="other")) == waits


def scrubbed(held_by: str = "", **fields: Any) -> Volume:
    return volume(annotations={INTENT: json.dumps({"v": 1, "claim": "x", "heldBy": held_by})}, **fields)


def test_a_volume_that_is_being_scrubbed_is_said_to_be_so_but_to_the_claim_of_the_scrub() -> None:
    item = claim(volumeName="v")
    message = 'volume "v" is being scrubbed'
    waits = Wait(reason=message, events=(warning(CLAIMS, item, "FailedBinding", message),))
    assert unbound(item, scrubbed()) == waits
    for damaged in ("damaged", "", "\ud800"):
        assert unbound(item, volume(annotations={INTENT: damaged}, claim=claim())) == waits
    of_scrub = claim(volumeName="v", annotations={SCRUB_OF: "uid-v"})
    assert unbound(of_scrub, scrubbed()) == Wait(reason=message)


def test_the_claim_of_a_scrub_is_bound_once_the_volume_refers_to_it_and_its_record_names_it() -> None:
    item = claim(volumeName="v")
    assert bound_to(unbound(item, scrubbed("uid-c", claim=claim()))) == "v"
    assert isinstance(unbound(item, scrubbed("uid-c", reserved="c")), Wait)
    assert isinstance(unbound(item, scrubbed("uid-of-another", claim=claim())), Wait)


@pytest.mark.parametrize("phase", ["Released", "Failed"])
def test_a_volume_that_is_given_up_is_said_to_go_but_to_the_claim_that_it_is_bound_to(phase: str) -> None:
    item, fields = claim(volumeName="v"), {"deletionTimestamp": DYING, "status": {"phase": phase}}
    message = 'volume "v" is being deleted'
    waits = Wait(reason=message, events=(warning(CLAIMS, item, "FailedBinding", message),))
    assert unbound(item, volume(**fields)) == waits
    assert unbound(item, volume(reserved="c", **fields)) == waits
    assert bound_to(unbound(item, volume(claim=claim(), **fields))) == "v"


# --- choosing -----------------------------------------------------------------------------------------------------


def test_a_volume_that_is_held_for_the_claim_is_its_own_to_take() -> None:
    view = state_with(volume())
    view.free.hold("v", "default/c")
    assert bound_to(decide_unbound(claim(), view, delayed=False)) == "v"
    assert decide_unbound(claim("other"), view, delayed=False) is None


def test_a_reservation_of_a_volume_that_is_gone_counts_for_nothing() -> None:
    view = state_with(volume(reserved="c"))
    view.volumes = Cache(VOLUMES)
    assert decide_unbound(claim(), view, delayed=False) is None


def test_a_dying_volume_that_only_names_the_claim_is_not_taken_whatever_its_phase_says() -> None:
    dying = volume(reserved="c", status={"phase": "Bound"}, deletionTimestamp=DYING)
    assert unbound(claim(), dying) is None


def test_a_bind_whose_phase_is_written_is_completed_though_the_class_is_another_one() -> None:
    dying = volume(claim=claim(), status={"phase": "Bound"}, storageClassName="x", deletionTimestamp=DYING)
    assert bound_to(unbound(claim(), dying)) == "v"


# --- lost ---------------------------------------------------------------------------------------------------------

GONE = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
UNNAMED = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
TWO = "Two claims are bound to the same volume, this one is bound incorrectly"
UNLIKE = 'Volume "v" is not the one that this claim was bound to: incompatible volumeMode. Data on the volume is lost!'


@pytest.mark.parametrize(
    ("name", "volumes", "reason", "message"),
    [
        ("", [], "ClaimLost", UNNAMED),
        ("v", [], "ClaimLost", GONE),
        ("v", [volume(claim=claim("other"))], "ClaimMisbound", TWO),
        ("v", [volume(volumeMode="Block")], "ClaimLost", UNLIKE),
        ("v", [volume(reserved="other")], "ClaimMisbound", TWO),
        ("v", [volume(annotations={INTENT: "{}"})], "ClaimMisbound", TWO),
        ("v", [volume(reserved="c", deletionTimestamp=DYING, status={"phase": "Released"})], "ClaimMisbound", TWO),
        ("v", [volume(reserved="c", deletionTimestamp=DYING, status={"phase": "Failed"})], "ClaimMisbound", TWO),
    ],
)
def test_a_claim_that_has_lost_its_volume_is_told_why_once(
    name: str, volumes: list[Volume], reason: str, message: str
) -> None:
    item = claim(annotations=DONE, volumeName=name, status=BOUND)
    body = {"status": {"phase": "Lost", "accessModes": None, "capacity": None}}
    events = (warning(CLAIMS, item, reason, message),)
    expected = Patch(kind=CLAIMS, target=item, body=body, subresource="status", why="status Lost", events=events)
    assert bound(item, *volumes) == expected
    assert bound(claim(annotations=DONE, volumeName=name, status={"phase": "Lost"}), *volumes) == Wait(reason=message)


@pytest.mark.parametrize("fields", [{"deletionTimestamp": DYING}, {"annotations": {INTENT: "{}"}}])
def test_a_bound_pair_stays_one_though_the_volume_was_seen_released(fields: Any) -> None:
    held = volume(claim=claim(), status={"phase": "Released"}, **fields)
    assert bound_to(bound(claim(annotations=DONE, volumeName="v", status=BOUND), held)) == "v"


@pytest.mark.parametrize("phase", ["Released", "Failed"])
def test_a_released_volume_that_nobody_deletes_may_be_bound_again(phase: str) -> None:
    item = claim(annotations=DONE, volumeName="v", status=BOUND)
    assert bound_to(bound(item, volume(reserved="c", status={"phase": phase}))) == "v"
    assert bound_to(bound(item, volume(reserved="c", deletionTimestamp=DYING))) == "v"


@pytest.mark.parametrize(("held", "size", "again"), [("1Gi", "1Gi", True), ("2Gi", "1Gi", False), (None, "5Gi", True)])
def test_a_volume_under_the_name_of_the_lost_one_has_at_least_the_size_that_the_claim_had(
    held: str | None, size: str, again: bool
) -> None:
    shown = {"phase": "Bound", **({"capacity": {"storage": held}} if held else {})}
    outcome = bound(claim(annotations=DONE, volumeName="v", size="5Gi", status=shown), volume(size=size))
    assert isinstance(outcome, Patch) is not again
    unknown = claim(annotations=DONE, volumeName="v", size="5Gi", status={"phase": "Bound"})
    assert isinstance(bound(unknown, volume(size="1Gi")), Patch), "it says nothing of what it had"


def test_a_volume_that_lost_its_reference_is_bound_again_whatever_attributes_class_is_asked_for_by_now() -> None:
    item = claim(annotations=DONE, volumeName="v", volumeAttributesClassName="gold")
    assert bound_to(bound(item, volume(volumeAttributesClassName="silver"))) == "v"


# --- the writes ---------------------------------------------------------------------------------------------------

REFERENCE = {
    "kind": "PersistentVolumeClaim",
    "apiVersion": "v1",
    "namespace": "default",
    "name": "c",
    "uid": "uid-c",
    "resourceVersion": "1",
}


@pytest.mark.parametrize(
    ("free", "marks"),
    [
        (volume(), {"annotations": CHOSEN}),
        (volume(annotations=CHOSEN), None),
        (volume(reserved="c"), None),
        (
            volume(claim=claim("misspelt", uid="uid-c")),
            {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
        ),
        (volume(claim=claim(uid="old")), {"annotations": CHOSEN}),
    ],
)
def test_the_reference_is_written_whole_and_marked_if_the_controller_chose(free: Volume, marks: Any) -> None:
    body = {"spec": {"claimRef": REFERENCE}} | ({"metadata": marks} if marks else {})
    assert bind_step(claim(), free) == Patch(kind=VOLUMES, target=free, body=body, why="reserve for claim default/c")


def test_then_comes_the_phase() -> None:
    half = volume(claim=claim(), status={"phase": "Available", "message": "x"})
    body = {"status": {"phase": "Bound", "message": None, "reason": None}}
    assert bind_step(claim(), half) == Patch(
        kind=VOLUMES, target=half, body=body, subresource="status", why="phase Bound"
    )
    failed = volume(status={"phase": "Failed", "message": "m"})
    assert volume_phase_step(failed, "Failed") is None
    event = warning(VOLUMES, half, "R", "m")
    step = volume_phase_step(half, "Failed", "m", events=(event,))
    body = {"status": {"phase": "Failed", "message": "m", "reason": None}}
    assert step == Patch(
        kind=VOLUMES, target=half, body=body, subresource="status", why="phase Failed", events=(event,)
    )


HALF = volume(claim=claim(), status={"phase": "Bound"})


@pytest.mark.parametrize(
    ("fields", "extra", "body"),
    [
        ({}, None, {"spec": {"volumeName": "v"}, "metadata": {"annotations": {**CHOSEN, **DONE}}}),
        ({"volumeName": "v"}, None, {"metadata": {"annotations": DONE}}),
        ({"annotations": CHOSEN}, None, {"spec": {"volumeName": "v"}, "metadata": {"annotations": DONE}}),
        ({"annotations": {**CHOSEN, **DONE}}, None, {"spec": {"volumeName": "v"}}),
        (
            {"volumeName": "v", "annotations": DONE},
            {"finalizers": None},
            {"metadata": {"finalizers": None}},
        ),
        (
            {"volumeName": "v"},
            {"annotations": {INTENT: None}},
            {"metadata": {"annotations": {INTENT: None, **DONE}}},
        ),
    ],
)
def test_then_the_pointer_with_what_else_changes_on_the_claim(fields: Any, extra: Any, body: Any) -> None:
    item = claim(**fields)
    step = bind_step(item, HALF, claim_metadata=extra)
    assert step == Patch(kind=CLAIMS, target=item, body=body, why="point at volume v")


def test_then_the_status_as_far_as_it_is_not_so_yet() -> None:
    item = claim(volumeName="v", annotations=DONE)
    shown = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    assert bind_step(item, HALF) == status(item, **shown)
    same = claim(status={**BOUND, "phase": "Pending"})
    assert claim_status_step(same, volume()) == status(same, phase="Bound")
    assert claim_status_step(claim(status=BOUND), volume()) is None
    plain = volume(accessModes=None, capacity=None)
    assert claim_status_step(same, volume(capacity=None)) == status(same, phase="Bound")
    bare = claim()
    assert claim_status_step(bare, plain) == status(bare, phase="Bound")


def test_the_attributes_class_of_the_volume_is_shown_and_one_it_has_no_more_is_not() -> None:
    was = {"phase": "Pending", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    item = claim(status={**was, "currentVolumeAttributesClassName": "gold"})
    assert claim_status_step(item, volume(volumeAttributesClassName="gold")) == status(item, phase="Bound")
    none = status(item, phase="Bound", currentVolumeAttributesClassName=None)
    assert claim_status_step(item, volume(volumeAttributesClassName="")) == none
    silver = status(item, phase="Bound", currentVolumeAttributesClassName="silver")
    assert claim_status_step(item, volume(volumeAttributesClassName="silver")) == silver


def test_a_size_before_a_resize_is_shown_as_the_api_writes_sizes() -> None:
    noted = {"volume.alpha.kubernetes.io/pre-resize-capacity": "3072Mi"}
    step = claim_status_step(claim(), volume(size="5Gi", annotations=noted))
    assert step is not None
    assert step.body["status"]["capacity"] == {"storage": "3Gi"}


def test_an_offer_takes_only_what_the_controller_wrote() -> None:
    chosen = volume(claim=claim(), annotations=CHOSEN)
    body: Any = {"spec": {"claimRef": None}, "metadata": {"annotations": dict.fromkeys(CHOSEN)}}
    assert unbind_patch(chosen, why="w") == Patch(kind=VOLUMES, target=chosen, body=body, why="w")
    reserved = volume(claim=claim())
    body = {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}
    assert unbind_patch(reserved, why="w") == Patch(kind=VOLUMES, target=reserved, body=body, why="w")
    free, metadata = volume(), {"annotations": {INTENT: None}}
    body = {"metadata": metadata}
    assert unbind_patch(free, metadata=metadata, why="w") == Patch(kind=VOLUMES, target=free, body=body, why="w")


# --- migration ----------------------------------------------------------------------------------------------------

PLUGIN, SERVED_BY = "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"
MIGRATED = "pv.kubernetes.io/migrated-to"
PROVISIONED = "pv.kubernetes.io/provisioned-by"
ASKED = "volume.kubernetes.io/storage-provisioner"
ASKED_BETA = "volume.beta.kubernetes.io/storage-provisioner"


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (volume(annotations={PROVISIONED: PLUGIN}), SERVED_BY),
        (claim(annotations={ASKED: PLUGIN}), SERVED_BY),
        (claim(annotations={ASKED_BETA: PLUGIN}), SERVED_BY),
        (claim(annotations={ASKED: PLUGIN, ASKED_BETA: "disk.example.com"}), SERVED_BY),
        (volume(annotations={PROVISIONED: PLUGIN, MIGRATED: "former"}), SERVED_BY),
        (volume(annotations={PROVISIONED: "disk.example.com", MIGRATED: "former"}), None),
    ],
)
def test_what_a_csi_driver_serves_now_is_marked_and_what_none_does_is_not(item: Any, wanted: str | None) -> None:
    kind = VOLUMES if isinstance(item, Volume) else CLAIMS
    plugin = PLUGIN if wanted else "disk.example.com"
    why = f"plugin {plugin} is served by {wanted or 'nobody else'}"
    body = {"metadata": {"annotations": {MIGRATED: wanted}}}
    assert migration_step(kind, item) == Patch(kind=kind, target=item, body=body, why=why)


@pytest.mark.parametrize(
    "item",
    [
        volume(),
        claim(),
        volume(annotations={MIGRATED: "former"}),
        volume(annotations={PROVISIONED: PLUGIN, MIGRATED: SERVED_BY}),
        volume(annotations={PROVISIONED: "disk.example.com"}),
        volume(annotations={PROVISIONED: "disk.example.com", MIGRATED: ""}),
        claim(annotations={PROVISIONED: PLUGIN}),
        volume(annotations={ASKED: PLUGIN}),
    ],
)
def test_nothing_is_written_where_the_mark_is_right(item: Any) -> None:
    kind = VOLUMES if isinstance(item, Volume) else CLAIMS
    assert migration_step(kind, item) is None
