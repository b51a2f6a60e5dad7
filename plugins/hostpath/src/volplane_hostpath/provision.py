"""The hook `provision`: a directory in tmp, then its marker, which promises the size, then a rename into place.

A crash leaves one of three states, and every later call handles them: a directory in tmp without a marker, which is
removed; a marker whose directory is in tmp or missing, which is finished; or a complete volume.

A power failure loses what was not yet waited for, in any order. There are two waits, shared with other calls
(disk_waits.py). Before the first, nothing is outside tmp but the marker and entries of parents, so what may be lost is
the marker, its content (a marker without content is none), or the directory in tmp: the same three states. Between the
waits the marker is safe, and the directory in tmp, in place or lost: the second state or the third.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from volplane import (
    AlreadyExists,
    Asset,
    BackendError,
    Context,
    InProgress,
    InvalidArgument,
    NodeIdentity,
    NotFound,
    ProvisionRequest,
    ResourceExhausted,
    Segment,
    Unavailable,
    Unsupported,
    VolumeSource,
)
from volplane.directory import CopyParameters, Handle, human, require_unchanged
from volplane.directory.dirfd import (
    ancestors,
    closing,
    directory_exists,
    entry_exists,
    names_in,
    open_directory,
    open_path,
    remove_entry,
    split,
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
    take_away_leftovers,
    without_space,
)
from volplane_hostpath.disk_waits import DiskWaits, Target
from volplane_hostpath.errors import NO_SPACE, to_backend_error
from volplane_hostpath.index import VolumeIndex, retained_markers
from volplane_hostpath.locks import Deadline
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.mounts import is_in
from volplane_hostpath.parent_directories import (
    entries_of,
    forget_parents,
    make_parent_directories,
    refuse_foreign_parents,
    register_parents,
)
from volplane_hostpath.project_quotas import REQUIRED, choose_number, limit_directory, unsupported
from volplane_hostpath.root import TMP, TRASH, VOLUMES, Root
from volplane_hostpath.settings import HOST_PATH, Settings
from volplane_hostpath.static_volumes import refuse_not_static
from volplane_hostpath.subvolumes import create, is_btrfs, is_subvolume, make_read_only
from volplane_hostpath.trash import refuse_in_use, refuse_mounted_above


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """The node that has the root."""

    name: str
    """Empty unless the process runs for one node."""
    label: str
    """Of the affinity."""
    value: str
    """Of the affinity."""

    def serves(self, segment: Segment | None) -> bool:
        """Return whether the root serves this segment. A segment without our label counts as ours."""
        return segment is None or segment.get(self.label, self.value) == self.value

    def segment(self, request: ProvisionRequest) -> Mapping[str, str]:
        """Return the node affinity of a new volume. Called before anything is made.

        Raises `ResourceExhausted` with `reschedule` if another node is selected, `InvalidArgument` if the class allows
        no segment that the root serves.
        """
        node = self._with_label_of(request.selected_node)
        wanted = request.segment
        if wanted is None and request.selected_node is not None and node.name != request.selected_node.name:
            wanted = {self.label: request.selected_node.labels.get(self.label, request.selected_node.name)}
        if not node.serves(wanted):
            place = (wanted or {}).get(self.label, "")
            raise ResourceExhausted(
                f"this root is on the node with {self.label}={node.value}, asked for was {self.label}={place}: let the "
                "pod run there, or give that node a root of its own (option node_name, or --node-name)",
                scope=place,
                reschedule=True,
                nothing_done=True,
            )
        if wanted is None and request.allowed_segments and not any(map(node.serves, request.allowed_segments)):
            raise InvalidArgument(
                f"no place that the class allows has {self.label}={node.value}, where this root is: "
                "change allowedTopologies"
            )
        return {node.label: node.value}

    def _with_label_of(self, selected: NodeIdentity | None) -> NodeTopology:
        # The affinity uses the label. On some clouds it differs from the node's name.
        if selected is None or not self.name or selected.name != self.name:
            return self
        return NodeTopology(self.name, self.label, selected.labels.get(self.label, self.value))


def asset_of(root: Root, marker: VolumeMarker) -> Asset:
    """Return the asset of a volume."""
    fields: dict[str, Any] = {"path": f"{root.path}/{marker.path}"}
    if marker.volume_type == HOST_PATH:
        # Not DirectoryOrCreate: while the disk is not mounted, the kubelet would make an empty directory.
        fields["type"] = "Directory"
    return Asset(
        handle=str(Handle(root.id, marker.name, marker.owner.generation)),
        source=VolumeSource(kind=marker.volume_type, fields=fields),
        capacity_bytes=marker.capacity_bytes,
        node_affinity=(dict(marker.segment),) if marker.segment else (),
        gid=marker.gid,
    )


def stage_volume(
    root: Root, index: VolumeIndex, waits: DiskWaits, settings: Settings, *, marker: VolumeMarker, context: Context
) -> VolumeMarker:
    """Make the directory in tmp, write the marker and wait for the disk; returns the marker. Needs the volume's lock.

    A copy gets its directory with its first slice; one that is there is used as it is. A failure leaves nothing.
    """
    try:
        with index.open(root, Deadline(context).remaining(), context.log):
            marker, missing = _check_room_and_path(root, index, settings, marker)
            marker = _with_project(root, marker)
            if _is_staged(marker):
                _make_directory(root, marker)
            register_parents(root, missing)
            index.stage(root, marker, replaces=False)
            index.put(root, marker)
        _first_wait(root, waits, marker)
    except BaseException as error:
        undone = forget_volume(root, index, marker, context)
        if isinstance(error, OSError):
            doing = f"make the directory of {marker.name}"
            raise to_backend_error(error, root=root.path, doing=doing, nothing_done=undone) from error
        raise
    return marker


def finish_volume(
    root: Root,
    index: VolumeIndex,
    waits: DiskWaits,
    marker: VolumeMarker,
    context: Context,
    *,
    staged: bool,
) -> None:
    """Move the directory of a marker into place, if it is not there, and wait for the disk. Needs the volume's lock.

    It is made if it is missing. staged: `stage_volume` has just made it. A copy is in its place: `fill_volume`.
    """
    _refuse_deleted(root, marker)
    if staged and _is_staged(marker):
        _rename_into_place(root, index, marker, context)
    elif not is_copy(marker) and not directory_exists(marker.path, root.fd, root.mount, label=root.path):
        if marker.existing:
            raise Unavailable(f"{root.path}/{marker.path} was to be used by {marker.name} as it was, and is gone")
        _stage_again(root, index, marker, context)
        _first_wait(root, waits, marker)
        _rename_into_place(root, index, marker, context)
    if is_backed(marker):
        # One that is read only cannot be moved, so it is made so in its place.
        with closing(open_path(marker.path, root.fd, root.mount, label=root.path)) as fd:
            make_read_only(fd)
    # Second wait: what is returned exists after a power failure, with all directories above it. If the directory was in
    # place already, an earlier call may have failed before this wait.
    above = [(root.fd, parent) for parent in ancestors(marker.path)]
    waits.wait(root, [*_marker_targets(root, marker), (root.fd, ""), *above])


def _refuse_deleted(root: Root, marker: VolumeMarker) -> None:
    if entry_exists(marker.entry, root.directory(TRASH)):
        raise Unavailable(f"{marker.name} is being deleted; wait until it is gone")


def is_copy(marker: VolumeMarker) -> bool:
    """Return whether the volume is made from a snapshot or another volume."""
    return marker.demand.get("source") is not None


def _is_staged(marker: VolumeMarker) -> bool:
    """Return whether an empty directory is made for the volume, in tmp."""
    return not is_copy(marker) and not marker.existing


def is_backed(marker: VolumeMarker) -> bool:
    """Return whether the volume is a snapshot, for readers."""
    return bool(marker.demand.get("backing_snapshot"))


def fill_volume(
    root: Root,
    index: VolumeIndex,
    waits: DiskWaits,
    copies: Copies,
    *,
    marker: VolumeMarker,
    source: Source,
    parameters: CopyParameters,
    context: Context,
) -> InProgress | None:
    """Work on a volume that is a copy for a slice; None = it is in its place. Needs the volume's lock.

    Without space for it, nothing is left of it; nor of one in whose source too much has changed.
    """
    _refuse_deleted(root, marker)
    key, deadline = marker.entry, Deadline(context)
    try:
        if marker.demand.get("subvolume") or is_backed(marker):
            _clone_subvolume(root, marker, source, deadline)
            source.require_there()
            _move_copy(root, index, waits, marker, context)
            return None
        strict = parameters.consistency == STRICT
        begin(root, key, source.handle, deadline, strict=strict, prepare=lambda fd: _set_limit(root, marker, fd))
        done = copies.work(root, key, source, parameters, context)
        if isinstance(done, InProgress):
            return done
        source.require_there()
        require_unchanged(done, parameters, source.label)
        _move_copy(root, index, waits, marker, context)
    except Exception as error:
        if isinstance(error, Unavailable) or (isinstance(error, OSError) and error.errno not in NO_SPACE):
            raise
        copies.forget(key)
        undone = discard(root, key, deadline) and forget_volume(root, index, marker, context)
        if isinstance(error, OSError):
            raise without_space(root, error, doing=f"fill {marker.name}", removed=undone) from error
        if isinstance(error, NotFound):
            raise NotFound(error.message, nothing_done=undone) from error
        raise
    return None


def _clone_subvolume(root: Root, marker: VolumeMarker, source: Source, deadline: Deadline) -> None:
    if is_backed(marker) and not is_subvolume(root, source.fd):
        raise Unsupported(
            f"parameter backingSnapshot: {source.label} is no subvolume of btrfs, and nothing else keeps pods from "
            "writing into a directory of this machine: take the parameter out of the class, and it is copied",
            nothing_done=True,
        )
    if not is_subvolume(root, source.fd):
        raise Unsupported(
            f"{source.label} is no subvolume: make the copy with a class without the parameter subvolume",
            nothing_done=True,
        )
    clone(root, marker.entry, source, deadline, read_only=False)


def _move_copy(root: Root, index: VolumeIndex, waits: DiskWaits, marker: VolumeMarker, context: Context) -> None:
    """Move a whole copy to its place, on the disk; remove what only its making needed."""
    deadline = Deadline(context)
    with open_copy(root, marker.entry) as container:
        with closing(open_directory(DATA, container, root.mount, label=root.path)) as fd:
            _set_owner(marker, fd)
        take_away_leftovers(root, container, deadline)
        waits.wait(root, [(container, DATA), (container, ""), *_first_targets(root, marker)])
        _rename_into_place(root, index, marker, context, staged=(container, DATA))
    discard(root, marker.entry, deadline)


def _first_targets(root: Root, marker: VolumeMarker) -> list[Target]:
    return [*_marker_targets(root, marker), *entries_of(root, marker.path)]


def _first_wait(root: Root, waits: DiskWaits, marker: VolumeMarker) -> None:
    """Wait until the marker, the directory in tmp and the entries of parents are on the disk.

    They come before the directory in its place: without them it would count as foreign after a power failure, and no
    call would finish or remove it.
    """
    staged = [(root.directory(TMP), marker.entry)] if _is_staged(marker) else []
    waits.wait(root, [*_first_targets(root, marker), *staged])


def _marker_targets(root: Root, marker: VolumeMarker) -> list[Target]:
    volumes = root.directory(VOLUMES)
    return [(volumes, marker_file(marker.name)), (volumes, "")]


def _stage_again(root: Root, index: VolumeIndex, marker: VolumeMarker, context: Context) -> None:
    """Prepare the directory in tmp of a volume whose marker an earlier call wrote."""
    if not entry_exists(marker.entry, root.directory(TMP)):
        _make_empty(root, marker)
    _set_limit_owner_and_mode(root, marker)
    with index.open(root, Deadline(context).remaining(), context.log):
        try:
            register_parents(root, refuse_foreign_parents(root, marker.path, used=marker.uses_existing))
        except AlreadyExists as error:
            raise Unavailable(error.message) from error


def discard_staged(root: Root, name: str) -> None:
    """Remove what an attempt left in tmp before it wrote a marker. Needs the volume's lock."""
    tmp = root.directory(TMP)
    for entry in names_in(tmp):
        if entry.startswith(f"{name}@"):
            # No pod ever had this directory, so it is empty.
            with suppress(FileNotFoundError):
                os.rmdir(entry, dir_fd=tmp)
    remove_entry(marker_file(name), tmp)


