"""The hook `delete`: the marker gets another name, then the directory leaves its place, then it is removed in slices.

From the first step on the volume does not exist for `provision`. Every step looks at what is there, so a deletion goes
on wherever the last call ended. The marker is removed last. In the common case, an empty volume,
everything is one COMPOUND.

No step needs space: where there is none for the marker's other name or for the trash, the directory is emptied where it
is and removed before its marker. The marker gets its other name as soon as a little of the directory is gone. Nothing
but that name tells of a deletion: what a directory shows, such as its mode, is for its users to choose.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from typing import Final

from volplane import AlreadyExists, Unavailable, VolumeIdentity, VolumeInUse
from volplane.directory import ARCHIVE, DELETE, RETAIN, RETAINED, Handle, entry_of
from volplane_nfs.archive import archive_directory
from volplane_nfs.backing import delete_backed
from volplane_nfs.errors import printable
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.markers import LONGEST_NAME, VolumeMarker, parent_file, parent_marker
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.attributes import NUMLINKS, mask_of
from volplane_nfs.nfs4.files import (
    FULL,
    MISSING,
    NO_SPACE,
    NotADirectory,
    Path,
    batches,
    create_directory,
    create_link,
    directory_handle,
    make_directory,
    names,
    page_of_names,
    several,
    walk,
)
from volplane_nfs.nfs4.operations import GETATTR, LOOKUP, PUTFH, REMOVE, RENAME, SAVEFH, Reply, Request
from volplane_nfs.share import Handles, Share
from volplane_nfs.sources import path_below_share
from volplane_nfs.tree_removal import TreeRemoval
from volplane_nfs.volumes import (
    ancestors,
    directory_attributes,
    is_directory,
    leave_parent,
    marker_in,
    ours,
    read_found,
    read_marker,
    read_request,
    text,
)

SLICE: Final = 0.5
"""Seconds of removal in one call."""
_RETAINED: Final = RETAINED.encode()
_PART: Final = 500
_TOPS: Final = 4
_MAXIMUM_ROUNDS: Final = 8


def delete_owned(
    share: Share, handles: Handles, name: str, volume: VolumeIdentity, exports: Exports | NoExports
) -> bool:
    """Delete a volume of the driver's, if its marker proves that it is this one; False = not finished, call again."""
    handle = Handle.parse(volume.handle)
    generation = handle.generation if handle is not None else (volume.owner.generation if volume.owner else 1)
    found = read_found(share, handles, name, generation)
    for marker in (found.marker, found.deleting):
        if marker is not None:
            marker.refuse_other_owner(volume.owner, marker.name)
    marker = found.marker
    if marker is not None and marker.owner.generation != generation:
        marker = None  # the name belongs to another generation
    present = marker or found.deleting
    if present is None:
        if found.marker is None:
            _after_the_last_step(share, handles, volume)
        return True
    if present.backing:
        return delete_backed(share, handles, present, exports)
    used = bool(volume.uid)
    on_delete = present.on_delete(used=used)
    if on_delete != DELETE and not used and not present.existing and not _holds_something(share, handles, present):
        # An asset that never became a volume holds nothing that anybody would want to keep.
        on_delete = DELETE
    step = _begin if marker is not None else _go_on
    return step(share, handles, present, on_delete, exports)


def _holds_something(share: Share, handles: Handles, marker: VolumeMarker) -> bool:
    found = directory_attributes(share, handles, marker.components)
    return found is not None and bool(page_of_names(share.client, found[1]))


def _remove_empty(share: Share, handles: Handles, path: Path) -> Reply:
    """Remove the directory at the path, which has to be empty; the answer, which may be that it is gone."""
    leave = leave_parent(share, handles, path, more=1)
    return Reply(Status.NOENT, []) if leave is None else share.client.pipeline([[*leave, REMOVE(path[-1])]])[0]


