"""The first start on a root: when it may be marked, and how."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress

from volplane import Context, Unavailable
from volplane_hostpath.directories import create_file, names_in, sync
from volplane_hostpath.locks import TimeSlice, locked_file
from volplane_hostpath.markers import RootMarker
from volplane_hostpath.mounts import parse_fstab, read_mounts
from volplane_hostpath.roots import CONTROL, LEDGER, ROOT_MARKER, SUBDIRECTORIES, VOLUMES, Root, refusal
from volplane_hostpath.settings import Settings

__all__ = ["initialised", "unmounted_above"]

_ROOT_MODE = 0o711
_CONTROL_MODE = 0o700
_FSTAB = "/etc/fstab"
_IGNORED = frozenset({CONTROL, "lost+found"})


def initialised(settings: Settings, known_id: str, context: Context) -> RootMarker:
    """Mark a new root, or check the marker of an old one; returns the marker. Repeatable at any point.

    known_id: the root's id if this process has already seen it. Raises `Unavailable` with what to do.
    """
    expected = known_id or settings.root_id
    if settings.create_root and not expected and not os.path.lexists(settings.root):
        _refuse_unmounted(settings.root)
        os.makedirs(settings.root, mode=_ROOT_MODE)  # noqa: PTH103
    with Root(settings.root) as root:
        root.require_writable()
        marker = root.read_marker()
        reason = refusal(marker, expected, settings, context)
        wrong_disk = bool(expected) and (marker is None or marker.root_id != expected)
        if reason and not wrong_disk and (marker is None or settings.adopt_root):
            if marker is None:
                _check_new(root, settings)
            marker = _mark(root, context, settings)
            reason = refusal(marker, expected, settings, context)
        if marker is None or reason:
            raise Unavailable(reason)
        _make_directories(root)
        return marker


def _check_new(root: Root, settings: Settings) -> None:
    _refuse_unmounted(settings.root)
    foreign = _contents(root)
    if foreign and not settings.adopt_root:
        raise Unavailable(
            f"root {settings.root} is neither empty nor marked by volplane (it holds {foreign!r}): use an empty "
            "directory, or set adopt_root to use this one beside what is in it"
        )


def _contents(root: Root) -> str:
    """Something in the root that is not ours, empty if there is nothing."""
    found = sorted(set(names_in(root.fd)) - _IGNORED)
    if found:
        return found[0]
    with suppress(FileNotFoundError):
        if names_in(root.directory(VOLUMES)):
            return f"{CONTROL}/{VOLUMES}"
    return ""


def _refuse_unmounted(path: str) -> None:
    try:
        with open(_FSTAB, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            points = parse_fstab(file.read())
    except OSError:
        return
    missing = unmounted_above(os.path.realpath(path), points, [mount.point for mount in read_mounts()])
    if missing:
        raise Unavailable(f"root {path} is not marked, and {missing} of {_FSTAB} is not mounted: mount it first")


def unmounted_above(path: str, points: list[str], mounted: list[str]) -> str:
    """The mount point on or above path that the system mounts at boot but that is not mounted now, else empty."""
    for point in sorted(points, key=len, reverse=True):
        above = point.rstrip("/") + "/"
        if f"{path}/".startswith(above) and point not in mounted:
            return point
    return ""


def _mark(root: Root, context: Context, settings: Settings) -> RootMarker:
    with suppress(FileExistsError):
        os.mkdir(CONTROL, _CONTROL_MODE, dir_fd=root.fd)
    with locked_file(LEDGER, root.control, TimeSlice(context).left()):
        # Another replica may have marked it while we waited.
        there = root.read_marker()
        if there is not None and not settings.adopt_root:
            return there
        marker = RootMarker(
            root_id=there.root_id if there else uuid.uuid4().hex,
            driver=context.driver,
            cluster_id=context.cluster_id,
            created_at=there.created_at if there else time.time(),
        )
        staged = f"{ROOT_MARKER}.new"
        create_file(staged, root.control, marker.encode())
        os.rename(staged, ROOT_MARKER, src_dir_fd=root.control, dst_dir_fd=root.control)
        sync(root.control)
        sync(root.fd)
    context.log.info("root %s is marked with id %s", root.path, marker.root_id)
    return marker


def _make_directories(root: Root) -> None:
    for name in SUBDIRECTORIES:
        with suppress(FileExistsError):
            os.mkdir(name, _CONTROL_MODE, dir_fd=root.control)
    sync(root.control)
