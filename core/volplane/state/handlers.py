"""Event handlers of claims and volumes: they keep the indexes and the progress, and queue what a change concerns.

No change is missed: each listener runs after its cache changed, in the same turn of the loop, and queues keep what
arrives while a key is in work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from volplane.assets import VolumeSource
from volplane.controller.actions import Queue
from volplane.kube import names
from volplane.kube.objects import Claim, Node, Pod, StorageClass, Volume, VolumeAttachment
from volplane.state.cluster_state import SCRUB_VOLUME, ClusterState, claims_of_pod, finished
from volplane.state.matching import class_of_claim, source_of
from volplane.state.naming import shows_asset, volume_name_of, volume_source, volume_with
from volplane.state.progress import Made
from volplane.state.records import RecycleIntent, attachment_intent_of, read_intent

_HELD = names.PROVISIONING_FINALIZER
_MOST_VANISHED = 1_000
"""Claims whose finalizer a tenant removed that are remembered at once. Assets of further ones are leaks."""
_MOST_OF_NAMESPACE = 100
"""Of them in one namespace: a backend may refuse for ever to say that nothing was made."""
_WRITE_LASTS = 60.0
"""Seconds for which a volume may still be created for such a claim: longer than any call of the client."""
_LONGEST_KEPT = 4_096
"""Characters of annotations and labels that are kept of such a claim."""


def without_record(claim: Claim) -> Claim:
    """Return the claim without its record and finalizer, and without texts that are too long to be kept for it."""
    annotations = {name: text for name, text in (claim.metadata.annotations or {}).items() if name != names.INTENT}
    kept = {"annotations": annotations, "labels": claim.metadata.labels}
    if len(repr(kept)) > _LONGEST_KEPT:
        kept = {"annotations": None, "labels": None}
    return replace(claim, metadata=replace(claim.metadata, finalizers=None, owner_references=None, **kept))


def _placing(node: Node, *, ours: bool) -> tuple[object, ...]:
    conditions = [(each.get("type"), each.get("status")) for each in node.status.conditions or ()] if ours else None
    return node.uid, node.metadata.labels, node.spec if ours else None, conditions


def _only_deleted(old: Claim, new: Claim) -> bool:
    """Return whether a bound claim is terminating now and nothing else has changed: it stays bound until it is gone."""
    held = new.has_finalizer(_HELD) or new.has_finalizer(names.CLONED_CLAIM)
    bound = old.bound and not held and new.annotation(names.INTENT) is None
    began = old.uid == new.uid and new.terminating and not old.terminating
    same = old.metadata.annotations == new.metadata.annotations and old.metadata.labels == new.metadata.labels
    return bound and began and same and old.spec == new.spec and old.status == new.status


@dataclass(frozen=True, slots=True)
class EventHandlers:
    cluster: ClusterState
    claims: Queue
    volumes: Queue
    schedules: Queue
    """Claims whose snapshots are taken at regular times."""
    forget: Callable[[str, str, str], None]
    """Drops the back-off of an operation, named by verb, key and uid."""
    writes_phase: bool = field(kw_only=True)
    """We are the binder; else the phase that another writes on a living volume concerns no claim."""

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Queue the claim, and the volumes that it names or named, or that name it."""
        present = new or old or Claim()
        if old is None or new is None or not _only_deleted(old, new):
            self.claims.enqueue(present.key)
        if any(item is not None and self.cluster.schedule_of(item) is not None for item in (old, new)):
            self.schedules.enqueue(present.key)
        if (source := source_of(present)) is not None and source.kind == self.cluster.claims.kind.kind:
            self.claims.enqueue(source.key_from(present.namespace))  # It may be held for this claim alone.
        named = sorted({item.spec.volume_name for item in (old, new) if item is not None} - {""})
        reserved: list[str] = []
        if (
            old is None
            or new is None
            or (old.terminating, old.spec.volume_name) != (new.terminating, new.spec.volume_name)
        ):
            reserved = self.cluster.free.reserved_for(present.key)
        elif (
            old.uid == new.uid and old.spec == new.spec and old.status.phase != "Bound" and new.status.phase == "Bound"
        ):
            named = []  # The last write of a bind, which changes the status only: those of the volume came before it.
        if present.namespace == self.cluster.namespace and present.spec.volume_name:
            named.append(present.spec.volume_name)  # A scrub waits until its claim is bound.
        for name in dict.fromkeys((*named, *reserved)):
            self.volumes.enqueue(name)
        self._follow_claim(old, new)

    def _follow_claim(self, old: Claim | None, new: Claim | None) -> None:
        """Keep the record that the claim shows, and drop what is not needed any more."""
        claims, vanished = self.cluster.progress.claims, self.cluster.progress.vanished
        if new is None:
            if old is not None:
                self.cluster.waiting.discard(old.key)
                same = (each.namespace == old.namespace for each in vanished.values())
                if self.cluster.begun(old.uid) and len(vanished) < _MOST_VANISHED and sum(same) < _MOST_OF_NAMESPACE:
                    vanished[old.uid] = without_record(old)
                    made = isinstance(claims.get(old.uid).step, Made)
                    self.claims.enqueue(old.uid, after=_WRITE_LASTS if made else 0.0)
                else:
                    claims.forget(old.uid)
            return
        vanished.pop(new.uid, None)
        record, held = new.annotation(names.INTENT), new.has_finalizer(_HELD)
        if held and (old is None or old.annotation(names.INTENT) != record):
            if (name := volume_name_of(new)) in self.cluster.volumes:
                self.volumes.enqueue(name)
            if (intent := self.cluster.sealer.open(new.uid, record)) is not None:
                self.cluster.progress.intent_seen(new.uid, intent)
        if not held and old is not None and old.has_finalizer(_HELD) and not self.cluster.begun(new.uid):
            claims.forget(new.uid)
        elif new.annotation(names.SELECTED_NODE) is None:
            claims.get(new.uid).node_cleared()
            if old is not None and old.annotation(names.SELECTED_NODE) is not None and source_of(new) is not None:
                claims.track(new.uid).given_back = True

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        """Queue the volume, the claims that it concerns, and the volumes that share its storage no more."""
        newly_offered = self.cluster.free.changed(old, new)
        self.cluster.overlaps.changed(old, new)
        present = new or old or Volume()
        self.volumes.enqueue(present.key)
        for key in self._claims_concerned(old, new):
            self.claims.enqueue(key)
        if new is None:
            for name in self.cluster.overlaps.freed_by(present):
                self.volumes.enqueue(name)
        self._follow_volume(old, new)
        if new is not None and newly_offered and (woken := self.cluster.waiting.wake_for(new)) is not None:
            self.claims.enqueue(woken)

    def _claims_concerned(self, old: Volume | None, new: Volume | None) -> Iterable[str]:
        """Return the keys of the cached claims that the volume refers to, that name it, or that it was made for."""
        claims = self.cluster.claims
        if not self.writes_phase and old is not None and new is not None:
            before, after = old.metadata, new.metadata
            same = before.uid == after.uid and before.labels == after.labels and before.finalizers == after.finalizers
            living = not (old.terminating or new.terminating)
            if same and living and before.annotations == after.annotations and old.spec == new.spec:
                return ()
        keys: dict[str, None] = {}
        for item in (old, new):
            if item is not None and (reference := item.spec.claim_ref) is not None:
                keys[reference.key] = None
        name = (new or old or Volume()).name
        for index in ("volume", "own"):
            keys.update(dict.fromkeys(claim.key for claim in claims.by_index(index, name)))
        return [key for key in keys if key in claims]

    def _follow_volume(self, old: Volume | None, new: Volume | None) -> None:
        """Drop what the volume itself shows now, or what is not needed any more."""
        progress = self.cluster.progress
        if new is None:
            if old is not None:
                progress.volumes.forget(old.uid)
                if old.annotation(names.PROVISIONED_BY) is None:
                    self.cluster.drivers.forget_source(volume_source(old))
            return
        progress.volumes.get(new.uid).status_seen(new.status.message)
        if new.name.startswith("pvc-"):
            progress.claims.get(new.name.removeprefix("pvc-")).volume_seen(complete=shows_asset(new))
        before, now = old.annotation(names.INTENT) if old is not None else None, new.annotation(names.INTENT)
        if before is None or before == now:
            return
        scrub = read_intent(RecycleIntent, before)
        # A record that is gone, or about another scrub: what this process knows of the former one is over.
        if now is None or (scrub is not None and not scrub.same_scrub(read_intent(RecycleIntent, now))):
            progress.volumes.forget(new.uid)

    def class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        present = new or old or StorageClass()
        for class_name in (present.name, ""):
            for claim in self.cluster.claims.by_index("unbound", class_name):
                if class_name or class_of_claim(claim) is None:
                    self.forget("provision", claim.key, claim.uid)
                    self.claims.enqueue(claim.key)

    def attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        """Queue the volumes of the attachment's asset: a deletion waits until nothing of it is attached any more."""
        if new is not None or old is None:
            return
        named, overlaps = old.spec.source.persistent_volume_name or "", self.cluster.overlaps
        concerned = {named}
        if (volume := self.cluster.volumes.get(named)) is not None:
            concerned.update(overlaps.same_asset(volume))
        if (record := attachment_intent_of(old)) is not None:
            # The volume may be gone, or another one may have its name.
            concerned.update(overlaps.same_asset(volume_with(VolumeSource(kind=record.source, fields=record.fields))))
        for name in sorted(concerned):
            self._volume_left(name)

    def _volume_left(self, name: str) -> None:
        """Queue a volume that is used less now, unless a living claim is bound to it: only others wait for that."""
        volume = self.cluster.volumes.get(name)
        if volume is None:
            return
        claim = self.cluster.claim_of(volume)
        held = claim is not None and claim.bound and not claim.terminating
        if not held or volume.terminating:
            self.volumes.enqueue(name)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Queue what a node places: by its labels, and if it is ours by whether it takes volumes, too."""
        present = new or old or Node()
        ours = present.name == self.cluster.node_name
        if old is not None and new is not None and _placing(old, ours=ours) == _placing(new, ours=ours):
            return  # It is a heartbeat.
        for claim in self.cluster.claims.by_index("node", present.name):
            self.forget("provision", claim.key, claim.uid)
            self.claims.enqueue(claim.key)
        for claim in self.cluster.claims.values() if ours else ():
            if not claim.bound:
                self.claims.enqueue(claim.key)
        for volume in self.cluster.volumes.values() if ours else ():
            self.volumes.enqueue(volume.key)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        present = new or old or Pod()
        volume = present.annotation(SCRUB_VOLUME)
        if volume is not None:
            self.volumes.enqueue(volume)
        left = new is None or finished(new)
        for key in claims_of_pod(present):
            claim = self.cluster.claims.get(key)
            if claim is not None and not claim.bound:
                self.claims.enqueue(key)
            if left:
                for name in self.cluster.free.reserved_for(key):
                    self._volume_left(name)
