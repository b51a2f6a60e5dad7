"""Hooks that raise what is no Exception, answer at once without end, or with megabytes: each costs its own object."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from volplane import (
    AssetPage,
    BackendError,
    DeleteRequest,
    Done,
    InProgress,
    ListRequest,
    OwnsRequest,
    ProbeRequest,
    ProvisionRequest,
    StartRequest,
    hookimpl,
)
from volplane.drivers.registry import PROBE_INTERVAL
from volplane_testing import Cluster, MemoryBackend
from volplane_testing.transport import refuse

SOURCE = {"csi": {"driver": "memory.volplane.dev", "volumeHandle": "x"}}


class OddBackend(MemoryBackend):
    """Raises `error` once in the hook named `odd`."""

    def __init__(self, odd: str, error: type[BaseException] = asyncio.CancelledError) -> None:
        super().__init__({})
        self.calls: Counter[str] = Counter()
        self._odd, self._error = odd, error

    def _call(self, hook: str) -> None:
        self.calls[hook] += 1
        if hook == self._odd and self.calls[hook] == 1:
            raise self._error("a loop of the backend cancelled its own task")

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        self._call("list_assets")
        return super().list_assets(request=request)

    @hookimpl
    def probe(self, request: ProbeRequest) -> None:
        self._call("probe")
        return super().probe(request=request)

    @hookimpl
    def start(self, request: StartRequest) -> None:
        self._call("start")
        return super().start(request=request)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        self._call("owns")
        return super().owns(request=request)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Any:
        self._call("provision")
        return super().provision(request=request)


class TimeIsUp(BaseException):
    """As `gevent.Timeout`, which is no Exception either."""


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("list_assets", asyncio.CancelledError),
        ("probe", asyncio.CancelledError),
        ("start", asyncio.CancelledError),
        ("provision", TimeIsUp),
    ],
)
async def test_a_hook_that_raises_no_exception_is_called_again(hook: str, error: type[BaseException]) -> None:
    backend = OddBackend(hook, error)
    async with Cluster([backend]) as cluster:
        checking = asyncio.create_task(cluster.controllers.plane.leak_check.run())
        await cluster.create_class("c")
        claim = await cluster.create_claim("data", storage_class="c")
        await cluster.advance(3 * PROBE_INTERVAL)
        await cluster.wait_bound(claim)
        assert backend.calls[hook] >= 2
        assert [status.error for status in cluster.controllers.plane.drivers.status()] == [""]
        assert not checking.done()
        checking.cancel()


async def test_why_nothing_was_made_is_said_whatever_the_hook_raised() -> None:
    async with Cluster([OddBackend("provision")]) as cluster:
        await cluster.create_class("c")
        claim = await cluster.create_claim("data", storage_class="c")
        await cluster.wait_bound(claim)
        said = [event["message"] for event in cluster.api.events(claim)]
        assert any(re.search(r"raised CancelledError \(line \d+ of \w+.py\): a loop", each) for each in said)


async def test_a_static_volume_is_deleted_after_a_hook_that_raised_no_exception_was_asked_whose_it_is() -> None:
    backend = OddBackend("owns")
    async with Cluster([backend]) as cluster:
        gone = {"name": "gone", "namespace": "default", "uid": "u"}
        await cluster.create_volume("static", SOURCE, reclaim_policy="Delete", claimRef=gone)
        await cluster.advance(3600)
        assert backend.calls["owns"] == 2
        assert "identify" not in str(cluster.controllers.plane.reasons().get("volumes"))


async def test_a_backend_that_is_never_done_is_asked_a_few_times_a_second() -> None:
    class Endless(MemoryBackend):
        asked = 0

        @hookimpl
        def provision(self, request: ProvisionRequest) -> InProgress:
            self.asked += 1
            return InProgress(retry_after=0, state={"n": self.asked})

    backend = Endless({})
    async with Cluster([backend]) as cluster:
        await cluster.create_class("c")
        await cluster.create_claim("data", storage_class="c")
        await cluster.advance(60)
        assert 100 < backend.asked <= 60 / 0.2 + 1
        assert sum(call.verb == "patch" for call in cluster.requests) <= backend.asked + 10


@pytest.mark.parametrize("error", [BackendError, ValueError])
async def test_an_error_of_megabytes_stops_no_deletion(error: type[Exception]) -> None:
    class Talkative(MemoryBackend):
        calls = 0

        @hookimpl
        def delete(self, request: DeleteRequest) -> Done | InProgress:
            self.calls += 1
            if self.calls == 1:
                raise error("<html>" + "x" * 4_000_000)
            return super().delete(request=request)

    backend = Talkative({})
    async with Cluster([backend]) as cluster:
        too_large = refuse(413, "Request entity too large: limit is 3145728")
        cluster.script.add(lambda call: len(call.request.body or b"") > 3 * 2**20, too_large, times=10**9)
        await cluster.create_class("c")
        claim = await cluster.create_claim("data", storage_class="c")
        await cluster.wait_bound(claim)
        await cluster.delete_claim(claim)
        await cluster.advance(600)
        assert not backend.storage.assets
        assert backend.calls == 2
