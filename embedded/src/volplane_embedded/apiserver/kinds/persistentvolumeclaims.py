"""PersistentVolumeClaims: defaults, rules and columns (`pkg/registry/core/persistentvolumeclaim`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane.kube.quantity import parse
from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.persistentvolumes import BETA_CLASS, VOLUME_MODES
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, modes, path
from volplane_embedded.apiserver.kinds.validation import (
    access_modes,
    basic_quantity,
    canonical_resources,
    fill_condition_times,
    immutable,
    is_native_resource,
    label_selector,
    named,
    one_of,
    positive_quantity,
    refused,
    resource_quantity,
)
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy

_IMMUTABLE: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)
_SOURCES: Final = ("dataSource", "dataSourceRef")
_RESIZE_STATES: Final = frozenset(
    {
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    }
)
_CLAIM: Final = "PersistentVolumeClaim"
_OLD_SOURCES: Final = frozenset({("", _CLAIM), ("snapshot.storage.k8s.io", "VolumeSnapshot")})
"""API group and kind of what may stand in dataSource; dataSourceRef may name anything."""


class ClaimStrategy(StatusStrategy):
    """cross_namespace: the feature gate CrossNamespaceVolumeDataSource."""

    def __init__(self, *, cross_namespace: bool = False) -> None:
        self._cross_namespace = cross_namespace

    def default(self, obj: Json) -> None:
        default_spec(obj.setdefault("spec", {}))
        status = obj.setdefault("status", {})
        status.setdefault("phase", "Pending")
        canonical_resources(status, "capacity", "allocatedResources")
        fill_condition_times(status, "lastProbeTime", "lastTransitionTime")

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"phase": "Pending"}
        self._prepare_sources(obj["spec"], {})

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if not subresource:
            self._prepare_sources(new["spec"], old["spec"])

    def _prepare_sources(self, spec: Json, before: Json) -> None:
        foreign = bool((spec.get("dataSourceRef") or {}).get("namespace"))
        if foreign and before.get("dataSourceRef") is None and not self._cross_namespace:
            del spec["dataSourceRef"]
        _prepare_sources(spec, before)

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        validate_spec(obj["spec"], "spec", causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if subresource == "status":
            _validate_status(new.get("status") or {}, causes)
            return causes
        causes.extend(object_meta.validate_of_kind(new["metadata"]))
        had_group = any((old["spec"].get(key) or {}).get("apiGroup") is not None for key in _SOURCES)
        validate_spec(new["spec"], "spec", causes, any_group=had_group)
        if not _upgrades_annotation(new, old):
            _validate_class_annotation(new, old, causes)
        _validate_immutable(new, old, causes)
        return causes


def default_spec(spec: Json) -> None:
    """Defaults of a claim's spec, or of a claim template's."""
    spec.setdefault("volumeMode", "Filesystem")
    canonical_resources(spec.setdefault("resources", {}), "requests", "limits")


def _prepare_sources(spec: Json, before: Json) -> None:
    """Make the old and the new field of a data source agree, and drop what is not supported."""
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    fresh = before.get("dataSource") is None and before.get("dataSourceRef") is None
    if source is not None and reference is None:
        if fresh and (source.get("apiGroup") or "", source.get("kind")) not in _OLD_SOURCES:
            del spec["dataSource"]
        else:
            spec["dataSourceRef"] = dict(source)
    elif reference is not None and source is None and not reference.get("namespace"):
        spec["dataSource"] = {key: reference.get(key) for key in ("apiGroup", "kind", "name")}


def requested(claim: Json) -> str:
    """Return the storage that a claim requests, "0" if it requests none."""
    return str((claim["spec"].get("resources", {}).get("requests") or {}).get("storage", "0"))


def validate_spec(spec: Json, where: str, causes: list[Cause], *, any_group: bool = False) -> None:
    """Validate a claim's spec. any_group: API groups of data sources are not checked (the claim had one before)."""
    listed = spec.get("accessModes")
    if not listed:
        causes.append(Cause.required(f"{where}.accessModes", "at least 1 access mode is required"))
    if spec.get("selector") is not None:
        label_selector(spec["selector"], f"{where}.selector", causes)
    access_modes(listed or (), f"{where}.accessModes", causes)
    storage = (spec.get("resources", {}).get("requests") or {}).get("storage")
    if storage is None:
        causes.append(Cause.required(f"{where}.resources[storage]"))
    else:
        positive_quantity(storage, f"{where}.resources[storage]", causes)
    for key in ("storageClassName", "volumeAttributesClassName"):
        if spec.get(key):
            named(spec[key], f"{where}.{key}", causes)
    one_of(spec.get("volumeMode", "Filesystem"), VOLUME_MODES, f"{where}.volumeMode", causes)
    for key in _SOURCES:
        if spec.get(key) is not None:
            _validate_data_source(spec[key], f"{where}.{key}", causes, any_group=any_group)
    _validate_data_sources(spec, where, causes)


