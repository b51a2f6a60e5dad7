"""The sources of PersistentVolumes: exactly one, with its required fields, without ".." in paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.validation import one_of
from volplane_embedded.apiserver.resources import Json

__all__ = ["HOST_PATH_TYPES", "KEYS", "check_backsteps", "check_host_path", "default", "driver_name", "validate"]

HOST_PATH_TYPES: Final = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)

_REQUIRED: Final[Mapping[str, Sequence[str]]] = {
    "hostPath": (),
    "gcePersistentDisk": ("pdName",),
    "awsElasticBlockStore": ("volumeID",),
    "glusterfs": ("endpoints", "path"),
    "flocker": (),
    "nfs": ("server", "path"),
    "rbd": ("monitors", "image"),
    "quobyte": ("registry", "volume"),
    "cephfs": ("monitors",),
    "iscsi": ("targetPortal", "iqn"),
    "cinder": ("volumeID",),
    "fc": (),
    "flexVolume": ("driver",),
    "azureFile": ("secretName", "shareName"),
    "vsphereVolume": ("volumePath",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "local": (),
    "storageos": ("volumeName",),
    "csi": (),
}
"""Source to its required fields, in the order in which the stock server checks them."""

KEYS: Final = tuple(_REQUIRED)
_SECRETS: Final = (
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
)
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": False, "kind": "Shared"},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}


def default(owner: Json) -> None:
    """Fill the defaults of the source in a volume's spec, or in a volume of a pod."""
    for key, values in _DEFAULTS.items():
        if (source := owner.get(key)) is not None:
            for name, value in values.items():
                source.setdefault(name, value)


def validate(spec: Json, where: str, causes: list[Cause]) -> None:
    """Check that the volume has exactly one source, with its required fields."""
    present = [key for key in KEYS if spec.get(key) is not None]
    if not present:
        causes.append(Cause.required(where, "must specify a volume type"))
        return
    causes.extend(Cause.forbidden(f"{where}.{key}", "may not specify more than 1 volume type") for key in present[1:])
    first = present[0]
    source, place = spec[first], f"{where}.{first}"
    causes.extend(Cause.required(f"{place}.{name}") for name in _REQUIRED[first] if not source.get(name))
    if (check := _CHECKS.get(first)) is not None:
        check(source, place, causes)
    if first == "local" and spec.get("nodeAffinity") is None:
        causes.append(Cause.required(f"{where}.nodeAffinity", "Local volume requires node affinity"))


def check_backsteps(value: str, where: str, causes: list[Cause]) -> None:
    if ".." in value.split("/"):
        causes.append(Cause.invalid(where, value, "must not contain '..'"))


def check_host_path(source: Json, where: str, causes: list[Cause]) -> None:
    value = source.get("path", "")
    if not value:
        causes.append(Cause.required(f"{where}.path"))
        return
    check_backsteps(value, f"{where}.path", causes)
    one_of(source.get("type") or "", HOST_PATH_TYPES, f"{where}.type", causes)


def driver_name(value: str, where: str, causes: list[Cause]) -> None:
    """The name of a CSI driver."""
    if not value:
        causes.append(Cause.required(where))
    if len(value) > 63:
        causes.append(Cause("FieldValueTooLong", where, "Too long: may not be more than 63 bytes"))
    if why := names.subdomain(value.lower()):
        causes.append(Cause.invalid(where, value, why))


def _check_local(source: Json, where: str, causes: list[Cause]) -> None:
    value = source.get("path", "")
    if not value:
        causes.append(Cause.required(f"{where}.path"))
    else:
        check_backsteps(value, f"{where}.path", causes)


def _check_csi(source: Json, where: str, causes: list[Cause]) -> None:
    driver_name(source.get("driver", ""), f"{where}.driver", causes)
    if not source.get("volumeHandle"):
        causes.append(Cause.required(f"{where}.volumeHandle"))
    for key in _SECRETS:
        reference = source.get(key)
        if reference is None:
            continue
        for part, rule in (("name", names.subdomain), ("namespace", names.dns_label)):
            value = reference.get(part, "")
            if not value:
                causes.append(Cause.required(f"{where}.{key}.{part}"))
            elif why := rule(value):
                causes.append(Cause.invalid(f"{where}.{key}.{part}", value, why))


def _check_nfs(source: Json, where: str, causes: list[Cause]) -> None:
    value = source.get("path", "")
    if value and not value.startswith("/"):
        causes.append(Cause.invalid(f"{where}.path", value, "must be an absolute path"))


def _check_flocker(source: Json, where: str, causes: list[Cause]) -> None:
    if not source.get("datasetName") and not source.get("datasetUUID"):
        causes.append(Cause.required(where, "one of datasetName and datasetUUID is required"))


def _check_fc(source: Json, where: str, causes: list[Cause]) -> None:
    names_targets, identifiers = bool(source.get("targetWWNs")), bool(source.get("wwids"))
    if names_targets == identifiers:
        why = (
            "must specify either targetWWNs or wwids" if not identifiers else "targetWWNs and wwids exclude each other"
        )
        causes.append(Cause.required(f"{where}.targetWWNs", why))
    elif names_targets and source.get("lun") is None:
        causes.append(Cause.required(f"{where}.lun", "lun is required if targetWWNs is specified"))


_CHECKS: Final[Mapping[str, Callable[[Json, str, list[Cause]], None]]] = {
    "hostPath": check_host_path,
    "local": _check_local,
    "csi": _check_csi,
    "nfs": _check_nfs,
    "flocker": _check_flocker,
    "fc": _check_fc,
}
