"""A claim of a driver in memory whose assets attach, grow and change, asked for by objects of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from volplane_testing import Cluster
from volplane_testing.control_plane import reasons_of
from volplane_testing.memory import DRIVER, MemoryAsset, MemoryBackend, MemoryStorage

__all__ = ["World", "a_world"]


class World:
    """A cluster of two nodes, one claim, and the storage of its driver."""

    def __init__(self, cluster: Cluster, storage: MemoryStorage) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.storage = storage
        self.volume = ""

    @property
    def driver(self) -> str:
        return DRIVER

    def reasons(self, key: str) -> list[str]:
        """Why the object waits."""
        found = reasons_of(self.cluster.controllers.plane)
        return [text for about, text in found.items() if about.endswith(f" {key}")]

    @property
    def asset(self) -> MemoryAsset:
        return self.storage.assets[self.volume]

    @property
    def claim(self) -> Any:
        return self.api.get("persistentvolumeclaims", "data")

    async def attach(self, node: str, volume: str = "") -> Any:
        """Ask for an attachment; how it stands a while later."""
        source = {"persistentVolumeName": volume or self.volume}
        spec = {"attacher": DRIVER, "nodeName": node, "source": source}
        name = f"to-{node}" if not volume else f"{volume}-to-{node}"
        self.api.create("volumeattachments", {"metadata": {"name": name}, "spec": spec})
        return await self.later(name)

    async def later(self, name: str) -> Any:
        await self.cluster.advance(30.0)
        return (self.api.get("volumeattachments", name) or {}).get("status")

    async def detach(self, node: str) -> None:
        """Delete the attachment, and see it go."""
        self.api.delete("volumeattachments", f"to-{node}")
        await self.cluster.wait_for(lambda: not self.api.get("volumeattachments", f"to-{node}"), 120.0, "detached")

    async def ask(self, gib: int) -> Any:
        """Ask for a size; the claim a while later."""
        body = {"spec": {"resources": {"requests": {"storage": f"{gib}Gi"}}}}
        self.api.patch("persistentvolumeclaims", "data", body)
        await self.cluster.advance(60.0)
        return self.claim

    async def name_attributes(self, name: str, **parameters: str) -> Any:
        body = {"metadata": {"name": name}, "driverName": DRIVER, "parameters": parameters}
        self.api.create("volumeattributesclasses", body)
        self.api.patch("persistentvolumeclaims", "data", {"spec": {"volumeAttributesClassName": name}})
        await self.cluster.advance(60.0)
        return self.claim

    def told(self, reason: str) -> str:
        return "; ".join(event["message"] for event in self.api.events(self.claim) if event["reason"] == reason)

    @property
    def unique_name(self) -> str:
        """By which nodes report the volume."""
        return f"kubernetes.io/csi/{DRIVER}^{self.asset.handle}"

    async def compare(self, name: str = DRIVER) -> None:
        """What the controllers do every minute: compare attachments with what the storage of a driver lists."""
        plane = self.cluster.controllers.plane
        driver = plane.drivers.get(name)
        assert driver is not None
        assert plane.attachments is not None
        await plane.attachments.compare(driver)

    def lose_the_asset(self) -> None:
        """Somebody deletes it at the storage."""
        del self.storage.assets[self.volume]


@asynccontextmanager
async def a_world(
    backend: Callable[..., object] = MemoryBackend, others: Sequence[str] = (), **storage: Any
) -> AsyncIterator[World]:
    """backend: of the driver. others: names of drivers with the same CSI driver name. storage: its fields."""
    held = MemoryStorage(**storage)
    drivers = dict.fromkeys(others, lambda: backend(storage=MemoryStorage()))
    async with Cluster({DRIVER: lambda: backend(storage=held), **drivers}) as cluster:
        for name in ("node-1", "node-2", "unknown"):
            cluster.api.create("nodes", {"metadata": {"name": name}, "spec": {"providerID": f"memory:///{name}"}})
        await cluster.create_class("fast", allowVolumeExpansion=True)
        world = World(cluster, held)
        bound = await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast", capacity="1Gi"))
        world.volume = bound["metadata"]["name"]
        yield world
