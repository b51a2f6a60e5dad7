"""The server: gRPC on a unix socket that belongs to one process at a time.

The library takes over the socket of another living server without a word, and removes it when that one stops. So a lock
on a file beside it is held first.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from volplane._messages import why_unusable
from volplane.csi.codes import CsiError
from volplane.csi.contract import PACKAGE, SERVICES
from volplane.errors import ConfigurationError

log = logging.getLogger(__name__)

LONGEST_PATH: Final = 106
"""Bytes of the path of a socket: one less than the kernel takes, for the name under which it is made."""
_OPTIONS: Final = (
    # Larger messages would be answered RESOURCE_EXHAUSTED, which sidecars take for final; `dispatch` refuses them.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Two servers on one path would both think that they serve it.
    ("grpc.so_reuseport", 0),
)


CSI: Final = {f"{PACKAGE}.{service}": methods for service, methods in SERVICES.items()}


class Methods(Protocol):
    """What is served."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods; callers get UNIMPLEMENTED for any other."""
        ...

    async def call(self, method: str, content: bytes, seconds: float, /) -> bytes:
        """Return the response of a method. Raises CsiError, and nothing else."""
        ...


def socket_path(endpoint: str) -> Path:
    """Return the path in an endpoint such as unix:///csi/csi.sock. Raises ConfigurationError."""
    scheme, colon, rest = endpoint.partition(":")
    path = Path(rest.removeprefix("//")) if colon and scheme == "unix" else Path(endpoint)
    if (colon and scheme != "unix") or not path.is_absolute():
        raise ConfigurationError(
            f"endpoint is {endpoint!r}, expected unix:///PATH: whoever reaches the socket may delete volumes, so there "
            "is none over the network"
        )
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigurationError(f"endpoint {path} has more than {LONGEST_PATH} bytes, which no socket can have")
    return path


@contextmanager
def owned(path: Path) -> Iterator[None]:
    """Hold the lock of a socket's path. A socket that a dead process left there is replaced.

    Raises ConfigurationError if another process serves there, or something else is in the way.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{lock} {why_unusable(error)}; the directory must exist and be writable") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another process serves {path}: it holds {lock}") from None
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            mode = 0
        if mode and not stat.S_ISSOCK(mode):
            raise ConfigurationError(f"{path} is no socket; remove it, or choose another endpoint")
        if mode and _answers(path):
            raise ConfigurationError(f"another program listens on {path}; stop it, or choose another endpoint")
        yield
    finally:
        os.close(fd)


def _answers(path: Path) -> bool:
    """Tell whether a process listens there, such as another driver, which knows nothing of the lock."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        # What is too busy to take a connection lives, too.
        return caller.connect_ex(str(path)) in (0, errno.EAGAIN)


class Server:
    """Serves methods on a path of which the lock is held.

    The library removes the path that it has listened on, whoever is there by then. So it gets another name, with a dot
    since kubelets would take it for a plugin, and the socket is moved into its place.
    """

    def __init__(
        self, dispatch: Methods, path: Path, services: Mapping[str, Sequence[str]] = CSI, *, stays: bool = False
    ) -> None:
        """services: their methods. stays: the socket is not removed at the stop."""
        self._path = path
        self._stays = stays
        self._hidden = path.with_name(f".{path.name}")
        self._mark: tuple[int, int] | None = None
        """Device and inode of the socket."""
        self._server = grpc.aio.server(options=_OPTIONS)
        for service, methods in services.items():
            served = {
                method: grpc.unary_unary_rpc_method_handler(_behaviour(dispatch, method))
                for method in methods
                if method in dispatch.methods
            }
            if served:
                handler = grpc.method_handlers_generic_handler(service, served)
                self._server.add_generic_rpc_handlers((handler,))

    async def start(self) -> None:
        """Listen. The socket is for the user of this process alone, whatever the rights of its directory."""
        before = os.umask(0o177)
        try:
            self._hidden.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{self._hidden}")
            self._mark = _mark(self._hidden)
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"{self._path} cannot be listened on: {error}") from None
        finally:
            os.umask(before)
        await self._server.start()
        self._hidden.rename(self._path)

    async def stop(self, grace: float) -> None:
        """Take no more calls, and wait for those that run."""
        if not self._stays and self._mark is not None and _mark(self._path) == self._mark:
            self._path.unlink()
        await self._server.stop(grace)


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _behaviour(dispatch: Methods, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def behave(content: bytes, context: Any) -> bytes:
        remaining = context.time_remaining()
        try:
            return await dispatch.call(method, content, float("inf") if remaining is None else remaining)
        except CsiError as error:
            code, details = getattr(grpc.StatusCode, error.code), error.message
        await context.abort(code, details)
        raise AssertionError  # `abort` raises

    return behave
