"""Known bugs about terms of leadership, pauses of the process and hooks that hang."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane import Fence
from volplane.controller.actions import Wait
from volplane.controller.leader import Leadership
from volplane.controller.runner import Runner
from volplane.drivers import executor
from volplane.intents import record
from volplane.reclaim import recycle
from volplane.state.cluster_state import ClusterState
from volplane_testing.simulation.hooks import TimedExecutor


def call_without_a_look(stack: ExitStack, hook: str) -> None:
    """Call one hook that changes storage as if it changed nothing, whatever became of the lease."""
    replace(stack, executor, "_CHANGES_NOTHING", executor._CHANGES_NOTHING | {hook})


def step_after_a_pause(stack: ExitStack) -> None:
    """Write what was decided, however long the process was stopped in between."""
    made = Runner.__init__

    def blind(self: Runner, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **{**options, "may_begin": lambda: True})

    replace(stack, Runner, "__init__", blind)


def lead_after_a_suspension(stack: ExitStack) -> None:
    """Count by a clock that stands still while the machine is suspended."""

    def awake(self: Leadership) -> bool:
        return not self.lost and self.clock() < self.until - self.margin

    replace(stack, Leadership, "may_begin", awake)


def provision_after_a_pause(stack: ExitStack) -> None:
    """Call `provision` without a look at the lease."""
    call_without_a_look(stack, "provision")


def delete_after_a_pause(stack: ExitStack) -> None:
    """Call `delete` without a look at the lease."""
    call_without_a_look(stack, "delete")


def recycle_after_a_pause(stack: ExitStack) -> None:
    """Call `recycle` without a look at the lease."""
    call_without_a_look(stack, "recycle")


def expand_after_a_pause(stack: ExitStack) -> None:
    """Call `expand` without a look at the lease."""
    call_without_a_look(stack, "expand")


def follow_a_former_leader(stack: ExitStack) -> None:
    """Go on with what another leader began, and do not ask the Lease who leads."""
    for module in (record, recycle):
        replace(stack, module, "not_leading", lambda *_: None)


def wait_for_an_epoch(stack: ExitStack) -> None:
    """Leave a scrub to the leader of the higher number, though a Lease made anew counts from 0."""
    take_over = recycle.not_leading

    def waits(world: ClusterState, reads: Any) -> Any:
        ours = Fence.parse(world.fence())
        return Wait(reason="a newer leader scrubs it") if ours and ours.transitions == 0 else take_over(world, reads)

    replace(stack, recycle, "not_leading", waits)


def call_again_what_hangs(stack: ExitStack) -> None:
    """List the assets of a driver once more while the call before hangs: a thread each time."""
    replace(stack, executor, "_ABOUT_THE_DRIVER", frozenset())


def start_again_what_hangs(stack: ExitStack) -> None:
    """Start a driver once more while its `start` hangs."""
    running = TimedExecutor.running

    def blind(self: TimedExecutor, driver: str | None = None) -> Any:
        return tuple(call for call in running(self, driver) if call.what != "start")

    replace(stack, TimedExecutor, "running", blind)


LEADER_PLANTS = by_name(
    step_after_a_pause,
    lead_after_a_suspension,
    provision_after_a_pause,
    delete_after_a_pause,
    recycle_after_a_pause,
    expand_after_a_pause,
    follow_a_former_leader,
    wait_for_an_epoch,
    call_again_what_hangs,
    start_again_what_hangs,
)
