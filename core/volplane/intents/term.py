"""The term of leadership in which an intent is worked on, and how a new leader takes intents over. Pure.

Every intent that is written before a hook names the term in which it is worked on. A process that finds another term
there reads its own Lease live. If it holds the Lease, it takes the intent over by a conditional write of its own term.
So a former leader that has not noticed its loss overwrites no record of its successor. Numbers of terms are never
compared: a Lease that was created again counts from 0.
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
    """Return the read or wait that comes before a takeover; None if the Lease, read live, is this process's own."""
    key = cluster.lease
    if not key:
        return None  # There is no election.
    if not reads.has(LEASES, key):
        return Read(LEASES, key, why="is this process still the leader?")
    lease = reads.get(LEASES, key)
    if isinstance(lease, Lease) and str(fence_of(lease)) == cluster.fence():
        return None
    return Wait(reason="another process leads now", seconds=LIVE_STATE_FORBIDS.delay())


def take_over(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Action | None:
    """Return the next step of a takeover; None if the claim has no intent, or one of our term.

    An intent of a driver that is not configured here, or of another node, is another process's. If a tenant has removed
    the finalizer from a claim that still waits, it is added again, as no intent is worked on without it.
    """
    bound = bool(claim.spec.volume_name) or claim.annotation(names.BIND_COMPLETED) is not None
    if (claim.terminating or bound) and not claim.has_finalizer(names.PROVISIONING_FINALIZER):
        return None
    intent = cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
    if intent is None or intent.fence == cluster.fence() or not cluster.has_driver(intent.driver):
        return None
    if cluster.drivers.on_nodes(intent.driver) or claim_elsewhere(claim, cluster):
        return None
    if (wait := claim_conflict(claim, intent.driver, cluster)) is not None:
        return wait
    return not_leading(cluster, reads) or record_intent(claim, intent, cluster, why="take over what was begun")