def forget_volume(root: Root, index: VolumeIndex, marker: VolumeMarker, context: Context) -> bool:
    """Remove what a failed attempt made; False if something may be left."""
    try:
        with index.open(root, Deadline(context).remaining(), context.log):
            if entry_exists(marker_file(marker.name), root.directory(VOLUMES)):
                index.remove(root, marker.name)
            forget_parents(root, index, marker.path, counted=0)
        discard_staged(root, marker.name)
    except (BackendError, OSError):
        return False
    return True


def _check_room_and_path(
    root: Root, index: VolumeIndex, settings: Settings, marker: VolumeMarker
) -> tuple[VolumeMarker, list[str]]:
    """Raise if there is no room or the path is taken. Needs the lock of the index.

    Returns the marker, which says whether the directory is there and is used, and the parents that are missing.
    """
    if marker.exact:
        refuse_not_static(root, index, marker.path)
    other = index.volume_above(marker.path)
    if other is not None:
        raise AlreadyExists(f"{root.path}/{marker.path} is in the directory of volume {other}")
    missing = refuse_foreign_parents(root, marker.path, used=marker.uses_existing)
    if not missing and directory_exists(marker.path, root.fd, root.mount, label=root.path):
        marker = _of_what_is_there(root, marker)
    room = index.room(root)
    if marker.capacity_bytes > room:
        raise ResourceExhausted(
            f"root {root.path} has room for {human(room)}, asked for were {human(marker.capacity_bytes)}; "
            f"{human(index.promised)} are promised to {index.volumes} volumes, {human(index.kept(root))} held for what "
            "is archived or retained: delete some of it, grow the file system "
            f"or raise overcommit_percent (now {settings.overcommit_percent})",
            scope=root.path,
            reschedule=not settings.shared,
            nothing_done=True,
        )
    return marker, missing


