"""The hook `provision`: a marker with everything that was demanded, then the directory.

Whether the path is free is looked up before the marker is made; from then on what is at the path is the volume's. A
marker that is there already is met when it is made, as a link of that name exists. The directory is made by CREATE,
which never takes anything over, with a mode that says that it is not finished. Owner and mode follow in one SETATTR. In
the common case a volume is two COMPOUNDs: one that looks, one that makes marker, directory and attributes.

A deletion may run beside a late duplicate of a call. It takes the marker away first, then the directory. So the
call that makes the directory looks for the marker afterwards, and removes the directory if it is gone.
"""

from __future__ import annotations

import time
from typing import Final

from volplane import AlreadyExists, ProvisionRequest, ResourceExhausted, Unavailable
from volplane_nfs.delete import finish_deletion
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.markers import VolumeMarker, parent_file, parent_marker
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.attributes import MODE
from volplane_nfs.nfs4.files import (
    ANONYMOUS,
    MISSING,
    NotADirectory,
    Path,
    create_directory,
    create_link,
    names,
    walk,
)
from volplane_nfs.nfs4.operations import CREATE, LOOKUP, PUTFH, REMOVE, SETATTR, Reply, Request
from volplane_nfs.parameters import ClassParameters
from volplane_nfs.share import Handles, Share
from volplane_nfs.space import free_space, space_request
from volplane_nfs.volumes import (
    INITIAL_MODE,
    ancestors,
    directory_attributes,
    is_unfinished,
    ours,
    read_marker,
    text,
    wanted_attributes,
)

_PARENT_MODE: Final = 0o755
_FINAL: Final = frozenset({Status.NAMETOOLONG, Status.BADNAME, Status.BADCHAR, Status.INVAL, Status.XDEV})
"""Errors that become such as prove that nothing was made: so nothing may be left."""
_AGAIN: Final = 0.2


def provision_directory(
    share: Share,
    handles: Handles,
    request: ProvisionRequest,
    parameters: ClassParameters,
    *,
    check_space: bool,
    exports: Exports | NoExports,
) -> VolumeMarker:
    """Make the volume's marker and directory, or finish those of an earlier call. The export is not made here."""
    wanted = VolumeMarker.new(request, parameters)
    # A default may differ from that of the version that made the marker.
    demand = {key: asked for key, asked in wanted.demand.items() if key != "mode" or parameters.mode is not None}
    path = wanted.components
    first, last = [*space_request(handles), *ours(handles, ancestors(path))], walk(handles.root, path)
    together = len(first) + len(last) <= share.client.operations
    (look,) = share.client.pipeline([[*first, *last] if together else space_request(handles)])
    free = free_space(look)
    parents_marked = together and len(look.results) > len(first)
    if parents_marked:
        there = Reply(look.status, look.results[len(first) :])
    else:
        (there,) = share.client.pipeline([last])
    too_large = check_space and free is not None and request.capacity_bytes > free
    if too_large or not there.status:
        marker = read_marker(share, handles.volumes, wanted.file)
        if marker is not None:
            marker.refuse_other_demand(request, demand)
            finish_directory(share, handles, marker)
            return marker
    refuse_what_is_there(share, handles, wanted, there, exports)
    if check_space:
        refuse_too_large(share, request, free)
    if not parents_marked or len(there.results) <= len(path):
        make_parents(share, handles, wanted)
    prepared = exports.prepare(share, handles, wanted)
    if make_volume(share, handles, prepared):
        return prepared
    exports.release(share, handles, prepared)
    marker = read_marker(share, handles.volumes, wanted.file)
    if marker is None:
        raise Unavailable(f"{request.name} was made and deleted meanwhile", retry_after=_AGAIN)
    marker.refuse_other_demand(request, demand)
    finish_directory(share, handles, marker)
    return marker


def make_volume(share: Share, handles: Handles, marker: VolumeMarker) -> bool:
    """Make a volume; False if it has a marker: an earlier call made no more, or a duplicate of this one was quicker."""
    (reply,) = share.client.pipeline(
        [[PUTFH(handles.volumes), create_link(marker.file, marker.encode()), *_directory_requests(handles, marker)]]
    )
    if reply.status == Status.EXIST and len(reply.results) == 2:
        return False
    if reply.status:
        if len(reply.results) <= 2:
            values_of(reply)
        _go_on(share, handles, marker, reply)
    return True


def _go_on(share: Share, handles: Handles, marker: VolumeMarker, reply: Reply) -> None:
    """Go on where the marker is there, and something behind it failed."""
    if reply.status in MISSING and _is_finished(reply):
        _undo(share, handles, marker)
    try:
        if reply.results[-1].operation is CREATE and reply.status == Status.EXIST:
            share.client.pipeline([[PUTFH(handles.volumes), REMOVE(marker.file)]])
            raise Unavailable(f"{text(share, marker.components)} appeared while the volume was made; it is not touched")
        if reply.results[-1].operation is LOOKUP and reply.status in MISSING:
            finish_directory(share, handles, marker)
        else:
            values_of(reply)
    except NfsError as error:
        if error.status in _FINAL:
            share.client.pipeline([[PUTFH(handles.volumes), REMOVE(marker.file)]])
        raise


