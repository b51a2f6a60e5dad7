"""A process that waits for the Lease: it knows everything already, and does nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from integration.controller_process import Site, running_process

pytestmark = pytest.mark.real_time
BINDS = frozenset({"provisioner", "reclaimer", "binder"})


async def test_a_follower_does_nothing_and_binds_what_its_leader_left_without_listing_anything_again(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(running_process(tmp_path, BINDS))
        await leader.make_class("fast")
        await leader.make_claim("first", "fast")
        await leader.bound("first")
        async with running_process(tmp_path, BINDS, server=leader.server, leads=False) as follower:
            await follower.until("it follows", lambda: follower.process._next)
            preparing = follower.process._next
            assert preparing is not None
            plane = (await preparing).plane
            await asyncio.wait_for(plane.wait_synced(), 60)
            leader.transport.script.shows = lambda _call, obj: obj["metadata"].get("name") != "second"
            await leader.make_claim("second", "fast")
            claims = next(each for each in plane.runners if each.name == "claims")
            await follower.until("the claim is left", lambda: "default/second" in claims.unsettled)
            assert {each.verb for each in follower.asked} <= {"get", "list", "watch"}
            assert not [name for name in follower.metrics.exposition().decode().splitlines() if "_pvc_count{" in name]
            before = lists_of(follower)
            await stack.aclose()
            await follower.bound("second")
            assert follower.process.plane is plane
            assert not claims.unsettled
            assert lists_of(follower) == before
            assert 'pv_collector_bound_pvc_count{namespace="default"' in follower.metrics.exposition().decode()


def lists_of(site: Site) -> int:
    calls = site.transport.script.requests
    return sum(call.verb == "list" and call.resource == "persistentvolumes" for call in calls)
