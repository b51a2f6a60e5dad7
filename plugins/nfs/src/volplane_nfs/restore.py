"""The hook `provision` for a volume that is made of a snapshot or of another volume.

The directory is filled where nobody sees it (`volplane_nfs.copies`). Once it is whole the volume gets its marker, and
the directory is renamed to its place, where another volume's would be made: a volume that has a marker and no directory
is never made empty. It is on the share of its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from volplane import AlreadyExists, InProgress, InvalidArgument, NotFound, ProvisionRequest, Unavailable
from volplane.directory import CONTROL, CopyCounts, Handle, SnapshotHandle
from volplane_nfs.archive import DATA
from volplane_nfs.copies import Copies, Wanted
from volplane_nfs.delete import take_away
from volplane_nfs.exact_paths import deciding
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.markers import SNAPSHOTS, VolumeMarker
from volplane_nfs.nfs4.attributes import MODE, OWNER, OWNER_GROUP
from volplane_nfs.nfs4.files import ANONYMOUS, MISSING, Path, directory_handle, walk
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, RENAME, SAVEFH, SETATTR
from volplane_nfs.parameters import ClassParameters
from volplane_nfs.provision import make_parents, refuse_too_large, refuse_what_is_there
from volplane_nfs.share import Handles, Share
from volplane_nfs.snapshots import read_snapshot, snapshot_data
from volplane_nfs.space import free_bytes, used_counts
from volplane_nfs.volumes import add_marker, directory_attributes, read_marker, text

_AGAIN: Final = 0.2


@dataclass(frozen=True, slots=True)
class Source:
    """What a volume is made of: a directory by its handle and its path in the share, the size that the volume has at
    least, and what it holds.
    """

    directory: bytes
    path: Path
    size_bytes: int
    label: str
    whole: CopyCounts | None


def storage_of(request: ProvisionRequest) -> str | None:
    """Return the id of the share on which the source of a demand is; None if it has none. Raises `NotFound`."""
    if request.source_snapshot is not None:
        snapshot = SnapshotHandle.parse(request.source_snapshot)
        if snapshot is None:
            raise NotFound(f"snapshot {request.source_snapshot} is none of this driver")
        return snapshot.storage_id
    if request.source_volume is not None:
        volume = Handle.parse(request.source_volume)
        if volume is None:
            raise NotFound(f"volume {request.source_volume} is none of this driver")
        return volume.storage_id
    return None


def provision_copy(
    share: Share,
    handles: Handles,
    request: ProvisionRequest,
    parameters: ClassParameters,
    *,
    copies: Copies,
    check_space: bool,
    exports: Exports | NoExports,
) -> VolumeMarker | InProgress:
    """Make the volume's directory of its source, or finish that of an earlier call. The export is not made here."""
    wanted = VolumeMarker.new(request, parameters)
    demand = {key: asked for key, asked in wanted.demand.items() if key != "mode" or parameters.mode is not None}
    marker = read_marker(share, handles.volumes, wanted.file)
    if marker is None:
        source = _source(share, handles, request)
        if request.capacity_bytes < source.size_bytes:
            raise InvalidArgument(
                f"{request.name} is to have {request.capacity_bytes} bytes, {source.label} needs {source.size_bytes}"
            )
        (there,) = share.client.pipeline([walk(handles.root, wanted.components)])
        refuse_what_is_there(share, handles, wanted, there, exports)
        if check_space:
            refuse_too_large(share, request, free_bytes(share, handles))
        make_parents(share, handles, wanted)  # which may be another's: that is found out now
        made = copies.work(
            handles,
            Wanted(
                key=wanted.key,
                source=source.directory,
                path=source.path,
                made_for={
                    "volume": wanted.key.decode(),
                    "cluster": wanted.owner.cluster_id,
                    "of": wanted.demand["source"],
                },
                parameters=parameters,
                label=source.label,
                whole=source.whole,
            ),
            request.context,
            check_space=check_space,
        )
        if isinstance(made, InProgress):
            return made
        try:
            _source(share, handles, request)
        except NotFound:
            # It was deleted meanwhile: what was copied last may not be all of it.
            copies.discard(handles, wanted.key)
            raise
        _dress(share, handles, copies, wanted, parameters)
        with deciding(share, handles, wanted):
            (there,) = share.client.pipeline([walk(handles.root, wanted.components)])
            refuse_what_is_there(share, handles, wanted, there, exports)
            marker = exports.prepare(share, handles, wanted)
            added = add_marker(share, handles, marker)
        if not added:
            exports.release(share, handles, marker)
            marker = read_marker(share, handles.volumes, wanted.file)
            if marker is None:
                raise Unavailable(f"{request.name} was made and deleted meanwhile", retry_after=_AGAIN)
    marker.refuse_other_demand(request, demand)
    _place(share, handles, copies, marker)
    return marker


