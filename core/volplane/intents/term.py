"""The term of leadership in which an intent is worked on, and how a new leader goes on with what another began. Pure.

Every intent that is written before a hook names the term in which it is worked on. A process that finds another term
there reads its own Lease live. Only if it holds the Lease does it go on, by a conditional write of its own term. So a
former leader that has not noticed its loss overwrites no record of its successor. Numbers of terms are never compared:
a Lease that was made anew counts from 0 again.
"""

from __future__ import annotations

from volplane._delays import LIVE_STATE_FORBIDS
from volplane.controller.actions import Action, LiveReads, Read, Wait
from volplane.intents.conflict import claim_conflict
from volplane.intents.ownership import claim_elsewhere
from volplane.intents.record import record_intent
from volplane.kube import names
from volplane.kube.kinds import LEASES
from volplane.kube.leases import fence_of
from volplane.kube.objects import Claim, Lease
from volplane.state.cluster_state import ClusterState

__all__ = ["not_leading", "take_over"]


def not_leading(cluster: ClusterState, reads: LiveReads) -> Action | None:
    """What keeps this process from going on with what another one began; None if its Lease, read live, is its own.

    Without an election nothing does.
    """
    key = cluster.lease
    if not key:
        return None
    if not reads.has(LEASES, key):
        return Read(LEASES, key, why="is this process still the leader?")
    lease = reads.get(LEASES, key)
    if isinstance(lease, Lease) and str(fence_of(lease)) == cluster.fence():
        return None
    return Wait(reason="another process leads now", seconds=LIVE_STATE_FORBIDS.delay())


def take_over(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """What comes first for a claim whose intent is of another term; None if there is none, or it is of ours.

    An intent of a driver that is not configured here, or of another node, is another process's. Where a tenant has
    removed the finalizer from a claim that still waits, it is put back: else nobody could work on the intent.
    """
    held = claim.has_finalizer(names.PROVISIONING_FINALIZER)
    if not (held or _waits(claim)):
        return None
    intent = cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
    if intent is None or intent.fence == cluster.fence() or not cluster.has_driver(intent.driver):
        return None
    if cluster.drivers.on_nodes(intent.driver) or claim_elsewhere(claim, cluster):
        return None
    if (wait := claim_conflict(claim, intent.driver, cluster)) is not None:
        return wait
    return not_leading(cluster, reads) or record_intent(claim, intent, cluster, why="take over what was begun")


def _waits(claim: Claim) -> bool:
    return not (claim.terminating or claim.spec.volume_name or claim.annotation(names.BIND_COMPLETED) is not None)
