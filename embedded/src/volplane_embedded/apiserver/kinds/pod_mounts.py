"""Validation of the mounts and devices of containers (`pkg/apis/core/validation`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.validation import one_of
from volplane_embedded.apiserver.kinds.volume_sources import check_backsteps
from volplane_embedded.apiserver.resources import Json

_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE: Final = ("Disabled", "Enabled", "IfPossible")
_BLOCK_SOURCES: Final = frozenset({"persistentVolumeClaim", "ephemeral"})


def validate_mounts(container: Json, path: str, volumes: Mapping[str, Json], causes: list[Cause]) -> None:
    """Check mounts and devices of a container: the volumes exist, and nothing is used twice. volumes: by name."""
    mounts, devices = container.get("volumeMounts") or (), container.get("volumeDevices") or ()
    privileged = bool((container.get("securityContext") or {}).get("privileged"))
    where = f"{path}.volumeMounts"
    names, paths = _values(devices, "name"), _values(devices, "devicePath")
    places: set[str] = set()
    for index, mount in enumerate(mounts):
        spot, name, place = f"{where}[{index}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            causes.append(Cause.required(f"{spot}.name"))
        if name not in volumes:
            causes.append(Cause.not_found(f"{spot}.name", name))
        _check_place(spot, "mountPath", place, places, causes)
        places.add(place)
        if name in names:
            causes.append(Cause.invalid(f"{spot}.name", name, "must not already exist in volumeDevices"))
        if place in paths:
            why = "must not already exist as a path in volumeDevices"
            causes.append(Cause.invalid(f"{spot}.mountPath", place, why))
        _check_sub_paths(mount, where, index, causes)
        _check_propagation(mount, where, privileged, causes)
    _check_devices(devices, f"{path}.volumeDevices", volumes, mounts, causes)


def _values(entries: Iterable[Json], key: str) -> frozenset[str]:
    return frozenset(entry.get(key) or "" for entry in entries)


def _check_place(where: str, key: str, place: str, taken: set[str], causes: list[Cause]) -> None:
    if not place:
        causes.append(Cause.required(f"{where}.{key}"))
    if place in taken:
        causes.append(Cause.invalid(f"{where}.{key}", place, "must be unique"))


def _check_sub_paths(mount: Json, where: str, index: int, causes: list[Cause]) -> None:
    """Check these paths. A stock server names the list, not the mount, in its messages."""
    plain, expression = mount.get("subPath") or "", mount.get("subPathExpr") or ""
    _check_descending(plain, f"{where}.subPath", causes)
    if plain and expression:
        why = "subPathExpr and subPath are mutually exclusive"
        causes.append(Cause.invalid(f"{where}[{index}].subPathExpr", expression, why))
    _check_descending(expression, f"{where}.subPathExpr", causes)


def _check_descending(value: str, where: str, causes: list[Cause]) -> None:
    if value.startswith("/"):
        causes.append(Cause.invalid(where, value, "must be a relative path"))
    check_backsteps(value, where, causes)


def _check_propagation(mount: Json, where: str, privileged: bool, causes: list[Cause]) -> None:
    propagation, recursive = mount.get("mountPropagation"), mount.get("recursiveReadOnly")
    if propagation is not None:
        one_of(propagation, _PROPAGATIONS, f"{where}.mountPropagation", causes)
        if propagation == "Bidirectional" and not privileged:
            why = "Bidirectional mount propagation is available only to privileged containers"
            causes.append(Cause.forbidden(f"{where}.mountPropagation", why))
    if recursive is None or recursive == "Disabled":
        return
    where = f"{where}.recursiveReadOnly"
    one_of(recursive, _RECURSIVE, where, causes)
    if recursive in _RECURSIVE and not mount.get("readOnly"):
        causes.append(Cause.forbidden(where, "may only be specified when readOnly is true"))
    if recursive in _RECURSIVE and propagation not in {None, "None"}:
        why = "may only be specified when mountPropagation is None or not specified"
        causes.append(Cause.forbidden(where, why))


def _check_devices(
    devices: Iterable[Json], path: str, volumes: Mapping[str, Json], mounts: Iterable[Json], causes: list[Cause]
) -> None:
    mounted, places = _values(mounts, "name"), _values(mounts, "mountPath")
    names: set[str] = set()
    taken: set[str] = set()
    for index, device in enumerate(devices):
        where, name, place = f"{path}[{index}]", device.get("name") or "", device.get("devicePath") or ""
        _check_device_name(where, name, names, volumes, causes)
        _check_place(where, "devicePath", place, taken, causes)
        if ".." in place.split("/"):
            causes.append(Cause.invalid(f"{where}.devicePath", place, "can not contain backsteps ('..')"))
        else:
            taken.add(place)
        if name in mounted:
            causes.append(Cause.invalid(f"{where}.name", name, "must not already exist in volumeMounts"))
        if place in places:
            why = "must not already exist as a path in volumeMounts"
            causes.append(Cause.invalid(f"{where}.devicePath", place, why))
        names.update([name] if name else ())


def _check_device_name(
    where: str, name: str, names: set[str], volumes: Mapping[str, Json], causes: list[Cause]
) -> None:
    if not name:
        causes.append(Cause.required(f"{where}.name"))
    if name in names:
        causes.append(Cause.invalid(f"{where}.name", name, "must be unique"))
    if name not in volumes:
        causes.append(Cause.not_found(f"{where}.name", name))
    elif not volumes[name].keys() & _BLOCK_SOURCES:
        why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        causes.append(Cause.invalid(f"{where}.name", name, why))
