"""A process that waits for the Lease with its caches warm, and takes it over although they lag.

Its watches are held up, or cut, before the former leader's last writes: of intents and assets that this one has begun
the next leader may see nothing when it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from volplane.controller.leader import Leadership
from volplane_testing.simulation.process import FIRST, Installation, Process
from volplane_testing.simulation.run_context import RunContext

__all__ = ["Followers", "write_followers"]

_KINDS: Final = ("persistentvolumes", "persistentvolumeclaims", "storageclasses", "pods", "volumeattachments", "nodes")


class Followers:
    """Its `actions` are the `what` of actions."""

    def __init__(self, run_context: RunContext, *, make: Callable[[Leadership, Installation], Process]) -> None:
        """make: makes a process that is not started yet."""
        self.actions: Mapping[str, Callable[..., None]] = {"follow": self.follow, "hold_follower": self.hold}
        self._process: Process | None = None
        self._make = make
        self._trace = run_context.trace

    def follow(self) -> None:
        """Start a follower, unless there is one."""
        if self._process is None:
            self._process = self._make(Leadership(fence=None, until=0.0, lost=True), FIRST)
            self._process.start(follows=True)
            self._trace.note(self._process.name, "follows")

    def hold(self, seconds: float, plural: str) -> None:
        """Hold up what its watches tell, of this kind or ("") of all."""
        if self._process is not None:
            self._process.network.held_until[plural] = asyncio.get_running_loop().time() + seconds

    def take(self) -> tuple[Process, float] | None:
        """Return the one that can lead now, with the seconds by which it may lag; None if there is none."""
        process, self._process = self._process, None
        if process is None or process.plane is None or not process.plane.synced or process.plane.restored.is_set():
            if process is not None:
                process.kill()
            return None
        self._trace.happened["process: a warm follower leads"] += 1
        held = max(process.network.held_until.values(), default=0.0)
        return process, max(0.0, held - asyncio.get_running_loop().time())

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()


def write_followers(do: Callable[..., None], about: str, share: float, end: float) -> None:
    """Write actions of `Followers`, and of crashes of the leader while its follower lags.

    do, about, end: as of `write_partitions`.
    """
    random = Random(f"{about} followers")  # noqa: S311 -- schedules, not secrets
    for _ in range(random.randint(1, 3) if random.random() < share else 0):
        at = random.uniform(0.0, end)
        do(max(0.0, at - random.uniform(0.0, 5.0)), "follow")
        seconds = random.choice((random.uniform(0.5, 10.0), random.uniform(10.0, 80.0)))
        for plural in random.choice((("",), (random.choice(_KINDS),), _KINDS[:2])):
            do(at, "hold_follower", seconds=seconds, plural=plural)
        do(at + random.uniform(0.0, min(seconds, 8.0)), "crash", which=0)
