"""One operation at a time on each volume: two pods that share it never mount, grow and unmount it at once.

Source: pkg/volume/util/nestedpendingoperations. A volume that is attached is one for all pods of its node; any other is
the business of one pod, whose worker does one thing at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class VolumeOperations:
    """The operations that run, and those that wait for them in the order in which they came."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], _Queue] = {}

    @asynccontextmanager
    async def on(self, node: str, unique: str) -> AsyncIterator[None]:
        """Hold the volume on this node for as long as the block runs. unique: "" for a volume of one pod alone."""
        if not unique:
            yield
            return
        queue = self._running.setdefault((node, unique), _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                yield
        finally:
            queue.users -= 1
            if not queue.users:
                del self._running[node, unique]


class _Queue:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
