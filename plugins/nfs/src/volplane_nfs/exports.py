"""The export of a volume on NFS-Ganesha: made after the directory, ended before it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from volplane import Unavailable
from volplane_nfs.ganesha.bus import OpenBus
from volplane_nfs.ganesha.export_block import file_of, remove_file, server_path, write_file, written_path
from volplane_nfs.ganesha.export_ids import allocate, release
from volplane_nfs.ganesha.export_manager import ExportManager, NotTaken
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import read_marker

_AGAIN = 0.2
"""Seconds until a call is repeated that met a deletion."""
_MENDED = 15.0
"""Seconds until an export is asked for again that a person has to make possible."""


class NoExports:
    """Mode subdirectory: a volume is a directory, and nothing else."""

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

    def probe(self) -> None:
        """Nothing to check."""

    def prepare(self, share: Share, handles: Handles, marker: VolumeMarker) -> VolumeMarker:
        return marker

    def ensure(self, share: Share, handles: Handles, marker: VolumeMarker) -> None:
        """Nothing to do."""

    def remove(self, marker: VolumeMarker) -> None:
        """Nothing to do."""

    def release(self, share: Share, handles: Handles, marker: VolumeMarker) -> None:
        """Nothing to do."""

    def limit(self, marker: VolumeMarker) -> int | None:
        """Return the server's own file system cannot be seen."""
        return None


class Exports:
    """Mode export. The order of a deletion: the export ends, then its file goes, then the directory, then the id."""

    def __init__(self, settings: Settings, open_bus: OpenBus) -> None:
        self._settings = settings
        self._manager = ExportManager(open_bus(settings.bus, settings.bus_prefix))
        self._known: dict[bytes, VolumeMarker] = {}
        """Volumes that this process exports, by the names of their markers."""
        self.complete = False
        """Whether the exports of all volumes are known."""

    def start(self) -> None:
        """Check the folder; raises `Unavailable`. All volumes have to be looked at then."""
        self.complete = False
        self._check_folder()

    def _check_folder(self) -> None:
        folder = Path(self._settings.config_directory)
        if not folder.is_dir():
            raise Unavailable(
                f"config_directory {folder} is no directory of this host: mode export runs beside NFS-Ganesha, and its "
                "configuration includes the folder by %dir"
            )

    def stop(self) -> None:
        self._manager.close()

    def probe(self) -> None:
        """Check the folder, and that the server answers on its D-Bus; raises `Unavailable`."""
        self._check_folder()
        self._manager.exports()

    def lost(self) -> list[bytes]:
        """Return the names of markers of volumes that were exported, and are no more. Raises `Unavailable`."""
        return [marker.file for marker in self._missing(list(self._known.values()))]

    def _missing(self, markers: Iterable[VolumeMarker]) -> list[VolumeMarker]:
        """Return the volumes that are not exported now, or would not be after a restart of the server."""
        self._check_folder()
        exports = self._manager.exports()
        return [
            each
            for each in markers
            if each.export_id is not None and not self._is_whole(each, exports.get(each.export_id))
        ]

    def _is_whole(self, marker: VolumeMarker, path: str | None) -> bool:
        """Return whether a volume is exported and has its file. path: of the server's export with its Export_Id."""
        return path == server_path(self._settings, marker) == written_path(self._settings, marker)

    def learn(self, markers: Iterable[VolumeMarker]) -> list[VolumeMarker]:
        """Take note of volumes that have to be exported; those that are not are returned. Raises `Unavailable`."""
        wanted = [marker for marker in markers if marker.export_id is not None]
        self._known.update({each.file: each for each in wanted})
        return self._missing(wanted)

    def prepare(self, share: Share, handles: Handles, marker: VolumeMarker) -> VolumeMarker:
        """Give a volume that is about to be made its Export_Id."""
        settings = self._settings
        export_id = allocate(
            share,
            handles,
            _owner(marker),
            first=settings.first_export_id,
            last=settings.last_export_id,
            quarantine=settings.export_id_quarantine,
            used=lambda number: file_of(settings, number).exists() or self._manager.path_of(number) is not None,
        )
        return replace(marker, export_id=export_id)

    def ensure(self, share: Share, handles: Handles, marker: VolumeMarker) -> None:
        """Export a volume whose directory is there. Raises `Unavailable`.

        If a deletion began meanwhile, the export ends again: the deletion may have looked for it before it was there.
        """
        if marker.export_id is None:
            raise Unavailable(f"{marker.name} was made in mode subdirectory: it cannot be exported")
        self._known[marker.file] = marker
        path, active = server_path(self._settings, marker), self._manager.path_of(marker.export_id)
        if active not in {None, path}:
            # The file is left as it is: it may be that of a living volume, which the next start of the server reads.
            raise Unavailable(
                f"Export_Id {marker.export_id} is {active} on the server, not {path}: is server_path right, and has "
                "each driver of the server its own range from first_export_id to last_export_id?"
            )
        file, take_back = write_file(self._settings, marker, handles.share_id, over=active == path)
        try:
            self._manager.add(str(file), marker.export_id, path)
        except NotTaken as error:
            take_back()
            # No `InvalidArgument`, which would say that nothing is made: marker and directory are.
            raise Unavailable(str(error), retry_after=_MENDED) from error
        if read_marker(share, handles.volumes, marker.file) is None:
            self.remove(marker)
            raise Unavailable(f"{marker.name} is being deleted", retry_after=_AGAIN)

    def _is_exported(self, export_id: int, marker: VolumeMarker) -> bool:
        return self._manager.path_of(export_id) == server_path(self._settings, marker)

    def remove(self, marker: VolumeMarker) -> None:
        """End the export, before the directory leaves its place."""
        self._known.pop(marker.file, None)
        if marker.export_id is None:
            return
        if self._is_exported(marker.export_id, marker):
            self._manager.remove(marker.export_id)
        remove_file(self._settings, marker)

    def release(self, share: Share, handles: Handles, marker: VolumeMarker) -> None:
        """Free the id of a volume whose directory is gone."""
        if marker.export_id is not None:
            release(share, handles, marker.export_id, _owner(marker))

    def limit(self, marker: VolumeMarker) -> int | None:
        """Return the bytes that the volume's directory can hold at most, as the file system of this host says; None if
        nothing limits it. NFS-Ganesha itself tells the space of the whole file system alone. Raises `Unavailable`.
        """
        try:
            whole, own = _sizes(self._settings.server_path, marker.path.split("/"))
        except OSError as error:
            raise Unavailable(
                f"cannot look at {server_path(self._settings, marker)} on this host: {error.strerror}"
            ) from error
        return own if own < whole else None


def _sizes(top: str, names: list[str]) -> tuple[int, int]:
    """Return the bytes of the file system of a directory, and of one below it. No link is followed. Raises OSError."""
    descriptors = [os.open(top, os.O_PATH | os.O_DIRECTORY)]
    try:
        for name in names:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptors.append(os.open(name, flags, dir_fd=descriptors[-1]))
        first, last = (os.fstatvfs(descriptor) for descriptor in (descriptors[0], descriptors[-1]))
        return first.f_blocks * first.f_frsize, last.f_blocks * last.f_frsize
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _owner(marker: VolumeMarker) -> str:
    return marker.key.decode()
