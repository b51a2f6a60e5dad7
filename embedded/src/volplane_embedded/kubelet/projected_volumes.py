"""Volumes with content from objects: configMap, secret, downwardAPI, projected (pkg/volume/projected).

They are written once, before the first container of the pod starts. Later changes of the objects are not written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from volplane_embedded.kubelet.environment import ConfigObjects, Missing, field_value
from volplane_embedded.objects import Pod, PodVolume

_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """A file of a volume. path: relative."""

    path: str
    content: bytes
    mode: int


def is_projection(volume: PodVolume) -> bool:
    """Tell whether the volume has content from objects."""
    return any(
        source is not None for source in (volume.config_map, volume.secret, volume.downward_api, volume.projected)
    )


def _sources(volume: PodVolume) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield each (kind, source) in the form that `projected` has. `name` is the name of the object."""
    if volume.config_map is not None:
        yield "configMap", volume.config_map
    if volume.secret is not None:
        yield "secret", {**volume.secret, "name": volume.secret.get("secretName", "")}
    if volume.downward_api is not None:
        yield "downwardAPI", volume.downward_api
    for source in (volume.projected or {}).get("sources") or ():
        for kind, inner in source.items():
            yield kind, inner or {}


def referenced_objects(volume: PodVolume) -> tuple[set[str], set[str]]:
    """Return the names of the ConfigMaps and of the Secrets that the volume refers to."""
    found = list(_sources(volume))
    return (
        {source.get("name", "") for kind, source in found if kind == "configMap"},
        {source.get("name", "") for kind, source in found if kind == "secret"},
    )


def projected_files(pod: Pod, volume: PodVolume, configuration: ConfigObjects) -> list[File]:
    """Return the content of the volume. Raises Missing."""
    whole = volume.config_map or volume.secret or volume.downward_api or volume.projected or {}
    mode = int(whole.get("defaultMode", _MODE))
    files: list[File] = []
    for kind, source in _sources(volume):
        optional = bool(source.get("optional"))
        name = source.get("name", "")
        if kind == "configMap":
            files += _chosen(source, configuration.config_map(name, optional=optional), mode, f"configmap {name}")
        elif kind == "secret":
            files += _chosen(source, configuration.secret(name, optional=optional), mode, f"secret {name}")
        elif kind == "downwardAPI":
            files += [_field_file(pod, item, mode) for item in source.get("items") or ()]
        else:
            raise Missing(f"volume {volume.name} is projected from {kind}, which this node agent does not know")
    return files


def _chosen(source: Mapping[str, Any], data: Mapping[str, bytes], mode: int, whose: str) -> list[File]:
    """Files of all keys, or of those that `items` lists."""
    items = source.get("items")
    if not items:
        return [File(_relative(key), content, mode) for key, content in sorted(data.items())]
    files: list[File] = []
    for item in items:
        key = item.get("key", "")
        if key in data:
            files.append(File(_relative(item.get("path", "")), data[key], int(item.get("mode") or mode)))
        elif not source.get("optional"):
            raise Missing(f"{whose} references non-existent key: {key}")
    return files


def _field_file(pod: Pod, item: Mapping[str, Any], mode: int) -> File:
    reference = item.get("fieldRef")
    if reference is None:
        raise Missing(f"{item.get('path')} is not taken from a field; this node agent knows nothing else")
    content = field_value(pod, reference.get("fieldPath", "")).encode()
    return File(_relative(item.get("path", "")), content, int(item.get("mode") or mode))


def _relative(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or parts[0] == "/":
        raise Missing(f"{path!r} is no path within a volume: it must be relative and without '..'")
    return path


def write_files(directory: Path, files: Iterable[File], group: int | None) -> None:
    """Write these files into the directory. group: may read them too, set if this process is root. Blocks."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for file in files:
        path = directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as stream:
            if group is not None and os.geteuid() == 0:
                os.fchown(fd, -1, group)
            os.fchmod(fd, file.mode | (0o040 if group is not None else 0))
            stream.write(file.content)