def _validate_data_source(source: Json, where: str, causes: list[Cause], *, any_group: bool) -> None:
    causes.extend(Cause.required(f"{where}.{key}") for key in ("name", "kind") if not source.get(key))
    group, kind = source.get("apiGroup") or "", source.get("kind", "")
    if not group and kind != _CLAIM:
        causes.append(Cause.invalid(where, kind, f"must be '{_CLAIM}' when referencing the default apiGroup"))
    if group and not any_group:
        named(group, f"{where}.apiGroup", causes)
    if namespace := source.get("namespace"):
        refused(names.dns_label(namespace), namespace, f"{where}.namespace", causes)


def _validate_data_sources(spec: Json, where: str, causes: list[Cause]) -> None:
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is None or reference is None:
        return
    if reference.get("namespace"):
        why = "may not be specified when dataSourceRef.namespace is specified"
        causes.append(Cause.invalid(where, f"{where}.dataSource", why))
    elif any((source.get(key) or None) != (reference.get(key) or None) for key in ("apiGroup", "kind", "name")):
        causes.append(Cause.invalid(where, f"{where}.dataSource", "must match dataSourceRef"))


def _validate_immutable(new: Json, old: Json, causes: list[Cause]) -> None:
    after, before = new["spec"], old["spec"]
    changed = [key for key in sorted(after.keys() | before.keys()) if after.get(key) != before.get(key)]
    refused = [key for key in changed if not _may_change(key, new, old)]
    if refused:
        details = "; ".join(f"{key}: {before.get(key)!r} to {after.get(key)!r}" for key in refused)
        causes.append(Cause.forbidden("spec", f"{_IMMUTABLE} ({details})"))
    if parse(requested(new)) < parse(requested(old)):
        capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage", "0")
        if parse(requested(new)) <= parse(capacity):
            why = "field can not be less than status.capacity"
            causes.append(Cause.forbidden("spec.resources.requests.storage", why))
    immutable(after.get("volumeMode"), before.get("volumeMode"), "volumeMode", causes)
    _validate_attributes_class(after, before, old.get("status") or {}, causes)


def _may_change(key: str, new: Json, old: Json) -> bool:
    after, before = new["spec"], old["spec"]
    if key == "volumeAttributesClassName":
        return (new.get("status") or {}).get("phase") == "Bound"
    if key == "volumeName":
        return not before.get("volumeName")
    if key == "storageClassName":
        annotated = (old["metadata"].get("annotations") or {}).get(BETA_CLASS)
        return before.get(key) is None and annotated in {None, after.get(key)}
    if key == "resources":
        bound = (new.get("status") or {}).get("phase") == "Bound"
        asks = after[key].get("requests") is not None
        return bound and asks and _without_storage(after[key]) == _without_storage(before.get(key, {}))
    return False


def _without_storage(resources: Json) -> Json:
    requests = {key: value for key, value in (resources.get("requests") or {}).items() if key != "storage"}
    return {**resources, "requests": requests}


def _upgrades_annotation(new: Json, old: Json) -> bool:
    """Tell whether the class moves from the beta annotation into the field, which may then lose the annotation."""
    before = (old["metadata"].get("annotations") or {}).get(BETA_CLASS)
    after = (new["metadata"].get("annotations") or {}).get(BETA_CLASS)
    unset = old["spec"].get("storageClassName") is None
    return before is not None and unset and new["spec"].get("storageClassName") == before and after in {None, before}


