"""The hook `inspect`: a volume by its handle, for callers that know nothing else of it. Changes nothing."""

from __future__ import annotations

from volplane import Absent, ListedAsset, Unavailable
from volplane.directory import handle_of
from volplane.directory.dirfd import directory_exists, entry_exists
from volplane_hostpath.index import known_volume_marker
from volplane_hostpath.provision import asset_of
from volplane_hostpath.root import COPIES, TRASH, Root


def inspect_volume(root: Root, text: str) -> ListedAsset | Absent:
    """Return the volume of this handle; Absent if there is none, or the text is no handle.

    Raises `Unavailable` for a volume of another root, which may exist, and for a marker that cannot be read.
    """
    handle = handle_of(text)
    if handle is None:
        return Absent()
    if handle.storage_id != root.id:
        raise Unavailable(
            f"{handle.volume_name} lies on the root with id {handle.storage_id}, at {root.path} is {root.id}: mount "
            "the disk it lies on"
        )
    marker = known_volume_marker(root, handle.volume_name)
    if marker is None or marker.owner.generation != handle.generation:
        return Absent()
    condition = ""
    if entry_exists(marker.entry, root.directory(TRASH)):
        condition = "it is being removed"
    elif entry_exists(marker.entry, root.directory(COPIES)):
        condition = "it is being filled"
    elif not directory_exists(marker.path, root.fd, root.mount, label=root.path):
        condition = f"its directory {root.path}/{marker.path} is missing"
    return marker.listed(asset_of(root, marker), condition)
