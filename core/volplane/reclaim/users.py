"""Which pods still use a volume whose claim is gone: it is not erased before they have ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.kube import names
from volplane.kube.objects import Claim, Pod, Volume
from volplane.reclaim.scrub_claim import released_from
from volplane.state.cluster_state import ClusterState
from volplane.state.indexes import finished
from volplane.state.records import read_recycle_intent

__all__ = ["used_by", "users_of_former", "users_of_released"]


def used_by(pods: list[str]) -> str:
    """Why a volume is not erased yet."""
    return "Volume is used by pods: " + ",".join(pods)


def users_of_released(volume: Volume, cluster: ClusterState) -> list[str]:
    """Pods that still use the volume by the claim that it was released from, as far as the cache knows."""
    reference = released_from(volume, read_recycle_intent(volume.annotation(names.INTENT)))
    if reference is None:
        return []
    key = f"{reference.namespace}/{reference.name}"
    return users_of_former(cluster.pods.by_index("claim", key), cluster.claims.get(key))


def users_of_former(pods: Iterable[Pod], successor: Claim | None) -> list[str]:
    """Which of the pods of a claim's name still use the claim that is gone.

    successor: the claim that has the name now. Its pods use its volume, but those that were started before it was
    created have the former one's mounted. Times are whole seconds; in doubt a pod is the successor's.
    """
    return sorted(pod.key for pod in pods if not finished(pod) and (successor is None or _older(pod, successor)))


def _older(pod: Pod, claim: Claim) -> bool:
    started = pod.status.start_time or pod.metadata.creation_timestamp or ""
    return bool(pod.spec.node_name) and started < (claim.metadata.creation_timestamp or "")
