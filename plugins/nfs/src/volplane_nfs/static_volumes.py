"""Static volumes: PersistentVolumes that a person made for a directory of a share."""

from __future__ import annotations

from volplane import AlreadyExists, Unavailable
from volplane_nfs.listing import all_markers
from volplane_nfs.markers import parent_file
from volplane_nfs.nfs4.files import Path
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import overlap, text


def refuse_not_static(share: Share, handles: Handles, path: Path) -> None:
    """Raise unless the path can be that of a static volume, or of a new exact one.

    Raises `AlreadyExists` if it is, holds or lies in a volume with a marker, or holds volumes; `Unavailable` while a
    marker cannot be read.
    """
    label = text(share, path)
    (reply,) = share.client.pipeline([[PUTFH(handles.parents), LOOKUP(parent_file(path))]])
    if not reply.status:
        raise AlreadyExists(f"{label} was made by volplane to hold volumes: it is not touched")
    for name, marker in all_markers(share, handles):
        if marker is None:
            raise Unavailable(
                f"the marker of volume {name} cannot be read, so {label} may be its directory: it is not touched; "
                "restore or repair the marker"
            )
        if overlap(marker.components, path):
            raise AlreadyExists(f"{label} carries the mark of volume {marker.name}: it is not touched")
