"""Groups of snapshots: users who ask for them and delete them, and the rules about groups and their members.

The rules share no code with the decisions: they compare objects with what the storage has.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Any, Final

from volplane.kube import names
from volplane_testing.simulation.backends import SimulatedBackend
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of, finalizers_of
from volplane_testing.simulation.cutting_backend import CutSnapshot
from volplane_testing.simulation.grouping_backend import GroupingBackend
from volplane_testing.simulation.run_context import CLUSTER_ID, RunContext
from volplane_testing.simulation.safety import BEGAN, FRESH
from volplane_testing.simulation.scenarios import ALPHA

__all__ = ["GroupedSnapshots", "group_of_member", "write_groups"]

_API: Final = "groupsnapshot.storage.k8s.io"
_GROUPS: Final = f"/apis/{_API}/v1/namespaces/default/volumegroupsnapshots"
_CONTENTS: Final = f"/apis/{_API}/v1/volumegroupsnapshotcontents"
_CLASSES: Final = f"/apis/{_API}/v1/volumegroupsnapshotclasses"
_MEMBERS: Final = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
_POLICIES: Final = {"groups-deleted": "Delete", "groups-retained": "Retain"}
"""Class of groups -> its policy."""
_COLLECTS: Final = 10.0
"""Seconds until the garbage collector has looked."""
_SOURCE_GONE: Final = ("no PersistentVolume with the handle", "is not bound to the claim of the group")
_LABEL: Final = "simulation.volplane.dev/group"


def group_of_member(snapshot: Json) -> str:
    """Return the uid of the group of which a VolumeSnapshot is a member; "" = of none."""
    for owner in snapshot["metadata"].get("ownerReferences") or ():
        if owner["kind"] == "VolumeGroupSnapshot":
            return str(owner["uid"])
    return ""


class GroupedSnapshots:
    """Its `actions` are the `what` of actions. Does nothing where no backend cuts groups."""

    def __init__(self, run_context: RunContext, backends: Mapping[str, SimulatedBackend]) -> None:
        self.actions: Mapping[str, Callable[..., Coroutine[Any, Any, None] | None]] = {
            "join_group": self.join,
            "cut_group": self.cut,
            "end_group": self.end,
            "end_member": self.end_member,
            "end_group_content": self.end_content,
            "force_group": self.force,
        }
        self._view = run_context.view
        self._safety = run_context.safety
        self._chance = run_context.chance
        self._happened = run_context.trace.happened
        self._note = run_context.trace.note
        self._violations = run_context.violations
        self._grouping = [each for each in backends.values() if isinstance(each, GroupingBackend)]
        self._forced: set[str] = set()
        """Uids of groups that a person removed, or of which the content, whatever held them."""
        self._gone: dict[str, float] = {}
        """Uid of a group -> loop time at which it was being deleted, or was gone."""
        self._cuts: dict[str, int] = {}
        """Uid of a group -> how often it was cut."""
        for backend in self._grouping:
            backend.grouped, backend.ungrouped = self._were_cut, self._were_dropped
            for name, policy in _POLICIES.items():
                kind = {"apiVersion": f"{_API}/v1", "kind": "VolumeGroupSnapshotClass", "metadata": {"name": name}}
                self._send("POST", _CLASSES, {**kind, "driver": ALPHA, "deletionPolicy": policy})
        if self._grouping:
            run_context.view.listeners.append(self._committed)

    # --- rules --------------------------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        known: Json = commit.new or commit.old or {}
        if commit.kind in {"group", "snapshot"} and (commit.new is None) == (commit.kind == "group"):
            asyncio.get_running_loop().call_later(_COLLECTS, self._collect)
        if commit.kind == "group":
            uid = known["metadata"]["uid"]
            if commit.new is None or "deletionTimestamp" in known["metadata"]:
                self._gone.setdefault(uid, asyncio.get_running_loop().time())
            elif commit.by_controller and _is_ready(commit.new) and not (commit.old and _is_ready(commit.old)):
                self._check_whole(commit.new)
        elif commit.kind == "group-content" and commit.new is None:
            self._forget(known, by_person=not commit.by_controller)
        elif commit.kind == "snapshot" and commit.new is None and (uid := group_of_member(known)):
            group = self._group(uid)
            if group is not None and uid not in self._gone and uid not in self._forced:
                text = f"{known['metadata']['name']} is gone, and its group {group['metadata']['name']} is there"
                self._violations.report("members-stay-with-their-group", text)

    def _collect(self) -> None:
        """Delete members whose group is gone, as the garbage collector of a cluster does: a former leader may have made
        them.
        """
        for key, snapshot in list(self._view.snapshots.items()):
            uid = group_of_member(snapshot)
            if uid and self._group(uid) is None and "deletionTimestamp" not in snapshot["metadata"]:
                self._view.send("cluster", "DELETE", f"{_MEMBERS}/{key.rpartition('/')[2]}")

    def _forget(self, content: Json, *, by_person: bool) -> None:
        if by_person or content["spec"]["deletionPolicy"] != "Delete":
            self._forced.add(_reference(content).get("uid", ""))

    def _check_whole(self, group: Json) -> None:
        """Check that a group that is shown as ready is whole: its volumes, of one cut, each with its objects."""
        self._happened["user: gets a group of snapshots"] += 1
        name, uid = group["metadata"]["name"], group["metadata"]["uid"]
        content = self._view.group_contents.get(f"groupsnapcontent-{uid}")
        if content is None:
            return
        handles = content["spec"]["source"].get("volumeHandles") or []
        infos = content.get("status", {}).get("volumeSnapshotInfoList") or []
        made = [self._stored(info["snapshotHandle"]) for info in infos]
        there = [each for each in made if each is not None]
        if sorted(each.source for each in there) != sorted(handles) or len(there) != len(made):
            self._violations.report("whole-group", f"group {name} of {handles} is ready, and has {made}")
        elif len({(each.group, each.created) for each in there}) > 1:
            self._violations.report("one-moment", f"group {name} is ready, and its members are of several cuts")
        elif not all(self._is_ready(each) for each in there):
            self._violations.report("whole-group", f"group {name} is ready, and not all of its members are")
        for info in infos:
            digest = hashlib.sha256(f"{uid}{info['volumeHandle']}".encode()).hexdigest()
            member = self._view.contents.get(f"snapcontent-{digest}", {}).get("status", {}).get("snapshotHandle")
            if f"default/snapshot-{digest}" not in self._view.snapshots or member != info["snapshotHandle"]:
                self._violations.report(
                    "whole-group", f"group {name} is ready, and its member {digest[:8]} is not there"
                )

    def _were_cut(self, made: list[CutSnapshot]) -> None:
        uid = made[0].owner.snapshot_uid
        self._note(ALPHA, f"cuts the group {made[0].group[:20]} of {len(made)}")
        self._happened["storage: cuts a group"] += 1
        self._cuts[uid] = self._cuts.get(uid, 0) + 1
        group = self._group(uid)
        shown = group is not None and group.get("status", {}).get("creationTime")
        if self._cuts[uid] > 1 and shown and not self._safety.excused():
            self._violations.report("one-cut", f"group {uid} is cut again, and shows another moment")

    def _were_dropped(self, made: list[CutSnapshot]) -> None:
        uid = made[0].owner.snapshot_uid
        self._note(ALPHA, f"deletes the group {made[0].group[:20]}")
        self._happened["storage: deletes a group"] += 1
        content = next((each for each in self._leading_to(made[0])), None)
        policy = content["spec"]["deletionPolicy"] if content is not None else "Delete"
        if policy == "Retain" and not self._safety.excused():
            self._violations.report("policy-ignored", f"group {uid} is deleted, and its content retains it")
        lives = self._group(uid) is not None and self._gone.get(uid, float("inf")) > BEGAN.get() - FRESH
        if lives and uid not in self._gone and uid not in self._forced and not self._safety.excused():
            self._violations.report("members-stay-with-their-group", f"group {uid} is deleted, and wanted")

    # --- rules at rest ------------------------------------------------------------------------------------------

    def check(self, reasons: Mapping[str, str]) -> None:
        """Check the objects and the storage at rest. reasons: why keys wait."""
        for invariant, about, text in self._wrong():
            waiting = [reason for key, reason in reasons.items() if key.endswith(f" {about}")]
            self._violations.report(invariant, f"{about} {text}; {' / '.join(waiting)}")

    def _wrong(self) -> Iterator[tuple[str, str, str]]:
        for key, group in self._view.groups.items():
            yield from self._wrong_group(key, group)
        for name, content in self._view.group_contents.items():
            if "deletionTimestamp" in content["metadata"] and self._group(_reference(content).get("uid", "")) is None:
                yield "no-stuck-finalizer", name, f"cannot go: {finalizers_of(content)}"
        for key, snapshot in self._view.snapshots.items():
            uid = group_of_member(snapshot)
            if uid and "deletionTimestamp" in snapshot["metadata"] and self._group(uid) is None:
                yield "no-stuck-finalizer", key, f"cannot go: {finalizers_of(snapshot)}"
        grouped = (made for backend in self._grouping for made in backend.snapshots.values() if made.group)
        for made in grouped:
            # What a person forgot is found by the leak check: it carries our marks, and nothing leads to it.
            forgotten = made.owner.snapshot_uid in self._forced and made.owner.cluster_id == CLUSTER_ID
            if not forgotten and not any(True for _ in self._leading_to(made)):
                yield "no-leak", made.handle, "was cut for a group, and no content leads to it"

    def _wrong_group(self, key: str, group: Json) -> Iterator[tuple[str, str, str]]:
        meta = group["metadata"]
        content = self._view.group_contents.get(f"groupsnapcontent-{meta['uid']}")
        if "deletionTimestamp" in meta:
            yield "no-stuck-finalizer", key, f"cannot go: {finalizers_of(group)}"
        elif meta["uid"] in self._forced:
            return
        elif any(text in _error(group) for text in _SOURCE_GONE):
            yield "held-until-cut", key, f"lost a volume: {_error(group)}"
        elif _is_ready(group) or _failed(group):
            return
        elif self._could_be_cut(group) if content is None else "deletionTimestamp" not in content["metadata"]:
            yield "what-can-proceed-does", key, "is not ready, though it could be"

    def _could_be_cut(self, group: Json) -> bool:
        named = group["spec"]["source"]["selector"]["matchLabels"][_LABEL]
        claims = [
            each for each in self._view.claims.values() if (each["metadata"].get("labels") or {}).get(_LABEL) == named
        ]
        return bool(claims) and all(map(self._is_ours, claims))

    def _is_ours(self, claim: Json) -> bool:
        volume = self._view.volumes.get(claim["spec"].get("volumeName", ""))
        of = annotations_of(volume).get(names.PROVISIONED_BY) if volume is not None else ""
        bound = names.BIND_COMPLETED in annotations_of(claim) and "deletionTimestamp" not in claim["metadata"]
        return of == ALPHA and bound

    def _leading_to(self, made: CutSnapshot) -> Iterator[Json]:
        for name, content in self._view.group_contents.items():
            handle = content.get("status", {}).get("volumeGroupSnapshotHandle")
            if handle == made.group or name == f"groupsnapcontent-{made.owner.snapshot_uid}":
                yield content

    def _group(self, uid: str) -> Json | None:
        return next((each for each in self._view.groups.values() if each["metadata"]["uid"] == uid), None)

    def _stored(self, handle: str) -> CutSnapshot | None:
        return next((each.snapshots[handle] for each in self._grouping if handle in each.snapshots), None)

    def _is_ready(self, made: CutSnapshot) -> bool:
        return any(each.is_ready(made) for each in self._grouping)

    # --- people -------------------------------------------------------------------------------------------------

    def join(self, claim: str, group: str) -> None:
        """Give a claim the label of a group, or take it away."""
        self._send("PATCH", f"{_CLAIMS}/{claim}", {"metadata": {"labels": {_LABEL: group or None}}})

    async def cut(self, name: str, group: str, like: str, ends: float) -> None:
        """Ask for snapshots of the claims with a label. ends: seconds until the group is deleted, if it is."""
        body = {
            "apiVersion": f"{_API}/v1",
            "kind": "VolumeGroupSnapshot",
            "metadata": {"name": name},
            "spec": {"volumeGroupSnapshotClassName": like, "source": {"selector": {"matchLabels": {_LABEL: group}}}},
        }
        for attempt in range(60):
            if self._send("POST", _GROUPS, body) or self._chance.calm.is_set():
                break
            await asyncio.sleep(self._chance.between(0.01, 0.5, f"{name} {attempt}"))
        if ends:
            await asyncio.sleep(ends)
            self.end(name)

    def end(self, name: str) -> None:
        self._send("DELETE", f"{_GROUPS}/{name}", {})

    def end_member(self, of: str) -> None:
        """Delete the members of a group, one by one, as a user may by mistake."""
        group = self._view.groups.get(f"default/{of}")
        for key, snapshot in list(self._view.snapshots.items()):
            if group is not None and group_of_member(snapshot) == group["metadata"]["uid"]:
                self._happened["user: deletes a member of a group"] += 1
                self._send("DELETE", f"{_MEMBERS}/{key.rpartition('/')[2]}", {})

    def end_content(self, of: str) -> None:
        """Delete the content of a group, as an administrator may."""
        group = self._view.groups.get(f"default/{of}")
        if group is not None:
            self._send("DELETE", f"{_CONTENTS}/groupsnapcontent-{group['metadata']['uid']}", {})

    def force(self, of: str, which: str) -> None:
        """Remove a group, its content, or both, whatever holds them."""
        group = self._view.groups.get(f"default/{of}")
        if group is None:
            return
        uid = group["metadata"]["uid"]
        self._happened[f"user: removes a group by force ({which})"] += 1
        self._forced.add(uid)
        for what, path in (("group", f"{_GROUPS}/{of}"), ("content", f"{_CONTENTS}/groupsnapcontent-{uid}")):
            if which in (what, "both"):
                self._send("PATCH", path, {"metadata": {"finalizers": None}})
                self._send("DELETE", path, {})
                self._send("PATCH", path, {"metadata": {"finalizers": None}})

    def _send(self, method: str, path: str, body: Json) -> bool:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._view.send("user", method, path, json.dumps(body).encode(), headers={"content-type": media})
        return answer.status < 300


def _is_ready(group: Json) -> bool:
    return bool(group.get("status", {}).get("readyToUse"))


def _failed(group: Json) -> bool:
    return "terminal: " in _error(group)


def _error(group: Json) -> str:
    return str((group.get("status", {}).get("error") or {}).get("message", ""))


def _reference(content: Json) -> Json:
    found: Json = content["spec"].get("volumeGroupSnapshotRef") or {}
    return found


def write_groups(do: Callable[..., None], about: str, claims: list[str], share: float, end: float) -> None:
    """Write actions of `GroupedSnapshots`. share: the chance of each group.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} groups")  # noqa: S311 -- schedules, not secrets
    if not share:
        return
    for claim in claims:
        if random.random() < 0.8:
            do(random.uniform(0.0, end / 4), "join_group", claim=claim, group="app")
        for _ in range(random.randint(1, 4)):
            do(random.uniform(0.0, end + 20.0), "write_data", claim=claim)
    for number in range(1, random.randint(1, 3) + 1):
        if random.random() < share:
            _write_one(do, random, f"g{number}", claims, random.uniform(0.0, end))


def _write_one(do: Callable[..., None], random: Random, name: str, claims: list[str], at: float) -> None:
    """Write what people do with one group."""
    ends = random.choice((0.0, 0.0, 0.0, random.uniform(0.2, 4.0)))
    like = random.choice(("groups-deleted", "groups-deleted", "groups-retained"))
    do(at, "cut_group", name=name, group="app", like=like, ends=ends)
    later = at + random.choice((0.5, 10.0, 60.0)) * random.random()
    if random.random() < 0.4:
        do(later, "end_member", of=name)
    if random.random() < 0.2:
        do(later + random.uniform(0.0, 5.0), "end_group_content", of=name)
    if random.random() < 0.15:
        do(later + random.uniform(0.0, 30.0), "force_group", of=name, which=random.choice(("group", "content", "both")))
    if random.random() < 0.3:
        do(at + random.choice((0.2, 3.0)) * random.random(), "delete_claim", name=random.choice(claims))
    if random.random() < 0.3:
        do(at + random.uniform(-2.0, 2.0), "join_group", claim=random.choice(claims), group="")
    if random.random() < 0.6:
        do(later + random.choice((0.0, 1.0, 60.0)) * random.random(), "end_group", name=name)
