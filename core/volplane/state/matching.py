"""Matches claims with volumes. Pure. Quantities are exact: nanos of a byte.

Source: reference binder, `k8s.io/component-helpers/storage/volume.FindMatchingVolume` and `checkVolumeSatisfyClaim`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import cached_property

import msgspec

from volplane.kube import names
from volplane.kube.objects import Claim, KubeObject, LabelSelector, ObjectReference, Volume
from volplane.kube.quantity import parse

__all__ = [
    "Demand",
    "Place",
    "capacity_of",
    "class_of_claim",
    "class_of_volume",
    "demand_of",
    "held_by",
    "label_filter",
    "mode_of",
    "place_of",
    "reference_is",
    "reference_to",
    "refers_to",
    "refusal",
    "request_of",
    "selects",
]

MODE_ORDER = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_REFUSALS = {
    "deletion": 'the volume is marked for deletion "{}"',
    "size": "requested PV is too small",
    "class": "storageClassName does not match",
    "attributes": "volumeAttributesClassName does not match",
    "mode": "incompatible volumeMode",
    "access": "incompatible accessMode",
}


class Place(msgspec.Struct, frozen=True):
    """The class, volume mode and VolumeAttributesClass that a claim and its volume must share."""

    storage_class: str
    volume_mode: str
    attributes_class: str


class Demand(msgspec.Struct, frozen=True, dict=True):
    """The requirements of an unbound claim on a free volume."""

    place: Place
    access_modes: frozenset[str]
    request: int
    selector: LabelSelector | None

    def accepts(self, volume: Volume) -> bool:
        """Tell whether a large enough volume of the same place has the access modes and labels."""
        modes = volume.spec.access_modes or ()
        if not self.access_modes.issubset(modes):
            return False
        return self.selector is None or self._filter(volume.metadata.labels or {})

    @cached_property
    def _filter(self) -> Callable[[Mapping[str, str]], bool]:
        return label_filter(self.selector or LabelSelector())


def class_of_claim(claim: Claim) -> str | None:
    """Return the class that a claim names; None: not set, "": explicitly none. The beta annotation wins."""
    return _class_of(claim)


def class_of_volume(volume: Volume) -> str:
    return _class_of(volume) or ""


def _class_of(item: Claim | Volume) -> str | None:
    beta = item.annotation(names.BETA_STORAGE_CLASS)
    return beta if beta is not None else item.spec.storage_class_name


def _nanos(quantities: Mapping[str, str] | None) -> int:
    text = (quantities or {}).get("storage")
    return parse(text).nanos if text is not None else 0


def request_of(claim: Claim) -> int:
    """Return the requested size in nanos of a byte."""
    return _nanos(claim.spec.resources.requests if claim.spec.resources else None)


def capacity_of(volume: Volume) -> int:
    """Return the size of the volume in nanos of a byte."""
    return _nanos(volume.spec.capacity)


def held_by(claim: Claim) -> int:
    """Return the size in the claim's status in nanos of a byte; 0 if it has none."""
    return _nanos(claim.status.capacity)


def mode_of(item: Claim | Volume) -> str:
    """Return the volume mode: Filesystem or Block."""
    return item.spec.volume_mode or "Filesystem"


def place_of(item: Claim | Volume) -> Place:
    return Place(_class_of(item) or "", mode_of(item), item.spec.volume_attributes_class_name or "")


def demand_of(claim: Claim) -> Demand:
    return Demand(
        place=place_of(claim),
        access_modes=frozenset(claim.spec.access_modes or ()),
        request=request_of(claim),
        selector=claim.spec.selector,
    )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector matches. An unknown operator, which the API server refuses, matches nothing."""
    return selector is None or label_filter(selector)(labels)


def label_filter(selector: LabelSelector) -> Callable[[Mapping[str, str]], bool]:
    """Return `selects` as a function of the labels. The selector is read once, then a set costs as much as its labels.

    Tenants write selectors, with as many expressions as an object can hold.
    """
    allowed = {key: {value} for key, value in (selector.match_labels or {}).items()}
    refused: defaultdict[str, set[str]] = defaultdict(set)
    present, absent = set(allowed), set()
    for need in selector.match_expressions or ():
        match need.operator:
            case "In":
                values = set(need.values or ())
                allowed[need.key] = allowed[need.key] & values if need.key in allowed else values
                present.add(need.key)
            case "NotIn":
                refused[need.key].update(need.values or ())
            case "Exists":
                present.add(need.key)
            case "DoesNotExist":
                absent.add(need.key)
            case _:
                return lambda _labels: False

    def matches(labels: Mapping[str, str]) -> bool:
        if len(present) > len(labels) or not present <= labels.keys():
            return False
        return not any(
            key in absent or value in refused.get(key, ()) or value not in allowed.get(key, (value,))
            for key, value in labels.items()
        )

    return matches


def reference_is(reference: ObjectReference | None, claim: KubeObject) -> bool:
    """Tell whether a volume's reference names this claim: same name and namespace, uid equal or still empty."""
    return (
        reference is not None
        and reference.name == claim.name
        and reference.namespace == claim.namespace
        and reference.uid in ("", claim.uid)
    )


def reference_to(claim: Claim) -> dict[str, str | None]:
    """Return the `claimRef` of a volume that is reserved for this claim."""
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.metadata.resource_version,
    }


def refers_to(volume: Volume, claim: KubeObject) -> bool:
    """Tell whether the volume refers to this claim by its uid."""
    reference = volume.spec.claim_ref
    return reference is not None and bool(reference.uid) and reference.uid == claim.uid


def refusal(volume: Volume, claim: Claim, *, ignoring: Collection[str] = ()) -> str:
    """Explain why the volume cannot be bound to the claim, by the first check that fails; "": it can.

    ignoring: the checks to skip: deletion, size, class, attributes, mode, access.
    """
    offered, wanted = place_of(volume), place_of(claim)
    modes = set(claim.spec.access_modes or ())
    checks = (
        ("deletion", volume.terminating),
        ("size", capacity_of(volume) < request_of(claim)),
        ("class", offered.storage_class != wanted.storage_class),
        ("attributes", offered.attributes_class != wanted.attributes_class),
        ("mode", offered.volume_mode != wanted.volume_mode),
        ("access", not modes.issubset(volume.spec.access_modes or ())),
    )
    for name, fails in checks:
        if fails and name not in ignoring:
            return _REFUSALS[name].format(volume.name)
    return ""
