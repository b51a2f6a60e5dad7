"""Snapshots, what is made from them, and copies: users, tenants and administrators, and the rules about all of that.

The rules share no code with the decisions: they compare objects with what the storage has.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Any, Final

from volplane.kube import names
from volplane.kube.quantity import parse
from volplane_testing.simulation.backends import SimulatedBackend
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of, finalizers_of, key_of
from volplane_testing.simulation.cutting_backend import CutSnapshot, CuttingBackend
from volplane_testing.simulation.disks import source_key
from volplane_testing.simulation.grouped_snapshots import GroupedSnapshots, group_of_member
from volplane_testing.simulation.run_context import CLUSTER_ID, RunContext
from volplane_testing.simulation.safety import BEGAN, FRESH
from volplane_testing.simulation.scenarios import ALPHA
from volplane_testing.simulation.scheduled_snapshots import ScheduledSnapshots

__all__ = ["Snapshots", "write_snapshots"]

_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
_VOLUMES: Final = "/api/v1/persistentvolumes"
_GROUP: Final = "snapshot.storage.k8s.io"
_SNAPSHOTS: Final = f"/apis/{_GROUP}/v1/namespaces/default/volumesnapshots"
_CONTENTS: Final = f"/apis/{_GROUP}/v1/volumesnapshotcontents"
_CLASSES: Final = f"/apis/{_GROUP}/v1/volumesnapshotclasses"
_POLICIES: Final = {"deleted": "Delete", "retained": "Retain"}
"""Class of snapshots -> its policy."""
_PATIENCE: Final = 60
_GIVEN_UP: Final = 1500.0
"""Virtual seconds without faults after which users delete the claims that could not be made from anything."""
_THINGS: Final = (
    "ready",
    "moment",
    "no moment",
    "failed",
    "healed",
    "huge",
    "annotations",
    "class",
    "bare",
    "another content",
)
_LONG_AGO: Final = "2001-01-01T00:00:00Z"


class Snapshots:
    """Its `actions` are the `what` of actions. Does nothing where no backend makes snapshots."""

    def __init__(self, run_context: RunContext, backends: Mapping[str, SimulatedBackend]) -> None:
        self._scheduled = ScheduledSnapshots(run_context)
        self._grouped = GroupedSnapshots(run_context, backends)
        self.actions: Mapping[str, Callable[..., Coroutine[Any, Any, None] | None]] = {
            "cut": self.cut,
            "end_snapshot": self.end_snapshot,
            "end_content": self.end_content,
            "force": self.force,
            "lose_snapshot": self.lose,
            "write_snapshot": self.write_snapshot,
            "set_snapshot_policy": self.set_policy,
            "bind_again": self.bind_again,
            "make_of": self.make_of,
            "write_data": self.write_data,
            "offer_volume": self.offer,
            **self._scheduled.actions,
            **self._grouped.actions,
        }
        self._view = run_context.view
        self._disks = run_context.disks
        self._safety = run_context.safety
        self._chance = run_context.chance
        self._happened = run_context.trace.happened
        self._note = run_context.trace.note
        self._violations = run_context.violations
        self._cutting = [each for each in backends.values() if isinstance(each, CuttingBackend)]
        self._writes = 0
        self._cuts: dict[str, list[CutSnapshot]] = defaultdict(list)
        """By uid of the VolumeSnapshot in the marks."""
        self._by_handle: dict[str, CutSnapshot] = {}
        """All that ever were."""
        self._named: dict[str, set[str]] = defaultdict(set)
        """Key of a VolumeSnapshot -> the uids in the marks of what it may mean."""
        self._held: dict[str, set[str]] = defaultdict(set)
        """Key of a claim -> handles of the assets that were bound to it."""
        self._shown: dict[str, float] = {}
        """Uid of a VolumeSnapshot -> loop time at which a controller showed its moment."""
        self._policies: dict[str, float] = {}
        """Name of a content -> loop time at which its policy was changed."""
        self._forged: set[str] = set()
        """Uids of VolumeSnapshots whose tenant wrote the status."""
        self._bared: set[str] = set()
        """Uids of VolumeSnapshots whose tenant took the finalizers away, by which they need their claim."""
        self._forgotten: set[str] = set()
        """Uids in the marks of snapshots to which no object needs to lead: a person saw to that."""
        for backend in self._cutting:
            backend.cut, backend.dropped, backend.is_kept = self._was_cut, self._was_dropped, self._is_kept
            for name, policy in _POLICIES.items():
                self._send("POST", _CLASSES, {"metadata": {"name": name}, "driver": ALPHA, "deletionPolicy": policy})
        if self._cutting:
            run_context.view.listeners.append(self._committed)

    def _is_kept(self, request: str) -> bool:
        """Return whether a content has the state of what goes on for it. request: its name."""
        kind, _, uid = request.partition("-")
        of_group = kind == "groupsnapshot"
        contents = self._view.group_contents if of_group else self._view.contents
        content = contents.get(f"{'groupsnapcontent' if of_group else 'snapcontent'}-{uid}")
        return content is not None and '"cutting"' in annotations_of(content).get(names.INTENT, "")

    # --- rules --------------------------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        new, old = commit.new, commit.old
        match commit.kind:
            case "snapshot" if new is not None:
                self._follow(commit, new)
            case "content":
                self._follow_content(commit)
            case "claim" if new is not None and commit.by_controller:
                completed = old is None or names.BIND_COMPLETED not in annotations_of(old)
                if completed and names.BIND_COMPLETED in annotations_of(new):
                    self._check_bound(commit.name, new)
                if old is not None and names.CLAIM_AS_SOURCE in set(finalizers_of(old)) - set(finalizers_of(new)):
                    self._check_released(commit.name, new)

    def _follow(self, commit: Commit, snapshot: Json) -> None:
        meta, source = snapshot["metadata"], snapshot["spec"].get("source", {})
        kept = source.get("volumeSnapshotContentName", "")
        own = kept.removeprefix("snapcontent-") if kept else group_of_member(snapshot) or meta["uid"]
        self._named[key_of(snapshot)].add(own)
        if commit.by_controller and _status(snapshot).get("creationTime"):
            self._shown.setdefault(meta["uid"], _now())

    def _follow_content(self, commit: Commit) -> None:
        old, new = commit.old, commit.new
        known: Json = new or old or {}
        name = known["metadata"]["name"]
        if old is not None and new is not None and _policy(old) != _policy(new):
            self._policies[name] = _now()
        if new is None and (not commit.by_controller or _policy(known) != "Delete"):
            self._forgotten.add(name.removeprefix("snapcontent-"))

    def _was_cut(self, made: CutSnapshot) -> None:
        uid = made.owner.snapshot_uid
        self._note(ALPHA, f"cuts {made.handle} for {self._view.spell(made.name)}")
        self._happened["storage: cuts a snapshot"] += 1
        self._by_handle[made.handle] = made
        before = self._cuts[uid]
        before.append(made)
        shown = self._shown.get(uid)
        known = shown is not None and shown < BEGAN.get() - FRESH
        if len(before) > 1 and known and uid not in self._forged and not self._safety.excused():
            text = f"{self._view.spell(made.name)} is cut again, and its VolumeSnapshot shows another moment"
            self._violations.report("one-cut", text)

    def _was_dropped(self, made: CutSnapshot) -> None:
        self._note(ALPHA, f"deletes {made.handle}")
        self._happened["storage: deletes a snapshot"] += 1
        for content in self._leading_to(made):
            name = content["metadata"]["name"]
            fresh = self._policies.get(name, float("-inf")) >= BEGAN.get() - FRESH
            if _policy(content) == "Retain" and not fresh and not self._safety.excused():
                text = f"{made.handle} is deleted, and content {self._view.spell(name)} retains it"
                self._violations.report("policy-ignored", text)

    def _check_bound(self, name: str, claim: Json) -> None:
        """Check what a claim with a source is bound to, and what is in it."""
        pointer, source = claim["spec"].get("volumeName", ""), _source_of(claim)
        volume = self._view.volumes.get(pointer)
        handle = volume["spec"].get("hostPath", {}).get("path", "") if volume is not None else ""
        self._held[key_of(claim)].add(handle)
        if not source:
            return
        key = f"{claim['metadata']['namespace']}/{source['name']}"
        born = next((each.born[handle] for each in self._cutting if handle in each.born), None)
        if pointer != f"pvc-{claim['metadata']['uid']}" or born is None:
            text = f"claim {name} is to be made of {key}, and is bound to {self._view.spell(pointer)}"
            self._violations.report("made-for-it", text)
            return
        self._happened[f"user: gets a volume made of a {source['kind']}"] += 1
        if source["kind"] != "VolumeSnapshot":
            right = born.volume in self._held[key]
        else:
            made = self._by_handle.get(born.snapshot)
            ours = made is not None and made.owner.snapshot_uid in self._named[key]
            right = ours and made is not None and made.contents == born.contents
        if not right:
            text = f"claim {name} is made of {key}, and has {born.contents} of {born.snapshot or born.volume}"
            self._violations.report("restored-as-cut", text)

    def _check_released(self, name: str, claim: Json) -> None:
        """Check that nothing is about to be cut of a claim that is not held any more."""
        for snapshot in self._view.snapshots.values():
            meta, content = snapshot["metadata"], self._content_of(snapshot)
            named = snapshot["spec"].get("source", {}).get("persistentVolumeClaimName", "")
            if content is None or f"{meta['namespace']}/{named}" != key_of(claim):
                continue
            done = "deletionTimestamp" in meta or _status(content).get("creationTime") or _failed(content)
            done = done or _status(snapshot).get("creationTime") or _failed(snapshot)
            held = names.SNAPSHOT_AS_SOURCE in finalizers_of(snapshot)
            if held and not done and meta["uid"] not in self._forged | self._bared and not self._safety.overlap:
                text = f"claim {name} is released, and snapshot {meta['name']} of it is not cut yet"
                self._violations.report("held-until-cut", text)

    # --- rules at rest ------------------------------------------------------------------------------------------

    def holds(self, claim: Json) -> bool:
        """Tell whether a claim that is deleted is held for good reason: something is still to be made of it."""
        if names.CLONED_CLAIM in finalizers_of(claim) and any(
            self._waiting_for("PersistentVolumeClaim", key_of(claim))
        ):
            return True
        return names.CLAIM_AS_SOURCE in finalizers_of(claim) and self._is_source(claim)

    def _is_source(self, claim: Json) -> bool:
        """Tell whether a VolumeSnapshot, of which a person wrote the status, still needs the claim."""
        for snapshot in self._view.snapshots.values():
            named = snapshot["spec"].get("source", {}).get("persistentVolumeClaimName", "")
            ours = f"{snapshot['metadata']['namespace']}/{named}" == key_of(claim)
            if ours and snapshot["metadata"]["uid"] in self._forged and not _status(snapshot).get("creationTime"):
                return True
        return False

    def check(self, reasons: Mapping[str, str]) -> None:
        """Check the objects and the storage at rest. reasons: why keys wait."""
        self._grouped.check(reasons)
        for invariant, about, text in self._wrong():
            waiting = [reason for key, reason in reasons.items() if key.endswith(f" {about}")]
            self._violations.report(invariant, f"{self._view.spell(about)} {text}; {' / '.join(waiting)}")

    def _wrong(self) -> Iterator[tuple[str, str, str]]:
        for key, claim in self._view.claims.items():
            if names.CLAIM_AS_SOURCE in finalizers_of(claim) and not self._needed(claim):
                yield "no-stuck-finalizer", key, "is held for a snapshot, and none is to be cut"
        for key, snapshot in self._view.snapshots.items():
            yield from self._wrong_snapshot(key, snapshot)
        for name, content in self._view.contents.items():
            living = self._living(content)
            if "deletionTimestamp" in content["metadata"] and not living:
                yield "no-stuck-finalizer", name, f"cannot go: {finalizers_of(content)}"
        for backend in self._cutting:
            for made in backend.snapshots.values():
                yield from self._wrong_cut(made)

    def _wrong_snapshot(self, key: str, snapshot: Json) -> Iterator[tuple[str, str, str]]:
        meta, status = snapshot["metadata"], _status(snapshot)
        if group_of_member(snapshot):
            return  # It goes with its group.
        waiting = any(self._waiting_for("VolumeSnapshot", key))
        held = finalizers_of(snapshot)
        if "deletionTimestamp" in meta and not waiting:
            yield "no-stuck-finalizer", key, f"cannot go: {held}"
        elif names.RESTORED_SNAPSHOT in held and not waiting:
            yield "no-stuck-finalizer", key, "is held for a claim, and none is to be made of it"
        if "deletionTimestamp" in meta or meta["uid"] in self._forged or _failed(snapshot):
            return
        claim = self._view.claims.get(f"default/{snapshot['spec'].get('source', {}).get('persistentVolumeClaimName')}")
        content = self._content_of(snapshot)
        cuttable = claim is not None and "deletionTimestamp" not in claim["metadata"] and self._is_ours(claim)
        if not status.get("readyToUse") and (cuttable or content is not None) and not self._is_misbound(content):
            yield "what-can-proceed-does", key, "is not ready, though it could be"

    def _is_misbound(self, content: Json | None) -> bool:
        """Tell whether a person has given the content to another VolumeSnapshot, or deleted it."""
        return content is not None and (not self._living(content) or "deletionTimestamp" in content["metadata"])

    def _is_ours(self, claim: Json) -> bool:
        volume = self._view.volumes.get(claim["spec"].get("volumeName", ""))
        of = annotations_of(volume).get(names.PROVISIONED_BY) if volume is not None else ""
        return of == ALPHA and names.BIND_COMPLETED in annotations_of(claim)

    def _needed(self, claim: Json) -> bool:
        """Tell whether a VolumeSnapshot of the claim is accepted and not cut."""
        for snapshot in self._view.snapshots.values():
            named = snapshot["spec"].get("source", {}).get("persistentVolumeClaimName", "")
            if f"{snapshot['metadata']['namespace']}/{named}" != key_of(claim):
                continue
            held = names.SNAPSHOT_AS_SOURCE in finalizers_of(snapshot)
            if held and not _status(snapshot).get("creationTime") and not _failed(snapshot):
                return True
        return False

    def _wrong_cut(self, made: CutSnapshot) -> Iterator[tuple[str, str, str]]:
        uid = made.owner.snapshot_uid
        if made.group or any(True for _ in self._leading_to(made)):
            return
        wanted = next((each for each in self._view.snapshots.values() if each["metadata"]["uid"] == uid), None)
        if wanted is not None and "deletionTimestamp" not in wanted["metadata"]:
            if uid not in self._forged and not _failed(wanted):
                yield "no-leak", made.handle, f"is of {self._view.spell(made.name)}, which has no content"
            return
        # What a person forgot is found by the leak check: it carries our marks, and nothing leads to it.
        findable = made.owner.cluster_id == CLUSTER_ID and made.owner.content_name == f"snapcontent-{uid}"
        if uid not in self._forgotten or not findable:
            yield "no-leak", made.handle, f"was cut for {self._view.spell(made.name)}, and no content leads to it"

    def _leading_to(self, made: CutSnapshot) -> Iterator[Json]:
        for name, content in self._view.contents.items():
            handles = (_status(content).get("snapshotHandle"), content["spec"].get("source", {}).get("snapshotHandle"))
            if made.handle in handles or name == made.owner.content_name:
                yield content

    def _content_of(self, snapshot: Json) -> Json | None:
        named = snapshot["spec"].get("source", {}).get("volumeSnapshotContentName")
        return self._view.contents.get(named or f"snapcontent-{snapshot['metadata']['uid']}")

    def _living(self, content: Json) -> bool:
        """Tell whether the VolumeSnapshot of a content is there, and is not being deleted."""
        reference = content["spec"].get("volumeSnapshotRef", {})
        found = self._view.snapshots.get(f"{reference.get('namespace')}/{reference.get('name')}")
        if found is None or "deletionTimestamp" in found["metadata"]:
            return found is not None and any(self._waiting_for("VolumeSnapshot", key_of(found)))
        return reference.get("uid") in (None, "", found["metadata"]["uid"])

    def _waiting_for(self, kind: str, key: str) -> Iterator[Json]:
        """Yield the claims that are not bound and name this source."""
        for claim in self._view.claims.values():
            source = _source_of(claim)
            named = source and (source["kind"], f"{claim['metadata']['namespace']}/{source['name']}") == (kind, key)
            if named and names.BIND_COMPLETED not in annotations_of(claim):
                yield claim

    # --- people -------------------------------------------------------------------------------------------------

    async def cut(self, name: str, claim: str, like: str, ends: float) -> None:
        """Ask for a snapshot of a claim, sometimes before it is bound. ends: seconds until it is deleted, if it is."""
        if self._chance.number(f"{name} waits") < 0.8:
            await self._bound(name, claim)
        body = {
            "metadata": {"name": name},
            "spec": {"volumeSnapshotClassName": like, "source": {"persistentVolumeClaimName": claim}},
        }
        for attempt in range(_PATIENCE):
            if self._send("POST", _SNAPSHOTS, body) or self._chance.calm.is_set():
                break
            await asyncio.sleep(self._chance.between(0.01, 0.5, f"{name} {attempt}"))
        if ends:
            await asyncio.sleep(ends)
            self.end_snapshot(name)

    async def _bound(self, name: str, claim: str) -> None:
        """Wait a while until the claim is bound."""
        for attempt in range(_PATIENCE):
            found = self._view.claims.get(f"default/{claim}")
            if self._chance.calm.is_set() or (found is not None and names.BIND_COMPLETED in annotations_of(found)):
                return
            await asyncio.sleep(self._chance.between(0.01, 0.5, f"{name} waits {attempt}"))

    def end_snapshot(self, name: str) -> None:
        self._send("DELETE", f"{_SNAPSHOTS}/{name}", {})

    def end_content(self, of: str) -> None:
        """Delete the content of a VolumeSnapshot, as an administrator may, also when that is gone."""
        for name, content in list(self._view.contents.items()):
            if content["spec"].get("volumeSnapshotRef", {}).get("name") == of:
                self._happened["user: deletes a content"] += 1
                self._send("DELETE", f"{_CONTENTS}/{name}", {})

    def force(self, of: str, which: str) -> None:
        """Remove a VolumeSnapshot, its content, or both, whatever holds them."""
        snapshot, content = self._view.snapshots.get(f"default/{of}"), self._content_named(of)
        self._happened[f"user: removes by force ({which})"] += 1
        if snapshot is not None and which != "content":
            self._strip(f"{_SNAPSHOTS}/{of}")
        if content is not None and which != "snapshot":
            self._forgotten.add(content["metadata"]["name"].removeprefix("snapcontent-"))
            self._strip(f"{_CONTENTS}/{content['metadata']['name']}")

    def _strip(self, path: str) -> None:
        self._patch(path, {"metadata": {"finalizers": None}})
        self._send("DELETE", path, {})
        self._patch(path, {"metadata": {"finalizers": None}})

    def lose(self, of: str) -> None:
        """Lose a snapshot on the storage, and its content by force."""
        snapshot = self._view.snapshots.get(f"default/{of}")
        uid = snapshot["metadata"]["uid"] if snapshot is not None else ""
        for backend in self._cutting:
            for made in [each for each in backend.snapshots.values() if each.owner.snapshot_uid == uid]:
                self._happened["storage: loses a snapshot"] += 1
                del backend.snapshots[made.handle]
                self._strip(f"{_CONTENTS}/{made.owner.content_name}")

    def write_snapshot(self, of: str, thing: str) -> None:
        """Write one of the things that a tenant may write, or an administrator by mistake."""
        snapshot = self._view.snapshots.get(f"default/{of}")
        if snapshot is None:
            return
        self._happened[f"user: writes a VolumeSnapshot ({thing})"] += 1
        path, error = f"{_SNAPSHOTS}/{of}", {"time": _LONG_AGO, "message": "terminal: it will never be"}
        content = f"snapcontent-{snapshot['metadata']['uid']}"
        statuses: Mapping[str, Json] = {
            "ready": {"readyToUse": True, "boundVolumeSnapshotContentName": content},
            "moment": {"creationTime": _LONG_AGO},
            "no moment": {"creationTime": None},
            "failed": {"error": error},
            "healed": {"error": None},
            "huge": {"restoreSize": "9Ei"},
            "another content": {"boundVolumeSnapshotContentName": self._another(content), "readyToUse": True},
        }
        if thing in statuses:
            self._forged.add(snapshot["metadata"]["uid"])
            self._patch(f"{path}/status", {"status": statuses[thing]})
        elif thing == "annotations":
            marks = dict.fromkeys((names.SNAPSHOT_BEING_DELETED, names.SNAPSHOT_BEING_CREATED, names.INTENT), "yes")
            self._patch(path, {"metadata": {"annotations": marks}})
        elif thing == "class":
            self._patch(path, {"spec": {"volumeSnapshotClassName": "retained"}})
        else:
            self._bared.add(snapshot["metadata"]["uid"])
            self._patch(path, {"metadata": {"finalizers": None}})

    def _another(self, content: str) -> str:
        others = sorted(name for name in self._view.contents if name != content)
        return others[0] if others else "snapcontent-of-nobody"

    def set_policy(self, of: str, policy: str) -> None:
        if (content := self._content_named(of)) is not None:
            self._happened["user: changes the policy of a content"] += 1
            self._patch(f"{_CONTENTS}/{content['metadata']['name']}", {"spec": {"deletionPolicy": policy}})

    def bind_again(self, name: str) -> None:
        """Give a retained content whose VolumeSnapshot is gone to a new one."""
        for kept, content in sorted(self._view.contents.items()):
            reference = content["spec"].get("volumeSnapshotRef", {})
            key = f"{reference.get('namespace')}/{reference.get('name')}"
            free = key not in self._view.snapshots and "deletionTimestamp" not in content["metadata"]
            if not free or _policy(content) != "Retain" or not _status(content).get("snapshotHandle"):
                continue
            self._happened["user: binds a content again"] += 1
            fresh = {"namespace": "default", "name": name, "uid": None, "resourceVersion": None}
            self._patch(f"{_CONTENTS}/{kept}", {"spec": {"volumeSnapshotRef": fresh}})
            source = {"source": {"volumeSnapshotContentName": kept}}
            self._send("POST", _SNAPSHOTS, {"metadata": {"name": name}, "spec": source})
            return

    async def make_of(self, name: str, kind: str, source: str, storage_class: str) -> None:
        """Create a claim whose volume is made of a VolumeSnapshot or of another claim."""
        of = {"kind": kind, "name": source, **({"apiGroup": _GROUP} if kind == "VolumeSnapshot" else {})}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "3Gi"}},
            "dataSource": of,
        }
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        for attempt in range(_PATIENCE):
            if self._send("POST", _CLAIMS, body) or self._chance.calm.is_set():
                return
            await asyncio.sleep(self._chance.between(0.01, 0.5, f"{name} {attempt}"))

    def write_data(self, claim: str) -> None:
        """Let a pod of a claim write, if it is bound."""
        found = self._view.claims.get(f"default/{claim}")
        volume = self._view.volumes.get(found["spec"].get("volumeName", "")) if found is not None else None
        if found is None or volume is None or names.BIND_COMPLETED not in annotations_of(found):
            return
        handle = volume["spec"].get("hostPath", {}).get("path", "")
        for backend in self._cutting:
            if handle in backend.assets:
                self._writes += 1
                backend.write(handle, self._writes)

    def offer(self, name: str) -> None:
        """Create a volume of a class whose volumes are made, free for whoever asks."""
        for backend in self._cutting:
            handle = backend.add(name, 4 << 30)
            source = backend.source_of(handle)
            key = source_key(source.kind, source.fields)
            disk = self._disks.by_key.get(key) or self._safety.made(backend.name, key, None)
            disk.kept = "a user made it"
            spec = {
                "capacity": {"storage": "4Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "fast",
                source.kind: dict(source.fields),
            }
            body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
            self._send("POST", _VOLUMES, body)

    def recover(self) -> None:
        """Take back claims for which nothing can be made, at once or later: they would wait without end."""
        self._scheduled.recover()
        if self._cutting:
            asyncio.get_running_loop().call_later(_GIVEN_UP, self._give_up)

    def _give_up(self) -> None:
        for key, claim in list(self._view.claims.items()):
            if not _source_of(claim) or names.BIND_COMPLETED in annotations_of(claim):
                continue
            if "deletionTimestamp" not in claim["metadata"] and self._could_be_made(claim):
                self._violations.report(
                    "what-can-proceed-does", f"claim {key} is not bound, though its source is there"
                )
            self._send("DELETE", f"{_CLAIMS}/{claim['metadata']['name']}", {})

    def _could_be_made(self, claim: Json) -> bool:
        source = _source_of(claim)
        of_class = self._view.classes.get(claim["spec"].get("storageClassName", ""))
        if of_class is None or of_class["provisioner"] != ALPHA or claim["spec"].get("volumeName"):
            return False
        key = f"{claim['metadata']['namespace']}/{source['name']}"
        asked = parse(claim["spec"]["resources"]["requests"]["storage"])
        if source["kind"] == "PersistentVolumeClaim":
            found = self._view.claims.get(key)
            if found is None or "deletionTimestamp" in found["metadata"] or not self._is_ours(found):
                return False
            volume = self._view.volumes[found["spec"]["volumeName"]]
            return asked >= parse(volume["spec"]["capacity"]["storage"])
        snapshot = self._view.snapshots.get(key)
        content = self._content_of(snapshot) if snapshot is not None else None
        if snapshot is None or content is None or "deletionTimestamp" in snapshot["metadata"]:
            return False
        handle = _status(content).get("snapshotHandle", "")
        made = next((each.snapshots[handle] for each in self._cutting if handle in each.snapshots), None)
        fits = made is not None and not made.failed and asked >= parse(str(made.size))
        return fits and bool(_status(snapshot).get("readyToUse")) and snapshot["metadata"]["uid"] not in self._forged

    # --- requests -----------------------------------------------------------------------------------------------

    def _content_named(self, of: str) -> Json | None:
        snapshot = self._view.snapshots.get(f"default/{of}")
        return self._content_of(snapshot) if snapshot is not None else None

    def _patch(self, path: str, body: Json) -> bool:
        return self._send("PATCH", path, body)

    def _send(self, method: str, path: str, body: Json) -> bool:
        kinds = {_SNAPSHOTS: "VolumeSnapshot", _CLASSES: "VolumeSnapshotClass"}
        if method == "POST" and path in kinds:
            body = {"apiVersion": f"{_GROUP}/v1", "kind": kinds[path], **body}
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._view.send("user", method, path, json.dumps(body).encode(), headers={"content-type": media})
        return answer.status < 300


def _source_of(claim: Json) -> Json:
    """Return what the volume of a claim is to be made of, {} if it is to be empty."""
    found: Json = claim["spec"].get("dataSource") or claim["spec"].get("dataSourceRef") or {}
    return found


def _status(obj: Json) -> Json:
    found: Json = obj.get("status") or {}
    return found


def _failed(obj: Json) -> bool:
    return "terminal: " in (_status(obj).get("error") or {}).get("message", "")


def _policy(content: Json) -> str:
    return str(content["spec"].get("deletionPolicy", ""))


def _now() -> float:
    return asyncio.get_running_loop().time()


def write_snapshots(do: Callable[..., None], about: str, claims: list[str], share: float, end: float) -> None:
    """Write actions of `Snapshots` for a share of the claims.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} snapshots")  # noqa: S311 -- schedules, not secrets
    made = Counter[str]()
    for claim in claims:
        if random.random() >= share:
            continue
        for _ in range(random.randint(1, 5)):
            do(random.uniform(0.0, end + 20.0), "write_data", claim=claim)
        for _ in range(random.choice((1, 2, 2, 3))):
            made["s"] += 1
            name, at = f"s{made['s']}", random.uniform(0.0, end)
            ends = random.choice((0.0, 0.0, 0.0, random.uniform(0.2, 4.0)))
            do(at, "cut", name=name, claim=claim, like=random.choice(("deleted", "deleted", "retained")), ends=ends)
            do(at + random.uniform(0.0, 2.0), "write_data", claim=claim)
            _write_one(do, random, name, claim, at)
        if random.random() < 0.4:
            made["k"] += 1
            name, at = f"k{made['k']}", random.uniform(0.0, end)
            do(at, "make_of", name=name, kind="PersistentVolumeClaim", source=claim, storage_class="fast")
            if random.random() < 0.5:
                do(at + random.uniform(0.0, 40.0), "delete_claim", name=name)
        if random.random() < 0.3:
            do(random.uniform(0.0, end), "offer_volume", name=f"free-{claim}")


