"""Reads all assets of a driver, and all claims and volumes of the cluster, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from volplane.assets import ListedAsset
from volplane.drivers.view import DriverView
from volplane.errors import OutcomeUnknown, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import context_of
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import KubeObject
from volplane.leaks.comparison import Comparison, Finding
from volplane.requests import ListRequest
from volplane.state.cluster_state import ClusterState

__all__ = ["assets_of", "feed_cached", "feed_live", "findings_of", "paced"]

CHUNK = 500
"""Objects after which other tasks run."""

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)


async def assets_of(driver: DriverView, deps: OperationDeps) -> AsyncIterator[ListedAsset]:
    """Every asset in the driver's reach. Raises BackendError or PluginError; what came before then is no whole."""
    context = context_of(driver, deps.cluster.cluster_id)
    seen: set[str] = set()
    token: str | None = None
    while True:
        async with deps.listing[driver.name]:
            page = await deps.hooks.call(driver, ListRequest(context=context, page=token))
        for asset in page.assets:
            yield asset
        token = page.next_page
        if token is None:
            return
        if token in seen:
            raise OutcomeUnknown(f"list_assets of driver {driver.name} names page {token!r} twice: it would never end")
        seen.add(token)


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items. Other tasks run after every `CHUNK` of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % CHUNK == 0:
            await asyncio.sleep(0)


async def feed_cached(comparison: Comparison, cluster: ClusterState) -> None:
    """Compare with what the caches hold: enough to explain an asset, never to call it an orphan."""
    async for claim in paced(list(cluster.claims.values())):
        comparison.add_claim(claim)
    async for volume in paced(list(cluster.volumes.values())):
        comparison.add_volume(volume)


async def feed_live(comparison: Comparison, client: Client) -> None:
    """Compare with what the API server has now. Raises ApiError; VolplaneError if an object cannot be read."""
    await _feed_pages(client, CLAIMS, comparison.add_claim)
    await _feed_pages(client, VOLUMES, comparison.add_volume)


async def _feed_pages(client: Client, kind: Kind[K], add: Callable[[K], None]) -> None:
    async for page in client.pages(kind, limit=CHUNK):
        if page.unreadable:
            raise VolplaneError(
                f"{kind.kind} {page.unreadable[0]} cannot be read: it may lead to any asset, so nothing can be called "
                "an orphan; repair or delete the object"
            )
        for obj in page.items:
            add(obj)


async def findings_of(comparison: Comparison) -> list[Finding]:
    """What does not fit."""
    return [finding async for finding in paced(comparison.findings()) if finding is not None]
