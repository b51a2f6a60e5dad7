"""What `resize` and `modify` share: the driver of the asset, the operation, the state of a long call. Pure."""

from __future__ import annotations

from typing import Any

from volplane.controller.actions import Action, Patch, Run, Wait
from volplane.drivers.view import DriverView
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import refers_to
from volplane.state.naming import asset_key
from volplane.state.progress import Changing
from volplane.state.records import INTENT_VERSION, ChangeIntent, read_intent, write_intent

__all__ = ["bound_volume", "go_on", "record_change", "recorded_state", "run_for_claim"]


def bound_volume(claim: Claim, cluster: ClusterState) -> Volume | None:
    """Return the volume that the claim is bound to, if it refers to the claim and is not being deleted."""
    volume = cluster.volumes.get(claim.spec.volume_name)
    return None if volume is None or volume.terminating or not refers_to(volume, claim) else volume


def record_change(volume: Volume, annotation: str, begun: ChangeIntent | None, *, why: str) -> Patch:
    """Write on the volume how far a change is; None: no change goes on any more."""
    text = write_intent(begun) if begun is not None else None
    return Patch(kind=VOLUMES, target=volume, body={"metadata": {"annotations": {annotation: text}}}, why=why)


def go_on(
    step: Changing,
    volume: Volume,
    annotation: str,
    cluster: ClusterState,
    *,
    doing: str,
    former: tuple[str, ...] = (),
) -> Action | None:
    """A long call: keep the driver's state on the volume, where the next process finds it, then wait until it is due.

    None: the hook is to be called again now. annotation: where the state is kept. doing: what the driver is doing.
    former: of `ChangeIntent`.
    """
    recorded = recorded_state(volume.annotation(annotation), step.target)
    resume = step.resume(recorded, cluster.monotonic())
    if resume.write:
        begun = ChangeIntent(v=INTENT_VERSION, target=step.target, state=dict(step.state), former=former)
        return record_change(volume, annotation, begun, why="keep the driver's state")
    return Wait(reason=doing, seconds=resume.seconds) if resume.seconds else None


def recorded_state(saved: str | None, target: str) -> dict[str, Any] | None:
    """The state that an earlier call for this target returned; None if there is none. saved: the annotation."""
    known = read_intent(ChangeIntent, saved)
    return known.state if known is not None and known.target == target else None


def run_for_claim(verb: str, claim: Claim, volume: Volume, driver: DriverView, *, group: str) -> Run:
    """Return an operation on the volume's asset that is about the claim."""
    return Run(
        verb=verb,
        key=claim.key,
        uid=claim.uid,
        driver=driver.name,
        asset=asset_key(volume),
        group=f"{verb} {group}",
    )
