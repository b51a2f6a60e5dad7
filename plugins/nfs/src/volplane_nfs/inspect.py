"""The hook `inspect`: a volume by its handle, for callers that know nothing else of it. Changes nothing."""

from __future__ import annotations

from volplane import Absent, InvalidArgument, ListedAsset
from volplane.directory import Handle, check_name
from volplane_nfs.markers import LONGEST_NAME
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share
from volplane_nfs.shares import Shares
from volplane_nfs.volumes import asset_of, directory_attributes, read_found


def inspect_volume(shares: Shares, text: str, export: Settings | None) -> ListedAsset | Absent:
    """Return the volume of this handle; Absent if there is none, or the text is no handle.

    Raises `Unavailable` for a volume of a share that is away.
    """
    handle = Handle.parse(text)
    if handle is None:
        return Absent()
    try:
        name = check_name(handle.volume_name, LONGEST_NAME)
    except InvalidArgument:
        return Absent()  # Nothing was made under it.
    share = shares.with_id(handle.storage_id, name)
    return share.work(f"look at {name}", lambda handles: _inspect(share, handles, name, handle.generation, export))


def _inspect(
    share: Share, handles: Handles, name: str, generation: int, export: Settings | None
) -> ListedAsset | Absent:
    found = read_found(share, handles, name, generation)
    for marker in (found.marker, found.deleting):
        if marker is None or marker.owner.generation != generation:
            continue
        condition = ""
        if marker is found.deleting:
            condition = "it is being removed"
        elif directory_attributes(share, handles, marker.components) is None:
            condition = f"its directory {marker.path} is missing on {share}"
        asset = asset_of(share, handles, marker, export)
        return ListedAsset(
            handle=asset.handle,
            name=marker.name,
            capacity_bytes=marker.capacity_bytes,
            owner=marker.owner,
            created_at=marker.created_at or None,
            source=asset.source,
            condition=condition,
        )
    return Absent()