def finish_deletion(share: Share, handles: Handles, deleting: VolumeMarker, exports: Exports | NoExports) -> bool:
    """Go on with a deletion that an earlier call began, as the volume's class says; False = not finished.

    Whether it was of a volume is not known here.
    """
    return _go_on(share, handles, deleting, deleting.on_delete(used=False), exports)


def _begin(
    share: Share,
    handles: Handles,
    marker: VolumeMarker,
    on_delete: str,
    exports: Exports | NoExports,
) -> bool:
    path, take_marker = marker.components, _take_marker(handles, marker)
    whole = [
        *take_marker,
        *is_directory(handles.root, path),
        *walk(handles.root, path[:-1]),
        REMOVE(path[-1]),
        GETATTR(mask_of(NUMLINKS)),
        PUTFH(handles.volumes),
        REMOVE(marker.key),
    ]
    steps = on_delete != DELETE or marker.export_id is not None
    if steps or len(whole) > share.client.operations:
        (reply,) = share.client.pipeline([take_marker])
        if reply.status not in MISSING | NO_SPACE:
            values_of(reply)
        file, again = _file_after(reply, marker), bool(reply.status)
        return _go_on(share, handles, marker, on_delete, exports, file=file, again=again)
    (reply,) = share.client.pipeline([whole])
    if reply.status:
        if len(reply.results) <= len(take_marker) and reply.status not in MISSING | NO_SPACE:
            values_of(reply)
        renamed = len(reply.results) > len(take_marker)
        return _go_on(share, handles, marker, on_delete, exports, file=None if renamed else _file_after(reply, marker))
    if len(path) > 1 and reply.results[-3].value.get(NUMLINKS, 0) <= 2:
        remove_empty_parents(share, handles, path)
    return True


def _take_marker(handles: Handles, marker: VolumeMarker) -> list[Request]:
    return [PUTFH(handles.volumes), SAVEFH(), RENAME(marker.file, marker.key)]


def _file_after(reply: Reply, marker: VolumeMarker) -> bytes | None:
    """Return the marker's name after an attempt to rename it, if it is the former one: there was no space."""
    return marker.file if reply.status in NO_SPACE else None


def _take_marker_for_space(share: Share, handles: Handles, marker: VolumeMarker) -> bytes | None:
    """Remove a little of the directory where it is, and try again to rename the marker; returns as `_file_after`."""
    found = directory_attributes(share, handles, marker.components)
    if found is not None:
        TreeRemoval(share.client, found[1], label=text(share, marker.components), deadline=time.monotonic()).clear()
    (reply,) = share.client.pipeline([_take_marker(handles, marker)])
    if reply.status not in MISSING | NO_SPACE:
        values_of(reply)
    return _file_after(reply, marker)


def _go_on(
    share: Share,
    handles: Handles,
    marker: VolumeMarker,
    on_delete: str,
    exports: Exports | NoExports,
    *,
    file: bytes | None = None,
    again: bool = True,
) -> bool:
    """Do the steps one by one, each of them only if it is still to be done.

    file: the marker's name, if not its key. again: whether earlier calls may have done some of them.
    """
    exports.remove(marker)
    if file is not None and on_delete == DELETE:
        file = _take_marker_for_space(share, handles, marker)
    if on_delete == ARCHIVE:
        archive_directory(share, handles, marker, again=again)
    elif on_delete == DELETE:
        if not take_away(share, handles, marker.components, marker.key):
            return False
        if not empty_trash(share, handles, marker.key, text(share, marker.components)):
            return False
    if on_delete != RETAIN:
        remove_empty_parents(share, handles, marker.components)
    exports.release(share, handles, marker)
    if on_delete == RETAIN and _retained(share, handles, file or marker.key, marker):
        return True
    (reply,) = share.client.pipeline([[PUTFH(handles.volumes), REMOVE(file or marker.key)]])
    if reply.status not in MISSING:
        values_of(reply)
    return True


