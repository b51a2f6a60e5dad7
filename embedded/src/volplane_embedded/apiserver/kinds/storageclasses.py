"""StorageClasses and VolumeAttributesClasses (`pkg/registry/storage`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import MOST_CAUSES, Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import immutable, one_of, refused
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

DEFAULT_CLASS_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_PARAMETERS: Final = 512
_PARAMETER_BYTES: Final = 256 * 1024


def is_default(storage_class: Json) -> bool:
    """Tell whether a StorageClass is marked as a default class."""
    annotations = storage_class["metadata"].get("annotations") or {}
    return any(annotations.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)


class StorageClassStrategy(Strategy):
    def default(self, obj: Json) -> None:
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        _validate_driver(obj.get("provisioner", ""), "provisioner", causes)
        _validate_parameters(obj.get("parameters") or {}, causes)
        one_of(obj["reclaimPolicy"], ("", "Delete", "Retain"), "reclaimPolicy", causes)
        one_of(obj["volumeBindingMode"], ("Immediate", "WaitForFirstConsumer"), "volumeBindingMode", causes)
        _validate_topologies(obj.get("allowedTopologies") or (), causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = [*self.validate_create(new), *object_meta.validate_update_of_kind(new["metadata"], old["metadata"])]
        immutable(new.get("parameters") or {}, old.get("parameters") or {}, "parameters", causes)
        for key in ("provisioner", "reclaimPolicy", "volumeBindingMode"):
            immutable(new.get(key), old.get(key), key, causes)
        return causes


class AttributesClassStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        _validate_driver(obj.get("driverName", ""), "driverName", causes)
        _validate_parameters(obj.get("parameters") or {}, causes)
        if not obj.get("parameters"):
            causes.append(Cause.required("parameters", "must contain at least one key/value pair"))
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        causes.extend(
            Cause.forbidden(key, f"updates to {key} are forbidden.")
            for key in ("driverName", "parameters")
            if (new.get(key) or None) != (old.get(key) or None)
        )
        return [*causes, *self.validate_create(new)]


def _validate_driver(name: str, where: str, causes: list[Cause]) -> None:
    if name:
        refused(names.qualified_name(name.lower()), name.lower(), where, causes)
    else:
        causes.append(Cause.required(where))


def _validate_parameters(parameters: Json, causes: list[Cause]) -> None:
    if len(parameters) > _PARAMETERS:
        causes.append(Cause.too_long("parameters", f"{_PARAMETERS} bytes"))
        return
    if "" in parameters:
        causes.append(Cause.invalid("parameters", "", "field can not be empty."))
    if sum(len(key) + len(value) for key, value in parameters.items()) > _PARAMETER_BYTES:
        causes.append(Cause.too_long("parameters", f"{_PARAMETER_BYTES} bytes"))


def _validate_topologies(terms: Sequence[Json], causes: list[Cause]) -> None:
    # In linear time: a term is known again by what it is, and no more faults are made than an answer tells.
    former: Counter[frozenset[tuple[str, frozenset[str]]]] = Counter()
    for index, term in enumerate(terms):
        where, found = f"allowedTopologies[{index}]", dict[str, frozenset[str]]()
        for position, expression in enumerate(term.get("matchLabelExpressions") or ()):
            place, key = f"{where}.matchLabelExpressions[{position}]", expression.get("key", "")
            values = expression.get("values") or []
            if not values:
                causes.append(Cause.required(f"{place}.values"))
            seen: set[str] = set()
            for at, value in enumerate(values):
                if value in seen:
                    causes.append(Cause.duplicate(f"{place}.values[{at}]", value))
                seen.add(value)
            refused(names.qualified_name(key), key, f"{place}.key", causes)
            if key in found:
                causes.append(Cause.duplicate(f"{place}.key", key))
            found[key] = frozenset(values)
        # A stock server compares with as many empty terms as there are terms, too.
        known = frozenset(found.items())
        same = former[known] + (len(terms) if not found else 0)
        told = range(min(same, MOST_CAUSES - len(causes)))
        causes.extend(Cause.duplicate(f"{where}.matchLabelExpressions", "") for _ in told)
        former[known] += 1


def _shown_name(storage_class: Json) -> str:
    name = str(storage_class["metadata"].get("name", ""))
    return f"{name} (default)" if is_default(storage_class) else name


STORAGE_CLASS: Final = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="storageclasses",
    kind="StorageClass",
    singular="storageclass",
    namespaced=False,
    strategy=StorageClassStrategy(),
    columns=(
        Column(NAME.name, NAME.description, _shown_name, format="name"),
        Column("Provisioner", "provisioner indicates the type of the provisioner.", path("provisioner")),
        Column(
            "ReclaimPolicy",
            "reclaimPolicy controls the reclaimPolicy for dynamically provisioned PersistentVolumes of this storage"
            " class. Defaults to Delete.",
            path("reclaimPolicy"),
        ),
        Column(
            "VolumeBindingMode",
            "volumeBindingMode indicates how PersistentVolumeClaims should be provisioned and bound.  When unset,"
            " VolumeBindingImmediate is used. This field is only honored by servers that enable the VolumeScheduling"
            " feature.",
            path("volumeBindingMode"),
        ),
        Column(
            "AllowVolumeExpansion",
            "allowVolumeExpansion shows whether the storage class allow volume expand.",
            path("allowVolumeExpansion", absent=False),
        ),
        AGE,
    ),
    short_names=("sc",),
)

ATTRIBUTES_CLASS: Final = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="volumeattributesclasses",
    kind="VolumeAttributesClass",
    singular="volumeattributesclass",
    namespaced=False,
    strategy=AttributesClassStrategy(),
    columns=(NAME, Column("DriverName", "Name of the CSI driver This field is immutable.", path("driverName")), AGE),
    short_names=("vac",),
)
