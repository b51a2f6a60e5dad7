"""The API server refuses for a moment: credentials rotate, rights spread, a webhook restarts. Nobody waits for long."""

from __future__ import annotations

import asyncio

import pytest

from volplane_testing import Cluster

SECOND = 1.0


async def _seconds_to_bind(cluster: Cluster, **spec: str) -> float:
    begun = asyncio.get_running_loop().time()
    await cluster.wait_bound(await cluster.create_claim("data", **spec), seconds=3600)
    return asyncio.get_running_loop().time() - begun


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_a_refused_write_is_tried_again_within_half_a_second(status: int) -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        cluster.fail("patch", "persistentvolumeclaims", status=status)
        assert await _seconds_to_bind(cluster, storage_class="fast") < 0.5


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_a_spell_of_refusals_costs_little_more_than_it_lasts(status: int) -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        loop = asyncio.get_running_loop()
        cluster.fail("*", "*", status=status, times=10_000)
        ends = loop.time() + SECOND
        loop.call_at(ends, cluster.heal)
        assert SECOND < await _seconds_to_bind(cluster, storage_class="fast") < 3 * SECOND


@pytest.mark.parametrize("status", [403, 422])
async def test_a_write_that_stays_refused_is_tried_ever_less_often_and_told_in_one_event(status: int) -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        cluster.fail("patch", "persistentvolumeclaims", status=status, times=10_000)
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.advance(3600)
        tries = [each for each in cluster.requests if each.verb == "patch" and each.status == status]
        assert 15 < len(tries) < 30
        [event] = [each for each in cluster.api.events(claim) if each["reason"] == "ApiCallRefused"]
        assert event["count"] > 10
        assert "trying again in 300 s" in event["message"]
        cluster.heal()
        await cluster.wait_bound(claim, seconds=301)