def _retained(share: Share, handles: Handles, file: bytes, marker: VolumeMarker) -> bool:
    """Keep the marker of a deleted volume whose directory stays; False: there is no space for that.

    file: its name. By it a deletion whose answer was lost, and which is repeated, knows what stands at the path.
    """
    move = [PUTFH(handles.volumes), SAVEFH(), *walk(handles.control, (_RETAINED,)), RENAME(file, marker.key)]
    (reply,) = share.client.pipeline([move])
    if reply.status in MISSING and reply.results[-1].operation is LOOKUP:
        (made,) = share.client.pipeline([[PUTFH(handles.control), create_directory(_RETAINED, 0o700)]])
        if made.status in NO_SPACE:
            return False
        if made.status != Status.EXIST:
            values_of(made)
        (reply,) = share.client.pipeline([move])
    if reply.status in NO_SPACE:
        return False
    if reply.status not in MISSING:
        values_of(reply)
    return True


def _is_retained(share: Share, handles: Handles, volume: VolumeIdentity, path: Path) -> bool:
    """Return whether an earlier call deleted this volume and left its directory at the path."""
    retained = directory_handle(share.client, handles.control, (_RETAINED,))
    file = entry_of(volume, LONGEST_NAME).encode()
    marker = None if retained is None else read_marker(share, retained, file)
    return marker is not None and marker.belongs_to(volume.owner) and marker.components == path


def retained_markers(share: Share, handles: Handles, log: logging.Logger) -> Iterator[VolumeMarker]:
    """Yield the markers of deleted volumes whose directories stay."""
    retained = directory_handle(share.client, handles.control, (_RETAINED,))
    for part in batches([] if retained is None else names(share.client, retained), _PART):
        reads = several(share.client, [read_request(retained or b"", name) for name in part])
        for name, reply in zip(part, reads, strict=True):
            with share.skipping(log, f"{RETAINED}/{printable(name)}"):
                marker = marker_in(reply)
                if marker is not None and marker.key == name:
                    yield marker


def remove_retained_markers(share: Share, handles: Handles, log: logging.Logger) -> None:
    """Remove the markers of retained directories that are gone, or that a later volume has left."""
    found = sorted(retained_markers(share, handles, log), key=lambda marker: marker.created_at)
    last = {marker.path: marker.key for marker in found}
    for part in batches(found, _PART):
        looks = several(share.client, [walk(handles.root, marker.components) for marker in part])
        for marker, look in zip(part, looks, strict=True):
            if look.status in MISSING or last[marker.path] != marker.key:
                share.client.pipeline([[*walk(handles.control, (_RETAINED,)), REMOVE(marker.key)]])


def _after_the_last_step(share: Share, handles: Handles, volume: VolumeIdentity) -> None:
    """Remove directories above a volume without any marker, which was never made or is deleted: a crash may leave them.

    Its path may hold something all the same. Raises `AlreadyExists` then, unless the volume's directory was to stay.
    """
    path = path_below_share(volume.source, share.address)
    if path is None:
        return
    (reply,) = share.client.pipeline([walk(handles.root, path)])
    if not reply.status:
        if _is_retained(share, handles, volume, path):
            return
        raise AlreadyExists(
            f"{text(share, path)} exists but carries no mark of volume {volume.name}: it is not touched; remove it by "
            "hand if it is not needed"
        )
    remove_empty_parents(share, handles, path)


def take_away(share: Share, handles: Handles, path: Path, key: bytes) -> bool:
    """Move the directory at the path into the trash; False = not finished. It may be missing.

    Without space for that it is removed where it is. Raises NotADirectory, `VolumeInUse`.
    """
    try:
        _move_into_trash(share, handles, path, key)
    except NfsError as error:
        if error.status not in NO_SPACE:
            raise
        if not scrub(share, handles, path, key):
            return False
        reply = _remove_empty(share, handles, path)
        if reply.status not in MISSING:
            values_of(reply)
    return True


