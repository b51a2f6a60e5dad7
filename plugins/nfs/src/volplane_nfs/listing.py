"""The hook `list_assets`: everything on a share, in pages, for the leak check; and what has to be tidied up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from volplane import AssetPage, BackendError, Context, ListedAsset
from volplane.directory import CONTROL, CorruptMarker, Handle
from volplane_nfs.archive import remove_expired
from volplane_nfs.delete import SLICE, empty_trash
from volplane_nfs.errors import printable
from volplane_nfs.ganesha.export_ids import free_unused
from volplane_nfs.markers import VolumeMarker, is_deleting, parent_file
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.attributes import DIRECTORY, TIME_METADATA, TYPE, mask_of
from volplane_nfs.nfs4.files import Path, batches, directory_handle, entries, names
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, READLINK, REMOVE, Request
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import asset_of

PAGE = 5000
"""Assets of one page, at most. Each page reads the names of all markers, so pages are large."""
_PART: Final = 500
_PAGE_SECONDS: Final = 1.0
"""Of reading markers, after which a page ends with the part that it is at: no slow disk makes a call too long."""
_AT_ONCE: Final = 8
_MARKED, _FOREIGN = "marked:", "foreign:"
_OLD: Final = 3600.0
"""Seconds after which a marker in tmp, and an Export_Id without a volume, are no one's any more."""

_OTHERS: Final = frozenset({(CONTROL.encode(),), (b"lost+found",)})

Named = tuple[str, VolumeMarker | None]
"""A volume's name and marker; None = it cannot be read."""


def all_markers(share: Share, handles: Handles) -> Iterator[Named]:
    """Yield the markers of all volumes, of those that are being deleted too."""
    yield from read_markers(share, handles, names(share.client, handles.volumes))


def read_markers(share: Share, handles: Handles, files: Sequence[bytes]) -> Iterator[Named]:
    """Yield the markers by their names, many in one COMPOUND; those that are gone are left out."""
    size = max(1, share.client.operations // 3)
    for part in batches(list(batches(files, size)), _AT_ONCE):
        pending = [list(batch) for batch in part]
        while pending:
            replies = share.client.pipeline([_reads(handles, batch) for batch in pending])
            rest: list[list[bytes]] = []
            for batch, reply in zip(pending, replies, strict=True):
                read = [result.value for result in reply.results if result.operation is READLINK and not result.status]
                yield from (_decoded(name, content) for name, content in zip(batch, read, strict=False))
                if not reply.status:
                    continue
                if reply.results[-1].operation is READLINK:
                    yield _volume_of(batch[len(read)]), None
                elif reply.status != Status.NOENT:
                    values_of(reply)
                if len(batch) > len(read) + 1:
                    rest.append(batch[len(read) + 1 :])
            pending = rest


def _reads(handles: Handles, files: Iterable[bytes]) -> list[Request]:
    return [request for name in files for request in (PUTFH(handles.volumes), LOOKUP(name), READLINK())]


def _volume_of(file: bytes) -> str:
    return printable(file.partition(b"@")[0])


def _decoded(name: bytes, content: bytes) -> Named:
    try:
        return _volume_of(name), VolumeMarker.decode(content)
    except CorruptMarker:
        return _volume_of(name), None


def list_page(share: Share, handles: Handles, page: str | None, context: Context, export: Settings | None) -> AssetPage:
    """Return the page after the token, of one share.

    It lists volumes with a marker, then directories that the driver did not make. Keys are sorted, and the token is the
    last key of a page, so changes between pages lose nothing.
    """
    if page is None or page.startswith(_MARKED):
        return _marked_page(share, handles, (page or _MARKED).removeprefix(_MARKED).encode(), context, export)
    after = page.removeprefix(_FOREIGN).encode(errors="surrogateescape")
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
    following = _FOREIGN + taken_paths[PAGE - 1].decode(errors="surrogateescape") if more else None
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
    return AssetPage(assets=tuple(assets), next_page=_MARKED + after.decode() if more else _FOREIGN)


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
                context.log.warning("the marker of volume %s on %s cannot be read", name, share)
                handle = str(Handle(handles.share_id, name, 1))
                yield ListedAsset(handle=handle, name=name, capacity_bytes=0, owner=None)
            elif not deleting and marker.name in missing:
                # Not listed, so that the leak check reports the volume as lost.
                context.log.warning("%s of volume %s is gone from %s", marker.path, name, share)
            else:
                asset = asset_of(share, handles, marker, export)
                yield ListedAsset(
                    handle=asset.handle,
                    name=marker.name,
                    capacity_bytes=marker.capacity_bytes,
                    owner=marker.owner,
                    created_at=marker.created_at,
                    source=asset.source,
                )


def _missing(share: Share, handles: Handles, markers: Sequence[VolumeMarker]) -> set[str]:
    """Return the names of the volumes whose directory does not exist."""
    missing: set[str] = set()
    size = max(1, share.client.operations // 9)
    for part in batches(list(batches(markers, size)), _AT_ONCE):
        pending = [list(batch) for batch in part]
        while pending:
            replies = share.client.pipeline([_walks(handles, batch) for batch in pending])
            rest: list[list[VolumeMarker]] = []
            for batch, reply in zip(pending, replies, strict=True):
                if reply.status:
                    at = sum(result.operation is PUTFH for result in reply.results) - 1
                    missing.add(batch[at].name)
                    if len(batch) > at + 1:
                        rest.append(batch[at + 1 :])
            pending = rest
    return missing


def _walks(handles: Handles, markers: Iterable[VolumeMarker]) -> list[Request]:
    return [
        request
        for marker in markers
        for request in (PUTFH(handles.root), *(LOOKUP(name) for name in marker.components))
    ]


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


def tidy_up(share: Share, handles: Handles, context: Context) -> None:
    """Remove what crashed calls and expired archives left, for at most `SLICE` seconds; errors are logged."""
    deadline = time.monotonic() + SLICE
    try:
        remove_expired(share, handles)
        free_unused(share, handles, older_than=_OLD)
        for entry in list(entries(share.client, handles.tmp, mask_of(TIME_METADATA))):
            if entry.attributes.get(TIME_METADATA, (time.time(),))[0] < time.time() - _OLD:
                share.client.pipeline([[PUTFH(handles.tmp), REMOVE(entry.name)]])
        for key in names(share.client, handles.trash):
            if time.monotonic() >= deadline:
                return
            deleting, volume = share.client.pipeline(
                [[PUTFH(handles.volumes), LOOKUP(name)] for name in (key, key.partition(b"@")[0])]
            )
            if deleting.status and volume.status:
                empty_trash(share, handles, key, printable(key))
    except (BackendError, NfsError) as error:
        context.log.warning("cannot tidy up %s yet: %s", share, error)
