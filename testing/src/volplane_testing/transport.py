"""A transport that fails as a script says: refusals, lost answers, delays, hidden objects, the death of its process.

`FaultTransport` stands between one client and its server. What happens to each request is decided by a `FaultScript`,
which outlives the transports that use it and keeps every request.

    script = FaultScript()
    script.add(requests("delete", "persistentvolumes"), refuse(409), times=2)
    client = Client(FaultTransport(InProcessTransport(server), script))
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Request, Response, Transport

__all__ = [
    "VERBS",
    "ApiCall",
    "Ask",
    "Behaviour",
    "FaultScript",
    "FaultTransport",
    "KillableTransport",
    "RefusedLines",
    "RequestFault",
    "Target",
    "WrappedLines",
    "answer_lost",
    "delay",
    "page_of_proxy",
    "refusal",
    "refuse",
    "requests",
    "target_of",
    "unanswered",
]

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
    """Read a request; the name of an object to be created is taken from the body."""
    parts = path.strip("/").split("/")
    parts = parts[{"api": 2, "apis": 3}.get(parts[0], 0) :]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    resource, name = parts[0], parts[1] if len(parts) > 1 else ""
    verb = VERBS.get(method) or ("get" if name else "list")
    if verb == "create" and not name and body:
        name = str((json.loads(body).get("metadata") or {}).get("name", ""))
    return Target(verb, "/".join([resource, *parts[2:3]]), namespace, name)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of the API. resource: plural, with `/status` for the subresource. request: what was sent. status: HTTP
    code, 0 = there was no answer.
    """

    verb: str
    resource: str
    namespace: str
    name: str
    request: Request
    status: int = 0


Ask = Callable[[], Awaitable[Response]]
"""Sends the request to the server and returns its answer. For a watch: status 200, and the watch is opened
afterwards."""

Behaviour = Callable[[ApiCall, Ask], Awaitable[Response]]
"""What happens to a request. Raises ApiUnavailable where the caller gets no answer."""


@dataclass(slots=True, kw_only=True)
class RequestFault:
    """What happens to the next `times` requests that match, after the first `skip` of them."""

    matches: Callable[[ApiCall], bool]
    behaviour: Behaviour
    times: float = 1
    skip: int = 0


@dataclass(slots=True)
class FaultScript:
    """Faults that are left to happen, and the requests that were made, over any number of transports.

    The first fault that matches a request decides alone. latency: seconds that a request takes to the server, and its
    answer back. shows: whether lists of all namespaces and watches contain an object (its JSON); None: they show all.
    """

    faults: list[RequestFault] = field(default_factory=list)
    requests: list[ApiCall] = field(default_factory=list)
    latency: float = 0.0
    shows: Callable[[ApiCall, Mapping[str, Any]], bool] | None = None
    open_watches: int = 0

    def add(
        self, matches: Callable[[ApiCall], bool], behaviour: Behaviour, *, times: float = 1, skip: int = 0
    ) -> RequestFault:
        """Add a fault behind those that are there."""
        fault = RequestFault(matches=matches, behaviour=behaviour, times=times, skip=skip)
        self.faults.append(fault)
        return fault

    def take(self, call: ApiCall) -> Behaviour | None:
        """Return the behaviour for this call, counted as used; None: the server answers."""
        for fault in self.faults:
            if fault.times > 0 and fault.matches(call):
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault.behaviour
        return None


def requests(verb: str = "*", resource: str = "*", name: str = "*") -> Callable[[ApiCall], bool]:
    """Match requests of a verb (get, list, watch, create, patch, update, delete), a resource and a name; * = any."""

    def matches(call: ApiCall) -> bool:
        return verb in (call.verb, "*") and resource in (call.resource, "*") and name in (call.name, "*")

    return matches


def refusal(
    status: int,
    message: str,
    *,
    reason: str = "",
    headers: Mapping[str, str] | None = None,
    kind: str = "",
    name: str = "",
) -> Response:
    """Return the answer with which an API server refuses. reason: "" = the usual one of the status.

    kind, name: what the refusal is about (plural, and the object's name); a 404 without them is not about an object.
    """
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason or _REASONS.get(status, HTTPStatus(status).phrase.replace(" ", "")),
        "message": message,
        "details": {"kind": kind, "name": name},
        "code": status,
    }
    return Response(status, dict(headers or {}), json.dumps(body).encode())


def refuse(status: int, message: str = "", *, reason: str = "", after: bool = False) -> Behaviour:
    """Answer with this status. after: the server has performed the request by then."""

    async def behaviour(call: ApiCall, ask: Ask) -> Response:
        if after:
            await ask()
        told = message or f"{call.verb} {call.resource} was made to fail"
        return refusal(status, told, reason=reason, kind=call.resource.partition("/")[0], name=call.name)

    return behaviour


def page_of_proxy(status: int) -> Behaviour:
    """Answer as a proxy or load balancer that does not reach the server: with a page, which is no Status."""
    answer = Response(status, {"content-type": "text/plain"}, f"{status} {HTTPStatus(status).phrase}\n".encode())

    async def behaviour(_call: ApiCall, _ask: Ask) -> Response:
        return answer

    return behaviour


