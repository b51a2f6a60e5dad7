"""The export manager of NFS-Ganesha over D-Bus (src/dbus and src/support/export_mgr.c of nfs-ganesha)."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Final

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection

from volplane import BackendError, InvalidArgument, Unavailable, VolumeInUse

__all__ = ["ExportManager"]

_NAME: Final = "org.ganesha.nfsd"
_PATH: Final = "/org/ganesha/nfsd/ExportMgr"
_BUSY: Final = "another export admin operation is in progress"
_ATTEMPTS: Final = 6
_FIRST_PAUSE: Final = 0.02


class _Refused(Exception):
    """An error reply. name: without its prefix."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class ExportManager:
    """Adds and removes exports of a running server. One connection, one call at a time; it reconnects."""

    def __init__(self, bus: str, prefix: str, timeout: float = 10.0) -> None:
        """bus: address, empty = the system's. prefix: Dbus_Name_Prefix of the server."""
        self._bus = bus or "SYSTEM"
        name = f"{prefix}.{_NAME}" if prefix else _NAME
        self._address = DBusAddress(_PATH, bus_name=name, interface="org.ganesha.nfsd.exportmgr")
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: DBusConnection | None = None

    def add(self, file: str, export_id: int, path: str) -> None:
        """Export what the file says; an export of this id and path that is there already is right.

        Raises `InvalidArgument` if the server does not take the file, `Unavailable`.
        """
        try:
            (text,) = self._call("AddExport", "ss", (file, f"EXPORT(Export_Id={export_id})"))
        except _Refused as refused:
            if self.path_of(export_id) == path:
                return
            if "already active" in refused.text:
                raise Unavailable(
                    f"Export_Id {export_id} is another export of the server: choose another first_export_id"
                ) from refused
            raise InvalidArgument(
                f"NFS-Ganesha does not take the export of {path} ({refused.text.strip()}); is server_path right, on no "
                "overlayfs, and is no export above pseudo_path?"
            ) from refused
        if "Errors found" in text:
            raise InvalidArgument(f"NFS-Ganesha found errors in the export of {path}: {' '.join(text.split())}")

    def remove(self, export_id: int) -> None:
        """End an export; one that does not exist has ended. Raises `VolumeInUse`, `Unavailable`."""
        try:
            self._call("RemoveExport", "q", (export_id,))
        except _Refused as refused:
            if "submount" in refused.text:
                raise VolumeInUse(f"Export_Id {export_id} has exports below it: {refused.text.strip()}") from refused
            if "not found" not in refused.text:
                raise BackendError(
                    f"NFS-Ganesha does not remove Export_Id {export_id}: {refused.text.strip()}"
                ) from refused

    def path_of(self, export_id: int) -> str | None:
        """The path of an export, None if it does not exist. Raises `Unavailable`."""
        try:
            return str(self._call("DisplayExport", "q", (export_id,))[1])
        except _Refused:
            return None

    def exports(self) -> dict[int, str]:
        """Id -> path of all exports. Raises `Unavailable`."""
        try:
            answer = self._call("ShowExports", "", ())
        except _Refused as refused:
            raise Unavailable(f"NFS-Ganesha does not list its exports: {refused}") from refused
        # The number and kind of the other fields differ between versions of the server.
        return {int(entry[0]): str(entry[1]) for entry in answer[-1]}

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, method: str, signature: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        pause = _FIRST_PAUSE
        for attempt in range(_ATTEMPTS):
            try:
                return self._once(method, signature, arguments)
            except _Refused as refused:
                if _BUSY not in refused.text or attempt == _ATTEMPTS - 1:
                    raise
            time.sleep(pause)
            pause *= 2
        raise Unavailable("NFS-Ganesha is busy with other exports", retry_after=1.0)

    def _once(self, method: str, signature: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        message = new_method_call(self._address, method, signature, arguments)
        with self._lock:
            try:
                reply = self._sent(message)
            except (OSError, EOFError, ValueError, KeyError, TimeoutError) as error:
                self._drop()
                raise Unavailable(
                    f"the D-Bus of NFS-Ganesha ({self._bus}) does not answer: {error or type(error).__name__}; check "
                    "the option bus, and that the server runs"
                ) from error
        if reply.header.message_type is MessageType.error:
            name = str(reply.header.fields.get(HeaderFields.error_name, "")).rpartition(".")[2]
            text = str(reply.body[0]) if reply.body else ""
            if name in {"ServiceUnknown", "NoReply", "NameHasNoOwner", "Disconnected", "AccessDenied"}:
                raise Unavailable(f"NFS-Ganesha is not on the D-Bus {self._bus}: {text}")
            raise _Refused(name, text)
        body: tuple[Any, ...] = reply.body
        return body

    def _sent(self, message: Message) -> Message:
        fresh = self._connection is None
        try:
            return self._connected().send_and_get_reply(message, timeout=self._timeout)
        except (OSError, EOFError):
            if fresh:
                raise
            # The bus was restarted: calls of the export manager may be repeated.
            self._drop()
            return self._connected().send_and_get_reply(message, timeout=self._timeout)

    def _connected(self) -> DBusConnection:
        if self._connection is None:
            self._connection = open_dbus_connection(self._bus)
            weakref.finalize(self, self._connection.close).atexit = False
        return self._connection