def _move_into_trash(share: Share, handles: Handles, path: Path, key: bytes) -> None:
    make_directory(share.client, handles.trash, key, 0o700)
    container = directory_handle(share.client, handles.trash, (key,))
    if container is None:
        raise Unavailable(f"the trash of {text(share, path)} was removed while it was made; this call will be repeated")
    new = secrets.token_hex(8).encode()
    leave = leave_parent(share, handles, path, more=3)
    if leave is None:
        return
    (reply,) = share.client.pipeline([[*leave, SAVEFH(), PUTFH(container), RENAME(path[-1], new)]])
    if reply.status in MISSING and reply.results[-1].operation not in (PUTFH, RENAME):
        return
    if reply.status in {Status.NOT_SAME, Status.NOTDIR, Status.SYMLINK}:
        raise NotADirectory(path[-1])
    if reply.status in FULL:
        raise VolumeInUse(
            f"{text(share, path)} cannot be moved: it is still exported, or mounted on the server; nothing was removed"
        )
    values_of(reply)


def empty_trash(share: Share, handles: Handles, key: bytes, label: str) -> bool:
    """Remove what the trash holds under this key, if anything, for at most `SLICE` seconds; False = not finished."""
    container = directory_handle(share.client, handles.trash, (key,))
    if container is None:
        return True
    deadline = time.monotonic() + SLICE
    # The directory that was moved here, usually the only one, is emptied first: what is in it need not be moved again.
    tops = [
        handle
        for name in page_of_names(share.client, container)[:_TOPS]
        if (handle := _directory_or_none(share, container, name)) is not None
    ]
    for top in (*tops, container):
        removal = TreeRemoval(share.client, top, label=label, deadline=deadline)
        if not removal.clear():
            if top == container and not removal.removed:
                raise VolumeInUse(f"nothing of {label} could be removed in {SLICE} s; it is tried again")
            return False
    (reply,) = share.client.pipeline([[PUTFH(handles.trash), REMOVE(key)]])
    if reply.status in FULL:
        return False
    if reply.status not in MISSING:
        values_of(reply)
    return True


def _directory_or_none(share: Share, above: bytes, name: bytes) -> bytes | None:
    try:
        return directory_handle(share.client, above, (name,))
    except NotADirectory:
        return None


def scrub(share: Share, handles: Handles, path: Path, key: bytes) -> bool:
    """Empty the directory at the path, which stays, for at most `SLICE` seconds; False = not finished.

    key: under which a deletion, or an earlier version, may have moved a part of it into the trash. True only after a
    listing that showed nothing. Raises `VolumeInUse` if it fills again and again.
    """
    label = text(share, path)
    found = directory_attributes(share, handles, path)
    if found is None:
        return True
    directory = found[1]
    removal = TreeRemoval(share.client, directory, label=label, deadline=time.monotonic() + SLICE)
    if not removal.clear():
        if not removal.removed:
            raise VolumeInUse(f"nothing of {label} could be removed in {SLICE} s; it is tried again")
        return False
    if not empty_trash(share, handles, key, label):
        return False
    for _ in range(_MAXIMUM_ROUNDS):
        if not page_of_names(share.client, directory):
            return True
        if not removal.clear():
            return False
    raise VolumeInUse(f"{label} fills again and again: something still writes into it")


def remove_empty_parents(share: Share, handles: Handles, path: Path) -> None:
    """Remove the driver's own directories above a volume that are empty now, the lowest first.

    The directory goes before its marker. If another process made it again between the two, the marker is put back.
    """
    for parent in reversed(ancestors(path)):
        key = parent_file(parent)
        removal = [
            *ours(handles, [parent]),
            *walk(handles.root, parent[:-1]),
            REMOVE(parent[-1]),
            PUTFH(handles.parents),
            REMOVE(key),
        ]
        look = walk(handles.root, parent)
        if len(removal) + len(look) <= share.client.operations:
            (reply,) = share.client.pipeline([[*removal, *look]])
            gone = len(reply.results) > len(removal)
        else:
            (reply,) = share.client.pipeline([removal])
            gone = not reply.status
            (reply,) = share.client.pipeline([look])
        if not gone:
            return
        if not reply.status:
            share.client.pipeline([[PUTFH(handles.parents), create_link(key, parent_marker(parent))]])
            return