def _directory_requests(handles: Handles, marker: VolumeMarker) -> list[Request]:
    """Make the directory, finish it, and see whether its marker is still there."""
    path = marker.components
    return [
        *walk(handles.root, path[:-1]),
        create_directory(path[-1], INITIAL_MODE),
        SETATTR(ANONYMOUS, wanted_attributes(marker)),
        PUTFH(handles.volumes),
        LOOKUP(marker.file),
    ]


def finish_directory(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Make the directory of a volume that has a marker, and set its attributes, as far as that is still to be done."""
    found = directory_attributes(share, handles, marker.components)
    if marker.existing:
        if found is None:
            path = text(share, marker.components)
            raise Unavailable(f"{path} was to be used by {marker.name} as it was, and is gone")
        return
    if found is None:
        make_parents(share, handles, marker)
        (reply,) = share.client.pipeline([_directory_requests(handles, marker)])
        if reply.status in MISSING and _is_finished(reply):
            _undo(share, handles, marker)
        if reply.status not in {0, Status.EXIST}:
            values_of(reply)
        if not reply.status:
            return
        found = directory_attributes(share, handles, marker.components)
    if found is not None and is_unfinished(found[0], marker):
        share.client.compound(PUTFH(found[1]), SETATTR(ANONYMOUS, wanted_attributes(marker)))


def _is_finished(reply: Reply) -> bool:
    return any(result.operation is SETATTR and not result.status for result in reply.results)


def _undo(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Remove the directory: a deletion took the marker away before it was there, and will not see it."""
    path = marker.components
    share.client.pipeline([[*walk(handles.root, path[:-1]), REMOVE(path[-1])]])
    raise Unavailable(f"{marker.name} is being deleted", retry_after=_AGAIN)


def refuse_what_is_there(
    share: Share, handles: Handles, marker: VolumeMarker, reply: Reply, exports: Exports | NoExports
) -> None:
    """Raise unless the path is free."""
    if reply.status in MISSING:
        return
    if reply.status in {Status.NOTDIR, Status.SYMLINK}:
        raise NotADirectory(marker.components[max(0, len(reply.results) - 3)])
    values_of(reply)
    refuse_deleting(share, handles, marker, exports)
    raise AlreadyExists(
        f"{text(share, marker.components)} exists and carries no mark of {marker.name}: it is not touched; move it "
        "away, change pathTemplate, or let a claim without a source use it by exactPath: true and onExisting: use"
    )


def refuse_deleting(share: Share, handles: Handles, marker: VolumeMarker, exports: Exports | NoExports) -> None:
    """Raise `Unavailable` while a former volume of this name is being deleted; that is continued here."""
    deleting = read_marker(share, handles.volumes, marker.key)
    if deleting is not None and deleting.belongs_to(marker.owner):
        finish_deletion(share, handles, deleting, exports)
        raise Unavailable(f"{marker.name} is being deleted", retry_after=_AGAIN)
    prefix = f"{marker.name}@".encode()
    if any(name.startswith(prefix) for name in names(share.client, handles.volumes)):
        raise Unavailable(f"{marker.name} is being deleted", retry_after=1.0)


def refuse_too_large(share: Share, request: ProvisionRequest, free: int | None) -> None:
    """Raise `ResourceExhausted` for a volume larger than the free space; None = the server does not tell it."""
    if free is not None and request.capacity_bytes > free:
        raise ResourceExhausted(
            f"{share} has {free} bytes left, {request.name} asks for {request.capacity_bytes}: delete volumes, grow "
            "the file system, or set the option check_free_space to false",
            scope=str(share),
            nothing_done=True,
        )


def make_parents(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Make the directories above a volume, each with a marker that it is the driver's own.

    Raises `AlreadyExists` for a directory that others made: its users could exchange volumes in it. A class may let
    such be used, into which nobody but their owner can write.
    """
    for parent in ancestors(marker.components):
        key = parent_file(parent)
        (there, marked) = share.client.pipeline([[*walk(handles.root, parent)], [PUTFH(handles.parents), LOOKUP(key)]])
        if not there.status and not marked.status:
            continue
        if not there.status:
            # The removal of a parent takes its marker first, and puts it back if a volume came meanwhile.
            time.sleep(0.05)
            (marked,) = share.client.pipeline([[PUTFH(handles.parents), LOOKUP(key)]])
            if marked.status and marker.uses_existing:
                _refuse_writable(share, handles, parent)
            elif marked.status:
                raise AlreadyExists(
                    f"{text(share, parent)} was not made by volplane: no volume is made in it; choose another "
                    "pathTemplate"
                )
            continue
        if there.status not in MISSING:
            values_of(there)
        mark = [PUTFH(handles.parents), create_link(key, parent_marker(parent))]
        if marked.status:
            _allow(share.client.pipeline([mark])[0], Status.EXIST)
        # The marker may be on its way out with a former directory of this name: it is made again behind the new one.
        make = [*walk(handles.root, parent[:-1]), create_directory(parent[-1], _PARENT_MODE), *mark]
        _allow(share.client.pipeline([make])[0], Status.EXIST)


def _refuse_writable(share: Share, handles: Handles, parent: Path) -> None:
    found = directory_attributes(share, handles, parent)
    if found is not None and found[0].get(MODE, 0) & 0o022:
        raise AlreadyExists(
            f"{text(share, parent)} can be written by others than its owner, who could exchange volumes in it: no "
            "volume is made there; take that away, as by chmod 0755"
        )


def _allow(reply: Reply, *allowed: int) -> None:
    if reply.status not in allowed:
        values_of(reply)
