"""What is promised to the volumes of a root, and the only place where markers come and go.

The markers are the truth; this keeps their sum and paths in memory. Everything that changes them holds the lock on
`.volplane/ledger`, whose 16 bytes are a count of changes and the space that others used when there were no volumes.
Who finds the count or the directory changed by somebody else reads all markers again.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from volplane_hostpath.capacity import Space, others_within, room
from volplane_hostpath.dirfd import create_file, names_in, read_file, remove_entry
from volplane_hostpath.locks import locked_file, queued
from volplane_hostpath.markers import CorruptMarker, VolumeMarker, marker_file
from volplane_hostpath.root import LEDGER, TMP, VOLUMES, Root

__all__ = ["Ledger", "read_volume_marker", "volume_names"]

_COUNTERS = struct.Struct("<QQ")
_LARGEST = 2**63 - 1


def read_volume_marker(root: Root, name: str) -> VolumeMarker | None:
    """The marker of a volume, None if there is none; raises `CorruptMarker`."""
    try:
        marker = VolumeMarker.decode(read_file(marker_file(name), root.directory(VOLUMES)))
    except FileNotFoundError:
        return None
    if marker.name != name:
        raise CorruptMarker(f"it is the marker of {marker.name}")
    return marker


def volume_names(root: Root) -> list[str]:
    """Names of all volumes that have a marker, sorted."""
    suffix = marker_file("")
    return sorted(entry.removesuffix(suffix) for entry in names_in(root.directory(VOLUMES)) if entry.endswith(suffix))


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    promised: int


class Ledger:
    """Promises of one root. Its methods are called inside `open` only."""

    def __init__(self, overcommit_percent: int) -> None:
        self._overcommit_percent = overcommit_percent
        self._queue = threading.Lock()
        self._seen: tuple[str, int, int] | None = None
        self._count = 0
        self._others = 0
        self._entries: dict[str, _Entry] = {}
        self._names: dict[str, str] = {}
        self._promised = 0

    @contextmanager
    def open(self, root: Root, patience: float, log: logging.Logger) -> Iterator[None]:
        """Hold the ledger of the root, up to date."""
        with queued(self._queue, patience), locked_file(LEDGER, root.control, patience) as fd:
            self._refresh(root, fd, log)
            before = (self._count, self._others)
            try:
                yield
            finally:
                if (self._count, self._others) != before:
                    os.pwrite(fd, _COUNTERS.pack(self._count, self._others), 0)
                    self._seen = self._state(root)

    @property
    def promised(self) -> int:
        """Sum of all promises in bytes."""
        return self._promised

    @property
    def volumes(self) -> int:
        """How many volumes have a marker."""
        return len(self._entries)

    def room(self, root: Root) -> int:
        """Bytes that may still be promised."""
        space = Space.of(root.fd)
        others = self._others if self._entries else space.used
        return room(space, promised=self._promised, others=others, overcommit_percent=self._overcommit_percent)

    def volume_at(self, path: str) -> str | None:
        """The volume whose directory is this path, above it or beneath it; None if there is none."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = self._names.get("/".join(parts[:depth]))
            if name is not None:
                return name
        beneath = f"{path}/"
        return next((name for known, name in self._names.items() if known.startswith(beneath)), None)

    def volume_above(self, path: str) -> str | None:
        """The volume whose directory is this path or above it; what `volume_at` says, without looking beneath."""
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return next((self._names[known] for known in above if known in self._names), None)

    def paths(self) -> frozenset[str]:
        """Paths of all volumes."""
        return frozenset(self._names)

    def put(self, root: Root, marker: VolumeMarker) -> None:
        """Put a staged marker (see `stage`) in its place: from now on the volume is ours and its size promised."""
        name = marker.name
        if not self._entries:
            space = Space.of(root.fd)
            self._others = others_within(space, promised=0, others=space.used)
        os.rename(
            marker_file(name), marker_file(name), src_dir_fd=root.directory(TMP), dst_dir_fd=root.directory(VOLUMES)
        )
        self._count += 1
        self._forget(name)
        self._remember(name, marker)

    def remove(self, root: Root, name: str) -> None:
        """Remove a marker that may be gone: the volume is nobody's and its promise free."""
        remove_entry(marker_file(name), root.directory(VOLUMES))
        self._count += 1
        self._forget(name)

    @staticmethod
    def stage(root: Root, marker: VolumeMarker) -> None:
        """Write a marker where it does not count yet. Needs the volume's lock, not the ledger's."""
        create_file(marker_file(marker.name), root.directory(TMP), marker.encode())

    def _remember(self, name: str, marker: VolumeMarker) -> None:
        self._entries[name] = _Entry(marker.path, marker.capacity_bytes)
        self._names[marker.path] = name
        self._promised += marker.capacity_bytes

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._promised -= entry.promised
            self._names.pop(entry.path, None)

    def _state(self, root: Root) -> tuple[str, int, int]:
        status = os.fstat(root.directory(VOLUMES))
        return (f"{status.st_dev}:{status.st_ino}", status.st_mtime_ns, self._count)

    def _refresh(self, root: Root, fd: int, log: logging.Logger) -> None:
        content = os.pread(fd, _COUNTERS.size, 0)
        count, others = _COUNTERS.unpack(content) if len(content) == _COUNTERS.size else (0, 0)
        self._count, self._others = min(count, _LARGEST), min(others, _LARGEST)
        state = self._state(root)
        if state == self._seen:
            return
        self._entries.clear()
        self._names.clear()
        self._promised = 0
        for name in volume_names(root):
            try:
                marker = read_volume_marker(root, name)
            except CorruptMarker as error:
                log.warning("marker of %s cannot be read, its size is not counted: %s", name, error)
                continue
            if marker is not None:
                self._remember(name, marker)
        self._seen = state
