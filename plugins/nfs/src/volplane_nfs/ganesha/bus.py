"""The D-Bus of NFS-Ganesha: calls of its export manager (src/dbus of nfs-ganesha)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection

from volplane import Unavailable

_NAME: Final = "org.ganesha.nfsd"
_PATH: Final = "/org/ganesha/nfsd/ExportMgr"


class Refused(Exception):
    """An error reply of the server. name: without its prefix."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class Bus(Protocol):
    """What reaches the export manager of a server."""

    def call(self, method: str, signature: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values of the reply. signature: of the arguments. Raises Refused, `Unavailable`."""

    def close(self) -> None:
        """End the connection. A later call opens it again."""


OpenBus = Callable[[str, str], Bus]
"""From the address of the bus, empty = the system's, and Dbus_Name_Prefix of the server."""


class DBus:
    """One connection, one call at a time; it reconnects."""

    def __init__(self, bus: str, prefix: str, timeout: float = 10.0) -> None:
        """bus: address, empty = the system's. prefix: Dbus_Name_Prefix of the server."""
        self._bus = bus or "SYSTEM"
        name = f"{prefix}.{_NAME}" if prefix else _NAME
        self._address = DBusAddress(_PATH, bus_name=name, interface="org.ganesha.nfsd.exportmgr")
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: DBusConnection | None = None

    def call(self, method: str, signature: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        message = new_method_call(self._address, method, signature, arguments)
        with self._lock:
            try:
                reply = self._sent(message)
            except (OSError, EOFError, ValueError, KeyError, TimeoutError) as error:
                self._drop()
                raise Unavailable(
                    f"the D-Bus of NFS-Ganesha ({self._bus}) does not answer: {str(error) or type(error).__name__}; "
                    "check the option bus, and that the server runs"
                ) from error
        if reply.header.message_type is MessageType.error:
            name = str(reply.header.fields.get(HeaderFields.error_name, "")).rpartition(".")[2]
            text = str(reply.body[0]) if reply.body else ""
            if name in {"ServiceUnknown", "NoReply", "NameHasNoOwner", "Disconnected", "AccessDenied"}:
                raise Unavailable(f"NFS-Ganesha is not on the D-Bus {self._bus}: {text}")
            raise Refused(name, text)
        body: tuple[Any, ...] = reply.body
        return body

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
