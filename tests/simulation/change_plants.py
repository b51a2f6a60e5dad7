"""Known bugs of growing, changing and deleting volumes that are attached, each planted for as long as a stack lasts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.controller.actions import Action, Patch
from volplane.drivers.driver import DriverView
from volplane.expand import modify, resize
from volplane.expand.resize import _finish
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import format_bytes
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import Changed


def tell_the_claim_first(stack: ExitStack) -> None:
    """Write the new size to the claim before the volume has it."""

    def finish(done: Changed, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
        step = _finish(done, claim, volume, driver, cluster)
        if not isinstance(step, Patch) or step.target is not volume or not step.body.get("spec"):
            return step
        told = {"capacity": {"storage": format_bytes(done.capacity_bytes)}}
        if (claim.status.capacity or {}) == told["capacity"]:
            return step
        return Patch(kind=resize.CLAIMS, target=claim, body={"status": told}, subresource="status", why="planted")

    replace(stack, resize, "_finish", finish)


def grow_without_the_backend(stack: ExitStack) -> None:
    """Take the asset for grown as soon as the growth is declared."""
    towards = resize._towards

    def hasty(target: int, claim: Claim, volume: Volume, driver: Any, cluster: ClusterState) -> Action:
        if resize.recorded_target(claim) == target:
            return _finish(Changed(str(target), target), claim, volume, driver, cluster)
        return towards(target, claim, volume, driver, cluster)

    replace(stack, resize, "_towards", hasty)


def insist_on_what_was_refused(stack: ExitStack) -> None:
    """Go on with a size that the backend refused, whatever is asked for now."""
    target = resize.expansion_target

    def stubborn(claim: Claim, volume: Volume, **more: Any) -> int | None:
        return resize.recorded_target(claim) or target(claim, volume, **more)

    replace(stack, resize, "expansion_target", stubborn)


def write_down_what_is_asked_for(stack: ExitStack) -> None:
    """Write the size that is asked for now, not the one that the asset has got."""

    def finish(done: Changed, claim: Claim, volume: Volume, driver: DriverView, cluster: ClusterState) -> Action:
        asked = -(-resize.request_of(claim) // resize.NANOS)
        return _finish(Changed(done.target, asked), claim, volume, driver, cluster)

    replace(stack, resize, "_finish", finish)


def change_without_the_backend(stack: ExitStack) -> None:
    """Name the new attributes as soon as the change is declared."""
    towards = modify._towards

    def hasty(wanted: str, claim: Claim, volume: Volume, driver: Any, cluster: ClusterState) -> Action:
        if modify._tried(claim).status == modify.IN_PROGRESS:
            return modify._finish(wanted, claim, volume, cluster)
        return towards(wanted, claim, volume, driver, cluster)

    replace(stack, modify, "_towards", hasty)


def delete_what_is_attached(stack: ExitStack) -> None:
    """Delete the asset of a released volume although it is attached."""
    replace(stack, ClusterState, "attached_to", lambda *_: [])


CHANGE_PLANTS = by_name(
    tell_the_claim_first,
    grow_without_the_backend,
    insist_on_what_was_refused,
    write_down_what_is_asked_for,
    change_without_the_backend,
    delete_what_is_attached,
)
"""By name; each is caught in a seed of `recorded.CAUGHT_CHANGING`."""
