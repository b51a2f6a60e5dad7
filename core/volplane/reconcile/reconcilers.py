"""The decisions as controllers call them: with the holds and offers of volumes around each decision about a claim."""

from __future__ import annotations

from collections.abc import Callable

from volplane.binding.matching import demand_of
from volplane.controller.actions import Action, LiveReads, Patch, Run, Wait
from volplane.kube.kinds import VOLUMES
from volplane.reconcile.claims import awaits_volume, decide_claim
from volplane.reconcile.volumes import decide_volume
from volplane.state.cluster_state import ClusterState

__all__ = ["ClaimReconciler", "VolumeReconciler"]


class ClaimReconciler:
    """Decides claims, keeping a chosen volume from others until the write that binds it is answered."""

    def __init__(self, cluster: ClusterState, wake: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._wake = wake

    def __call__(self, key: str, reads: LiveReads) -> Action:
        free = self._cluster.free
        passed = self._cluster.waiting.take_offers(key)
        if (released := free.release(key)) is not None:
            passed.add(released)
        action = decide_claim(key, self._cluster, reads)
        self._remember(key, action)
        if isinstance(action, Patch) and action.kind is VOLUMES:
            free.hold(action.target.name, key)
            passed.discard(action.target.name)
        for name in sorted(passed):
            self._offer(name, key)
        return action

    def _remember(self, key: str, action: Action) -> None:
        """Only a claim that comes to rest can miss a volume: one that takes a step is decided once more."""
        claim = self._cluster.claims.get(key)
        resting = isinstance(action, Wait | Run)
        if claim is not None and resting and self._cluster.settings.binder and awaits_volume(claim, self._cluster):
            self._cluster.waiting.add(claim, demand_of(claim))
        else:
            self._cluster.waiting.discard(key)

    def _offer(self, name: str, passed_over: str) -> None:
        volume = self._cluster.free.get(name)
        if volume is not None:
            woken = self._cluster.waiting.wake_for(volume, passed_over=(passed_over,))
            if woken is not None:
                self._wake(woken)


class VolumeReconciler:
    """Decides volumes."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def __call__(self, key: str, reads: LiveReads) -> Action:
        return decide_volume(key, self._cluster, reads)
