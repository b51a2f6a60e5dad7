"""What a claim asks for, and whether a volume answers it."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, volume
from volplane.kube.objects import LabelSelector, Requirement
from volplane.state.matching import (
    Demand,
    Place,
    capacity_of,
    class_of_claim,
    demand_of,
    held_by,
    place_of,
    reference_is,
    refers_to,
    refusal,
    request_of,
    selects,
)

BETA = "volume.beta.kubernetes.io/storage-class"
LABELS = {"tier": "gold", "zone": "a"}


@pytest.mark.parametrize(
    ("annotations", "field", "expected"),
    [
        (None, None, None),
        (None, "", ""),
        (None, "fast", "fast"),
        ({BETA: "old"}, "fast", "old"),
        ({BETA: ""}, "fast", ""),
        ({BETA: "old"}, None, "old"),
    ],
)
def test_the_beta_annotation_says_the_class_before_the_field_does(
    annotations: dict[str, str] | None, field: str | None, expected: str | None
) -> None:
    assert class_of_claim(claim(annotations=annotations, storageClassName=field)) == expected
    assert class_of_claim(volume(annotations=annotations, storageClassName=field or "")) == (expected or "")


def test_no_class_and_the_empty_class_look_at_the_same_volumes() -> None:
    assert place_of(claim(storageClassName=None)) == place_of(claim(storageClassName="")) == place_of(volume())


def test_an_absent_mode_is_filesystem_and_an_absent_attributes_class_is_the_empty_one() -> None:
    assert place_of(claim(volumeMode=None)) == place_of(volume(volumeMode="Filesystem"))
    assert place_of(claim(volumeAttributesClassName="")) == place_of(claim())


def test_what_nothing_is_said_about_is_looked_for_among_volumes_about_which_nothing_is_said() -> None:
    assert place_of(claim()) == place_of(volume()) == Place("", "Filesystem", "")


def test_a_claim_that_asks_for_no_size_and_no_modes_is_met_by_any() -> None:
    silent = claim(resources=None, accessModes=None)
    assert demand_of(silent) == Demand(Place("", "Filesystem", ""), frozenset(), 0, None)
    assert demand_of(silent).accepts(volume(accessModes=None))
    assert refusal(volume(accessModes=None), silent) == ""
    assert not demand_of(claim()).accepts(volume(accessModes=None))
    assert refusal(volume(accessModes=None), claim()) == "incompatible accessMode"


@pytest.mark.parametrize("size", ["1", "1500m", "1Ki", "800E", "1e3"])
def test_sizes_are_exact(size: str) -> None:
    assert request_of(claim(size=size)) == capacity_of(volume(size=size))


def test_a_claim_holds_what_its_status_says() -> None:
    assert held_by(claim()) == 0
    assert held_by(claim(status={"phase": "Bound", "capacity": {"storage": "2Gi"}})) == 2 * 2**30 * 10**9


@pytest.mark.parametrize(
    ("labels", "expressions", "fits"),
    [
        (None, None, True),
        ({"tier": "gold"}, None, True),
        ({"tier": "gold", "zone": "b"}, None, False),
        (None, [("tier", "In", ["gold", "silver"])], True),
        (None, [("tier", "In", ["silver"])], False),
        (None, [("rack", "In", ["1"])], False),
        (None, [("tier", "In", ["gold", "silver"]), ("tier", "In", ["silver", "bronze"])], False),
        (None, [("tier", "In", ["silver", "bronze"]), ("tier", "In", ["gold", "silver"])], False),
        (None, [("tier", "In", ["gold", "silver"]), ("tier", "In", ["gold", "bronze"])], True),
        (None, [("tier", "In", None)], False),
        (None, [("tier", "NotIn", ["silver"])], True),
        (None, [("tier", "NotIn", ["silver", "gold"])], False),
        (None, [("tier", "NotIn", ["gold"]), ("tier", "NotIn", ["silver"])], False),
        (None, [("tier", "NotIn", None)], True),
        (None, [("rack", "NotIn", ["1"])], True),
        (None, [("tier", "Exists", None)], True),
        (None, [("rack", "Exists", None)], False),
        (None, [("rack", "DoesNotExist", None)], True),
        (None, [("tier", "DoesNotExist", None)], False),
        (None, [("tier", "Resembles", ["gold"])], False),
        ({"tier": "gold"}, [("zone", "In", ["b"])], False),
    ],
)
def test_a_selector_is_met_only_if_every_part_of_it_is(labels: Any, expressions: Any, fits: bool) -> None:
    needs = [Requirement(key=key, operator=operator, values=values) for key, operator, values in expressions or ()]
    assert selects(LabelSelector(match_labels=labels, match_expressions=needs or None), LABELS) is fits


def test_without_a_selector_every_label_will_do() -> None:
    assert selects(None, {})


@pytest.mark.parametrize(
    ("name", "namespace", "uid", "means"),
    [
        ("c", "default", "", True),
        ("c", "default", "uid-c", True),
        ("c", "default", "uid-old", False),
        ("c", "other", "uid-c", False),
        ("d", "default", "uid-c", False),
        ("c", "", "", False),
    ],
)
def test_a_reference_means_a_claim_by_name_and_by_uid_if_it_has_one(
    name: str, namespace: str, uid: str, means: bool
) -> None:
    held = volume(claimRef={"name": name, "namespace": namespace, "uid": uid})
    assert reference_is(held.spec.claim_ref, claim()) is means


def test_bound_means_the_uid_alone() -> None:
    assert refers_to(volume(claimRef={"name": "x", "namespace": "y", "uid": "uid-c"}), claim())
    assert not refers_to(volume(reserved="c"), claim())
    assert not refers_to(volume(), claim())
    assert not refers_to(volume(reserved="c"), claim(uid="")), "nothing is not a uid"


DOES_NOT_FIT = [
    ("deletion", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, 'the volume is marked for deletion "v"'),
    ("size", {"size": "1Mi"}, "requested PV is too small"),
    ("class", {"storageClassName": "other"}, "storageClassName does not match"),
    ("attributes", {"volumeAttributesClassName": "gold"}, "volumeAttributesClassName does not match"),
    ("mode", {"volumeMode": "Block"}, "incompatible volumeMode"),
    ("access", {"accessModes": ["ReadOnlyMany"]}, "incompatible accessMode"),
]


@pytest.mark.parametrize(("check", "spec", "why"), DOES_NOT_FIT, ids=[row[0] for row in DOES_NOT_FIT])
def test_each_check_says_why_and_can_be_left_out(check: str, spec: Any, why: str) -> None:
    assert refusal(volume(**spec), claim()) == why
    assert refusal(volume(**spec), claim(), ignoring=(check,)) == ""


def test_the_first_check_that_fails_speaks_and_a_later_one_is_not_hidden_by_one_left_out() -> None:
    everything = {key: value for _, spec, _ in DOES_NOT_FIT for key, value in spec.items()}
    said = [refusal(volume(**everything), claim(), ignoring=[row[0] for row in DOES_NOT_FIT[:n]]) for n in range(6)]
    assert said == [why for _, _, why in DOES_NOT_FIT]


def test_a_demand_is_all_of_modes_and_labels() -> None:
    demand = demand_of(claim(accessModes=["ReadWriteOnce"], selector={"matchLabels": {"tier": "gold"}}))
    assert demand.accepts(volume(labels=LABELS, accessModes=["ReadWriteOnce", "ReadOnlyMany"]))
    assert not demand.accepts(volume(labels=LABELS, accessModes=["ReadOnlyMany"]))
    assert not demand.accepts(volume(accessModes=["ReadWriteOnce"]))


def test_sizes_beyond_64_bits_are_compared_exactly_for_named_volumes_too() -> None:
    """Item 21.20."""
    assert refusal(volume(size="20E"), claim(size="20E")) == ""
    assert refusal(volume(size="19999999999999999999"), claim(size="20E")) == "requested PV is too small"
