"""Volumes of deleted claims that are kept for a while: who asks for them, with which right, and the rules about that.

The rules share no code with the decisions: what a volume may be destroyed for, and when, is read from the objects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final

from volplane.kube import names
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of, reference_of
from volplane_testing.simulation.run_context import RunContext

__all__ = ["KeptVolumes", "write_trash"]

_CLAIMS: Final = "/api/v1/namespaces/{}/persistentvolumeclaims"
_VOLUMES: Final = "/api/v1/persistentvolumes"
_OTHER: Final = "other"
_PATIENCE: Final = 100
_CHOICES: Final = ("5s", "10s", "20s", None, "skip")
_NONSENSE: Final = ("999999d", "-1d", "", "\u202e\u0661d")
_RIGHTFUL: Final = ("owner", "owner", "administrator", "late", "taken", "racing")
_ASKERS: Final = (*_RIGHTFUL, "guesser", "stranger", "bound", "nobody", "bare")


class KeptVolumes:
    """Its `actions` are the `what` of actions; it listens to the view, and checks who gets what, and when."""

    def __init__(self, run_context: RunContext) -> None:
        self.actions: Mapping[str, Callable[..., Coroutine[Any, Any, None] | None]] = {
            "choose_trash": self.choose,
            "ask_for_kept": self.ask,
            "purge_kept": self.purge,
            "end_asker": self.end_asker,
        }
        self._view = run_context.view
        self._disks = run_context.disks
        self._chance = run_context.chance
        self._happened = run_context.trace.happened
        self._violations = run_context.violations
        self._since: dict[tuple[str, str], float] = {}
        """(uid of a volume, uid of the claim it was released from) -> loop time at which it was put into the trash."""
        run_context.view.listeners.append(self._committed)

    # --- rules --------------------------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        old, new = commit.old, commit.new
        if commit.kind != "volume" or old is None or new is None or not commit.by_controller:
            return
        uid, record = new["metadata"]["uid"], _record(new)
        if record and record != _record(old):
            self._since[uid, record.get("claim", "")] = _now()
            self._happened["trash: a volume is put into it"] += 1
        if old["spec"].get("persistentVolumeReclaimPolicy") != "Delete":
            return
        if "deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in old["metadata"]:
            self._check_time(commit.name, old)
        taker = reference_of(new).get("uid")
        if _record(old) and taker and taker != reference_of(old).get("uid"):
            self._check_taker(commit.name, old, reference_of(new))

    def _check_time(self, name: str, volume: Json) -> None:
        """Check a volume that a controller begins to destroy."""
        record, released = _record(volume), reference_of(volume).get("uid") or _record(volume).get("claim", "")
        seconds = _kept_for(volume)
        holder = self._view.claim_of(volume)
        made_for_it = holder is not None and volume["metadata"]["name"] == f"pvc-{holder['metadata']['uid']}"
        if not (seconds or record) or made_for_it:
            return
        since = self._since.get((volume["metadata"]["uid"], released))
        if since is None or _now() < since + seconds:
            when = "never" if since is None else f"{_now() - since:.1f} s ago"
            text = f"volume {name} is destroyed, which is kept for {seconds} s and was put into the trash {when}"
            self._violations.report("purged-early", text)
        self._happened["trash: a volume is destroyed in the end"] += 1

    def _check_taker(self, name: str, volume: Json, reference: Json) -> None:
        """Check the claim that a controller gives a volume in the trash to."""
        key = f"{reference.get('namespace')}/{reference.get('name')}"
        before, record, claim = reference_of(volume), _record(volume), self._view.claims.get(key)
        reserved = before and not before.get("uid") and f"{before.get('namespace')}/{before.get('name')}" == key
        proof = annotations_of(claim).get(names.UNDELETE) if claim is not None else None
        proven = proof == record.get("claim") and record.get("released", "").startswith(f"{reference['namespace']}/")
        if reserved or proven or annotations_of(volume).get(names.UNDELETE) == key:
            self._happened["trash: a volume is given to who may have it"] += 1
            return
        self._violations.report("trash-is-nobodys", f"volume {name} is in the trash and given to claim {key}")

    # --- people -------------------------------------------------------------------------------------------------

    def choose(self, claim: str, says: str | None) -> None:
        """Write on a claim how long its volume is to be kept: what a tenant wants, or nonsense."""
        if f"default/{claim}" in self._view.claims:
            self._happened["user: chooses how long a volume is kept"] += 1
            self._patch(f"{_CLAIMS.format('default')}/{claim}", {"metadata": {"annotations": {names.TRASH: says}}})

    async def ask(self, of: str, how: str) -> None:
        """Ask for the volume of a deleted claim once it is in the trash, with or without a right to it."""
        if (volume := await self._kept(of)) is None:
            return
        self._happened[f"user: asks for a volume in the trash ({how})"] += 1
        name, record = volume["metadata"]["name"], _record(volume)
        if how not in _RIGHTFUL:
            self._steal(of, name, record, how)
            return
        if (disk := self._disks.of(volume["spec"])) is not None:
            disk.waived |= disk.data | {record.get("claim", "")}
        if how == "owner":
            self._create(f"back-{of}", name, {names.UNDELETE: record.get("claim", "")})
            return
        if how == "administrator":
            self._create(f"back-{of}", name, {})
        if how == "racing":
            # It is bound to a volume of its own at the same moment.
            self._create(f"back-{of}", "", {}, storage_class="kept")
            uid = self._view.claims.get(f"default/back-{of}", {}).get("metadata", {}).get("uid", "")
            for _ in range(10 * _PATIENCE):
                if self._chance.calm.is_set() or f"pvc-{uid}" in self._view.volumes:
                    break
                await asyncio.sleep(0.002)
        to = of if how == "taken" else f"back-{of}"
        self._patch(f"{_VOLUMES}/{name}", {"metadata": {"annotations": {names.UNDELETE: f"default/{to}"}}})
        if how == "late":
            await asyncio.sleep(self._chance.between(0.0, 5.0, f"back-{of}"))
            self._create(f"back-{of}", name, {})

    def _steal(self, of: str, volume: str, record: Json, how: str) -> None:
        """Make a claim that has no right to the volume, which has lost its reference if `how` is "bare"."""
        namespace, annotations = "default", {}
        if how == "bare":
            self._patch(f"{_VOLUMES}/{volume}", {"spec": {"claimRef": None}})
        elif how == "guesser":
            annotations = {names.UNDELETE: volume}
        elif how == "bound":
            annotations = {names.BIND_COMPLETED: "yes"}
        elif how == "stranger":
            namespace, annotations = _OTHER, {names.UNDELETE: record.get("claim", "")}
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _OTHER}}
            self._send("POST", "/api/v1/namespaces", body)
        self._create(f"thief-{of}", volume, annotations, namespace=namespace)

    async def purge(self, of: str) -> None:
        """Delete the object of a volume in the trash."""
        if (volume := await self._kept(of)) is not None:
            self._happened["user: purges a volume in the trash"] += 1
            self._send("DELETE", f"{_VOLUMES}/{volume['metadata']['name']}", {})

    def end_asker(self, of: str) -> None:
        """Delete the claims that asked."""
        for namespace, name in (("default", f"back-{of}"), ("default", f"thief-{of}"), (_OTHER, f"thief-{of}")):
            self._send("DELETE", f"{_CLAIMS.format(namespace)}/{name}", {})

    def recover(self) -> None:
        """Take back what would keep claims and volumes waiting."""
        for key, claim in list(self._view.claims.items()):
            if annotations_of(claim).get(names.TRASH) is not None:
                namespace, _, name = key.partition("/")
                body = {"metadata": {"annotations": {names.TRASH: None}}}
                self._patch(f"{_CLAIMS.format(namespace)}/{name}", body)
        for name, volume in list(self._view.volumes.items()):
            if names.UNDELETE in annotations_of(volume):
                self._patch(f"{_VOLUMES}/{name}", {"metadata": {"annotations": {names.UNDELETE: None}}})

    async def _kept(self, of: str) -> Json | None:
        """Return a volume of a deleted claim of this name in the trash; None if there is none before all faults end."""
        for attempt in range(_PATIENCE):
            if self._chance.calm.is_set():
                break
            for volume in self._view.volumes.values():
                if _record(volume).get("released") == f"default/{of}" and "deletionTimestamp" not in volume["metadata"]:
                    return volume
            await asyncio.sleep(self._chance.between(0.05, 0.5, f"trash of {of} {attempt}"))
        return None

    def _create(
        self, name: str, volume: str, annotations: Json, *, namespace: str = "default", storage_class: str = ""
    ) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1"}},
            **({"volumeName": volume} if volume else {}),
        }
        metadata = {"name": name, "annotations": annotations}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        self._send("POST", _CLAIMS.format(namespace), body)

    def _patch(self, path: str, body: Json) -> None:
        self._send("PATCH", path, body)

    def _send(self, method: str, path: str, body: Json) -> None:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        self._view.send("user", method, path, json.dumps(body).encode(), headers={"content-type": media})


def _record(volume: Json) -> Json:
    """Return what is recorded of a volume in the trash, {} if it is not there."""
    found: Json = json.loads(annotations_of(volume).get(names.TRASHED, "{}"))
    return found


def _kept_for(volume: Json) -> int:
    """Return for how many seconds the volume must be kept."""
    longest, choice = (annotations_of(volume).get(key, "") for key in (names.TRASH, names.TRASH_CHOICE))
    if not longest:
        return 0
    most = int(longest.removesuffix("s"))
    if choice == "skip":
        return 0
    chosen = choice.removesuffix("s")
    return min(int(chosen), most) if choice.endswith("s") and chosen.isdecimal() else most


def _now() -> float:
    return asyncio.get_running_loop().time()


def write_trash(do: Callable[..., None], about: str, claims: list[str], share: float, end: float) -> None:
    """Write actions of `KeptVolumes` for a share of the claims.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} trash")  # noqa: S311 -- schedules, not secrets
    for name in claims:
        if random.random() >= share:
            continue
        for _ in range(random.choice((0, 0, 1, 3))):
            says = random.choice(_CHOICES if random.random() < 0.8 else _NONSENSE)
            do(random.uniform(0.0, end), "choose_trash", claim=name, says=says)
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.uniform(0.0, end + 30.0)
            do(at, "ask_for_kept", of=name, how=random.choice(_ASKERS))
            # Half of them stay.
            do(at + random.uniform(1.0, 90.0), "end_asker", of=random.choice((name, "nobody")))
        if random.random() < 0.1:
            do(random.uniform(0.0, end + 30.0), "purge_kept", of=name)
