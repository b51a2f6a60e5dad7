"""What several hooks do with a volume: read, add and replace its marker, look at its directory, make its asset."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volplane import Asset, VolumeSource
from volplane.directory import CorruptMarker, Handle, SnapshotHandle, decode_fields
from volplane_nfs.markers import VolumeMarker, parent_file
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.attributes import DIRECTORY, MODE, OWNER, OWNER_GROUP, TYPE, mask_of
from volplane_nfs.nfs4.files import (
    MISSING,
    NotADirectory,
    Path,
    create_link,
    directory_handle,
    read_attributes,
    read_link,
    rename,
    walk,
)
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, READLINK, REMOVE, VERIFY, Reply, Request
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share

INITIAL_MODE = 0o700
"""Of a directory that is not finished. The mode of the class is set last."""
_NO_LINK = frozenset({Status.INVAL, Status.WRONG_TYPE, Status.ISDIR})
LOOK = mask_of(TYPE, MODE, OWNER, OWNER_GROUP)


@dataclass(frozen=True, slots=True)
class Found:
    """Markers of a volume's name: of the volume, and of one that is being deleted."""

    marker: VolumeMarker | None
    deleting: VolumeMarker | None


def read_request(directory: bytes, name: bytes) -> list[Request]:
    """Return the operations that read the symbolic link of this name in a directory; `marker_in` reads the reply.

    directory: its file handle.
    """
    return [PUTFH(directory), LOOKUP(name), READLINK()]


def read_fields(share: Share, directory: bytes, name: bytes) -> dict[str, Any] | None:
    """Return the fields of a marker that is not a volume's; None if there is none. Raises `CorruptMarker`."""
    try:
        content = read_link(share.client, directory, name)
    except NfsError as error:
        if error.status not in _NO_LINK:
            raise
        raise CorruptMarker("it is no symbolic link") from error
    return None if content is None else decode_fields(content)


def marker_in(reply: Reply) -> VolumeMarker | None:
    """Return the marker that `read_request` found; None if there is none. Raises `CorruptMarker`, NfsError."""
    if reply.status in MISSING and reply.results[-1].operation is LOOKUP:
        return None
    if reply.status in _NO_LINK and reply.results[-1].operation is READLINK:
        raise CorruptMarker("it is no symbolic link")
    return VolumeMarker.decode(values_of(reply)[-1])


def read_marker(share: Share, directory: bytes, name: bytes) -> VolumeMarker | None:
    """Return the marker of this name in a directory; None if there is none. Raises `CorruptMarker`, NfsError,
    TransportError.

    directory: its file handle.
    """
    (reply,) = share.client.pipeline([read_request(directory, name)])
    return marker_in(reply)


def read_found(share: Share, handles: Handles, name: str, generation: int) -> Found:
    """Return both markers of a name and generation."""
    first = read_request(handles.volumes, name.encode())
    second = read_request(handles.volumes, f"{name}@{generation}".encode())
    (reply,) = share.client.pipeline([[*first, *second]])
    if len(reply.results) <= len(first):
        marker = marker_in(reply)
        (reply,) = share.client.pipeline([second])
        return Found(marker, marker_in(reply))
    return Found(VolumeMarker.decode(reply.results[2].value), marker_in(reply))


def add_marker(share: Share, handles: Handles, marker: VolumeMarker) -> bool:
    """Put the marker of a volume where none is of its name; False if there is one. Raises NfsError."""
    (reply,) = share.client.pipeline([[PUTFH(handles.volumes), create_link(marker.file, marker.encode())]])
    if reply.status == Status.EXIST:
        return False
    values_of(reply)
    return True


def replace_marker(share: Share, handles: Handles, marker: VolumeMarker) -> None:
    """Put a changed marker in the place of the one that is there. Raises NfsError (NOENT) if there is none."""
    new = f"{marker.name}.{secrets.token_hex(8)}".encode()
    share.client.compound(PUTFH(handles.tmp), create_link(new, marker.encode()))
    try:
        share.client.compound(
            PUTFH(handles.volumes),
            LOOKUP(marker.file),
            *rename(handles.tmp, new, handles.volumes, marker.file),
        )
    except NfsError:
        share.client.pipeline([[PUTFH(handles.tmp), REMOVE(new)]])
        raise