async def unanswered(call: ApiCall, _ask: Ask) -> Response:
    """Return a `Behaviour`: the request is lost on its way to the server."""
    await asyncio.sleep(0)
    raise ApiUnavailable(f"{call.request.method} {call.request.path}: the answer was lost", status=0)


async def answer_lost(call: ApiCall, ask: Ask) -> Response:
    """Return a `Behaviour`: the server performs the request, and its answer is lost."""
    await ask()
    raise ApiUnavailable(f"{call.request.method} {call.request.path}: the answer was lost", status=0)


def delay(seconds: float) -> Behaviour:
    """Send the request so much later; past the caller's deadline it is never sent."""

    async def behaviour(call: ApiCall, ask: Ask) -> Response:
        await asyncio.sleep(min(seconds, call.request.seconds))
        if seconds > call.request.seconds:
            limit = f"{call.request.seconds:g} s"
            raise ApiUnavailable(f"{call.verb} {call.resource} took longer than {limit}", status=0)
        return await ask()

    return behaviour


class KillableTransport:
    """The transport of a process that can be killed: once it is `dead`, every call waits for ever."""

    def __init__(self, inner: Transport) -> None:
        self.dead = False
        self.inner = inner

    async def close(self) -> None:
        """Close as `Transport` does."""
        await self.inner.close()

    async def unless_dead(self) -> None:
        """Return at once, or never."""
        if self.dead:
            await asyncio.get_running_loop().create_future()


class FaultTransport(KillableTransport):
    """A `Transport` over another one, with the faults of a script."""

    def __init__(self, inner: Transport, script: FaultScript | None = None) -> None:
        """script: None = one of its own."""
        super().__init__(inner)
        self.script = FaultScript() if script is None else script

    async def send(self, request: Request) -> Response:
        """Send as `Transport` does."""
        await self.unless_dead()
        call = ApiCall(*target_of(request.method, request.path, request.body), request)

        async def ask() -> Response:
            await self._travel()
            answer = await self.inner.send(request)
            await self._travel()
            return answer

        answer = await self._answer(call, ask)
        if call.verb == "list" and not call.namespace and answer.status < 300:
            return Response(answer.status, answer.headers, self._shown(call, answer.body))
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[LineStream]:
        """Open a watch as `Transport` does. A behaviour that refuses it makes it unavailable."""
        await self.unless_dead()
        call = ApiCall(*target_of("GET", request.path, None)._replace(verb="watch"), request)
        answer = await self._answer(call, _opened)
        if answer.status >= 300:
            raise ApiUnavailable(f"GET {request.path}: no watch was opened", status=answer.status)
        async with self.inner.stream(request) as lines:
            self.script.open_watches += 1
            try:
                yield _ShownLines(lines, call, self.script)
            finally:
                self.script.open_watches -= 1

    async def _answer(self, call: ApiCall, ask: Ask) -> Response:
        behaviour = self.script.take(call)
        try:
            answer = await (ask() if behaviour is None else behaviour(call, ask))
        except ApiUnavailable:
            await self.unless_dead()
            self.script.requests.append(call)
            raise
        await self.unless_dead()
        done = ApiCall(call.verb, call.resource, call.namespace, call.name, call.request, answer.status)
        self.script.requests.append(done)
        return answer

    async def _travel(self) -> None:
        if self.script.latency:
            await asyncio.sleep(self.script.latency)
        await self.unless_dead()

    def _shown(self, call: ApiCall, body: bytes) -> bytes:
        shows = self.script.shows
        if shows is None:
            return body
        listing = json.loads(body)
        listing["items"] = [item for item in listing["items"] if shows(call, item)]
        return json.dumps(listing).encode()


async def _opened() -> Response:
    return Response(200, {}, b"")


class RefusedLines:
    """A watch that was not opened: the answer in its place."""

    def __init__(self, answer: Response) -> None:
        self._answer = answer

    @property
    def status(self) -> int:
        """Of the answer."""
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the answer."""
        return self._answer.headers

    async def read(self) -> bytes:
        """Return the Status."""
        return self._answer.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._answer.body.splitlines():
            yield line


class WrappedLines:
    """A watch that is passed on; a subclass changes its lines in `__aiter__`."""

    def __init__(self, lines: LineStream) -> None:
        self._lines = lines

    @property
    def status(self) -> int:
        """Of the answer that is passed on."""
        return self._lines.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the answer that is passed on."""
        return self._lines.headers

    async def read(self) -> bytes:
        """Return the rest of the answer, as it is."""
        return await self._lines.read()


class _ShownLines(WrappedLines):
    """A watch without the events of objects that are hidden when they come."""

    def __init__(self, lines: LineStream, call: ApiCall, script: FaultScript) -> None:
        super().__init__(lines)
        self._call = call
        self._script = script

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            if (shows := self._script.shows) is not None:
                event = json.loads(line)
                if event["type"] not in {"BOOKMARK", "ERROR"} and not shows(self._call, event["object"]):
                    continue
            yield line
