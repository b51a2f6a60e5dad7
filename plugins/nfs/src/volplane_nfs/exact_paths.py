"""Volumes with exact paths, which several claims may have, and which may be there with what is in them.

Who has a path is found out by all markers, by one call at a time. A directory that is there gets a marker that says so:
nothing of it is changed, and it is not made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from volplane import ProvisionRequest, Unavailable
from volplane_nfs.delete import retained_markers
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4.files import walk
from volplane_nfs.parameters import ClassParameters
from volplane_nfs.provision import (
    finish_directory,
    make_parents,
    make_volume,
    refuse_deleting,
    refuse_too_large,
    refuse_what_is_there,
)
from volplane_nfs.share import Handles, Share
from volplane_nfs.space import free_bytes
from volplane_nfs.static_volumes import refuse_not_static
from volplane_nfs.volumes import add_marker, directory_attributes, overlap, read_marker, text

_AGAIN: Final = 0.2


@contextmanager
def deciding(share: Share, handles: Handles, marker: VolumeMarker) -> Iterator[None]:
    """Let the path of a volume that is made in the block be no other's. Raises `AlreadyExists`, `Unavailable`."""
    if not marker.exact:
        yield
        return
    with share.alone(handles):
        refuse_not_static(share, handles, marker.components)
        yield


def provision_exact(
    share: Share,
    handles: Handles,
    request: ProvisionRequest,
    parameters: ClassParameters,
    *,
    check_space: bool,
    exports: Exports | NoExports,
) -> VolumeMarker:
    """Make a volume with an exact path, or finish that of an earlier call. The export is not made here."""
    wanted = VolumeMarker.new(request, parameters)
    marker = read_marker(share, handles.volumes, wanted.file)
    if marker is None:
        refuse_deleting(share, handles, wanted, exports)
        with deciding(share, handles, wanted):
            if directory_attributes(share, handles, wanted.components) is not None:
                wanted = _of_what_is_there(share, handles, wanted, request, exports)
            elif check_space:
                refuse_too_large(share, request, free_bytes(share, handles))
            make_parents(share, handles, wanted)
            marker = exports.prepare(share, handles, wanted)
            if not (add_marker if marker.existing else make_volume)(share, handles, marker):
                exports.release(share, handles, marker)
                raise Unavailable(f"{request.name} is made by another call", retry_after=_AGAIN)
    demand = {key: asked for key, asked in wanted.demand.items() if key != "mode" or parameters.mode is not None}
    marker.refuse_other_demand(request, demand)
    finish_directory(share, handles, marker)
    return marker


def _of_what_is_there(
    share: Share, handles: Handles, wanted: VolumeMarker, request: ProvisionRequest, exports: Exports | NoExports
) -> VolumeMarker:
    """Return the marker of a volume that uses the directory at its path. Raises `AlreadyExists`."""
    if not wanted.uses_existing:
        (there,) = share.client.pipeline([walk(handles.root, wanted.components)])
        refuse_what_is_there(share, handles, wanted, there, exports)
    for left in retained_markers(share, handles, request.context.log):
        if overlap(left.components, wanted.components):
            wanted.refuse_other_namespace(left, text(share, wanted.components))
    return replace(wanted, existing=True)
