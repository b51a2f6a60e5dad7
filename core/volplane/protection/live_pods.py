"""Live lists of the pods of a namespace, and the claims whose use they prove or disprove."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from volplane.controller.actions import Run
from volplane.kube.client import Client
from volplane.kube.kinds import PODS
from volplane.kube.objects import Claim, KubeObject, Pod
from volplane.operations import Work

__all__ = ["BELIEVED", "LivePods", "UnprotectOperation", "uses"]

BELIEVED = 30.0
"""Seconds for which a user is believed that only a live list showed."""


@dataclass(slots=True)
class LivePods:
    """The last live list of each namespace, and when it started (loop time)."""

    started: dict[str, float] = field(default_factory=dict)
    used: dict[str, list[Pod]] = field(default_factory=dict)
    terminating_since: dict[str, dict[str, float]] = field(default_factory=dict)
    """Namespace -> uid of a claim there -> loop time at which this process first saw its deletionTimestamp."""
    spent: dict[str, set[str]] = field(default_factory=dict)
    """Namespace -> uids of claims for which the last list was used."""

    def follow(self, old: Claim | None, new: Claim | None, now: float) -> None:
        """Follow the claim cache. The list is dropped with the last terminating claim of a namespace."""
        if new is not None and new.terminating:
            self.terminating_since.setdefault(new.namespace, {}).setdefault(new.uid, now)
        if old is not None and (new is None or new.uid != old.uid):
            waiting = self.terminating_since.get(old.namespace, {})
            waiting.pop(old.uid, None)
            if not waiting:
                self.terminating_since.pop(old.namespace, None)
                self.doubt(old.namespace)

    def listed(self, namespace: str, started: float, pods: Iterable[Pod]) -> None:
        """Keep the pods of a live list that have a node and volumes, if a claim still waits for the list."""
        if namespace not in self.terminating_since:
            return
        self.started[namespace] = started
        self.spent.pop(namespace, None)
        self.used[namespace] = [pod for pod in pods if pod.spec.node_name and pod.spec.volumes]

    def tried(self, claim: KubeObject) -> None:
        """Note that the finalizer is being removed: if that fails, another list is needed."""
        self.spent.setdefault(claim.namespace, set()).add(claim.uid)

    def proves_unused(self, claim: Claim) -> bool:
        """Tell whether a list proves that no pod uses the claim."""
        listed = self._started_after(claim) is not None
        return listed and not any(uses(pod, claim) for pod in self.used[claim.namespace])

    def valid_for(self, claim: Claim, now: float) -> float:
        """Return the seconds for which a list that showed a user of this claim is believed; 0: list again."""
        started = self._started_after(claim)
        return max(started + BELIEVED - now, 0.0) if started is not None else 0.0

    def _started_after(self, claim: Claim) -> float | None:
        """Return when the last list started, if it may serve this claim: it started later, and is not used up."""
        since = self.terminating_since.get(claim.namespace, {}).get(claim.uid)
        started = self.started.get(claim.namespace)
        if claim.uid in self.spent.get(claim.namespace, ()):
            return None
        return None if since is None or started is None or started < since else started

    def doubt(self, namespace: str) -> None:
        """Drop the list of a namespace in which a pod has changed."""
        self.started.pop(namespace, None)
        self.used.pop(namespace, None)
        self.spent.pop(namespace, None)


class UnprotectOperation:
    """Handler of the verb `unprotect`: lists the pods of the namespace that is the run's asset."""

    def __init__(self, client: Client, live: LivePods, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._live = live
        self._monotonic = monotonic

    def __call__(self, run: Run) -> Work:
        return partial(self._list, run.asset)

    async def _list(self, namespace: str) -> None:
        started = self._monotonic()
        listing = await self._client.list(PODS, namespace=namespace)
        self._live.listed(namespace, started, listing.items)


def uses(pod: Pod, claim: Claim) -> bool:
    """Tell whether a pod keeps the claim: it is on a node, in any phase, and mounts it."""
    if not pod.spec.node_name or pod.namespace != claim.namespace:
        return False
    for volume in pod.spec.volumes or ():
        mounted = volume.persistent_volume_claim
        if mounted is not None and mounted.claim_name == claim.name:
            return True
        if volume.ephemeral is not None and f"{pod.name}-{volume.name}" == claim.name:
            # A pod that only waits for its own finalizers no longer needs its ephemeral claim. Otherwise the pod would
            # wait for the claim, and the claim for the pod.
            dying = pod.terminating and pod.metadata.deletion_grace_period_seconds == 0
            owners = claim.metadata.owner_references or ()
            if not dying and any(owner.controller and owner.uid == pod.uid for owner in owners):
                return True
    return False
