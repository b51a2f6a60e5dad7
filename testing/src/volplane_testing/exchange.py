"""What every wire that can be made to fail shares: reading requests, answering in the server's place, and dying."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from volplane.kube.transport import Response, Transport

__all__ = ["VERBS", "Mortal", "Target", "refusal", "target_of"]

VERBS: Final[Mapping[str, str]] = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
"""HTTP method -> verb; GET is `get` or `list`."""
_REASONS: Final = {
    409: "Conflict",
    404: "NotFound",
    403: "Forbidden",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Target(NamedTuple):
    """What a request is about. resource: plural, with `/status` for the subresource."""

    verb: str
    resource: str
    namespace: str
    name: str


def target_of(method: str, path: str, body: bytes | None) -> Target:
    """Read a request; the name of what is to be created is in its body."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    resource, name = parts[0], parts[1] if len(parts) > 1 else ""
    verb = VERBS.get(method) or ("get" if name else "list")
    if verb == "create" and not name and body:
        name = str((json.loads(body).get("metadata") or {}).get("name", ""))
    return Target(verb, "/".join([resource, *parts[2:3]]), namespace, name)


def refusal(status: int, message: str, *, reason: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """The answer with which an API server refuses. reason: "" = what usually goes with the status."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason or _REASONS.get(status, HTTPStatus(status).phrase.replace(" ", "")),
        "message": message,
        "code": status,
    }
    return Response(status, dict(headers or {}), json.dumps(body).encode())


class Mortal:
    """A wire of a process that can be killed: once it is `dead`, nothing passes any more, and nobody is told."""

    def __init__(self, inner: Transport) -> None:
        self.dead = False
        self.inner = inner

    async def close(self) -> None:
        """As of `Transport`."""
        await self.inner.close()

    async def unless_dead(self) -> None:
        """Go on, or wait for ever."""
        if self.dead:
            await asyncio.get_running_loop().create_future()
