"""Finalizer `kubernetes.io/pv-protection`: a volume stays while it is bound.

A volume and a claim that name each other are bound, in any phase: phases are written last. The reclaimer removes
both finalizers in one write from a volume that it holds until its asset is gone.
Source: `pkg/controller/volume/pvprotection` of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable

from volplane.controller.actions import Action, Patch, Settled, Wait
from volplane.kube.cache import Cache
from volplane.kube.kinds import VOLUMES
from volplane.kube.names import VOLUME_PROTECTION
from volplane.kube.objects import Claim, Volume
from volplane.protection.claims import without_finalizer
from volplane.state.matching import refers_to

__all__ = ["decide_volume_protection", "volume_protection_may_act"]


def decide_volume_protection(
    key: str, volumes: Cache[Volume], claims: Cache[Claim], removes_protection: Callable[[Volume], bool]
) -> Action:
    """Add the finalizer to a living volume, and remove it from a terminating one that is not bound.

    removes_protection: see `ClusterState`.
    A write carries the cached resourceVersion, so a bind at the same moment makes it fail with 409.
    """
    volume = volumes.get(key)
    if volume is None:
        return Settled()
    held = volume.has_finalizer(VOLUME_PROTECTION)
    if volume.terminating and held:
        reference = volume.spec.claim_ref
        claim = claims.get(reference.key) if reference is not None else None
        paired = claim is not None and refers_to(volume, claim) and claim.spec.volume_name == volume.name
        if volume.status.phase == "Bound" or paired:
            return Wait(reason="bound to a claim")
        if removes_protection(volume):
            return Wait(reason="its asset is being deleted")
        body = {"metadata": {"finalizers": without_finalizer(volume, VOLUME_PROTECTION)}}
        return Patch(kind=VOLUMES, target=volume, body=body, why="not bound any more")
    if not volume.terminating and not held:
        finalizers = [*(volume.metadata.finalizers or ()), VOLUME_PROTECTION]
        body = {"metadata": {"finalizers": finalizers}}
        return Patch(kind=VOLUMES, target=volume, body=body, why="protect while bound")
    return Settled()


def volume_protection_may_act(key: str, volumes: Cache[Volume], removes_protection: Callable[[Volume], bool]) -> bool:
    """Tell whether the volume is to be decided: it exists, and the reclaimer does not remove its finalizers."""
    volume = volumes.get(key)
    return volume is not None and not (volume.terminating and removes_protection(volume))
