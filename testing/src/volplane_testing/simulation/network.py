"""The transport of one simulated process: slow, lossy, and cut when the process dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import format_datetime
from functools import partial
from typing import Final

import msgspec

from volplane.errors import ApiUnavailable
from volplane.kube.transport import LineStream, Request, Response
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.simulation.run_context import RunContext
from volplane_testing.simulation.safety import READ
from volplane_testing.simulation.server_faults import ServerFaults
from volplane_testing.transport import KillableTransport, RefusedLines, WrappedLines, refusal

__all__ = ["Network", "NetworkFaults"]

_BEFORE: Final = ("429", "500", "503", "timeout")
_AFTER: Final = ("lost answer", "half an answer", "500 after")
_ON_WRITES: Final = ("conflict", "late")
_VOLUME: Final = "/api/v1/persistentvolumes/"
_CLAIM: Final = "/api/v1/namespaces/default/persistentvolumeclaims/"
_CRASHES: Final = ("crash before", "crash after")
_WATCH: Final = ("stall", "duplicate", "break", "end", "gone")
LONGEST_STALL: Final = 60.0
LONGEST_CONNECT: Final = 5.0
"""Seconds after which somebody who is cut off notices, at most."""
LONGEST_DELAY: Final = 45.0
"""Seconds after which an abandoned request may still take effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """How often: requests and watch events as shares of all, crash of the process as a share of requests.

    lag: seconds by which some watches are behind, at most. slow: share of requests that take seconds.
    """

    requests: float = 0.0
    watches: float = 0.0
    crashes: float = 0.0
    lag: float = 0.0
    slow: float = 0.02


class _Call(msgspec.Struct, frozen=True):
    name: str
    request: Request

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def creates_a_pod(self) -> bool:
        return self.method == "POST" and self.path.endswith("/pods")