def _of_what_is_there(root: Root, marker: VolumeMarker) -> VolumeMarker:
    """Return the marker of a volume that uses the directory at its path. Raises `AlreadyExists`, `VolumeInUse`."""
    label = f"{root.path}/{marker.path}"
    if not marker.uses_existing or is_copy(marker) or marker.demand.get("block"):
        raise AlreadyExists(
            f"{label} exists and is not marked as a volume of ours; move it away (it is not touched), or let a "
            "Filesystem claim without a source use it by exactPath: true and onExisting: use"
        )
    with closing(open_path(marker.path, root.fd, root.mount, label=root.path, access=os.O_PATH)) as fd:
        refuse_mounted_above(root, fd, label)
        refuse_in_use(root, fd, label)
    for left in retained_markers(root):
        if is_in(left.path, marker.path) or is_in(marker.path, left.path):
            marker.refuse_other_namespace(left, label)
    return replace(marker, existing=True)


def _with_project(root: Root, marker: VolumeMarker) -> VolumeMarker:
    """Return the marker with a project, if its class demands a limit. Needs the lock of the index."""
    if marker.demand.get("quota") != REQUIRED:
        return marker
    try:
        return replace(
            marker, project=choose_number(marker.name, lambda number: not any(root.quotas.used(root.fd, number)))
        )
    except OSError as error:
        raise unsupported(error, root.path) from error


