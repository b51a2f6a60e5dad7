"""Volumes that a person made on a directory under the root: which are ours, and what may be done to them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from volplane import AlreadyExists, InvalidArgument, VolumeSource
from volplane_hostpath.index import Ledger
from volplane_hostpath.parent_directories import is_parent
from volplane_hostpath.root import CONTROL, Root
from volplane_hostpath.settings import HOST_PATH, LOCAL

__all__ = ["beneath_root", "refuse_marked", "refuse_parent", "spellings", "static_path"]

_DIRECTORY_TYPES = frozenset({"", "Directory", "DirectoryOrCreate"})


def beneath_root(source: VolumeSource, roots: Iterable[str]) -> str | None:
    """The path under the root that a `local` or `hostPath` source names, None if it is none of ours.

    Purely lexical: "..", the root itself and the driver's own directory are not ours. roots: spellings of the root.
    """
    path = source.fields.get("path")
    if source.kind not in {LOCAL, HOST_PATH} or not isinstance(path, str) or not _is_path(path):
        return None
    if source.kind == HOST_PATH and (source.fields.get("type") or "") not in _DIRECTORY_TYPES:
        return None
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        return None
    for root in roots:
        above = [part for part in root.split("/") if part]
        if parts[: len(above)] == above and len(parts) > len(above) and parts[len(above)] != CONTROL:
            return "/".join(parts[len(above) :])
    return None


def _is_path(text: str) -> bool:
    """Absolute, and something that the operating system takes: JSON can spell what it does not."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return text.startswith("/") and "\0" not in text


def spellings(root: str) -> tuple[str, ...]:
    """How the root may be written: as configured, and without symbolic links."""
    return (root, os.path.realpath(root))


def static_path(source: VolumeSource, root: Root) -> str:
    """As `beneath_root`, or raise `InvalidArgument`."""
    path = beneath_root(source, spellings(root.path))
    if path is None:
        raise InvalidArgument(
            f"{source.kind} {source.fields.get('path')!r} is no directory below the root {root.path}: it is not touched"
        )
    return path


def refuse_marked(ledger: Ledger, path: str, label: str) -> None:
    """Raise `AlreadyExists` if a volume that we made lies there, above or beneath. Inside the ledger."""
    other = ledger.volume_at(path)
    if other is not None:
        raise AlreadyExists(f"{label} carries the mark of volume {other}: it is not touched")


def refuse_parent(root: Root, path: str, label: str) -> None:
    """Raise `AlreadyExists` if we made this directory to hold volumes. Inside the ledger."""
    if is_parent(root, path):
        raise AlreadyExists(f"{label} was made by volplane to hold volumes: it is not touched")
