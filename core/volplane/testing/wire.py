"""The wire between the controllers of a test cluster and its API server: it can fail, lose answers, be slow, and remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Response, Transport

__all__ = ["VERBS", "Request", "Wire", "WireFault"]

VERBS: Final[Mapping[str, str]] = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
"""HTTP method -> verb; GET is `get`, `list` or `watch`."""
_REASONS: Final = {
    409: "Conflict",
    404: "NotFound",
    403: "Forbidden",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange. resource: plural, with `/status` for the subresource. status: HTTP code, 0 = the answer was lost."""

    verb: str
    resource: str
    namespace: str
    name: str
    status: int


@dataclass(slots=True)
class WireFault:
    """What happens to the next `times` requests of this verb and resource.

    status: the code that is answered, 0 = no answer at all. after: the server has acted by then. seconds: of delay (beyond
    the caller's deadline the request never arrives); a fault with a delay and without a status only delays.
    """

    verb: str
    resource: str
    times: int
    status: int | None = None
    after: bool = False
    seconds: float = 0.0


@dataclass(slots=True)
class Wire:
    """A `Transport` over another one. Dead: nothing passes any more, as when the process was killed."""

    inner: Transport
    faults: list[WireFault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    dead: bool = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
    ) -> Response:
        """As of `Transport`."""
        verb, resource, namespace, name = _read(method, path, body)
        fault = await self._fault(verb, resource, seconds)
        if fault is not None and fault.status is not None and not fault.after:
            answer = _refused(fault.status, f"{verb} {resource}")
            if answer is None:
                await asyncio.sleep(0)
        else:
            answer = await self.inner.request(method, path, query=query, headers=headers, body=body, seconds=seconds)
            await self._unless_dead()
            if fault is not None and fault.status is not None:
                answer = _refused(fault.status, f"{verb} {resource}")
        self.requests.append(Request(verb, resource, namespace, name, 0 if answer is None else answer.status))
        if answer is None:
            raise ApiUnavailable(f"{method} {path}: the answer was lost", status=0)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        """As of `Transport`."""
        _, resource, _, _ = _read("GET", path, None)
        fault = await self._fault("watch", resource, quiet)
        self.requests.append(Request("watch", resource, "", "", 200 if fault is None else fault.status or 0))
        if fault is not None and fault.status is not None:
            raise ApiUnavailable(f"GET {path}: no watch was opened", status=fault.status)
        async with self.inner.stream(path, query=query, headers=headers, quiet=quiet) as lines:
            yield lines

    async def close(self) -> None:
        """As of `Transport`."""
        await self.inner.close()

    async def _fault(self, verb: str, resource: str, deadline: float) -> WireFault | None:
        await self._unless_dead()
        for fault in self.faults:
            if fault.times > 0 and fault.verb in (verb, "*") and fault.resource in (resource, "*"):
                fault.times -= 1
                await asyncio.sleep(min(fault.seconds, deadline))
                await self._unless_dead()
                if fault.seconds > deadline:
                    raise ApiUnavailable(f"{verb} {resource} took longer than {deadline:g} s", status=0)
                return fault
        return None

    async def _unless_dead(self) -> None:
        if self.dead:
            await asyncio.get_running_loop().create_future()


def _read(method: str, path: str, body: bytes | None) -> tuple[str, str, str, str]:
    """(verb, resource, namespace, name)."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    resource, name = parts[0], parts[1] if len(parts) > 1 else ""
    verb = VERBS.get(method) or ("get" if name else "list")
    if verb == "create" and not name and body:
        name = str((json.loads(body).get("metadata") or {}).get("name", ""))
    return verb, "/".join([resource, *parts[2:3]]), namespace, name


def _refused(status: int, call: str) -> Response | None:
    if status == 0:
        return None
    reason = _REASONS.get(status, HTTPStatus(status).phrase.replace(" ", ""))
    message = f"{call} was made to fail"
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": status,
    }
    return Response(status, {}, json.dumps(body).encode())
