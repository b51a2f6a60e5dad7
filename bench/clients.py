"""The clients of a measurement: one creates the objects, one watches the claims until they are Bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from bench.objects import DRIVER, NAMESPACE

from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES

__all__ = ["BoundClaims", "connected", "create_class", "each", "until_gone", "until_phase"]

IN_FLIGHT = 50
TIME_LIMIT = 1800.0


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Client]:
    """A client that is closed at the end of the block."""
    transport = await HttpTransport.connect(kubeconfig)
    try:
        yield Client(transport, deadline=120.0)
    finally:
        await transport.close()


async def each(count: int, act: Callable[[int], Awaitable[object]], *, in_flight: int = IN_FLIGHT) -> None:
    """Call `act(number)` for all numbers below `count`, `in_flight` at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await act(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())


async def create_class(client: Client, name: str = "memory", driver: str = DRIVER) -> None:
    await client.create(STORAGE_CLASSES, STORAGE_CLASSES.body(metadata={"name": name}, provisioner=driver))


async def until_phase(client: Client, phase: str, count: int, *, prefix: str = "volume-") -> None:
    """Return once `count` volumes named `prefix…` have this phase. Raises TimeoutError after 1,800 s."""
    async with asyncio.timeout(TIME_LIMIT):
        while True:
            volumes = (await client.list(VOLUMES)).items
            if sum(volume.status.phase == phase and volume.name.startswith(prefix) for volume in volumes) >= count:
                return
            await asyncio.sleep(0.5)


async def until_gone(client: Client, version: int, count: int) -> None:
    """Return once `count` volumes were deleted after this resourceVersion. Raises TimeoutError after 1,800 s."""
    async with asyncio.timeout(TIME_LIMIT):
        while count > 0:
            async with client.watch(VOLUMES, version=version, seconds=int(TIME_LIMIT)) as changes:
                async for change in changes:
                    version = max(version, change.version)
                    count -= change.type == "DELETED"
                    if count <= 0:
                        return


class BoundClaims:
    """Watches the claims of namespace default and notes when each becomes Bound."""

    def __init__(self, client: Client, count: int, *, prefix: str = "") -> None:
        """count: how many to wait for. prefix: of their names; other claims are ignored."""
        self._client = client
        self._count = count
        self._prefix = prefix
        self.at: dict[str, float] = {}
        """Claim's name -> `time.perf_counter()` at which it was seen Bound."""

    async def follow(self, version: int) -> None:
        """Watch from this resourceVersion until all are bound; a watch that ends is resumed. TimeoutError: 1,800 s."""
        async with asyncio.timeout(TIME_LIMIT):
            while len(self.at) < self._count:
                watch = self._client.watch(CLAIMS, version=version, namespace=NAMESPACE, seconds=int(TIME_LIMIT))
                async with watch as changes:
                    async for change in changes:
                        version = max(version, change.version)
                        self._see(change.object)
                        if len(self.at) >= self._count:
                            return

    def _see(self, claim: object) -> None:
        status, name = getattr(claim, "status", None), getattr(claim, "name", "")
        if status is not None and status.phase == "Bound" and name.startswith(self._prefix) and name not in self.at:
            self.at[name] = time.perf_counter()

    def latencies(self, begun: Mapping[str, float]) -> list[float]:
        """Seconds from creation to Bound of all claims in `begun` (name -> time), ascending."""
        return sorted(self.at[name] - since for name, since in begun.items())
