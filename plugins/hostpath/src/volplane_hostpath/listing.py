"""The hook `list_assets`: everything below the root, in pages, for the leak check."""

from __future__ import annotations

import os
from collections.abc import Iterator

from volplane import AssetPage, BackendError, Context, ListedAsset
from volplane.directory import CONTROL, CorruptMarker, Handle
from volplane.directory.dirfd import closing, directory_exists, entry_exists, names_in, open_directory, printable
from volplane_hostpath.delete import volume_of_entry
from volplane_hostpath.index import VolumeIndex, read_volume_marker, volume_names
from volplane_hostpath.locks import Deadline
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.parent_directories import is_ours
from volplane_hostpath.provision import asset_of
from volplane_hostpath.root import COPIES, TMP, TRASH, VOLUMES, Root

PAGE = 500
_MARKED = "marked:"
_LEFTOVER = "left:"
_FOREIGN = "foreign:"


def list_page(root: Root, index: VolumeIndex, page: str | None, context: Context) -> AssetPage:
    """Return the page after the token.

    It lists volumes with a marker, entries of tmp and trash without one, and directories that the driver did not make.
    Keys are sorted and the token is the last key of a page, so changes between pages lose nothing.
    """
    keys = [key for key in _keys(root, index, context) if page is None or key > page]
    taken = keys[:PAGE]
    assets = tuple(asset for key in taken if (asset := _listed(root, key, context)) is not None)
    return AssetPage(assets=assets, next_page=taken[-1] if len(keys) > PAGE else None)


def _keys(root: Root, index: VolumeIndex, context: Context) -> list[str]:
    with index.open(root, Deadline(context).remaining(), context.log):
        volumes = index.paths()
    keys = [_MARKED + name for name in volume_names(root)]
    keys += [_LEFTOVER + entry for entry in _leftovers(root)]
    keys += [_FOREIGN + path for path in _foreign(root, volumes, "", root.fd)]
    return sorted(keys)


def _leftovers(root: Root) -> Iterator[str]:
    for place in (TMP, TRASH):
        for entry in names_in(root.directory(place)):
            if not entry_exists(marker_file(volume_of_entry(entry)), root.directory(VOLUMES)):
                yield f"{place}/{entry}"


def _foreign(root: Root, volumes: frozenset[str], above: str, fd: int) -> Iterator[str]:
    # Opened again: calls that run at the same time share the descriptor of the root, and so its position.
    with (
        closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)) as own,
        os.scandir(own) as entries,
    ):
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names:
        path = f"{above}/{name}".lstrip("/")
        if path in volumes or path in {CONTROL, "lost+found"}:
            continue
        if not is_ours(root, path):
            yield path
            continue
        try:
            below = open_directory(name, fd, root.mount, label=f"{root.path}/{path}")
        except (BackendError, OSError):
            continue
        with closing(below):
            yield from _foreign(root, volumes, path, below)


def _listed(root: Root, key: str, context: Context) -> ListedAsset | None:
    if key.startswith(_MARKED):
        return _listed_volume(root, key.removeprefix(_MARKED), context)
    path = key.removeprefix(_FOREIGN) if key.startswith(_FOREIGN) else f"{CONTROL}/{key.removeprefix(_LEFTOVER)}"
    return ListedAsset(handle=printable(f"{root.path}/{path}"), name=printable(path), capacity_bytes=0, owner=None)


def _listed_volume(root: Root, name: str, context: Context) -> ListedAsset | None:
    try:
        marker = read_volume_marker(root, name)
    except CorruptMarker:
        name = printable(name)
        return ListedAsset(handle=str(Handle(root.id, name, 1)), name=name, capacity_bytes=0, owner=None)
    if marker is None:
        return None
    if not _directory_exists(root, marker):
        # Not listed, so that the leak check reports the volume as lost.
        context.log.warning("%s/%s of volume %s is gone", root.path, marker.path, name)
        return None
    return marker.listed(asset_of(root, marker))


def _directory_exists(root: Root, marker: VolumeMarker) -> bool:
    if any(entry_exists(marker.entry, root.directory(place)) for place in (TMP, TRASH, COPIES)):
        return True
    try:
        return directory_exists(marker.path, root.fd, root.mount, label=root.path)
    except BackendError:
        return True
