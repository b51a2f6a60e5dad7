"""Validation of the volumes of a pod (`pkg/apis/core/validation`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from volplane.kube.quantity import parse
from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import persistentvolumeclaims
from volplane_embedded.apiserver.kinds.pod_fields import check_downward_file
from volplane_embedded.apiserver.kinds.validation import refused
from volplane_embedded.apiserver.kinds.volume_sources import (
    check_fc,
    check_host_path,
    check_iscsi,
    check_local_path,
    check_mode,
    check_nfs,
    check_partition,
    driver_name,
)
from volplane_embedded.apiserver.resources import Json

_SHORTEST_TOKEN: Final = 600
_LONGEST_TOKEN: Final = 2**32

Check = Callable[[Json, str, list[Cause]], None]


def validate(volumes: Sequence[Json], pod: str, causes: list[Cause]) -> dict[str, Json]:
    """Check the volumes of a pod of the name `pod`. Returns the valid ones by name."""
    found: dict[str, Json] = {}
    created = {f"{pod}-{volume.get('name', '')}" for volume in volumes if volume.get("ephemeral") is not None and pod}
    for index, volume in enumerate(volumes):
        where, name = f"spec.volumes[{index}]", volume.get("name") or ""
        faults: list[Cause] = []
        _validate_source(volume, where, pod, faults)
        if name:
            refused(names.dns_label(name), name, f"{where}.name", faults)
        else:
            faults.append(Cause.required(f"{where}.name"))
        if name in found:
            faults.append(Cause.duplicate(f"{where}.name", name))
        if not faults:
            found[name] = volume
        causes.extend(faults)
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim in created:
            why = "must not reference a PVC that gets created for an ephemeral volume"
            causes.append(Cause.invalid(f"{where}.persistentVolumeClaim.claimName", claim, why))
    return found


def _validate_source(volume: Json, where: str, pod: str, causes: list[Cause]) -> None:
    present = [key for key in _SOURCES if volume.get(key) is not None]
    for position, key in enumerate(present):
        if position:
            causes.append(Cause.forbidden(f"{where}.{key}", "may not specify more than 1 volume type"))
        elif (check := _SOURCES[key]) is not None:
            check(volume[key], f"{where}.{_PATHS.get(key, key)}", causes)
    name = volume.get("name") or ""
    if present[:1] == ["ephemeral"] and pod and name:
        claim = f"{pod}-{name}"
        faults = (f'PVC name "{claim}": {why}' for why in names.subdomain(claim))
        refused(faults, name, f"{where}.name", causes)
    if not present:
        causes.append(Cause.required(where, "must specify a volume type"))


def _required(*keys: str) -> Check:
    def check(source: Json, where: str, causes: list[Cause]) -> None:
        causes.extend(Cause.required(f"{where}.{key}") for key in keys if not source.get(key))

    return check


def _all(*checks: Check) -> Check:
    def check(source: Json, where: str, causes: list[Cause]) -> None:
        for one in checks:
            one(source, where, causes)

    return check


def _check_empty_dir(source: Json, where: str, causes: list[Cause]) -> None:
    if source.get("sizeLimit") is not None and parse(source["sizeLimit"]).nanos < 0:
        causes.append(Cause.forbidden(f"{where}.sizeLimit", "SizeLimit field must be a valid resource quantity"))


def _check_items(source: Json, where: str, causes: list[Cause]) -> None:
    check_mode(source, "defaultMode", where, causes)
    for index, item in enumerate(source.get("items") or ()):
        _check_item(item, f"{where}.items[{index}]", causes)


def _check_item(item: Json, where: str, causes: list[Cause]) -> None:
    causes.extend(Cause.required(f"{where}.{key}") for key in ("key", "path") if not item.get(key))
    check_local_path(item.get("path") or "", f"{where}.path", causes)
    check_mode(item, "mode", where, causes)


def _check_downward(source: Json, where: str, causes: list[Cause]) -> None:
    check_mode(source, "defaultMode", where, causes)
    for item in source.get("items") or ():
        check_downward_file(item, where, causes)


def _check_projected(source: Json, where: str, causes: list[Cause]) -> None:
    check_mode(source, "defaultMode", where, causes)
    paths: set[str] = set()
    for index, part in enumerate(source.get("sources") or ()):
        place = f"{where}.sources[{index}]"
        for key in ("secret", "configMap"):
            if (projection := part.get(key)) is not None:
                causes.extend(() if projection.get("name") else (Cause.required(f"{place}.{key}.name"),))
                for at, item in enumerate(projection.get("items") or ()):
                    _check_item(item, f"{place}.{key}.items[{at}]", causes)
                    _check_twice(item.get("path"), projection.get("name", ""), paths, where, causes)
        for item in (part.get("downwardAPI") or {}).get("items") or ():
            check_downward_file(item, f"{place}.downwardAPI", causes)
            _check_twice(item.get("path"), item.get("path"), paths, where, causes)
        if (token := part.get("serviceAccountToken")) is not None:
            _check_token(token, f"{place}.serviceAccountToken", where, causes)
        if len(part) > 1:
            causes.append(Cause.forbidden(place, "may not specify more than 1 volume type per source"))


def _check_twice(path: str | None, shown: object, paths: set[str], where: str, causes: list[Cause]) -> None:
    if path and path in paths:
        causes.append(Cause.invalid(where, shown, "conflicting duplicate paths"))
    paths.add(path or "")


def _check_token(token: Json, where: str, volume: str, causes: list[Cause]) -> None:
    seconds = token.get("expirationSeconds", 0)
    if seconds < _SHORTEST_TOKEN:
        why = "may not specify a duration less than 10 minutes"
        causes.append(Cause.invalid(f"{where}.expirationSeconds", seconds, why))
    if seconds > _LONGEST_TOKEN:
        why = "may not specify a duration larger than 2^32 seconds"
        causes.append(Cause.invalid(f"{where}.expirationSeconds", seconds, why))
    if token.get("path"):
        check_local_path(token["path"], f"{volume}.path", causes)
    else:
        causes.append(Cause.required(f"{volume}.path"))


def _check_csi(source: Json, where: str, causes: list[Cause]) -> None:
    driver_name(source.get("driver") or "", f"{where}.driver", causes)
    reference = source.get("nodePublishSecretRef")
    if reference is None:
        return
    if name := reference.get("name"):
        refused(names.subdomain(name), name, f"{where}.name", causes)
    else:
        causes.append(Cause.required(f"{where}.nodePublishSecretRef.name"))


def _check_ephemeral(source: Json, where: str, causes: list[Cause]) -> None:
    template, where = source.get("volumeClaimTemplate"), f"{where}.volumeClaimTemplate"
    if template is None:
        causes.append(Cause.required(where))
        return
    causes.extend(object_meta.validate_template(template.get("metadata") or {}, f"{where}.metadata"))
    persistentvolumeclaims.validate_spec(template.get("spec") or {}, f"{where}.spec", causes)


_PATHS: Final[Mapping[str, str]] = {"gcePersistentDisk": "persistentDisk"}
_SOURCES: Final[Mapping[str, Check | None]] = {
    "emptyDir": _check_empty_dir,
    "hostPath": check_host_path,
    "gitRepo": _required("repository"),
    "gcePersistentDisk": _all(_required("pdName"), check_partition),
    "awsElasticBlockStore": _all(_required("volumeID"), check_partition),
    "secret": _all(_required("secretName"), _check_items),
    "nfs": _all(_required("server", "path"), check_nfs),
    "iscsi": _all(_required("targetPortal", "iqn"), check_iscsi),
    "glusterfs": _required("endpoints", "path"),
    "flocker": None,
    "persistentVolumeClaim": _required("claimName"),
    "rbd": _required("monitors", "image"),
    "cinder": _required("volumeID"),
    "cephfs": _required("monitors"),
    "quobyte": _required("registry", "volume"),
    "downwardAPI": _check_downward,
    "fc": check_fc,
    "flexVolume": _required("driver"),
    "configMap": _all(_required("name"), _check_items),
    "azureFile": _required("secretName", "shareName"),
    "vsphereVolume": _required("volumePath"),
    "photonPersistentDisk": _required("pdID"),
    "portworxVolume": _required("volumeID"),
    "azureDisk": _required("diskName", "diskURI"),
    "storageos": _required("volumeName"),
    "projected": _check_projected,
    "scaleIO": _required("gateway", "system", "volumeName"),
    "csi": _check_csi,
    "ephemeral": _check_ephemeral,
    "image": None,
}
"""Sources in the order in which a stock server checks them."""
