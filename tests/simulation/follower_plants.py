"""Known bugs of a process that has kept its caches warm and leads now."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.controller.actions import LiveReads
from volplane.controller.runner import Runner, Steps
from volplane.kube.kinds import Kind


def leave_what_was_left(stack: ExitStack) -> None:
    """Begin without the keys for which there was something to do while it followed."""

    def lead(self: Runner) -> None:
        self.follows = False

    replace(stack, Runner, "lead", lead)


def believe_what_was_followed(stack: ExitStack) -> None:
    """Answer live reads from the caches, after it has followed: as if they had been listed since."""
    lead = Runner.lead

    class Believing(Steps):
        async def read(self, kind: Kind[Any], key: str, reads: LiveReads) -> None:
            if (cache := self._cache_of(kind)) is None:
                await super().read(kind, key, reads)
            else:
                reads.put(kind, key, cache.get(key))

    def believe(self: Runner) -> None:
        if self.follows:
            self._steps = Believing(self.client, self.caches)
        lead(self)

    replace(stack, Runner, "lead", believe)


FOLLOWER_PLANTS = by_name(leave_what_was_left, believe_what_was_followed)
