"""The hooks about snapshots: copies of volumes' directories, `.volplane/snapshots/<name>/data` beside a `marker`.

A snapshot appears by one rename of both, when it is whole and on the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

from volplane import (
    Context,
    InProgress,
    NotFound,
    Snapshot,
    SnapshotPage,
    SnapshotRequest,
    Unavailable,
    VolumeIdentity,
    directory,
    read_parameters,
)
from volplane.directory import (
    CONTROL,
    CopyCounts,
    CopyParameters,
    CorruptMarker,
    Handle,
    SnapshotHandle,
    check_name,
    decode_fields,
    encode_fields,
    name_of,
    require_unchanged,
)
from volplane.directory.dirfd import (
    closing,
    create_file,
    entry_exists,
    names_in,
    open_directory,
    open_path,
    printable,
    read_file,
    remove_entry,
)
from volplane.directory.local_trees import DATA
from volplane.directory.snapshots import STRICT
from volplane_hostpath.copies import (
    Copies,
    Source,
    begin,
    clone,
    discard,
    open_copy,
    refuse_too_large,
    take_away_leftovers,
    without_space,
)
from volplane_hostpath.disk_waits import DiskWaits
from volplane_hostpath.errors import NO_FILE, NO_SPACE
from volplane_hostpath.index import VolumeIndex, known_volume_marker
from volplane_hostpath.locks import Deadline
from volplane_hostpath.root import COPIES, SNAPSHOTS, TRASH, Root
from volplane_hostpath.static_volumes import refuse_not_static, static_path
from volplane_hostpath.subvolumes import is_subvolume
from volplane_hostpath.trash import empty_trash, refuse_mounts_below, remove_or_move

MARKER = "marker"
PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarker(directory.SnapshotMarker):
    """The owner and properties of a snapshot."""

    segment: Mapping[str, str] = field(default_factory=dict)
    """Where it is; empty = everywhere."""

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the marker of this content. Raises `CorruptMarker`."""
        known = super(SnapshotMarker, cls).decode(content)
        segment = decode_fields(content).get("segment")
        return replace(known, segment=segment if isinstance(segment, dict) else {})

    def encode(self) -> bytes:
        """Return the content of the marker."""
        fields = decode_fields(super(SnapshotMarker, self).encode())
        return encode_fields({**fields, "segment": self.segment})

    def snapshot(self, storage_id: str) -> Snapshot:
        """Return the whole snapshot."""
        shown = super(SnapshotMarker, self).snapshot(storage_id)
        return replace(shown, node_affinity=(dict(self.segment),) if self.segment else ())


def read_snapshot(root: Root, name: str) -> SnapshotMarker | None:
    """Return the marker of a snapshot; None if there is none, or it is being deleted. Raises `CorruptMarker`."""
    snapshots = root.directory(SNAPSHOTS)
    try:
        if not entry_exists(f"{name}/{DATA}", snapshots):
            return None
    except NotADirectoryError:
        return None  # A person has put it there.
    try:
        return SnapshotMarker.decode(read_file(f"{name}/{MARKER}", snapshots))
    except FileNotFoundError:
        raise CorruptMarker("it is missing") from None
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise CorruptMarker("it is no file") from error


def known_snapshot(root: Root, name: str) -> SnapshotMarker | None:
    """Return the same; raises `Unavailable` for a marker that cannot be read."""
    try:
        return read_snapshot(root, name)
    except CorruptMarker as error:
        raise Unavailable(
            f"{root.path}/{CONTROL}/{SNAPSHOTS}/{name}/{MARKER} cannot be used: {error}; restore or repair it"
        ) from error


def snapshot_name(root: Root, handle: str) -> str | None:
    """Return the name of the snapshot of a handle; None if it is no handle of this driver's.

    Raises `Unavailable` for one of another root: it is not gone.
    """
    known = SnapshotHandle.parse(handle)
    if known is None:
        return None
    if known.storage_id != root.id:
        raise Unavailable(
            f"snapshot {known.name} lies on the root with id {known.storage_id}, at {root.path} is {root.id}: mount "
            "the disk it lies on"
        )
    return known.name


@contextmanager
def open_volume(root: Root, index: VolumeIndex, volume: VolumeIdentity, context: Context) -> Iterator[Source]:
    """Open the directory of a volume that is to be copied. Raises `NotFound` if it is gone."""
    if volume.owner is None:
        path, size, segment = static_path(volume.source, root), volume.capacity_bytes, {}
        with index.open(root, Deadline(context).remaining(), context.log):
            refuse_not_static(root, index, path)
        gone = NotFound(f"{root.path}/{path} of volume {volume.name} is gone")
    else:
        marker = known_volume_marker(root, name_of(volume))
        handle = Handle.parse(volume.handle)
        gone = NotFound(f"volume {volume.name} is gone from root {root.path}, or was never made there")
        if marker is None or (handle is not None and handle.generation != marker.owner.generation):
            raise gone
        marker.refuse_other_owner(volume.owner, f"{root.path}/{marker.path}")
        path, size, segment = marker.path, marker.capacity_bytes, dict(marker.segment)
    label = f"{root.path}/{path}"

    def open_it() -> int:
        return open_path(path, root.fd, root.mount, label=root.path)

    try:
        fd = open_it()
    except FileNotFoundError:
        raise gone from None
    with closing(fd):
        refuse_mounts_below(root.mounts.current(), fd, label)
        whole = None
        if volume.owner is not None and marker is not None and marker.project is not None:
            figures = os.fstatvfs(fd)
            whole = CopyCounts(bytes=(figures.f_blocks - figures.f_bfree) * figures.f_frsize)
            refuse_too_large(root, whole.bytes, label)
        yield Source(fd, volume.handle, label, size, segment, open_it, whole)


