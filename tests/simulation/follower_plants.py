"""Known bugs of a process that has kept its caches warm and leads now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.controller.actions import LiveReads
from volplane.controller.runner import Runner, Steps
from volplane.kube.kinds import Kind


def before_it_leads(stack: ExitStack, do: Callable[[Runner], None]) -> None:
    """Do something in each runner that has followed, before it takes up what was left."""
    follow, take_up, followed = Runner._follow, Runner.take_up, set[Runner]()

    def followed_by(self: Runner, key: str) -> str:
        followed.add(self)
        return follow(self, key)

    async def takes_up(self: Runner) -> None:
        if self in followed:
            do(self)
        await take_up(self)

    replace(stack, Runner, "_follow", followed_by)
    replace(stack, Runner, "take_up", takes_up)


def leave_what_was_left(stack: ExitStack) -> None:
    """Begin without the keys for which there was something to do while it followed."""
    before_it_leads(stack, lambda runner: runner.unsettled.clear())


def believe_what_was_followed(stack: ExitStack) -> None:
    """Answer live reads from the caches, after it has followed: as if they had been listed since."""

    class Believing(Steps):
        async def read(self, kind: Kind[Any], key: str, reads: LiveReads) -> None:
            if (cache := self._cache_of(kind)) is None:
                await super().read(kind, key, reads)
            else:
                reads.put(kind, key, cache.get(key))

    def believe(runner: Runner) -> None:
        runner._steps = Believing(runner.client, runner.caches)

    before_it_leads(stack, believe)


FOLLOWER_PLANTS = by_name(leave_what_was_left, believe_what_was_followed)
