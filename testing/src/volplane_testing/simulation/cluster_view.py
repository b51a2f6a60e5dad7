"""The objects as the API server has them, independent of any cache, and who wrote them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Change
from volplane_testing.simulation.trace import Trace

__all__ = [
    "NOT_CONTROLLERS",
    "ClusterView",
    "Commit",
    "Json",
    "annotations_of",
    "finalizers_of",
    "key_of",
    "reference_of",
]

Json = dict[str, Any]

NOT_CONTROLLERS: Final = frozenset({"user", "cluster"})
"""Writers that are not controllers."""
KINDS: Final[Mapping[str, str]] = {
    "persistentvolumes": "volume",
    "persistentvolumeclaims": "claim",
    "pods": "pod",
    "storageclasses.storage.k8s.io": "class",
    "nodes": "node",
    "volumeattachments.storage.k8s.io": "attachment",
    "volumesnapshots.snapshot.storage.k8s.io": "snapshot",
    "volumesnapshotcontents.snapshot.storage.k8s.io": "content",
    "volumegroupsnapshots.groupsnapshot.storage.k8s.io": "group",
    "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io": "group-content",
}
_DYNAMIC: Final = "pvc-"
_SCRUB: Final = "volplane-scrub-"
_OF_SNAPSHOTS: Final = ("snapshot-", "snapcontent-")
_RECLAIM: Final = "volplane.dev/reclaim"


def key_of(obj: Json) -> str:
    """Return `namespace/name`, or `name` of an object without a namespace."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def annotations_of(obj: Json) -> Json:
    """Return the object's annotations, {} if it has none."""
    return obj["metadata"].get("annotations") or {}


def finalizers_of(obj: Json) -> list[str]:
    """Return the object's finalizers, [] if it has none."""
    return obj["metadata"].get("finalizers") or []


def reference_of(volume: Json) -> Json:
    """Return the volume's claimRef, {} if it has none."""
    return volume["spec"].get("claimRef") or {}


class Commit(msgspec.Struct, frozen=True, eq=False):
    """One write that took effect. old is None for a creation, new is None for a removal; neither is to be changed."""

    who: str
    kind: str
    name: str
    """As traces show it: dynamic volumes and scrubber pods are named after their claim."""
    old: Json | None
    new: Json | None

    @property
    def by_controller(self) -> bool:
        return self.who not in NOT_CONTROLLERS

    def __str__(self) -> str:
        if self.old is None:
            return f"creates {self.kind} {self.name} {_brief(self.new or {})}"
        if self.new is None:
            return f"{self.kind} {self.name} is gone"
        return f"writes {self.kind} {self.name}: {'; '.join(_differences(self.old, self.new)) or 'nothing'}"


