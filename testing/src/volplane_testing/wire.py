"""The wire between the controllers of a test cluster and its API server: it can fail, lose answers, be slow, and
remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Response, Transport
from volplane_testing.exchange import Mortal, refusal, target_of

__all__ = ["Request", "Wire", "WireFault"]


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange. resource: plural, with `/status` for the subresource. status: HTTP code, 0 = the answer was
    lost.
    """

    verb: str
    resource: str
    namespace: str
    name: str
    status: int


@dataclass(slots=True)
class WireFault:
    """What happens to the next `times` requests of this verb and resource.

    status: the code that is answered, 0 = no answer at all. after: the server has acted by then. seconds: of delay
    (beyond the caller's deadline the request never arrives); a fault with a delay and without a status only delays.
    """

    verb: str
    resource: str
    times: int
    status: int | None = None
    after: bool = False
    seconds: float = 0.0


class Wire(Mortal):
    """A `Transport` over another one. faults: those that are left to happen; requests: what was asked so far."""

    def __init__(
        self, inner: Transport, faults: list[WireFault] | None = None, requests: list[Request] | None = None
    ) -> None:
        """faults, requests: kept, so that several wires may share them."""
        super().__init__(inner)
        self.faults = [] if faults is None else faults
        self.requests = [] if requests is None else requests

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
        verb, resource, namespace, name = target_of(method, path, body)
        fault = await self._fault(verb, resource, seconds)
        if fault is not None and fault.status is not None and not fault.after:
            answer = _refused(fault.status, f"{verb} {resource}")
            if answer is None:
                await asyncio.sleep(0)
        else:
            answer = await self.inner.request(method, path, query=query, headers=headers, body=body, seconds=seconds)
            await self.unless_dead()
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
        _, resource, _, _ = target_of("GET", path, None)
        fault = await self._fault("watch", resource, quiet)
        self.requests.append(Request("watch", resource, "", "", 200 if fault is None else fault.status or 0))
        if fault is not None and fault.status is not None:
            raise ApiUnavailable(f"GET {path}: no watch was opened", status=fault.status)
        async with self.inner.stream(path, query=query, headers=headers, quiet=quiet) as lines:
            yield lines

    async def _fault(self, verb: str, resource: str, deadline: float) -> WireFault | None:
        await self.unless_dead()
        for fault in self.faults:
            if fault.times > 0 and fault.verb in (verb, "*") and fault.resource in (resource, "*"):
                fault.times -= 1
                await asyncio.sleep(min(fault.seconds, deadline))
                await self.unless_dead()
                if fault.seconds > deadline:
                    raise ApiUnavailable(f"{verb} {resource} took longer than {deadline:g} s", status=0)
                return fault
        return None


def _refused(status: int, call: str) -> Response | None:
    return refusal(status, f"{call} was made to fail") if status else None
