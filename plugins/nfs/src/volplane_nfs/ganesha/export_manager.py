"""The exports of a running NFS-Ganesha: added, removed and listed (src/support/export_mgr.c of nfs-ganesha)."""

from __future__ import annotations

import time
from typing import Any, Final

from volplane import BackendError, Unavailable, VolumeInUse
from volplane_nfs.ganesha.bus import Bus, Refused

_BUSY: Final = "another export admin operation is in progress"
_ATTEMPTS: Final = 6
_FIRST_PAUSE: Final = 0.02


class NotTaken(Exception):
    """The server refuses the file of an export: nothing is exported."""


class ExportManager:
    """Adds and removes exports of a running server. Calls may be repeated: what is done already is right."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def add(self, file: str, export_id: int, path: str) -> None:
        """Export what the file says; an export of this id and path that is there already is right.

        Raises `NotTaken`, `Unavailable`.
        """
        try:
            (text,) = self._call("AddExport", "ss", (file, f"EXPORT(Export_Id={export_id})"))
        except Refused as refused:
            if self.path_of(export_id) == path:
                return
            if "already active" in refused.text:
                raise Unavailable(
                    f"Export_Id {export_id} is another export of the server: choose another first_export_id"
                ) from refused
            raise NotTaken(
                f"NFS-Ganesha does not take the export of {path} ({refused.text.strip()}); is server_path right, on no "
                "overlayfs, and is no export above pseudo_path?"
            ) from refused
        if "Errors found" in text:
            raise NotTaken(f"NFS-Ganesha found errors in the export of {path}: {' '.join(text.split())}")

    def remove(self, export_id: int) -> None:
        """End an export; one that does not exist has ended. Raises `VolumeInUse`, `Unavailable`."""
        try:
            self._call("RemoveExport", "q", (export_id,))
        except Refused as refused:
            if "submount" in refused.text:
                raise VolumeInUse(f"Export_Id {export_id} has exports below it: {refused.text.strip()}") from refused
            if "not found" not in refused.text:
                raise BackendError(
                    f"NFS-Ganesha does not remove Export_Id {export_id}: {refused.text.strip()}"
                ) from refused

    def path_of(self, export_id: int) -> str | None:
        """Return the path of an export, None if it does not exist. Raises `Unavailable`."""
        try:
            return str(self._call("DisplayExport", "q", (export_id,))[1])
        except Refused:
            return None

    def exports(self) -> dict[int, str]:
        """Return id -> path of all exports. Raises `Unavailable`."""
        try:
            answer = self._call("ShowExports", "", ())
        except Refused as refused:
            raise Unavailable(f"NFS-Ganesha does not list its exports: {refused}") from refused
        # The number and kind of the other fields differ between versions of the server.
        return {int(entry[0]): str(entry[1]) for entry in answer[-1]}

    def close(self) -> None:
        """End the connection to the bus."""
        self._bus.close()

    def _call(self, method: str, signature: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        pause = _FIRST_PAUSE
        for _ in range(_ATTEMPTS):
            try:
                return self._bus.call(method, signature, arguments)
            except Refused as refused:
                if _BUSY not in refused.text:
                    raise
            time.sleep(pause)
            pause *= 2
        raise Unavailable("NFS-Ganesha is busy with other exports", retry_after=1.0)