def _write_one(do: Callable[..., None], random: Random, name: str, claim: str, at: float) -> None:
    """Write what people do with one VolumeSnapshot."""
    later = at + random.choice((0.0, 0.5, 10.0, 60.0)) * random.random()
    for number in range(random.choice((0, 1, 1, 2))):
        restored, begun = f"r-{name}-{number}", later + random.uniform(0.0, 5.0)
        of = {"kind": "VolumeSnapshot", "source": name, "storage_class": random.choice(("fast", "fast", "kept"))}
        do(begun, "make_of", name=restored, **of)
        do(begun + random.uniform(0.0, 60.0), "write_data", claim=restored)
        if random.random() < 0.5:
            do(begun + random.choice((1.0, 60.0)) * random.random(), "delete_claim", name=restored)
    _write_trouble(do, random, name, later)
    if random.random() < 0.3:
        do(at + random.choice((0.2, 3.0)) * random.random(), "delete_claim", name=claim)
    if random.random() < 0.5:
        do(later + random.choice((0.0, 1.0, 60.0)) * random.random(), "end_snapshot", name=name)
        if random.random() < 0.4:
            do(later + random.uniform(60.0, 120.0), "bind_again", name=f"again-{name}")


def _write_trouble(do: Callable[..., None], random: Random, name: str, later: float) -> None:
    """Write what goes wrong with one VolumeSnapshot."""
    if random.random() < 0.3:
        when = later + random.uniform(0.0, 5.0)
        do(when, "force", of=name, which=random.choice(("snapshot", "content", "content", "both")))
    if random.random() < 0.15:
        do(later + random.uniform(0.0, 30.0), "lose_snapshot", of=name)
    if random.random() < 0.2:
        policy = random.choice(("Delete", "Retain", "Retain"))
        do(later + random.uniform(0.0, 30.0), "set_snapshot_policy", of=name, policy=policy)
    if random.random() < 0.3:
        do(later + random.choice((30.0, 90.0)) * random.random(), "end_content", of=name)
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        do(later + random.uniform(-1.0, 5.0), "write_snapshot", of=name, thing=random.choice(_THINGS))
