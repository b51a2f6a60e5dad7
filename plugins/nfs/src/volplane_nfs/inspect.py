"""The hook `inspect`: a volume by its handle, for callers that know nothing else of it. Changes nothing."""

from __future__ import annotations

from volplane import Absent, ListedAsset
from volplane.directory import handle_of
from volplane_nfs.markers import LONGEST_NAME
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share
from volplane_nfs.shares import Shares
from volplane_nfs.volumes import asset_of, directory_attributes, read_found


def inspect_volume(shares: Shares, text: str, export: Settings | None) -> ListedAsset | Absent:
    """Return the volume of this handle; Absent if there is none, or the text is no handle.

    Raises `Unavailable` for a volume of a share that is away.
    """
    handle = handle_of(text, LONGEST_NAME)
    if handle is None:
        return Absent()
    name = handle.volume_name
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
        return marker.listed(asset_of(share, handles, marker, export), condition)
    return Absent()