def _source(share: Share, handles: Handles, request: ProvisionRequest) -> Source:
    snapshot = SnapshotHandle.parse(request.source_snapshot or "")
    if snapshot is not None:
        found = read_snapshot(share, handles, snapshot.name)
        if found is None:
            raise NotFound(f"snapshot {snapshot.name} is not on {share}: it is deleted")
        directory = snapshot_data(share, handles, snapshot.name)
        path = (CONTROL.encode(), SNAPSHOTS, snapshot.name.encode(), DATA)
        return Source(directory, path, found.size_bytes, f"snapshot {snapshot.name}", found.counts)
    volume = Handle.parse(request.source_volume or "")
    marker = None if volume is None else read_marker(share, handles.volumes, volume.volume_name.encode())
    if volume is None or marker is None or marker.owner.generation != volume.generation:
        raise NotFound(f"volume {request.source_volume} is not on {share}: it is deleted")
    if request.source_asset is not None:
        marker.refuse_other_owner(request.source_asset.owner, marker.name)
    place = directory_attributes(share, handles, marker.components)
    if place is None:
        raise NotFound(f"{text(share, marker.components)} of volume {marker.name} is gone: there is nothing to copy")
    label, used = text(share, marker.components), used_counts(share, place[1])
    return Source(place[1], marker.components, marker.capacity_bytes, label, used)


def _dress(share: Share, handles: Handles, copies: Copies, marker: VolumeMarker, parameters: ClassParameters) -> None:
    """Give the directory what its class says; what that leaves open stays as it was in the source."""
    owners = {OWNER: marker.demand["uid"], OWNER_GROUP: marker.demand["gid"]}
    given = {number: str(value).encode() for number, value in owners.items() if value is not None}
    groups: list[dict[int, Any]] = [given] if given else []
    groups += [{MODE: parameters.mode}] if parameters.mode is not None else []
    data = _data(share, handles, copies, marker)
    if data is not None and groups:
        share.client.compound(PUTFH(data), *[SETATTR(ANONYMOUS, each) for each in groups])


def _data(share: Share, handles: Handles, copies: Copies, marker: VolumeMarker) -> bytes | None:
    container = copies.container(handles, marker.key)
    return None if container is None else directory_handle(share.client, container, (DATA,))


def _place(share: Share, handles: Handles, copies: Copies, marker: VolumeMarker) -> None:
    """Move the whole copy to its place, unless an earlier call has; then remove what is left beside it."""
    path = marker.components
    if directory_attributes(share, handles, path) is None:
        container = copies.container(handles, marker.key)
        if container is None:
            raise AlreadyExists(
                f"{marker.name} was made of {marker.demand.get('source')}, and {text(share, path)} is gone: it is not "
                "made again"
            )
        make_parents(share, handles, marker)
        move = [PUTFH(container), SAVEFH(), *walk(handles.root, path[:-1]), RENAME(DATA, path[-1])]
        share.client.compound(*move)
        (reply,) = share.client.pipeline([[PUTFH(handles.volumes), LOOKUP(marker.file)]])
        if reply.status in MISSING:
            # A deletion took the marker away before the directory was there, and did not see it.
            take_away(share, handles, path, marker.key)
            raise Unavailable(f"{marker.name} is being deleted", retry_after=_AGAIN)
    copies.end(handles, marker.key)
