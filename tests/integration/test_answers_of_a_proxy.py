"""A proxy or load balancer before the API server answers 404 in its place: nothing of a living claim is destroyed, and
all goes on once it has stopped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from volplane.kube.transport import Response
from volplane_testing import Cluster
from volplane_testing.transport import ApiCall, Ask, Behaviour, page_of_proxy, refuse


async def bound(cluster: Cluster) -> tuple[Any, str]:
    """A claim that may grow, and the name of its volume."""
    await cluster.create_class("fast", allowVolumeExpansion=True)
    claim = await cluster.create_claim("data", storage_class="fast")
    volume = (await cluster.wait_bound(claim))["metadata"]["name"]
    await cluster.settle()
    return claim, volume


def grow(cluster: Cluster, size: str) -> None:
    body = {"spec": {"resources": {"requests": {"storage": size}}}}
    cluster.api.patch("persistentvolumeclaims", "data", body)


async def grown(cluster: Cluster, volume: str, size: str) -> None:
    """Return once claim and volume have the size."""

    def has() -> bool:
        claim = cluster.api.get("persistentvolumeclaims", "data")
        made = cluster.api.get("persistentvolumes", volume)
        assert claim is not None
        assert made is not None
        return bool(claim["status"]["capacity"]["storage"] == made["spec"]["capacity"]["storage"] == size)

    await cluster.wait_for(has, 120, f"the claim has {size}")


def about_claims(call: ApiCall) -> bool:
    return call.verb in {"patch", "get"} and call.resource.startswith("persistentvolumeclaims")


@pytest.mark.parametrize("answer", [page_of_proxy(404), refuse(404)], ids=["page", "Status"])
async def test_a_claim_outlives_two_answers_that_it_is_not_there(answer: Behaviour) -> None:
    async with Cluster() as cluster:
        _, volume = await bound(cluster)
        cluster.script.add(about_claims, answer, times=2)
        grow(cluster, "2Gi")
        await grown(cluster, volume, "2Gi")
        assert len(cluster.backend.storage.assets) == 1


@pytest.mark.parametrize("answer", [page_of_proxy(404), page_of_proxy(502), refuse(404)], ids=["404", "502", "Status"])
async def test_after_a_spell_of_such_answers_everything_is_seen_again(answer: Behaviour) -> None:
    async with Cluster() as cluster:
        _, volume = await bound(cluster)
        cluster.script.add(lambda call: call.verb != "watch", answer, times=10**9)
        grow(cluster, "2Gi")
        await asyncio.sleep(90)
        cluster.heal()
        await grown(cluster, volume, "2Gi")
        grow(cluster, "3Gi")
        await grown(cluster, volume, "3Gi")


async def test_a_claim_is_bound_though_every_other_request_meets_the_wrong_server() -> None:
    async with Cluster() as cluster:
        turn = 0

        async def every_other(call: ApiCall, ask: Ask) -> Response:
            nonlocal turn
            turn += 1
            return await page_of_proxy(404)(call, ask) if turn % 2 else await ask()

        cluster.script.add(lambda call: call.verb != "watch", every_other, times=10**9)
        await bound(cluster)
