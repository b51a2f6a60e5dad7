"""A transport that can be told to fail, to crash its user, or to hide objects, between a controller and the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Response, Transport
from volplane_testing.transport import KillableTransport, refusal, target_of


@dataclass(frozen=True)
class Call:
    """One request, in the words of the scenarios: `update persistentvolumes/status`."""

    verb: str
    resource: str
    namespace: str
    name: str
    body: Any = None
    status: int = 0

    @property
    def what(self) -> str:
        return f"{self.verb} {self.resource}"


def call_of(method: str, path: str, body: bytes | None) -> Call:
    target = target_of(method, path, body)
    verb = "update" if target.verb == "patch" else target.verb
    return Call(verb, target.resource, target.namespace, target.name, json.loads(body) if body else None)


@dataclass
class Fault:
    """What happens to the next `times` calls that match.

    before: answer instead of the server. after: called once the server has acted; the answer is lost if it returns
    True.
    """

    matches: Callable[[Call], bool]
    times: int = 1
    before: Callable[[Call], Response] | None = None
    after: Callable[[Call], bool] | None = None
    skip: int = 0


def refusing(status: int, reason: str, message: str) -> Callable[[Call], Response]:
    return lambda _call: refusal(status, message, reason=reason)


@dataclass
class Rules:
    """Outlives the processes that are killed: faults left to happen, what was called, what is hidden."""

    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    hidden: set[tuple[str, str]] = field(default_factory=set)
    """(resource, namespace/name) of objects that lists and watches do not show."""
    absent: set[tuple[str, str]] = field(default_factory=set)
    """The same for reads of one object."""

    seconds: float = 0.0
    """How long the way to the server takes, and the way back."""

    def take(self, call: Call) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.matches(call):
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def reads(self) -> list[str]:
        """Live reads and lists of one namespace so far; not the lists that fill caches."""
        reads = (c for c in self.calls if c.resource != "events")
        return [c.what for c in reads if c.verb == "get" or (c.verb == "list" and c.namespace)]

    def conflicts(self) -> int:
        return sum(call.status == 409 for call in self.calls)

    def writes(self, *resources: str) -> list[str]:
        """What was written so far, in order."""
        verbs = {"create", "update", "delete"}
        return [
            c.what
            for c in self.calls
            if c.verb in verbs and c.status < 300 and (not resources or c.resource in resources)
        ]


class UnreliableTransport(KillableTransport):
    """What one controller process sees of the server."""

    def __init__(self, inner: Transport, rules: Rules) -> None:
        super().__init__(inner)
        self._rules = rules

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
        await self.unless_dead()
        call = call_of(method, path, body)
        if self._rules.seconds:
            await asyncio.sleep(self._rules.seconds)
            await self.unless_dead()
        fault = self._rules.take(call)
        if fault is not None and fault.before is not None:
            await asyncio.sleep(0)
            return self._note(call, fault.before(call))
        if ("get", call.verb) == (call.verb, "get") and self._is_absent(call):
            return self._note(call, refusal(404, f"{call.name} not found"))
        answer = await self.inner.request(method, path, query=query, headers=headers, body=body, seconds=seconds)
        if self._rules.seconds:
            await asyncio.sleep(self._rules.seconds)
        await self.unless_dead()
        answer = self._note(call, answer)
        if fault is not None and fault.after is not None and answer.status < 300 and fault.after(call):
            await self.unless_dead()
            raise ApiUnavailable("the answer was lost", status=0)
        return (
            Response(answer.status, answer.headers, self._shown(call, answer.body)) if call.verb == "list" else answer
        )

    def _note(self, call: Call, answer: Response) -> Response:
        told = Call(call.verb, call.resource, call.namespace, call.name, call.body, answer.status)
        self._rules.calls.append(told)
        return answer

    def _is_absent(self, call: Call) -> bool:
        return (call.resource, f"{call.namespace}/{call.name}".lstrip("/")) in self._rules.absent

    def _shown(self, call: Call, body: bytes) -> bytes:
        if not self._rules.hidden or call.namespace:
            return body  # a live list shows everything, only what fills caches does not
        listing = json.loads(body)
        listing["items"] = [item for item in listing["items"] if not self._hides(call.resource, item)]
        return json.dumps(listing).encode()

    def _hides(self, resource: str, item: Mapping[str, Any]) -> bool:
        meta = item["metadata"]
        key = f"{meta.get('namespace', '')}/{meta['name']}".lstrip("/")
        return (resource, key) in self._rules.hidden or (resource, "*") in self._rules.hidden

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str], quiet: float
    ) -> AsyncIterator[LineStream]:
        await self.unless_dead()
        async with self.inner.stream(path, query=query, headers=headers, quiet=quiet) as lines:
            yield _Filtered(lines, path.rpartition("/")[2], self._hides) if self._rules.hidden else lines


class _Filtered:
    def __init__(self, lines: LineStream, resource: str, hides: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self._lines = lines
        self._resource = resource
        self._hides = hides

    @property
    def status(self) -> int:
        return self._lines.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._lines.headers

    async def read(self) -> bytes:
        return await self._lines.read()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            event = json.loads(line)
            if event["type"] in {"BOOKMARK", "ERROR"} or not self._hides(self._resource, event["object"]):
                yield line
