"""PersistentVolumes: defaults, rules and columns (`pkg/registry/core/persistentvolume`)."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from volplane_embedded.apiserver import object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import volume_sources
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, modes, path
from volplane_embedded.apiserver.kinds.validation import (
    access_modes,
    basic_quantity,
    canonical_resources,
    immutable,
    named,
    node_selector,
    one_of,
    positive_quantity,
)
from volplane_embedded.apiserver.resources import Clock, Column, Json, Resource, StatusStrategy
from volplane_embedded.apiserver.scalars import format_time

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
VOLUME_MODES = ("Block", "Filesystem")
_POLICIES = ("Delete", "Recycle", "Retain")
_NO_CLASS = "<unset>"
_SOURCES = frozenset(volume_sources.KEYS)
_GA_LABELS = {
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
}
_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
_WITH_OPTIONS = _SOURCES - {
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "hostPath",
    "local",
    "portworxVolume",
    "scaleIO",
    "storageos",
}


class VolumeStrategy(StatusStrategy):
    def __init__(self, now: Clock) -> None:
        self._now = now

    def default(self, obj: Json) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
        spec.setdefault("volumeMode", "Filesystem")
        volume_sources.default(spec)
        canonical_resources(spec, "capacity")
        obj.setdefault("status", {}).setdefault("phase", "Pending")

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": format_time(self._now())}

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return [*_validate(obj), *_mount_options(obj)]

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource != "status":
            return
        before, after = old.get("status", {}), new.get("status", {})
        key = "lastPhaseTransitionTime"
        if before.get("phase") != after.get("phase"):
            if after.get(key) in {None, before.get(key)}:
                new["status"] = {**after, key: format_time(self._now())}
        elif after.get(key) is None and before.get(key) is not None:
            new["status"] = {**after, key: before[key]}

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        fixed = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if subresource == "status":
            return fixed
        # A stock server validates a changed volume twice, and its metadata not as a change.
        return [*_validate(new), *_mount_options(new), *_validate(new), *_validate_change(new["spec"], old["spec"])]


def _validate(volume: Json) -> list[Cause]:
    causes = list(object_meta.validate_of_kind(volume["metadata"]))
    _validate_spec(volume["spec"], volume["metadata"].get("name", ""), causes)
    return causes


def _mount_options(volume: Json) -> list[Cause]:
    """Check the beta annotation of mount options, which some sources do not allow."""
    if _MOUNT_OPTIONS not in volume["metadata"].get("annotations", {}) or _WITH_OPTIONS & volume["spec"].keys():
        return []
    why = "may not specify mount options for this volume type"
    return [Cause.forbidden(f"metadata.annotations.{_MOUNT_OPTIONS}", why)]


def _validate_change(after: Json, before: Json) -> list[Cause]:
    causes: list[Cause] = []
    if not _same_source(after, before):
        why = f"spec.persistentvolumesource is immutable after creation ({_changed_source(after, before)})"
        causes.append(Cause.forbidden("spec.persistentvolumesource", why))
    immutable(after.get("volumeMode"), before.get("volumeMode"), "volumeMode", causes)
    if before.get("nodeAffinity") is not None and not _same_affinity(after.get("nodeAffinity"), before["nodeAffinity"]):
        why = "field is immutable, except for updating from beta label to GA"
        causes.append(Cause.invalid("nodeAffinity", after.get("nodeAffinity"), why))
    if before.get("volumeAttributesClassName") is not None and after.get("volumeAttributesClassName") is None:
        why = "update from non-nil value to nil is forbidden"
        causes.append(Cause.forbidden("spec.volumeAttributesClassName", why))
    return causes


def validate_inline(spec: Json, where: str, causes: list[Cause]) -> None:
    """Check a volume spec inside a VolumeAttachment: only a CSI source and its mount options."""
    why = "in the context of inline volumes"
    forbidden = f"may not be specified {why}"
    causes.extend(Cause.forbidden(f"{where}.{key}", forbidden) for key in ("claimRef", "capacity") if spec.get(key))
    if spec.get("csi") is None:
        causes.append(Cause.required(f"{where}.csi", f"has to be specified {why}"))
    _validate_modes(spec, where, causes)
    if spec.get("persistentVolumeReclaimPolicy", "Retain") != "Retain":
        causes.append(Cause.forbidden(f"{where}.persistentVolumeReclaimPolicy", f"may only be Retain {why}"))
    if spec.get("nodeAffinity") is not None:
        causes.append(Cause.forbidden(f"{where}.nodeAffinity", forbidden))
    volume_sources.validate(spec, where, "", causes)
    if spec.get("storageClassName"):
        causes.append(Cause.forbidden(f"{where}.storageClassName", forbidden))
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        causes.append(Cause.forbidden(f"{where}.volumeMode", f"may not specify volumeMode other than Filesystem {why}"))


def _validate_modes(spec: Json, where: str, causes: list[Cause]) -> None:
    listed = spec.get("accessModes") or ()
    if not listed:
        causes.append(Cause.required(f"{where}.accessModes"))
    access_modes(listed, f"{where}.accessModes", causes)


def _validate_spec(spec: Json, name: str, causes: list[Cause]) -> None:
    _validate_modes(spec, "spec", causes)
    _validate_capacity(spec.get("capacity") or {}, causes)
    policy = spec.get("persistentVolumeReclaimPolicy")
    if policy:
        one_of(policy, _POLICIES, "spec.persistentVolumeReclaimPolicy", causes)
    affinity = spec.get("nodeAffinity")
    if affinity is not None:
        _validate_affinity(affinity, causes)
    volume_sources.validate(spec, "spec", name, causes)
    if policy == "Recycle" and _is_root((spec.get("hostPath") or {}).get("path") or ""):
        why = "may not be 'recycle' for a hostPath mount of '/'"
        causes.append(Cause.forbidden("spec.persistentVolumeReclaimPolicy", why))
    if spec.get("storageClassName"):
        named(spec["storageClassName"], "spec.storageClassName", causes)
    one_of(spec.get("volumeMode", "Filesystem"), VOLUME_MODES, "spec.volumeMode", causes)
    if spec.get("volumeAttributesClassName") is not None:
        _validate_attributes_class(spec, causes)


def _same_affinity(after: Any, before: Any) -> bool:
    """Tell whether affinities are equal, or became so by a label's key that is not beta any more."""
    if isinstance(after, dict) and isinstance(before, dict):
        if "operator" in after and _GA_LABELS.get(before.get("key", ""), "") == after.get("key"):
            before = {**before, "key": after["key"]}
        keys = after.keys() | before.keys()
        return all(_same_affinity(after.get(key), before.get(key)) for key in keys)
    if isinstance(after, list) and isinstance(before, list) and len(after) == len(before):
        return all(map(_same_affinity, after, before))
    return bool((after or None) == (before or None))


