"""Validation of the volumes, mounts and node affinity of a pod (`pkg/apis/core/validation`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds import persistentvolumeclaims
from volplane_embedded.apiserver.kinds.validation import node_selector, refused
from volplane_embedded.apiserver.kinds.volume_sources import check_host_path, driver_name
from volplane_embedded.apiserver.resources import Json

__all__ = ["narrows_affinity", "validate", "validate_affinity", "validate_mounts"]

_REQUIRED_DURING: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_DURING: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def validate(volumes: Sequence[Json], causes: list[Cause]) -> dict[str, Json]:
    """Check the volumes of a pod. Returns them by name."""
    found: dict[str, Json] = {}
    for index, volume in enumerate(volumes):
        where, name = f"spec.volumes[{index}]", volume.get("name") or ""
        if not name:
            causes.append(Cause.required(f"{where}.name"))
        elif faults := names.dns_label(name):
            refused(faults, name, f"{where}.name", causes)
        elif name in found:
            causes.append(Cause.duplicate(f"{where}.name", name))
        sources = [key for key in volume if key != "name"]
        causes.extend(
            Cause.forbidden(f"{where}.{key}", "may not specify more than 1 volume type") for key in sources[1:]
        )
        if sources:
            check = _SOURCES.get(sources[0])
            if check is not None:
                check(volume[sources[0]], f"{where}.{sources[0]}", causes)
        else:
            causes.append(Cause.required(where, "must specify a volume type"))
        found[name] = volume
    return found


def _required(*keys: str) -> Callable[[Json, str, list[Cause]], None]:
    def check(source: Json, where: str, causes: list[Cause]) -> None:
        causes.extend(Cause.required(f"{where}.{key}") for key in keys if not source.get(key))

    return check


def _check_csi(source: Json, where: str, causes: list[Cause]) -> None:
    driver_name(source.get("driver") or "", f"{where}.driver", causes)


def _check_ephemeral(source: Json, where: str, causes: list[Cause]) -> None:
    template = source.get("volumeClaimTemplate")
    if template is None:
        causes.append(Cause.required(f"{where}.volumeClaimTemplate"))
    else:
        persistentvolumeclaims.validate_spec(template.get("spec") or {}, f"{where}.volumeClaimTemplate.spec", causes)


_SOURCES: Final[Mapping[str, Callable[[Json, str, list[Cause]], None]]] = {
    "hostPath": check_host_path,
    "nfs": _required("server", "path"),
    "secret": _required("secretName"),
    "configMap": _required("name"),
    "persistentVolumeClaim": _required("claimName"),
    "gcePersistentDisk": _required("pdName"),
    "awsElasticBlockStore": _required("volumeID"),
    "iscsi": _required("targetPortal", "iqn"),
    "rbd": _required("monitors", "image"),
    "cephfs": _required("monitors"),
    "csi": _check_csi,
    "ephemeral": _check_ephemeral,
}


def validate_mounts(container: Json, path: str, volumes: Mapping[str, Json], causes: list[Cause]) -> None:
    """Check mounts and devices of a container: the volumes exist, and no path is used twice."""
    places: set[str] = set()
    for list_name, place_name in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        for index, mount in enumerate(container.get(list_name) or ()):
            where = f"{path}.{list_name}[{index}]"
            name, place = mount.get("name") or "", mount.get(place_name) or ""
            if not name:
                causes.append(Cause.required(f"{where}.name"))
            elif name not in volumes:
                causes.append(Cause("FieldValueNotFound", f"{where}.name", f'Not found: "{name}"'))
            elif list_name == "volumeDevices" and not volumes[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
                why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
                causes.append(Cause.invalid(f"{where}.name", name, why))
            if not place:
                causes.append(Cause.required(f"{where}.{place_name}"))
            elif place in places:
                causes.append(Cause.invalid(f"{where}.{place_name}", place, "must be unique"))
            places.add(place)
            _validate_sub_path(mount, where, causes)


def _validate_sub_path(mount: Json, where: str, causes: list[Cause]) -> None:
    if mount.get("subPath") and mount.get("subPathExpr"):
        causes.append(
            Cause.invalid(
                f"{where}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive"
            )
        )
    for key in ("subPath", "subPathExpr"):
        value = mount.get(key) or ""
        if value.startswith("/"):
            causes.append(Cause.invalid(f"{where}.{key}", value, "must be a relative path"))
        if ".." in value.split("/"):
            causes.append(Cause.invalid(f"{where}.{key}", value, "must not contain '..'"))


def validate_affinity(affinity: Json, causes: list[Cause]) -> None:
    node = affinity.get("nodeAffinity") or {}
    where = "spec.affinity.nodeAffinity"
    if node.get(_REQUIRED_DURING) is not None:
        node_selector(node[_REQUIRED_DURING], f"{where}.{_REQUIRED_DURING}", causes)
    for index, term in enumerate(node.get(_PREFERRED_DURING) or ()):
        weight = term.get("weight") or 0
        if not 1 <= weight <= 100:
            path = f"{where}.{_PREFERRED_DURING}[{index}].weight"
            causes.append(Cause.invalid(path, weight, "must be in the range 1-100"))


def narrows_affinity(after: Json, before: Json) -> bool:
    """Whether only required node terms changed, each at most gaining expressions, or appeared where none were."""
    rest_after = {key: value for key, value in after.items() if key != "nodeAffinity"}
    rest_before = {key: value for key, value in before.items() if key != "nodeAffinity"}
    if rest_after != rest_before:
        return False
    required = ((before.get("nodeAffinity") or {}).get(_REQUIRED_DURING) or {}).get("nodeSelectorTerms")
    if not required:
        return True
    wanted = ((after.get("nodeAffinity") or {}).get(_REQUIRED_DURING) or {}).get("nodeSelectorTerms") or []
    return len(wanted) == len(required) and all(map(_gains, wanted, required))


def _gains(after: Json, before: Json) -> bool:
    return all(
        expression in (after.get(key) or ())
        for key in ("matchExpressions", "matchFields")
        for expression in before.get(key) or ()
    )
