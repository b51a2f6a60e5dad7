"""A volume that a person deleted before the claim it was made for got it: it goes, and another one follows. Pure.

What is made next is another asset, so it must be told apart from this one, by a client token too: the claim's intent
says the next generation before the first asset is destroyed.
"""

from __future__ import annotations

from volplane.controller.actions import Action, Patch, Wait
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import volume_name_of
from volplane.state.records import INTENT_VERSION, ClaimIntent, Sealer

__all__ = ["can_never_be_bound", "outlive", "outlived"]


def can_never_be_bound(volume: Volume, claim: Claim) -> bool:
    """Whether a person deleted the volume before the claim it was made for got it.

    A binder writes the phase first, on a version of the volume that it has seen; that of a terminating one it refuses.
    """
    pointed = claim.spec.volume_name or claim.annotation(names.BIND_COMPLETED) is not None
    return volume.terminating and volume.status.phase != "Bound" and not pointed


def outlived(volume: Volume, claim: Claim, sealer: Sealer) -> bool:
    """Whether the claim's intent leads to another asset than this volume's, which may go then."""
    if volume.name != volume_name_of(claim) or volume.annotation(names.PROVISIONED_BY) is None:
        return True
    intent = sealer.open(claim.uid, claim.annotation(names.INTENT))
    held = claim.has_finalizer(names.PROVISIONING_FINALIZER)
    return held and intent is not None and intent.generation > _generation_of(volume)


def outlive(claim: Claim, volume: Volume, cluster: ClusterState) -> Action:
    """The next action for a claim whose volume `can_never_be_bound`."""
    if outlived(volume, claim, cluster.sealer):
        return Wait(
            reason=f'volume "{volume.name}" was deleted before it was bound; when it is gone another one is made'
        )
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    intent = ClaimIntent(v=INTENT_VERSION, driver=maker, generation=_generation_of(volume) + 1)
    metadata: dict[str, object] = {"annotations": {names.INTENT: cluster.sealer.seal(claim.uid, intent)}}
    if not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        metadata["finalizers"] = [*(claim.metadata.finalizers or ()), names.PROVISIONING_FINALIZER]
    return Patch(kind=CLAIMS, target=claim, body={"metadata": metadata}, why="declare the intent to provision anew")


def _generation_of(volume: Volume) -> int:
    text = volume.annotation(names.GENERATION) or ""
    return int(text) if text.isdecimal() else 1