@contextmanager
def open_snapshot(root: Root, handle: str) -> Iterator[Source]:
    """Open the directory of a snapshot that is to be copied. Raises `NotFound` if it is gone."""
    name = snapshot_name(root, handle)
    marker = None if name is None else known_snapshot(root, check_name(name))
    if marker is None:
        raise NotFound(f"snapshot {handle} does not exist (any more) under root {root.path}")
    label = f"{root.path}/{CONTROL}/{SNAPSHOTS}/{name}"
    with closing(open_directory(marker.name, root.directory(SNAPSHOTS), root.mount, label=label)) as container:

        def open_it() -> int:
            return open_directory(DATA, container, root.mount, label=label)

        with closing(open_it()) as fd:
            yield Source(fd, handle, label, marker.size_bytes, marker.segment, open_it, marker.counts)


class Snapshots:
    """The hooks about snapshots of one driver. Each needs the lock of the snapshot's name."""

    def __init__(self, index: VolumeIndex, waits: DiskWaits, copies: Copies) -> None:
        self._index = index
        self._waits = waits
        self._copies = copies

    def create(self, root: Root, request: SnapshotRequest) -> Snapshot | InProgress:
        """Work on the snapshot for a slice, or return it."""
        name, context = request.name, request.context
        parameters = read_parameters(CopyParameters, request.parameters)
        marker = known_snapshot(root, name)
        if marker is not None:
            marker.refuse_other_demand(request.owner, request.volume.handle)
            return marker.snapshot(root.id)
        if any(entry_exists(name, root.directory(place)) for place in (SNAPSHOTS, TRASH)):
            raise Unavailable(f"snapshot {name} is being deleted; wait until it is gone")
        deadline = Deadline(context)
        with open_volume(root, self._index, request.volume, context) as source:
            try:
                done: CopyCounts | InProgress
                if is_subvolume(root, source.fd):
                    clone(root, name, source, deadline, read_only=True)
                    done = CopyCounts()
                else:
                    begin(root, name, source.handle, deadline, strict=parameters.consistency == STRICT)
                    done = self._copies.work(root, name, source, parameters, context)
                if isinstance(done, InProgress):
                    return done
                source.require_there()
                require_unchanged(done, parameters, source.label)
                made = self._finish(root, request, source, done, deadline)
            except Exception as error:
                full = isinstance(error, OSError) and error.errno in NO_SPACE
                changed = not isinstance(error, OSError | Unavailable)
                removed = False
                if full or changed:
                    self._copies.forget(name)
                    removed = discard(root, name, deadline)
                if isinstance(error, OSError):
                    raise without_space(root, error, doing=f"make snapshot {name}", removed=removed) from error
                raise
        return made.snapshot(root.id)

    def _finish(
        self, root: Root, request: SnapshotRequest, source: Source, counts: CopyCounts, deadline: Deadline
    ) -> SnapshotMarker:
        """Write the marker beside the copy, and move both to their place, on the disk."""
        name, copies, snapshots = request.name, root.directory(COPIES), root.directory(SNAPSHOTS)
        marker = SnapshotMarker(
            name=name,
            owner=request.owner,
            source=source.handle,
            size_bytes=source.size_bytes,
            created_at=round(time.time(), 3),
            counts=counts,
            segment=source.segment,
        )
        with open_copy(root, name) as container:
            take_away_leftovers(root, container, deadline)
            create_file(MARKER, container, marker.encode(), durable=True)
            self._waits.wait(root, [(container, MARKER), (container, DATA), (container, "")])
        with self._index.open(root, deadline.remaining(), request.context.log):
            os.rename(name, name, src_dir_fd=copies, dst_dir_fd=snapshots)
            self._index.look_again()
        self._waits.wait(root, [(snapshots, ""), (copies, "")])
        return marker

    def delete(self, root: Root, name: str, context: Context) -> bool:
        """Remove a snapshot, and what an unfinished one left; False = not finished. It may be gone."""
        deadline = Deadline(context)
        with self._copies.deleting():
            self._copies.forget(name)
            if not discard(root, name, deadline):
                return False
            snapshots = root.directory(SNAPSHOTS)
            if entry_exists(name, snapshots):
                label = f"{root.path}/{CONTROL}/{SNAPSHOTS}/{name}"
                with closing(open_directory(name, snapshots, root.mount, label=label)) as container:
                    # First what is in it, which says that it is one: without space it may take several calls.
                    if not remove_or_move(root, DATA, container, name, deadline):
                        return False
                    for entry in names_in(container):
                        remove_entry(entry, container)
                os.rmdir(name, dir_fd=snapshots)
            self._waits.wait(root, [(snapshots, ""), (root.directory(TRASH), "")])
            with self._index.open(root, deadline.remaining(), context.log):
                self._index.look_again()
            return empty_trash(root, name, deadline)


def list_snapshots(root: Root, page: str | None) -> SnapshotPage:
    """Return the page of snapshots after that of this name."""
    names = sorted(name for name in names_in(root.directory(SNAPSHOTS)) if page is None or name > page)
    found = tuple(each for name in names[:PAGE] if (each := _listed(root, name)) is not None)
    return SnapshotPage(snapshots=found, next_page=names[PAGE - 1] if len(names) > PAGE else None)


def _listed(root: Root, name: str) -> Snapshot | None:
    try:
        marker = read_snapshot(root, name)
    except CorruptMarker:
        return SnapshotMarker.of_nobody(root.id, printable(name))
    return None if marker is None else marker.snapshot(root.id)
