"""What the page knows of the cluster: caches of the kinds it shows, kept by the rights of its user."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import Any, Final

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.cache import Cache, IndexFunction
from volplane.kube.client import Client
from volplane.kube.events import EVENTS, Event
from volplane.kube.kinds import (
    ATTACHMENTS,
    CAPACITIES,
    CLAIMS,
    CSI_DRIVERS,
    LEASES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
)
from volplane.kube.leases import LEASE
from volplane.kube.reflector import Reflector
from volplane.snapshots.objects import VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.state import claim_key_of
from volplane.state.cluster_state import ATTACHMENT_INDEXES, CLAIM_INDEXES, POD_INDEXES

_PROBE: Final = 5.0
"""Seconds between two questions whether the server still answers, and for which an answer is waited for: a watch over
a connection that is dead looks like one in which nothing happens.
"""
_EVENTS: Final[Mapping[str, IndexFunction[Event]]] = {"about": lambda event: [event.involved_object.uid]}
_SNAPSHOTS: Final[Mapping[str, IndexFunction[VolumeSnapshot]]] = {"claim": lambda snapshot: [claim_key_of(snapshot)]}


@dataclass(eq=False)
class Watched:
    """Caches of what is shown. Those of kinds that the user may not list stay empty, and `gaps` says so."""

    client: Client
    _: KW_ONLY
    namespace: str = ""
    """The only one that is shown; "" = all."""
    home: str = "volplane-system"
    """The namespace of the controllers."""

    def __post_init__(self) -> None:
        self.claims = Cache(CLAIMS, {"volume": CLAIM_INDEXES["volume"]})
        self.volumes = Cache(VOLUMES)
        self.classes = Cache(STORAGE_CLASSES)
        self.pods = Cache(PODS, {"claim": POD_INDEXES["claim"]})
        self.nodes = Cache(NODES)
        self.attachments = Cache(ATTACHMENTS, {name: ATTACHMENT_INDEXES[name] for name in ("volume", "node")})
        self.csi_drivers = Cache(CSI_DRIVERS)
        self.capacities = Cache(CAPACITIES)
        self.snapshots = Cache(VOLUME_SNAPSHOTS, _SNAPSHOTS)
        self.events = Cache(EVENTS, _EVENTS)
        self.leases = Cache(LEASES)
        self.caches: tuple[Cache[Any], ...] = (
            *(self.claims, self.volumes, self.classes, self.pods, self.nodes, self.attachments),
            *(self.csi_drivers, self.capacities, self.snapshots, self.events, self.leases),
        )
        self._silence = ""
        """Why the server does not answer."""
        self._reflectors = [self._reflector(cache) for cache in self.caches]

    def _reflector(self, cache: Cache[Any]) -> Reflector[Any]:
        leases = cache is self.leases
        return Reflector(
            self.client,
            cache,
            random=Random(),  # noqa: S311 - jitter
            namespace=self.home if leases else self.namespace if cache.kind.namespaced else "",
            field_selector=f"metadata.name={LEASE}" if leases else "",
            required=not cache.kind.optional,
        )

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._reflectors:
                group.create_task(each.run())
            group.create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(_PROBE)
            try:
                async with asyncio.timeout(_PROBE):
                    await self.client.raw("/version")
                self._silence = ""
            except TimeoutError:
                self._silence = f"it does not answer within {_PROBE:g} s"
            except ApiUnavailable as error:
                self._silence = str(error)
            except ApiError:  # A refusal is an answer.
                self._silence = ""

    def gaps(self) -> Iterator[tuple[str, str, str]]:
        """Return (kind, state, why) of each kind that is not followed now.

        state: reading = its first list is under way; stale = it may have changed; unread = nothing is known of it;
        absent = the same of a kind that not every cluster serves.
        """
        if self._silence:
            yield "the API server", "stale", self._silence
        for each in self._reflectors:
            listed = each.cache.listed.is_set()
            if each.failing:
                unknown = "absent" if each.kind.optional else "unread"
                yield each.kind.plural, "stale" if listed else unknown, each.failing
            elif not listed:
                yield each.kind.plural, "reading", ""
