"""Static volumes: PersistentVolumes that a person made for a directory below the root."""

from __future__ import annotations

import os
from collections.abc import Iterable

from volplane import AlreadyExists, InvalidArgument, Unavailable, VolumeSource
from volplane.directory import CONTROL, path_components
from volplane.directory.dirfd import NotADirectory, ancestors, closing, entry_exists, open_path
from volplane_hostpath.index import VolumeIndex
from volplane_hostpath.parent_directories import is_ours
from volplane_hostpath.root import ROOT_MARKER, Root
from volplane_hostpath.settings import HOST_PATH, LOCAL

_DIRECTORY_TYPES = frozenset({"", "Directory", "DirectoryOrCreate"})


def path_below_root(source: VolumeSource, roots: Iterable[str]) -> str | None:
    """Return the path below the root that a `local` or `hostPath` source names; None if it is not below the root.

    Purely lexical. None also for "..", the root itself and `.volplane`. roots: spellings of the root.
    """
    if source.kind not in {LOCAL, HOST_PATH}:
        return None
    if source.kind == HOST_PATH and (source.fields.get("type") or "") not in _DIRECTORY_TYPES:
        return None
    parts = path_components(source.fields.get("path"))
    if parts is None:
        return None
    try:
        os.fsencode("/".join(parts))  # Strings of JSON can be no path of the operating system.
    except UnicodeEncodeError:
        return None
    for root in roots:
        above = [part for part in root.split("/") if part]
        if parts[: len(above)] == above and len(parts) > len(above) and parts[len(above)] != CONTROL:
            return "/".join(parts[len(above) :])
    return None


def root_spellings(root: str) -> tuple[str, ...]:
    """Return the paths of the root: as configured, and without symbolic links."""
    return (root, os.path.realpath(root))


def static_path(source: VolumeSource, root: Root) -> str:
    """Return what `path_below_root` returns, or raise `InvalidArgument`."""
    path = path_below_root(source, root_spellings(root.path))
    if path is None:
        raise InvalidArgument(
            f"{source.kind} {source.fields.get('path')!r} is no directory below the root {root.path}: it is not touched"
        )
    return path


def refuse_not_static(root: Root, index: VolumeIndex, path: str) -> None:
    """Raise unless the path can be that of a static volume, or of a new exact one. Needs the lock of the index.

    Raises `AlreadyExists` if the path is, holds or lies in a volume with a marker, holds volumes, or lies in another
    root; `Unavailable` while the paths of some volumes are not known.
    """
    label = f"{root.path}/{path}"
    refuse_marked(index, path, label)
    refuse_parent(root, path, label)
    refuse_other_root(root, path)


def refuse_marked(index: VolumeIndex, path: str, label: str) -> None:
    """Raise `AlreadyExists` if a volume with a marker is at, above or beneath the path. Needs the lock of the index.

    Raises `Unavailable` while a marker cannot be decoded: its volume may be there.
    """
    other = index.volume_at(path)
    if other is not None:
        raise AlreadyExists(f"{label} carries the mark of volume {other}: it is not touched")
    if index.unreadable:
        raise Unavailable(
            f"the marker of volume {index.unreadable[0]} cannot be read, so {label} may be its directory: it is not "
            "touched; restore or repair the marker"
        )


def refuse_parent(root: Root, path: str, label: str) -> None:
    """Raise `AlreadyExists` if the driver made this directory to hold volumes. Needs the lock of the index."""
    if is_ours(root, path):
        raise AlreadyExists(f"{label} was made by volplane to hold volumes: it is not touched")


def refuse_other_root(root: Root, path: str) -> None:
    """Raise `AlreadyExists` if the path is the root of another driver, or lies in one."""
    for above in (*ancestors(path), path):
        try:
            fd = open_path(f"{above}/{CONTROL}", root.fd, root.mount, label=root.path, access=os.O_PATH)
        except (FileNotFoundError, NotADirectory):
            continue
        with closing(fd):
            if entry_exists(ROOT_MARKER, fd):
                raise AlreadyExists(
                    f"{root.path}/{path} is in {root.path}/{above}, the root of another driver: it is not touched"
                )
