"""Event handlers of the protection controllers: they queue the claims and volumes that a change concerns."""

from __future__ import annotations

from volplane.controller.actions import Queue
from volplane.kube.names import CLAIM_PROTECTION, VOLUME_PROTECTION
from volplane.kube.objects import Claim, KubeObject, Pod, Volume
from volplane.protection.claims import ProtectionState
from volplane.state.cluster_state import claims_of_pod

__all__ = ["ProtectionHandlers"]


class ProtectionHandlers:
    """Queues the claims and volumes that a change may concern."""

    def __init__(self, state: ProtectionState, *, claims: Queue, volumes: Queue) -> None:
        """claims, volumes: the queues."""
        self._state = state
        self._claims = claims
        self._volumes = volumes

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if new is None or new.terminating or (old is not None and old.uid != new.uid):
            self._state.live.follow(old, new, self._state.monotonic())
        if _is_work(old, CLAIM_PROTECTION) or _is_work(new, CLAIM_PROTECTION):
            self._claims.enqueue((new or old or KubeObject()).key)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if _is_work(old, VOLUME_PROTECTION) or _is_work(new, VOLUME_PROTECTION):
            self._volumes.enqueue((new or old or KubeObject()).key)
        reference = old.spec.claim_ref if old is not None else None
        if reference is not None and reference.uid:
            key = reference.key
            if self._is_dying(key):
                self._claims.enqueue(key)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for key in claims_of_pod(pod) if pod is not None else ():
                if self._is_dying(key):
                    self._state.live.doubt(key.partition("/")[0])
                    self._claims.enqueue(key)

    def _is_dying(self, key: str) -> bool:
        claim = self._state.claims.get(key)
        return claim is not None and claim.terminating


def _is_work(item: KubeObject | None, finalizer: str) -> bool:
    """Tell whether the finalizer is to be added or removed, now or later."""
    return item is not None and item.terminating == item.has_finalizer(finalizer)
