"""The seams of the package: bytes to and from an API server, and where its calls are counted.

A transport knows addresses, TLS, credentials and deadlines. It does not know what a status code means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the server. path is absolute and not yet percent-encoded."""

    method: str = "GET"
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    seconds: float
    urgent: bool = False
    """Whether it must not wait for other requests: it goes over connections that only such requests use."""


class Response(msgspec.Struct, frozen=True):
    """What the server answered. Headers are found under their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class LineStream(Protocol):
    """An open answer that arrives line by line (a watch, the log of a pod)."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Found under their names in lower case."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the lines until the server ends the answer. Raises ApiUnavailable if it breaks off or falls silent."""

    async def read(self) -> bytes:
        """Return the rest of the answer as a whole: the Status of a refusal."""


class Transport(Protocol):
    """Carries requests to one API server.

    Every method raises ApiUnavailable if no answer came: the connection failed, or the time was over. A write may then
    have happened or not.
    """

    async def send(self, request: Request) -> Response:
        """Make one exchange within the request's `seconds`."""

    def stream(self, request: Request) -> AbstractAsyncContextManager[LineStream]:
        """Make a GET whose answer is read as it comes. After `seconds` without a byte the connection is dead."""

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
