"""The sources of PersistentVolumes: exactly one, with its required fields, without ".." in paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.validation import one_of, refused
from volplane_embedded.apiserver.resources import Json

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

_PATHS: Final[Mapping[str, str]] = {"gcePersistentDisk": "persistentDisk"}
"""What the stock server calls a source in its causes, where that is not the name of the field."""
_ISCSI_NAME: Final = re.compile(
    r"iqn\.\d{4}-\d{2}\.([A-Za-z0-9-.]+)(:[^,;*&$|\s]+)|eui\.[A-Za-z0-9]{16}|naa\.[A-Za-z0-9]{32}"
)

KEYS: Final = tuple(_REQUIRED)
_SECRETS: Final = (
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
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


def validate(spec: Json, where: str, volume: str, causes: list[Cause]) -> None:
    """Check that a volume has exactly one source, with its required fields. volume: its name, "" for an inline one."""
    present = [key for key in KEYS if spec.get(key) is not None]
    causes_of_others = [
        Cause.forbidden(f"{where}.{key}", "may not specify more than 1 volume type") for key in present[1:]
    ]
    for key in present[:1]:
        source, place = spec[key], f"{where}.{_PATHS.get(key, key)}"
        causes.extend(Cause.required(f"{place}.{name}") for name in _REQUIRED[key] if not source.get(name))
        if (check := _CHECKS.get(key)) is not None:
            check(source, place, causes)
        if key == "iscsi":
            _check_initiator(source, volume, place, causes)
        if key == "local" and spec.get("nodeAffinity") is None:
            causes.append(Cause.required(f"{where}.nodeAffinity", "Local volume requires node affinity"))
    causes.extend(causes_of_others)
    if not present:
        causes.append(Cause.required(where, "must specify a volume type"))


def check_backsteps(value: str, where: str, causes: list[Cause]) -> None:
    if ".." in value.split("/"):
        causes.append(Cause.invalid(where, value, "must not contain '..'"))


def check_local_path(value: str, where: str, causes: list[Cause]) -> None:
    """Check the path of a file below a volume's root: relative, without ".."."""
    if value.startswith("/"):
        causes.append(Cause.invalid(where, value, "must be a relative path"))
    check_backsteps(value, where, causes)
    if value.startswith("..") and not value.startswith("../"):
        causes.append(Cause.invalid(where, value, "must not start with '..'"))


def check_mode(owner: Json, key: str, where: str, causes: list[Cause]) -> None:
    """Check the permission bits of files."""
    mode = owner.get(key)
    if mode is not None and not 0 <= mode <= 0o777:
        why = "must be a number between 0 and 0777 (octal), both inclusive"
        causes.append(Cause.invalid(f"{where}.{key}", mode, why))


def check_host_path(source: Json, where: str, causes: list[Cause]) -> None:
    value = source.get("path", "")
    if not value:
        causes.append(Cause.required(f"{where}.path"))
        return
    check_backsteps(value, f"{where}.path", causes)
    one_of(source.get("type") or "", HOST_PATH_TYPES, f"{where}.type", causes)


def driver_name(value: str, where: str, causes: list[Cause]) -> None:
    """Check the name of a CSI driver."""
    if not value:
        causes.append(Cause.required(where))
        return
    if len(value) > 63:
        causes.append(Cause.too_long(where, "63 bytes"))
    refused(names.subdomain(value.lower()), value, where, causes)


def check_partition(source: Json, where: str, causes: list[Cause]) -> None:
    partition = source.get("partition") or 0
    if not 0 <= partition <= 255:
        causes.append(Cause.invalid(f"{where}.partition", partition, "must be between 0 and 255, inclusive"))


def check_iscsi(source: Json, where: str, causes: list[Cause]) -> None:
    name, lun = source.get("iqn") or "", source.get("lun") or 0
    if name and not _ISCSI_NAME.fullmatch(name):
        causes.append(Cause.invalid(f"{where}.iqn", name, "must be valid format"))
    if not 0 <= lun <= 255:
        causes.append(Cause.invalid(f"{where}.lun", lun, "must be between 0 and 255, inclusive"))
    secret = source.get("secretRef")
    if secret is None and (source.get("chapAuthDiscovery") or source.get("chapAuthSession")):
        causes.append(Cause.required(f"{where}.secretRef"))
    if secret is not None and not secret.get("name"):
        causes.append(Cause.required(f"{where}.secretRef.name"))
    initiator = source.get("initiatorName")
    if initiator is not None and not _ISCSI_NAME.fullmatch(initiator):
        causes.append(Cause.invalid(f"{where}.initiatorname", initiator, "must be valid format"))


def _check_initiator(source: Json, volume: str, where: str, causes: list[Cause]) -> None:
    portal = source.get("targetPortal") or ""
    if source.get("initiatorName") is not None and len(f"{volume}:{portal}") > 64:
        why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is"
        causes.append(Cause.invalid(f"{where}.targetportal", portal, f"{why} specified."))


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
            if value:
                refused(rule(value), value, f"{where}.{key}.{part}", causes)
            else:
                causes.append(Cause.required(f"{where}.{key}.{part}"))


def check_nfs(source: Json, where: str, causes: list[Cause]) -> None:
    value = source.get("path", "")
    if not value.startswith("/"):
        causes.append(Cause.invalid(f"{where}.path", value, "must be an absolute path"))


def _check_flocker(source: Json, where: str, causes: list[Cause]) -> None:
    if not source.get("datasetName") and not source.get("datasetUUID"):
        causes.append(Cause.required(where, "one of datasetName and datasetUUID is required"))


def check_fc(source: Json, where: str, causes: list[Cause]) -> None:
    targets, identifiers, lun = source.get("targetWWNs"), source.get("wwids"), source.get("lun")
    if not targets and not identifiers:
        causes.append(Cause.required(f"{where}.targetWWNs", "must specify either targetWWNs or wwids, but not both"))
    if targets and identifiers:
        why = "targetWWNs and wwids can not be specified simultaneously"
        causes.append(Cause.invalid(f"{where}.targetWWNs", targets, why))
    if targets and lun is None:
        causes.append(Cause.required(f"{where}.lun", "lun is required if targetWWNs is specified"))
    elif targets and lun is not None and not 0 <= lun <= 255:
        causes.append(Cause.invalid(f"{where}.lun", lun, "must be between 0 and 255, inclusive"))


_CHECKS: Final[Mapping[str, Callable[[Json, str, list[Cause]], None]]] = {
    "awsElasticBlockStore": check_partition,
    "csi": _check_csi,
    "fc": check_fc,
    "flocker": _check_flocker,
    "gcePersistentDisk": check_partition,
    "hostPath": check_host_path,
    "iscsi": check_iscsi,
    "local": _check_local,
    "nfs": check_nfs,
}