def _is_root(path: str) -> bool:
    # POSIX gives two leading slashes a meaning of their own, which normpath keeps.
    return path.startswith("/") and posixpath.normpath(f"/{path.lstrip('/')}") == "/"


def _validate_capacity(capacity: Json, causes: list[Cause]) -> None:
    if not capacity:
        causes.append(Cause.required("spec.capacity"))
    if list(capacity) != ["storage"]:
        shown = ", ".join(capacity) or "null"
        causes.append(
            Cause("FieldValueNotSupported", "spec.capacity", f'Unsupported value: {shown}: supported values: "storage"')
        )
    for name, amount in capacity.items():
        basic_quantity(amount, f"spec.capacity[{name}]", causes)
        positive_quantity(amount, f"spec.capacity[{name}]", causes)


def _validate_affinity(affinity: Json, causes: list[Cause]) -> None:
    if affinity.get("required") is None:
        causes.append(Cause.required("spec.nodeAffinity.required", "must specify required node constraints"))
    else:
        node_selector(affinity["required"], "spec.nodeAffinity.required", causes)


def _validate_attributes_class(spec: Json, causes: list[Cause]) -> None:
    name = spec["volumeAttributesClassName"]
    if name:
        named(name, "spec.volumeAttributesClassName", causes)
    else:
        causes.append(Cause.required("spec.volumeAttributesClassName", "an empty string is disallowed"))
    if spec.get("csi") is None:
        causes.append(Cause.required("spec.csi", "has to be specified when using volumeAttributesClassName"))


