"""The side of a caller: one connection to a CSI driver, for threads that wait for its answers.

What a driver sends is read with care: it is another's program.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

import grpc

from volplane.cloud.calls import CloudError
from volplane.csi.wire import DecodeError, message, method_path

__all__ = ["CallError", "Channel", "SocketChannel", "ask"]

LARGEST_ANSWER: Final = 64 << 20
"""Bytes. A list of 200,000 volumes has as many."""
_OPTIONS: Final = (
    # Servers in other languages refuse the path of a socket in the place of a host.
    ("grpc.default_authority", "localhost"),
    # A driver that was started again is called again within a second, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.max_send_message_length", -1),
    # Whoever calls decides whether a call is made again, and must know of each.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_NOT_SENT: Final = "failed to connect to all addresses"
"""Begins the text of an error that is proof that no call was sent. Of one that was cut off it says something else."""
_TOO_LARGE: Final = "larger than max"
"""In the text of an answer that was not read: the call has taken effect all the same."""


class CallError(CloudError):
    """A call without a result. Its text is the driver's, or the library's."""

    def __init__(self, method: str, code: str, message: str, *, sent: bool = True) -> None:
        """code: of gRPC. sent: whether the driver may have got the call."""
        super().__init__(method, code, message)
        self.sent = sent


class Channel(Protocol):
    """How calls come to a driver."""

    def call(self, method: str, content: bytes, seconds: float, /) -> bytes:
        """Return the answer. Raises CallError, at the latest after `seconds`."""
        ...

    def close(self) -> None:
        """End the connection. Calls may follow: they open another one."""
        ...


class SocketChannel:
    """A connection to a unix socket, opened by the first call. Safe for threads."""

    def __init__(self, path: Path) -> None:
        self._address = f"unix:{os.fspath(path)}"
        self._lock = Lock()
        self._channel: Any = None
        self._methods: dict[str, Callable[..., bytes]] = {}

    def call(self, method: str, content: bytes, seconds: float) -> bytes:
        try:
            return self._method(method)(content, timeout=seconds)
        except grpc.RpcError as error:
            code, text = error.code(), error.details() or ""
        except ValueError:
            # It was closed by another thread.
            raise CallError(method, "UNAVAILABLE", "the connection was closed", sent=True) from None
        if code is grpc.StatusCode.UNAVAILABLE and text.startswith(_NOT_SENT):
            raise CallError(method, code.name, "the driver does not listen on its socket", sent=False) from None
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in text:
            raise CallError(method, "UNKNOWN", f"its answer is larger than {LARGEST_ANSWER} bytes") from None
        raise CallError(method, code.name, text) from None

    def _method(self, method: str) -> Callable[..., bytes]:
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._address, options=_OPTIONS)
            if method not in self._methods:
                self._methods[method] = self._channel.unary_unary(method_path(method))
            return self._methods[method]

    def close(self) -> None:
        with self._lock:
            channel, self._channel, self._methods = self._channel, None, {}
        if channel is not None:
            channel.close()


def ask(channel: Channel, method: str, request: Any, seconds: float) -> Any:
    """Return the response to a message. Raises CallError, also for an answer that is none."""
    content = request if isinstance(request, bytes) else request.SerializeToString(deterministic=True)
    answer = channel.call(method, content, seconds)
    try:
        return message(f"{method}Response").FromString(answer)
    except DecodeError:
        raise CallError(method, "UNKNOWN", f"its answer is no {method}Response") from None
