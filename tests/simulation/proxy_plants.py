"""Known bugs that show where a proxy answers in the place of the API server."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.errors import ApiError, ApiNotFound
from volplane.kube import client
from volplane.kube.cache import Cache
from volplane.kube.client import Client


def believe_the_proxy(stack: ExitStack) -> None:
    """Take any answer of the code 404, of whomever it is, for the proof that the object is gone."""
    error_from = client.error_from

    def trusting(code: int, *arguments: Any, **options: Any) -> ApiError:
        error = error_from(code, *arguments, **options)
        return ApiNotFound(error.message, status=code, reason=error.reason) if code == 404 else error

    async def refresh(self: Client, cache: Cache[Any], key: str) -> Any:
        before = cache.get(key)
        live = await self.find(cache.kind, key)
        if live is not None:
            cache.observe(live)
        elif before is not None:
            cache.observe_deleted(key, before.uid)
        return live

    replace(stack, client, "error_from", trusting)
    replace(stack, Client, "refresh", refresh)


PROXY_PLANTS = by_name(believe_the_proxy)