def _same_source(after: Json, before: Json) -> bool:
    for key in (after.keys() | before.keys()) & _SOURCES:
        new, old = after.get(key), before.get(key)
        if new == old:
            continue
        if key == "csi" and new and old and "controllerExpandSecretRef" not in old:
            new = {name: value for name, value in new.items() if name != "controllerExpandSecretRef"}
            if new == old:
                continue
        return False
    return True


def _changed_source(after: Json, before: Json) -> str:
    keys = [key for key in volume_sources.KEYS if after.get(key) != before.get(key)]
    return "; ".join(f"{key}: {before.get(key)} to {after.get(key)}" for key in keys)


def _status(volume: Json) -> str:
    if volume["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(volume.get("status", {}).get("phase", ""))


def _claim(volume: Json) -> str:
    reference = volume["spec"].get("claimRef")
    return f"{reference.get('namespace', '')}/{reference.get('name', '')}" if reference else ""


def _class(volume: Json) -> Any:
    annotations = volume["metadata"].get("annotations") or {}
    return annotations.get(BETA_CLASS) or volume["spec"].get("storageClassName", "")


_COLUMNS = (
    NAME,
    Column(
        "Capacity",
        "capacity is the description of the persistent volume's resources and capacity. More info:"
        " https://kubernetes.io/docs/concepts/storage/persistent-volumes#capacity",
        path("spec", "capacity", "storage", absent="0"),
    ),
    Column(
        "Access Modes",
        "accessModes contains all ways the volume can be mounted. More info:"
        " https://kubernetes.io/docs/concepts/storage/persistent-volumes#access-modes",
        lambda volume: modes(volume["spec"].get("accessModes")),
    ),
    Column(
        "Reclaim Policy",
        "persistentVolumeReclaimPolicy defines what happens to a persistent volume when released from its claim. Valid"
        " options are Retain (default for manually created PersistentVolumes), Delete (default for dynamically"
        " provisioned PersistentVolumes), and Recycle (deprecated). Recycle must be supported by the volume plugin"
        " underlying this PersistentVolume. More info:"
        " https://kubernetes.io/docs/concepts/storage/persistent-volumes#reclaiming",
        path("spec", "persistentVolumeReclaimPolicy"),
    ),
    Column(
        "Status",
        "phase indicates if a volume is available, bound to a claim, or released by a claim. More info:"
        " https://kubernetes.io/docs/concepts/storage/persistent-volumes#phase",
        _status,
    ),
    Column(
        "Claim",
        "claimRef is part of a bi-directional binding between PersistentVolume and PersistentVolumeClaim. Expected to"
        " be non-nil when bound. claim.VolumeName is the authoritative bind between PV and PVC. More info:"
        " https://kubernetes.io/docs/concepts/storage/persistent-volumes#binding",
        _claim,
    ),
    Column("StorageClass", "StorageClass of the pv", _class),
    Column(
        "VolumeAttributesClass",
        "VolumeAttributesClass of the pv",
        path("spec", "volumeAttributesClassName", absent=_NO_CLASS),
    ),
    Column(
        "Reason",
        "reason is a brief CamelCase string that describes any failure and is meant for machine parsing and tidy"
        " display in the CLI.",
        path("status", "reason"),
    ),
    AGE,
    Column(
        "VolumeMode",
        "volumeMode defines if a volume is intended to be used with a formatted filesystem or to remain in raw block"
        " state. Value of Filesystem is implied when not included in spec.",
        path("spec", "volumeMode", absent=_NO_CLASS),
        priority=1,
    ),
)


def resource(now: Clock) -> Resource:
    return Resource(
        group="",
        version="v1",
        plural="persistentvolumes",
        kind="PersistentVolume",
        singular="persistentvolume",
        namespaced=False,
        strategy=VolumeStrategy(now),
        columns=_COLUMNS,
        short_names=("pv",),
        subresources=("status",),
    )