def wanted_attributes(marker: VolumeMarker) -> dict[int, Any]:
    """Return the attributes of the finished directory, as the class wants them."""
    wanted: dict[int, Any] = {MODE: marker.mode}
    for number, key in ((OWNER, "uid"), (OWNER_GROUP, "gid")):
        if marker.demand.get(key) is not None:
            wanted[number] = str(marker.demand[key]).encode()
    return wanted


def is_unfinished(attributes: Mapping[int, Any], marker: VolumeMarker) -> bool:
    """Return whether the directory was made and its attributes are not set yet.

    Owners that are no numbers do not count.
    """
    if attributes.get(MODE) != INITIAL_MODE:
        return False
    return any(
        attributes.get(number) != value
        for number, value in wanted_attributes(marker).items()
        if number == MODE or str(attributes.get(number, b"").decode(errors="replace")).isdigit()
    )


def directory_attributes(share: Share, handles: Handles, path: Path) -> tuple[dict[int, Any], bytes] | None:
    """Return the attributes and handle of a volume's directory; None if it does not exist. Raises NotADirectory."""
    found = read_attributes(share.client, handles.root, path, LOOK)
    if found is not None and found[0].get(TYPE) != DIRECTORY:
        raise NotADirectory(path[-1])
    return found


def is_directory(handle: bytes, path: Path) -> list[Request]:
    """Return the operations that fail with NOT_SAME if something else than a directory is at the path."""
    return [*walk(handle, path), VERIFY({TYPE: DIRECTORY})]


def leave_parent(share: Share, handles: Handles, path: Path, more: int) -> list[Request] | None:
    """Return the operations that check that a directory is at the path, and lead to the one above it; None if that is
    missing.

    more: how many operations will follow. A server that takes too few at once gets the directory above by its handle.
    """
    requests = [*is_directory(handles.root, path), *walk(handles.root, path[:-1])]
    if len(requests) + more <= share.client.operations:
        return requests
    parent = directory_handle(share.client, handles.root, path[:-1])
    return None if parent is None else [*is_directory(parent, path[-1:]), PUTFH(parent)]


def ours(handles: Handles, parents: list[Path]) -> list[Request]:
    """Return the operations that fail with NOENT if one of these directories is not the driver's own."""
    return [request for parent in parents for request in (PUTFH(handles.parents), LOOKUP(parent_file(parent)))]


def ancestors(path: Path) -> list[Path]:
    """Return the directories between share and volume, the topmost first."""
    return [path[:depth] for depth in range(1, len(path))]


def overlap(path: Path, other: Path) -> bool:
    """Return whether one of two paths is the other, or lies below it."""
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]


def asset_of(share: Share, handles: Handles, marker: VolumeMarker, export: Settings | None) -> Asset:
    """Return the asset of a finished volume."""
    if export is not None:
        path = f"{export.pseudo_path}/{marker.name}"
    else:
        path = f"{share.address.text.rstrip('/')}/{marker.path}"
    fields: dict[str, Any] = {"server": share.address.server.host, "path": path}
    options = share.mount_options(marker.mount_options)
    if marker.backing:
        # Kubelets ignore `readOnly` of a PersistentVolume's nfs source, and read the option.
        fields["readOnly"] = True
        options = (*options, "ro")
    return Asset(
        handle=str(Handle(handles.share_id, marker.name, marker.owner.generation)),
        source=VolumeSource(kind="nfs", fields=fields),
        capacity_bytes=marker.capacity_bytes,
        mount_options=options,
        gid=marker.gid,
        backing_snapshot=str(SnapshotHandle(handles.share_id, marker.backing)) if marker.backing else "",
    )


def text(share: Share, path: Path) -> str:
    """Return a path for messages."""
    return f"{share.address}/{b'/'.join(path).decode(errors='backslashreplace')}".replace("//", "/")
