"""An index of the volumes of a root: their paths and the sum of their promised sizes.

The marker files are the source; the index keeps them in memory. All changes of markers go through the index, under the
lock on `.volplane/ledger`. Its 16 bytes are a count of changes and the bytes that others used when there were no
volumes. If another process has changed the count or the directory, all markers are read again.

What is archived or retained, and snapshots, count in the sum until they go, as their space is not free. Their markers
are read once, when the directory that holds them has changed.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from volplane import BackendError, Unavailable
from volplane.directory import (
    CONTROL,
    RETAINED,
    CorruptMarker,
    Reports,
    SnapshotMarker,
    archived_volume,
    decode_fields,
)
from volplane.directory.dirfd import (
    ancestors,
    closing,
    create_file,
    names_in,
    open_directory,
    printable,
    read_file,
    remove_entry,
    suppress_errno,
)
from volplane_hostpath.capacity import Space, room, used_by_others
from volplane_hostpath.errors import NO_FILE, NO_SPACE
from volplane_hostpath.locks import locked, thread_lock
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.root import ARCHIVE_FOLDER, INDEX, SNAPSHOTS, TMP, VOLUMES, Root

_COUNTERS = struct.Struct("<QQ")
_LARGEST = 2**63 - 1


def read_volume_marker(root: Root, name: str) -> VolumeMarker | None:
    """Return the marker of a volume, None if there is none; raises `CorruptMarker`.

    A file without content is no marker. A power failure leaves one if it comes before the content was on the disk, and
    so before the directory was moved into place (provision.py).
    """
    try:
        content = read_file(marker_file(name), root.directory(VOLUMES))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise CorruptMarker("it is no file") from error
    if not content.strip(b"\0"):
        return None
    marker = VolumeMarker.decode(content)
    if marker.name != name:
        raise CorruptMarker(f"it is the marker of {marker.name}")
    return marker


def known_volume_marker(root: Root, name: str) -> VolumeMarker | None:
    """Return the same; raises `Unavailable` for a marker that cannot be decoded."""
    try:
        return read_volume_marker(root, name)
    except CorruptMarker as error:
        raise Unavailable(
            f"{root.path}/{CONTROL}/{VOLUMES}/{marker_file(name)} cannot be used: {error}; restore or repair it"
        ) from error


def retained_markers(root: Root) -> Iterator[VolumeMarker]:
    """Yield the markers of deleted volumes whose directories stay; those that cannot be read are left out."""
    retained = root.directory(RETAINED)
    for entry in names_in(retained):
        with suppress(CorruptMarker, OSError):
            yield VolumeMarker.decode(read_file(entry, retained))


def volume_names(root: Root) -> list[str]:
    """Return the names of all volumes that have a marker, sorted."""
    suffix = marker_file("")
    return sorted(entry.removesuffix(suffix) for entry in names_in(root.directory(VOLUMES)) if entry.endswith(suffix))


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    promised: int


class VolumeIndex:
    """The volumes of one root. Its methods may be called only inside `open`."""

    def __init__(self, overcommit_percent: int) -> None:
        self._overcommit_percent = overcommit_percent
        self._queue = threading.Lock()
        self._state_read: tuple[str, int, int, int] | None = None
        self._count = 0
        self._used_by_others = 0
        self._entries: dict[str, _Entry] = {}
        self._names: dict[str, str] = {}
        self._below: Counter[str] = Counter()
        self._unreadable: list[str] = []
        self._empty: list[str] = []
        self._promised = 0
        self._kept_read: list[int] | None = None
        self._kept: dict[tuple[str, str], int] = {}
        self.reports = Reports()

    @contextmanager
    def open(self, root: Root, timeout: float, log: logging.Logger) -> Iterator[None]:
        """Lock the index of the root and bring it up to date; raises `Unavailable` after `timeout` seconds."""
        fd = root.file(INDEX)
        with thread_lock(self._queue, timeout), locked(fd, timeout):
            self._refresh(root, fd, log)
            before = (self._count, self._used_by_others)
            try:
                yield
            finally:
                if (self._count, self._used_by_others) != before:
                    with suppress_errno(*NO_SPACE):  # The times of the directory tell of the change too.
                        os.pwrite(fd, _COUNTERS.pack(self._count, self._used_by_others), 0)
                    self._state_read = self._state_of(root)

    @property
    def promised(self) -> int:
        """Return the sum of all promised sizes in bytes."""
        return self._promised

    def kept(self, root: Root) -> int:
        """Return the sum of the sizes that were promised to volumes whose directories are archived or retained, and of
        what is in snapshots, as of now. Needs the lock of the index.
        """
        self._refresh_kept(root)
        return sum(self._kept.values())

    @property
    def volumes(self) -> int:
        """Return the number of volumes that have a marker."""
        return len(self._entries)

    def room(self, root: Root) -> int:
        """Return the bytes that may still be promised."""
        space, promised = Space.of(root.fd), self._promised + self.kept(root)
        others = self._used_by_others if promised else space.used
        return room(space, promised=promised, others=others, overcommit_percent=self._overcommit_percent)

    def volume_at(self, path: str) -> str | None:
        """Return a volume whose directory is this path, above it or beneath it; None if there is none."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = self._names.get("/".join(parts[:depth]))
            if name is not None:
                return name
        if not self._below[path]:
            return None
        beneath = f"{path}/"
        return next(name for known, name in self._names.items() if known.startswith(beneath))

    def volumes_below(self, path: str) -> int:
        """Return the number of volumes whose directory lies below this path."""
        return self._below[path]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return the names of volumes whose marker cannot be decoded, so that their paths are not known."""
        return tuple(self._unreadable)

    @property
    def empty(self) -> tuple[str, ...]:
        """Return the names of markers without content, which are none."""
        return tuple(self._empty)

    def volume_above(self, path: str) -> str | None:
        """Return the volume whose directory is this path or above it; None if there is none.

        Faster than `volume_at`.
        """
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return next((self._names[known] for known in above if known in self._names), None)

    def paths(self) -> frozenset[str]:
        """Return the paths of all volumes."""
        return frozenset(self._names)

    def put(self, root: Root, marker: VolumeMarker) -> None:
        """Move a marker that `stage` wrote into place: from now on the volume exists and its size is promised."""
        name = marker.name
        if not self._entries and not self.kept(root):
            space = Space.of(root.fd)
            self._used_by_others = used_by_others(space, promised=0, others=space.used)
        os.rename(
            marker_file(name), marker_file(name), src_dir_fd=root.directory(TMP), dst_dir_fd=root.directory(VOLUMES)
        )
        self._count += 1
        self._forget(name)
        self._remember(name, marker)

    def retain(self, root: Root, marker: VolumeMarker) -> None:
        """Move the marker of a volume to those of directories that stay, which have no owner."""
        os.rename(
            marker_file(marker.name),
            marker.entry,
            src_dir_fd=root.directory(VOLUMES),
            dst_dir_fd=root.directory(RETAINED),
        )
        self._count += 1
        self._forget(marker.name)
        self.look_again()

    def look_again(self) -> None:
        """Look for what is kept although its directories may show no other time: those are coarse."""
        self._kept_read = None

    def remove(self, root: Root, name: str) -> None:
        """Remove a marker, which may be gone: the volume has no owner and its promised size is free."""
        remove_entry(marker_file(name), root.directory(VOLUMES))
        self._count += 1
        self._forget(name)

    @staticmethod
    def stage(root: Root, marker: VolumeMarker, *, replaces: bool) -> None:
        """Write a marker to tmp, where it does not count yet. Needs the volume's lock, not that of the index.

        replaces: it takes the place of another marker of the volume, so its content must be on the disk before.
        """
        create_file(marker_file(marker.name), root.directory(TMP), marker.encode(), durable=replaces)

    def _remember(self, name: str, marker: VolumeMarker) -> None:
        self._entries[name] = _Entry(marker.path, marker.capacity_bytes)
        self._names[marker.path] = name
        self._below.update(ancestors(marker.path))
        self._promised += marker.capacity_bytes

    def _forget(self, name: str) -> None:
        for names in (self._unreadable, self._empty):
            if name in names:
                names.remove(name)
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._promised -= entry.promised
            self._names.pop(entry.path, None)
            for above in ancestors(entry.path):
                self._below[above] -= 1
                if not self._below[above]:
                    del self._below[above]

    def _state_of(self, root: Root) -> tuple[str, int, int, int]:
        status = os.fstat(root.directory(VOLUMES))
        # Times are coarse, but on tmpfs and others the size changes with every entry.
        return (f"{status.st_dev}:{status.st_ino}", status.st_mtime_ns, status.st_size, self._count)

    def _refresh(self, root: Root, fd: int, log: logging.Logger) -> None:
        content = os.pread(fd, _COUNTERS.size, 0)
        count, others = _COUNTERS.unpack(content) if len(content) == _COUNTERS.size else (0, 0)
        self._count, self._used_by_others = min(count, _LARGEST), min(others, _LARGEST)
        state = self._state_of(root)
        if state == self._state_read:
            return
        self.look_again()
        self._entries.clear()
        self._names.clear()
        self._below.clear()
        self._unreadable.clear()
        self._empty.clear()
        self._promised = 0
        for name in volume_names(root):
            try:
                marker = read_volume_marker(root, name)
            except CorruptMarker as error:
                problem = f"it cannot be read, and its size is not counted: {error}"
                self.reports.warn(log, f"{root.path}/{CONTROL}/{VOLUMES}/{printable(marker_file(name))}", problem)
                self._unreadable.append(name)
                continue
            if marker is not None:
                self._remember(name, marker)
            else:
                self._empty.append(name)
        self._state_read = state

    def _refresh_kept(self, root: Root) -> None:
        state: list[int] = []
        complete = True
        for folder in (ARCHIVE_FOLDER, RETAINED, SNAPSHOTS):
            with suppress(FileNotFoundError):
                status = os.stat(folder, dir_fd=root.control, follow_symlinks=False)
                state += (status.st_ino, status.st_mtime_ns, status.st_size)
        if state == self._kept_read:
            return
        known, self._kept = self._kept, {}
        for folder in (ARCHIVE_FOLDER, RETAINED, SNAPSHOTS):
            # Not kept with the root: a person may remove it while calls run.
            with (
                suppress(BackendError, FileNotFoundError),
                closing(open_directory(folder, root.control, root.mount, label=folder)) as fd,
            ):
                for name in names_in(fd):
                    size = known[folder, name] if (folder, name) in known else _size_of_kept(folder, name, fd)
                    if size is None:
                        complete = False  # It is being made.
                    else:
                        self._kept[folder, name] = size
        self._kept_read = state if complete else None


def _size_of_kept(folder: str, name: str, directory: int) -> int | None:
    """Return the size that was promised to what is kept, 0 if that is not known; None if there is no marker yet.

    Of a snapshot it is what is in it, as nobody writes into that.
    """
    try:
        if folder == RETAINED:
            return VolumeMarker.decode(read_file(name, directory)).capacity_bytes
        if folder == SNAPSHOTS:
            snapshot = SnapshotMarker.decode(read_file(f"{name}/marker", directory))
            return min(snapshot.counts.bytes, snapshot.size_bytes)
        marker = archived_volume(VolumeMarker, decode_fields(read_file(f"{name}/marker", directory)))
    except FileNotFoundError:
        return None
    except (CorruptMarker, OSError):
        return 0
    return 0 if marker is None else marker.capacity_bytes
