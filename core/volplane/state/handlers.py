"""Event handlers of claims and volumes: they keep the indexes and the progress, and queue what a change concerns.

No change is missed: each listener runs after its cache changed, in the same turn of the loop, and queues keep what
arrives while a key is in work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from volplane.assets import VolumeSource
from volplane.controller.actions import Queue
from volplane.kube import names
from volplane.kube.objects import Claim, Node, Pod, StorageClass, Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState, claims_of_pod, finished, scrubbed_volume
from volplane.state.matching import class_of_claim
from volplane.state.naming import shows_asset, volume_name_of
from volplane.state.records import RecycleIntent, attachment_intent_of, read_intent

__all__ = ["EventHandlers"]

_HELD = names.PROVISIONING_FINALIZER


def _record(item: Claim | Volume | VolumeAttachment) -> str | None:
    return item.annotation(names.INTENT)


def _volumes_concerned(old: Claim | None, new: Claim | None) -> list[str]:
    """Return the names of the volumes that the claim names or named; none for the last write of a bind.

    That only changes the claim's status: the writes of the volume came before it.
    """
    if old is not None and new is not None and old.uid == new.uid:
        turned = old.status.phase != "Bound" and new.status.phase == "Bound"
        if turned and old.terminating == new.terminating and old.spec == new.spec:
            return []
    return sorted({item.spec.volume_name for item in (old, new) if item is not None} - {""})


def _only_deleted(old: Claim, new: Claim) -> bool:
    """Return whether a bound claim is terminating now and nothing else has changed: it stays bound until it is gone."""
    bound = old.bound and not new.has_finalizer(_HELD)
    began = old.uid == new.uid and new.terminating and not old.terminating
    same = old.metadata.annotations == new.metadata.annotations and old.metadata.labels == new.metadata.labels
    return bound and began and same and _record(new) is None and old.spec == new.spec and old.status == new.status


def _new_phase(old: Volume, new: Volume) -> bool:
    """Return whether nothing but the status of a living volume has changed, of what decisions see."""
    before, after = old.metadata, new.metadata
    same = before.uid == after.uid and before.labels == after.labels and before.finalizers == after.finalizers
    living = not (old.terminating or new.terminating)
    return same and living and before.annotations == after.annotations and old.spec == new.spec


class EventHandlers:
    """Listens to the caches: keeps the indexes, and queues what a change may concern."""

    def __init__(
        self,
        cluster: ClusterState,
        claims: Queue,
        volumes: Queue,
        forget: Callable[[str, str, str], None],
        *,
        writes_phase: bool,
    ) -> None:
        """forget: drops the back-off of an operation, named by verb, key and uid. writes_phase: whether we are the
        binder; else the phase that another writes on a living volume concerns no claim.
        """
        self._writes_phase = writes_phase
        self._cluster = cluster
        self._claims = claims
        self._volumes = volumes
        self._forget = forget

    def subscribe(self) -> None:
        """Follow the caches."""
        self._cluster.claims.subscribe(self._cluster.record_conflicts.claim_changed)
        self._cluster.volumes.subscribe(self._cluster.record_conflicts.volume_changed)
        self._cluster.volumes.subscribe(self.volume_changed)
        self._cluster.claims.subscribe(self.claim_changed)
        self._cluster.classes.subscribe(self.class_changed)
        self._cluster.pods.subscribe(self.pod_changed)
        self._cluster.nodes.subscribe(self.node_changed)
        self._cluster.attachments.subscribe(self.attachment_changed)

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        present = new or old
        if present is None:
            return
        if old is None or new is None or not _only_deleted(old, new):
            self._claims.enqueue(present.key)
        volumes = _volumes_concerned(old, new)
        if present.namespace == self._cluster.namespace and present.spec.volume_name:
            volumes.append(present.spec.volume_name)  # A scrub waits until its claim is bound.
        if (
            old is None
            or new is None
            or (old.terminating, old.spec.volume_name) != (new.terminating, new.spec.volume_name)
        ):
            volumes += self._cluster.free.reserved_for(present.key)
        for name in dict.fromkeys(volumes):
            self._volumes.enqueue(name)
        if new is not None and new.has_finalizer(_HELD) and (old is None or _record(old) != _record(new)):
            self._intent_changed(new)
        if new is None:
            self._cluster.waiting.discard(present.key)
            self._cluster.progress.claims.forget(present.uid)
        elif old is not None and old.has_finalizer(_HELD) and not new.has_finalizer(_HELD):
            self._cluster.progress.claims.forget(new.uid)
        elif new.annotation(names.SELECTED_NODE) is None:
            self._cluster.progress.claims.get(new.uid).node_cleared()

    def _intent_changed(self, claim: Claim) -> None:
        if (name := volume_name_of(claim)) in self._cluster.volumes:
            self._volumes.enqueue(name)
        if (intent := self._cluster.sealer.open(claim.uid, _record(claim))) is not None:
            self._cluster.progress.claims.track(claim.uid).intent_seen(intent)

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        newly_offered = self._cluster.free.changed(old, new)
        self._cluster.overlaps.changed(old, new)
        present = new or old
        if present is None:
            return
        self._volumes.enqueue(present.key)
        for key in self._claims_concerned(old, new):
            self._claims.enqueue(key)
        if new is None:
            for name in self._cluster.overlaps.freed_by(present):
                self._volumes.enqueue(name)
        self._follow_progress(old, new)
        if new is not None and newly_offered and (woken := self._cluster.waiting.wake_for(new)) is not None:
            self._claims.enqueue(woken)

    def _claims_concerned(self, old: Volume | None, new: Volume | None) -> Iterable[str]:
        """Return the keys of the cached claims that the volume refers to, that name it, or that it was made for.

        Beside another binder, the phase that this writes on a living volume concerns no claim.
        """
        claims = self._cluster.claims
        if not self._writes_phase and old is not None and new is not None and _new_phase(old, new):
            return ()
        keys: dict[str, None] = {}
        for item in (old, new):
            if item is not None and (reference := item.spec.claim_ref) is not None:
                keys[reference.key] = None
        name = (new or old or Volume()).name
        for index in ("volume", "own"):
            keys.update(dict.fromkeys(claim.key for claim in claims.by_index(index, name)))
        return [key for key in keys if key in claims]

    def _follow_progress(self, old: Volume | None, new: Volume | None) -> None:
        """Drop what the volume itself shows now, or what is not needed any more."""
        progress = self._cluster.progress
        if new is None:
            if old is not None:
                progress.volumes.forget(old.uid)
            return
        progress.volumes.get(new.uid).status_seen(new.status.message)
        if new.name.startswith("pvc-"):
            progress.claims.get(new.name.removeprefix("pvc-")).volume_seen(complete=shows_asset(new))
        if old is None or (before := _record(old)) is None or before == (now := _record(new)):
            return
        scrub = read_intent(RecycleIntent, before)
        if now is None or (scrub is not None and not scrub.same_scrub(read_intent(RecycleIntent, now))):
            progress.volumes.forget(new.uid)

    def class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        present = new or old
        if present is None:
            return
        for class_name in (present.name, ""):
            for claim in self._cluster.claims.by_index("unbound", class_name):
                if class_name or class_of_claim(claim) is None:
                    self._forget("provision", claim.key, claim.uid)
                    self._claims.enqueue(claim.key)

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        """Queue the volumes of the attachment's asset: a deletion waits until nothing of it is attached any more."""
        if new is not None or old is None:
            return
        named, overlaps = old.spec.source.persistent_volume_name or "", self._cluster.overlaps
        concerned = {named}
        if (volume := self._cluster.volumes.get(named)) is not None:
            concerned.update(overlaps.same_asset(volume))
        if (record := attachment_intent_of(old)) is not None:
            # The volume may be gone, or another one may have its name.
            concerned.update(overlaps.sharing(VolumeSource(kind=record.source, fields=record.fields)))
        for name in sorted(concerned):
            self._volume_left(name)

    def _volume_left(self, name: str) -> None:
        """Queue a volume that is used less now, unless a living claim is bound to it: only others wait for that."""
        volume = self._cluster.volumes.get(name)
        if volume is None:
            return
        reference = volume.spec.claim_ref
        claim = self._cluster.claims.get(reference.key) if reference is not None else None
        if (
            reference is None
            or claim is None
            or claim.uid != reference.uid
            or claim.terminating
            or volume.terminating
            or not claim.bound
        ):
            self._volumes.enqueue(name)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Queue what the labels of a node place. Heartbeats change none of them."""
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            return
        present = new or old or Node()
        for claim in self._cluster.claims.by_index("node", present.name):
            self._forget("provision", claim.key, claim.uid)
            self._claims.enqueue(claim.key)
        if present.name == self._cluster.node_name:
            for volume in self._cluster.volumes.values():
                self._volumes.enqueue(volume.key)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        present = new or old
        if present is None:
            return
        volume = scrubbed_volume(present)
        if volume is not None:
            self._volumes.enqueue(volume)
        left = new is None or finished(new)
        for key in claims_of_pod(present):
            claim = self._cluster.claims.get(key)
            if claim is not None and not claim.bound:
                self._claims.enqueue(key)
            if left:
                for name in self._cluster.free.reserved_for(key):
                    self._volume_left(name)
