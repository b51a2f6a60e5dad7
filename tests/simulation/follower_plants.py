"""Known bugs of a process that has kept its caches warm and leads now."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.controller.actions import LiveReads
from volplane.controller.runner import Steps
from volplane.kube.kinds import Kind
from volplane.process.control_plane import ControlPlane


def leave_what_was_left(stack: ExitStack) -> None:
    """Begin without the keys for which there was something to do while it followed."""

    async def lead(self: ControlPlane) -> None:
        for runner in self.runners:
            runner.follows = False
            runner.unsettled.clear()

    replace(stack, ControlPlane, "lead", lead)


def believe_what_was_followed(stack: ExitStack) -> None:
    """Answer live reads from the caches, after it has followed: as if they had been listed since."""
    lead = ControlPlane.lead

    class Believing(Steps):
        async def read(self, kind: Kind[Any], key: str, reads: LiveReads) -> None:
            if (cache := self._cache_of(kind)) is None:
                await super().read(kind, key, reads)
            else:
                reads.put(kind, key, cache.get(key))

    async def believe(self: ControlPlane) -> None:
        for runner in self.runners:
            runner._steps = Believing(runner.client, runner.caches)
        await lead(self)

    replace(stack, ControlPlane, "lead", believe)


FOLLOWER_PLANTS = by_name(leave_what_was_left, believe_what_was_followed)