class ClusterView:
    """Every object of these kinds as it is now, by key. `listeners` get each commit."""

    def __init__(self, server: ApiServer, trace: Trace) -> None:
        self.server = server
        self.volumes: dict[str, Json] = {}
        self.claims: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.classes: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.attachments: dict[str, Json] = {}
        self.snapshots: dict[str, Json] = {}
        self.contents: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        self.group_contents: dict[str, Json] = {}
        self.claims_by_uid: dict[str, Json] = {}
        self.listeners: list[Callable[[Commit], None]] = []
        self.writes: Counter[tuple[str, str]] = Counter()
        """(name, uid) -> writes of controllers."""
        self.retained: set[str] = set()
        """Names of volumes that were deleted while their policy kept the asset, or while no finalizer held them."""
        self._trace = trace
        self._who = ""
        self._claim_names: dict[str, str] = {}
        self._snapshot_names: dict[str, str] = {}
        self._scrubs: dict[str, str] = {}
        self._scrubbed: dict[str, str] = {}
        self._created: Counter[str] = Counter()
        self._objects = {
            "volume": self.volumes,
            "claim": self.claims,
            "pod": self.pods,
            "class": self.classes,
            "node": self.nodes,
            "attachment": self.attachments,
            "snapshot": self.snapshots,
            "content": self.contents,
            "group": self.groups,
            "group-content": self.group_contents,
        }
        for storage, kind in KINDS.items():
            server.store.subscribe(storage, partial(self._committed, kind))

    def send(
        self,
        who: str,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make the server handle a request of `who` now."""
        self._who = who
        return self.server.handle(method, path, query or {}, headers or {}, body)

    def claim_of(self, volume: Json) -> Json | None:
        """Return the living claim whose uid is in the volume's reference."""
        uid = reference_of(volume).get("uid")
        return self.claims_by_uid.get(uid) if uid else None

    def spell(self, name: str) -> str:
        """Return a name for traces that does not depend on other objects: it shows the claim in place of a uid."""
        if name.startswith(_DYNAMIC):
            return f"pvc({self._claim_names.get(name.removeprefix(_DYNAMIC), name[-6:])})"
        if name.startswith(_SCRUB):
            return self._scrubs.get(name, name)
        for prefix in _OF_SNAPSHOTS:
            if (known := self._snapshot_names.get(name.removeprefix(prefix))) is not None:
                return f"{prefix}({known})"
        return name

    def _committed(self, kind: str, change: Change) -> None:
        objects = self._objects[kind]
        old = objects.get(change.key)
        new = None if change.type == "DELETED" else change.new()
        if new is None:
            objects.pop(change.key, None)
        else:
            objects[change.key] = new
        present = new or old or {}
        uid = present["metadata"]["uid"]
        if kind == "claim":
            self._index_claim(change.key, uid, old, new)
        elif kind == "volume":
            self._follow_volume(change.key, uid, old, new)
        elif kind == "snapshot" and old is None:
            self._created[change.key] += 1
            self._snapshot_names[uid] = f"{change.key.rpartition('/')[2]}#{self._created[change.key]}"
        commit = Commit(self._who, kind, self.spell(change.key.rpartition("/")[2]), old, new)
        if commit.by_controller:
            self.writes[commit.name, uid] += 1
        self._trace.note(self._who, commit)
        for listener in self.listeners:
            listener(commit)

    def reload(self) -> None:
        """Read all objects anew: the server was restored. No listener hears of it as of commits."""
        for storage, kind in KINDS.items():
            self._objects[kind].clear()
            self._objects[kind].update({stored.key: stored.decode() for stored in self.server.store.all(storage)})
        self.claims_by_uid.clear()
        self.claims_by_uid.update({claim["metadata"]["uid"]: claim for claim in self.claims.values()})

    def scrubbed_by(self, pod: str) -> str:
        """Return the name of the volume that a scrubber pod is named after, "" for other pods."""
        return self._scrubbed.get(pod, "")

    def _follow_volume(self, name: str, uid: str, old: Json | None, new: Json | None) -> None:
        if old is None:
            pod = _SCRUB + sha256(uid.encode()).hexdigest()[:16]
            self._scrubs[pod] = f"scrub({self.spell(name)})"
            self._scrubbed[pod] = name
        elif new is None or ("deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in old["metadata"]):
            held = _RECLAIM in finalizers_of(old)
            if _policy(old) != "Delete" or (new is not None and not held):
                self.retained.add(name)
        elif _RECLAIM in finalizers_of(old) and _RECLAIM not in finalizers_of(new) and _policy(old) != "Delete":
            # The finalizer of a volume that is being deleted cannot be added again, whatever its policy becomes.
            self.retained.add(name)

    def _index_claim(self, key: str, uid: str, old: Json | None, new: Json | None) -> None:
        if new is None:
            self.claims_by_uid.pop(uid, None)
            return
        if old is None:
            self._created[key] += 1
            self._claim_names[uid] = f"{key.rpartition('/')[2]}#{self._created[key]}"
        self.claims_by_uid[uid] = new


def _policy(volume: Json) -> str:
    return str(volume["spec"].get("persistentVolumeReclaimPolicy", ""))


def _brief(obj: Json) -> str:
    spec = obj.get("spec") or {}
    picked = {
        key: spec[key]
        for key in ("volumeName", "storageClassName", "persistentVolumeReclaimPolicy", "claimRef", "volumes")
        if spec.get(key)
    }
    return json.dumps(picked, sort_keys=True) if picked else ""


_DULL: Final = frozenset({"resourceVersion", "generation", "managedFields", "lastPhaseTransitionTime"})


def _differences(old: Json, new: Json, path: str = "") -> list[str]:
    """Describe the changes as `path: old -> new`, without fields that always change."""
    found: list[str] = []
    for key in sorted({*old, *new} - _DULL):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        here = f"{path}.{key}" if path else key
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, here)
        else:
            found.append(f"{here}: {_shown(before)} -> {_shown(after)}")
    return found


def _shown(value: object) -> str:
    return "-" if value is None else json.dumps(value, sort_keys=True)
