"""The hook `list_assets`: everything on a share, in pages, for the leak check."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from volplane import AssetPage, Context, ListedArchive, ListedAsset
from volplane.directory import CONTROL, CorruptMarker, Handle, decode_fields, listed_archive
from volplane_nfs.archive import DATA, MARKER
from volplane_nfs.errors import printable
from volplane_nfs.markers import VolumeMarker, is_deleting, parent_file
from volplane_nfs.nfs4 import NfsError, values_of
from volplane_nfs.nfs4.attributes import DIRECTORY, TYPE, mask_of
from volplane_nfs.nfs4.files import Pace, Path, batches, directory_handle, entries, names, several, walk
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, READLINK, Reply
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import asset_of, marker_in, read_request

PAGE = 5000
"""Assets of one page, at most. Each page reads the names of all markers, so pages are large."""
_PART: Final = 500
_PAGE_SECONDS: Final = 1.0
"""Of reading markers, after which a page ends with the part that it is at: no slow disk makes a call too long."""
_MARKED, _FOREIGN, _ARCHIVE = "marked:", "foreign:", "archive:"
_OTHERS: Final = frozenset({(CONTROL.encode(),), (b"lost+found",)})

Named = tuple[str, VolumeMarker | None]
"""A volume's name and marker; None = it cannot be read."""


def all_markers(share: Share, handles: Handles) -> Iterator[Named]:
    """Yield the markers of all volumes, of those that are being deleted too."""
    yield from read_markers(share, handles, names(share.client, handles.volumes))


def read_markers(share: Share, handles: Handles, files: Sequence[bytes]) -> Iterator[Named]:
    """Yield the markers by their names, many in one COMPOUND; those that are gone are left out."""
    pace = Pace()
    for part in batches(files, _PART):
        replies = several(share.client, [read_request(handles.volumes, name) for name in part], pace)
        for name, reply in zip(part, replies, strict=True):
            try:
                marker = marker_in(reply)
            except CorruptMarker:
                yield _volume_of(name), None
            else:
                if marker is not None:
                    yield _volume_of(name), marker


def _volume_of(file: bytes) -> str:
    return printable(file.partition(b"@")[0])


def list_page(share: Share, handles: Handles, page: str | None, context: Context, export: Settings | None) -> AssetPage:
    """Return the page after the token, of one share.

    It lists volumes with a marker, then directories that the driver did not make. Keys are sorted, and the token is the
    last key of a page, so changes between pages lose nothing.
    """
    if page is None or page.startswith(_MARKED):
        return _marked_page(share, handles, os.fsencode((page or _MARKED).removeprefix(_MARKED)), context, export)
    after = os.fsencode(page.removeprefix(_FOREIGN))
    volumes = frozenset(marker.components for _, marker in all_markers(share, handles) if marker is not None)
    found_paths = sorted(b"/".join(path) for path in _foreign(share, handles, handles.root, (), volumes))
    taken_paths = [path for path in found_paths if path > after]
    foreign = tuple(
        ListedAsset(
            handle=f"{share}/{printable(path)}"[-1024:], name=printable(path)[-253:], capacity_bytes=0, owner=None
        )
        for path in taken_paths[:PAGE]
    )
    more = len(taken_paths) > PAGE
    following = _FOREIGN + os.fsdecode(taken_paths[PAGE - 1]) if more else None
    return AssetPage(assets=foreign, next_page=following)


def _marked_page(share: Share, handles: Handles, after: bytes, context: Context, export: Settings | None) -> AssetPage:
    """Return the volumes with a marker, of those whose keys are behind `after`."""
    end = time.monotonic() + _PAGE_SECONDS
    keys = sorted(name for name in names(share.client, handles.volumes) if name > after)
    assets: list[ListedAsset] = []
    for part in batches(keys[:PAGE], _PART):
        assets += _listed_volumes(share, handles, part, context, export)
        after = part[-1]
        if time.monotonic() > end:
            break
    more = keys and after != keys[-1]
    return AssetPage(assets=tuple(assets), next_page=_MARKED + os.fsdecode(after) if more else _FOREIGN)


def archives_page(share: Share, handles: Handles, page: str | None) -> AssetPage:
    """Return the archives of a share after the token, which is a name; those without `data` are none."""
    after, end = os.fsencode((page or _ARCHIVE).removeprefix(_ARCHIVE)), time.monotonic() + _PAGE_SECONDS
    found = sorted(name for name in names(share.client, handles.archive) if name > after)
    listed: list[ListedArchive] = []
    for part in batches(found[:PAGE], _PART):
        looks = [[PUTFH(handles.archive), LOOKUP(name), LOOKUP(DATA)] for name in part]
        reads = [[PUTFH(handles.archive), LOOKUP(name), LOOKUP(MARKER), READLINK()] for name in part]
        replies = zip(part, several(share.client, looks), several(share.client, reads), strict=True)
        listed += [_listed_archive(share, name, read) for name, look, read in replies if not look.status]
        after = part[-1]
        if time.monotonic() > end:
            break
    more = found and after != found[-1]
    return AssetPage(assets=(), archives=tuple(listed), next_page=_ARCHIVE + os.fsdecode(after) if more else None)


def _listed_archive(share: Share, name: bytes, read: Reply) -> ListedArchive:
    fields = None
    with suppress(CorruptMarker, NfsError):
        fields = decode_fields(values_of(read)[-1])
    return listed_archive(f"{share}/{CONTROL}/archive/{printable(name)}", printable(name), fields)


def _listed_volumes(
    share: Share,
    handles: Handles,
    files: Sequence[bytes],
    context: Context,
    export: Settings | None,
) -> Iterator[ListedAsset]:
    for deleting in (False, True):
        found = list(read_markers(share, handles, [file for file in files if is_deleting(file) == deleting]))
        missing = _missing(share, handles, [marker for _, marker in found if marker is not None])
        for name, marker in found:
            if marker is None:
                share.reports.warn(context.log, f"volume {name} on {share}", "its marker cannot be read")
                handle = str(Handle(handles.share_id, name, 1))
                yield ListedAsset(handle=handle, name=name, capacity_bytes=0, owner=None)
            elif not deleting and marker.name in missing:
                # Not listed, so that the leak check reports the volume as lost.
                context.log.warning("%s of volume %s is gone from %s", marker.path, name, share)
            else:
                yield marker.listed(asset_of(share, handles, marker, export))


def _missing(share: Share, handles: Handles, markers: Sequence[VolumeMarker]) -> set[str]:
    """Return the names of the volumes whose directory does not exist."""
    replies = several(share.client, [walk(handles.root, marker.components) for marker in markers])
    return {marker.name for marker, reply in zip(markers, replies, strict=True) if reply.status}


def _foreign(share: Share, handles: Handles, directory: bytes, above: Path, volumes: frozenset[Path]) -> Iterator[Path]:
    """Yield the directories that are no volumes and not the driver's own."""
    for entry in entries(share.client, directory, mask_of(TYPE)):
        path = (*above, entry.name)
        if (
            entry.attributes.get(TYPE) != DIRECTORY
            or path in volumes
            or path in {(CONTROL.encode(),), (b"lost+found",)}
        ):
            continue
        (marked,) = share.client.pipeline([[PUTFH(handles.parents), LOOKUP(parent_file(path))]])
        if marked.status:
            yield path
            continue
        below = directory_handle(share.client, handles.root, path)
        if below is not None:
            yield from _foreign(share, handles, below, path, volumes)
