"""Event handlers of expansion and modification: they queue the claims that a change of the caches concerns."""

from __future__ import annotations

from collections.abc import Callable

from volplane.controller.actions import Queue
from volplane.expand.modify import MODIFY, wants_other_attributes
from volplane.expand.resize import EXPAND, notes_size_before, wants_more
from volplane.kube.objects import Claim, Volume
from volplane.state.cluster_state import ClusterState

__all__ = ["ExpandHandlers"]


class ExpandHandlers:
    """Listens to the caches: queues what a change may concern, and drops the progress of changes that have ended."""

    def __init__(
        self, cluster: ClusterState, resizer: Queue, modifier: Queue, forget: Callable[[str, str, str], None]
    ) -> None:
        """forget: drops the back-off of an operation, named by verb, key and uid."""
        self._cluster = cluster
        self._resizer = resizer
        self._modifier = modifier
        self._forget = forget

    def subscribe(self) -> None:
        """Follow the caches."""
        self._cluster.claims.subscribe(self.claim_changed)
        self._cluster.volumes.subscribe(self.volume_changed)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if new is None:
            return
        if wants_more(new):
            if old is not None and _asked(old) != _asked(new):
                self._forget(EXPAND, new.key, new.uid)
            self._resizer.enqueue(new.key)
        else:
            if old is not None and wants_more(old):
                self._forget_progress(new, EXPAND)
            volume = self._cluster.volumes.get(new.spec.volume_name)
            if volume is not None and notes_size_before(volume):
                self._resizer.enqueue(new.key)
        if wants_other_attributes(new):
            if old is not None and old.spec.volume_attributes_class_name != new.spec.volume_attributes_class_name:
                self._forget(MODIFY, new.key, new.uid)
            self._modifier.enqueue(new.key)
        elif old is not None and wants_other_attributes(old):
            self._forget_progress(new, MODIFY)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if new is None:
            if old is not None:
                self._cluster.progress.changes.forget((old.uid, EXPAND))
                self._cluster.progress.changes.forget((old.uid, MODIFY))
            return
        reference = new.spec.claim_ref
        if reference is None or not reference.uid:
            return
        claim = self._cluster.claims.get(reference.key)
        if claim is not None and (wants_more(claim) or notes_size_before(new)):
            self._resizer.enqueue(claim.key)
        if claim is not None and wants_other_attributes(claim):
            self._modifier.enqueue(claim.key)

    def _forget_progress(self, claim: Claim, verb: str) -> None:
        volume = self._cluster.volumes.get(claim.spec.volume_name)
        if volume is not None:
            self._cluster.progress.changes.forget((volume.uid, verb))


def _asked(claim: Claim) -> dict[str, str] | None:
    return claim.spec.resources.requests if claim.spec.resources else None