def _make_directory(root: Root, marker: VolumeMarker) -> None:
    try:
        _make_empty(root, marker)
    except FileExistsError:
        discard_staged(root, marker.name)
        _make_empty(root, marker)
    _set_limit_owner_and_mode(root, marker)


def _make_empty(root: Root, marker: VolumeMarker) -> None:
    tmp = root.directory(TMP)
    if not marker.demand.get("subvolume"):
        os.mkdir(marker.entry, 0o700, dir_fd=tmp)
    elif is_btrfs(root):
        create(tmp, marker.entry)
    else:
        raise Unsupported(f"parameter subvolume: root {root.path} is not on btrfs; take the parameter out of the class")


def _set_limit_owner_and_mode(root: Root, marker: VolumeMarker) -> None:
    """Set limit, owner and mode of the directory in tmp."""
    with closing(open_directory(marker.entry, root.directory(TMP), root.mount, label=f"{root.path} (tmp)")) as fd:
        _set_limit(root, marker, fd)
        _set_owner(marker, fd)
        # After fchown, which clears the set-id bits.
        os.fchmod(fd, int(marker.demand["mode"], 8))


def _set_limit(root: Root, marker: VolumeMarker, fd: int) -> None:
    if marker.project is not None:
        limit_directory(root.quotas, fd, marker.project, marker.capacity_bytes, root=root.path)


def _set_owner(marker: VolumeMarker, fd: int) -> None:
    uid, gid = marker.demand.get("uid"), marker.demand.get("gid")
    if uid is not None or gid is not None:
        os.fchown(fd, -1 if uid is None else uid, -1 if gid is None else gid)


def _rename_into_place(
    root: Root, index: VolumeIndex, marker: VolumeMarker, context: Context, *, staged: tuple[int, str] | None = None
) -> None:
    """Move the directory to its place. staged: where it is; None = in tmp."""
    _, name = split(marker.path)
    above, below = staged or (root.directory(TMP), marker.entry)
    # Under the lock of the index, so that no deletion removes the parent before the rename.
    with index.open(root, Deadline(context).remaining(), context.log):
        try:
            parent = make_parent_directories(root, marker.path, used=marker.uses_existing)
        except AlreadyExists as error:
            raise Unavailable(error.message) from error
        with closing(parent):
            if entry_exists(name, parent):
                raise Unavailable(f"{root.path}/{marker.path} appeared while the volume was made; it is not touched")
            os.rename(below, name, src_dir_fd=above, dst_dir_fd=parent)