class Network(KillableTransport):
    """A `Transport` of one process. Once it is `dead`, what is on the wire may still arrive."""

    def __init__(
        self,
        who: str,
        run_context: RunContext,
        faults: NetworkFaults,
        *,
        server: ServerFaults,
        crash: Callable[[str], object],
    ) -> None:
        """crash: kills the process, for the reason given; called from within one of its tasks."""
        super().__init__(InProcessTransport(run_context.view.server))
        self.held_until: dict[str, float] = {}
        """Plural, or "" for all -> loop time before which no watch event of this kind reaches it."""
        self.apart_until = 0.0
        """Loop time before which nothing passes between the process and the API server."""
        self._who = who
        self.run_context = run_context
        self._view = run_context.view
        self._chance = run_context.chance
        self._trace = run_context.trace
        self._faults = faults
        self._crash = crash
        self._counts: Counter[str] = Counter()
        self._server = server
        self.credentials = server.credentials()
        """Of this process, which has to keep them."""

    @property
    def apart(self) -> bool:
        """Whether the process is cut off from the API server."""
        return asyncio.get_running_loop().time() < self.apart_until and not self._chance.calm.is_set()

    async def _unless_apart(self, what: str, seconds: float) -> None:
        """Raise ApiUnavailable, after so many seconds, if nothing gets through."""
        if self.apart:
            await asyncio.sleep(seconds)
            await self.unless_dead()
            raise ApiUnavailable(f"no connection for {what}", status=0)

    # --- requests -----------------------------------------------------------------------------------------------

    async def send(self, request: Request) -> Response:
        await self.unless_dead()
        method, path, seconds = request.method, request.path, request.seconds
        call = _Call(self._name(method, path), request)
        if call.writes:
            self.run_context.hook_rules.writes(method, path)
        draw, server = self._chance.number(call.name), self._server.restores
        there, back = self._delays(call, draw)
        fault = self._fault(call)
        await self._travel(call, there)
        await self._unless_apart(call.name, min(seconds, LONGEST_CONNECT * draw))
        if fault in _BEFORE or fault == "conflict":
            return await self._refused(call, fault, min(seconds, 30.0))
        if fault == "late":
            self._send_later(call, 0.05 + draw * 1e6 % 1 * LONGEST_DELAY)
            raise ApiUnavailable(f"{method} {path} had no answer in time", status=0)
        if fault == "crash before":
            self._crash(f"before {call.name}")
            await self.unless_dead()
        if (page := self._server.page(call.name)) is not None:
            return page
        answer = await self._server.answered(self.credentials, partial(self._arrive, call))
        if method in {"GET", "DELETE"} and path.startswith(_VOLUME):
            READ.set({**READ.get(), path.removeprefix(_VOLUME): asyncio.get_running_loop().time()})
        if method == "GET" and path.startswith(_CLAIM):
            now = asyncio.get_running_loop().time()
            self.run_context.hook_rules.claim_reads[self._who, path.removeprefix(_CLAIM)] = now
        if fault == "crash after":
            self._crash(f"after {call.name}")
        await self.unless_dead()
        await asyncio.sleep(back)
        await self.unless_dead()
        await self._unless_apart(f"the answer to {call.name}", 0.0)
        if server != self._server.restores:
            raise ApiUnavailable(f"the server went away before it answered {method} {path}", status=0)
        return self._answered(call, fault, answer)

    async def _arrive(self, call: _Call) -> Response:
        return self._deliver(call)

    def _deliver(self, call: _Call) -> Response:
        sent = call.request
        answer = self._view.send(
            self._who, sent.method, sent.path, sent.body or b"", query=sent.query, headers=sent.headers
        )
        date = format_datetime(clock.now(), usegmt=True)
        return Response(answer.status, {"date": date, **_lower(answer.headers)}, answer.body)

    def _name(self, method: str, path: str) -> str:
        """Return a name for this call that does not depend on other objects: process, request, and how often before."""
        parts = path.split("/")
        spelled = "/".join(self._view.spell(part) for part in parts[3:])
        name = f"{self._who} {method} {spelled}"
        self._counts[name] += 1
        return f"{name} {self._counts[name]}"

    def _delays(self, call: _Call, draw: float) -> tuple[float, float]:
        there, back = draw * 1e3 % 1, draw * 1e5 % 1
        # There are few deletions, and writes that overlap one are the most important case.
        slow = self._faults.slow * (4.0 if call.method == "DELETE" else 1.0)
        if draw * 1e7 % 1 < slow and not self._chance.calm.is_set():
            return 0.001 + 2.0 * there, 0.001 + 2.0 * back
        return 0.0005 + 0.004 * there, 0.0005 + 0.004 * back

    def _fault(self, call: _Call) -> str:
        faults = self._faults
        # Few pods are created, and scrubs must survive a pod that is created late.
        if call.creates_a_pod and self._chance.strikes(f"{call.name} late", faults.requests * 2):
            fault = "late"
        elif self._chance.strikes(call.name, faults.requests):
            kinds = (*_BEFORE, *_AFTER, *_ON_WRITES) if call.writes else (*_BEFORE, *_AFTER)
            fault = self._chance.choice(kinds, f"{call.name} fault")
        elif self._chance.strikes(f"{call.name} crash", faults.crashes if call.writes else faults.crashes / 4):
            fault = self._chance.choice(_CRASHES, f"{call.name} fault")
        else:
            return ""
        if fault == "conflict" and call.method == "POST":
            fault = "503"
        self._trace.strike(f"api: {fault}", f"{call.name}: {fault}")
        return fault

    async def _travel(self, call: _Call, seconds: float) -> None:
        """Let a request arrive, although its sender may have died since."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if call.writes and self._chance.strikes(f"{call.name} arrives", 0.5):
                self._send_later(call, seconds)
            raise
        await self.unless_dead()

    def _send_later(self, call: _Call, seconds: float) -> None:
        def arrive() -> None:
            kind = "api: late pod create" if call.creates_a_pod else "api: late effect"
            self._trace.strike(kind, f"{call.name}: arrives late")
            self._deliver(call)

        asyncio.get_running_loop().call_later(seconds, arrive)

    async def _refused(self, call: _Call, fault: str, seconds: float) -> Response:
        if fault == "timeout":
            await asyncio.sleep(seconds)
            await self.unless_dead()
            raise ApiUnavailable(f"{call.method} {call.path} had no answer within {seconds:g} s", status=0)
        return _refusal(409 if fault == "conflict" else int(fault))

    def _answered(self, call: _Call, fault: str, answer: Response) -> Response:
        match fault:
            case "lost answer":
                raise ApiUnavailable(f"the connection broke before the answer to {call.method} {call.path}", status=0)
            case "500 after":
                return _refusal(500)
            case "half an answer":
                raise ApiUnavailable(f"the answer to {call.method} {call.path} broke off", status=0)
        return answer

    # --- watches ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[LineStream]:
        await self.unless_dead()
        name = self._name("WATCH", request.path)
        await self._unless_apart(name, 1.0)
        if self._chance.strikes(name, self._faults.requests):
            self._trace.strike("watch: refused", f"{name}: refused")
            await asyncio.sleep(0.01)
            raise ApiUnavailable(f"GET {request.path} failed", status=0)
        if (page := self._server.page(name)) is not None:
            yield RefusedLines(page)
            return
        if status := self._server.refusal(self.credentials.identity):
            await self.credentials.renewed(self.credentials.identity, seconds=5.0)
            yield RefusedLines(_refusal(status))
            return
        lag = self._faults.lag * self._chance.number(f"{name} lag") ** 2
        async with self.inner.stream(request) as lines:
            yield _Unsteady(self, lines, name, request.path.rpartition("/")[2], lag=lag, rate=self._faults.watches)


class _Unsteady(WrappedLines):
    """A watch whose events come late, twice, or not before it is opened again."""

    def __init__(self, network: Network, lines: LineStream, name: str, plural: str, *, lag: float, rate: float) -> None:
        super().__init__(lines)
        self._plural = plural
        self._network = network
        self._name = name
        self._lag = lag
        self._chance = network.run_context.chance
        self._trace = network.run_context.trace
        self._rate = rate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        number, caught_up = 0, -1.0
        async for line in self._lines:
            number += 1
            name = f"{self._name} event {number}"
            fault = ""
            if self._chance.strikes(name, self._rate):
                fault = self._chance.choice(_WATCH, f"{name} fault")
                self._trace.strike(f"watch: {fault}", f"{name}: {fault}")
            if fault == "stall":
                await self._wait(self._chance.number(f"{name} stall") ** 2 * LONGEST_STALL)
            elif self._lag and clock() > caught_up:
                self._trace.happened["watch: behind"] += 1
                await self._wait(self._lag)
            held = self._network.held_until
            await self._wait(max(held.get("", 0.0), held.get(self._plural, 0.0)) - clock())
            caught_up = clock()
            if self._network.apart:
                await self._wait(self._network.apart_until - clock())
                fault = fault or "break"
            if fault == "break":
                raise ApiUnavailable(f"{self._name} broke off", status=0)
            if fault == "end":
                return
            yield _GONE if fault == "gone" else line
            if fault == "duplicate":
                yield line

    async def _wait(self, seconds: float) -> None:
        """Wait, but no longer than faults last."""
        if seconds <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._chance.calm.wait()


def _refusal(status: int) -> Response:
    return refusal(status, f"{status} by the simulation", headers={"retry-after": "1"} if status == 429 else None)


_GONE: Final = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired",'
    b'"message":"too old resource version","code":410}}'
)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