def _validate_class_annotation(new: Json, old: Json, causes: list[Cause]) -> None:
    after = (new["metadata"].get("annotations") or {}).get(BETA_CLASS, "")
    before = (old["metadata"].get("annotations") or {}).get(BETA_CLASS, "")
    immutable(after, before, f"metadata.annotations.{BETA_CLASS}", causes)


def _validate_attributes_class(after: Json, before: Json, status: Json, causes: list[Cause]) -> None:
    key = "volumeAttributesClassName"
    if after.get(key) or after.get(key) == before.get(key) or status.get("currentVolumeAttributesClassName") is None:
        return
    lost = "nil" if after.get(key) is None else "empty string"
    why = f"update to {lost} is forbidden when status.currentVolumeAttributesClassName is not nil"
    causes.append(Cause.forbidden(f"spec.{key}", why))


def _validate_status(status: Json, causes: list[Cause]) -> None:
    for name, amount in (status.get("capacity") or {}).items():
        basic_quantity(amount, f"status.capacity[{name}]", causes)
    where = "status.allocatedResourceStatuses"
    for name, state in (status.get("allocatedResourceStatuses") or {}).items():
        _is_storage(name, where, causes)
        if state not in _RESIZE_STATES:
            causes.append(Cause.unsupported(where, name, list(_RESIZE_STATES)))
    where = "status.allocatedResources"
    for name, amount in (status.get("allocatedResources") or {}).items():
        if _is_storage(name, where, causes) and not basic_quantity(amount, f"{where}[{name}]", causes):
            resource_quantity("storage", amount, f"{where}[{name}]", causes)


def _is_storage(name: str, where: str, causes: list[Cause]) -> bool:
    """Tell whether a resource may be allocated to a claim: storage, or one that Kubernetes does not define."""
    faults = names.qualified_name(name)
    refused(faults, name, where, causes)
    if faults or name == "storage" or not is_native_resource(name):
        return not faults
    causes.append(Cause.unsupported(where, name, ["storage"]))
    return False


def _status(claim: Json) -> str:
    if claim["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(claim.get("status", {}).get("phase", ""))


def _capacity(claim: Json) -> str:
    if not claim["spec"].get("volumeName"):
        return ""
    return str((claim.get("status", {}).get("capacity") or {}).get("storage", "0"))


def _modes(claim: Json) -> str:
    return modes(claim.get("status", {}).get("accessModes")) if claim["spec"].get("volumeName") else ""


def _class(claim: Json) -> str:
    annotations = claim["metadata"].get("annotations") or {}
    return str(annotations.get(BETA_CLASS) or claim["spec"].get("storageClassName") or "")


_COLUMNS = (
    NAME,
    Column("Status", "phase represents the current phase of PersistentVolumeClaim.", _status),
    Column(
        "Volume",
        "volumeName is the binding reference to the PersistentVolume backing this claim.",
        path("spec", "volumeName"),
    ),
    Column("Capacity", "capacity represents the actual resources of the underlying volume.", _capacity),
    Column(
        "Access Modes",
        "accessModes contains the actual access modes the volume backing the PVC has. More info:"
        " https://kubernetes.io/docs/concepts/storage/persistent-volumes#access-modes-1",
        _modes,
    ),
    Column("StorageClass", "StorageClass of the pvc", _class),
    Column(
        "VolumeAttributesClass",
        "VolumeAttributesClass of the pvc",
        path("spec", "volumeAttributesClassName", absent="<unset>"),
    ),
    AGE,
    Column(
        "VolumeMode",
        "volumeMode defines what type of volume is required by the claim. Value of Filesystem is implied when not"
        " included in claim spec.",
        path("spec", "volumeMode", absent="<unset>"),
        priority=1,
    ),
)


def resource(*, cross_namespace: bool) -> Resource:
    """Return the kind. cross_namespace: see `ClaimStrategy`."""
    return Resource(
        group="",
        version="v1",
        plural="persistentvolumeclaims",
        kind=_CLAIM,
        singular="persistentvolumeclaim",
        namespaced=True,
        strategy=ClaimStrategy(cross_namespace=cross_namespace),
        columns=_COLUMNS,
        short_names=("pvc",),
        subresources=("status",),
    )
