"""The invariants that hold at every moment: checked at each commit and at each effect on an asset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from volplane.assets import Ownership
from volplane.kube import names
from volplane.kube.objects import Claim
from volplane.reclaim.scrub_pod import SCRUB_GATE
from volplane.state.records import RecycleIntent, read_intent
from volplane_testing.simulation.attachments import Attachments
from volplane_testing.simulation.cluster_view import ClusterView, Commit, Json, annotations_of, reference_of
from volplane_testing.simulation.disks import Disk, Disks, source_of
from volplane_testing.simulation.promises import Promises
from volplane_testing.simulation.terms import Terms
from volplane_testing.simulation.trace import FirstViolation

__all__ = ["BEGAN", "READ", "Safety", "recycles"]

BEGAN: Final[ContextVar[float]] = ContextVar("volplane_simulation_began", default=0.0)
"""Loop time at which the hook call that runs now was begun."""
READ: Final[ContextVar[Mapping[str, float]]] = ContextVar("volplane_simulation_read", default=MappingProxyType({}))
"""Volume -> loop time at which the server answered the last live read of the task that runs now."""

FRESH: Final = 15.0
"""Seconds for which a live read may lie back when the hook that it justifies begins: as long as a few slow requests."""
BEHIND: Final = 120.0
"""Seconds by which a watch may be behind at most."""
_SCRUB_VOLUME: Final = "volplane.dev/scrub-volume"
_SCRUB_PREFIX: Final = "volplane-scrub-"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _scrubs(claim: Json) -> bool:
    """Tell whether a scrubber pod has a volume through this claim; a reference or metadata."""
    return str(claim.get("name", "")).startswith(_SCRUB_PREFIX)


def recycles(volume: Json) -> bool:
    """Tell whether a release of the volume must lead to a scrub."""
    policy = volume["spec"].get("persistentVolumeReclaimPolicy")
    return policy == "Recycle" or (policy == "Delete" and annotations_of(volume).get(names.ON_RELEASE) == "recycle")


def _offered(volume: Json | None) -> bool:
    """Tell whether a claim may take it."""
    if volume is None or "deletionTimestamp" in volume["metadata"]:
        return False
    return not reference_of(volume).get("uid") and names.INTENT not in annotations_of(volume)


class Safety:
    """The invariants. Listens to `view`; backends and nodes report what they do to assets."""

    def __init__(self, view: ClusterView, disks: Disks, violations: FirstViolation) -> None:
        self.overlap = False
        """Whether two processes act as the leader."""
        self.overlap_ended = float("-inf")
        """Loop time at which the last such period ended."""
        self.started = 0
        """Processes that were started so far."""
        self.forged: dict[str, float] = {}
        """Uid of a claim whose intent a tenant damaged -> the loop time of the first damage."""
        self.informed = float("inf")
        """Loop time from which the newest process has read every claim that existed when it started."""
        self.moved: set[str] = set()
        """Uids of claims for which the scheduler chose another node after the first."""
        self._classless: set[str] = set()
        self._class_went: dict[str, float] = {}
        """Name of a class that was deleted -> loop time at which every process knows."""
        self.touched: set[str] = set()
        """Uids of volumes whose reference or intent a user changed."""
        self.forgotten: set[tuple[str, int]] = set()
        """(uid of a claim, generation) of assets of which a server that was restored from a backup knows nothing."""
        self.restored_at = float("-inf")
        """Loop time at which the server was restored from a backup: storage and objects disagree since."""
        self.attachments = Attachments(view, disks, violations, excused=self.excused)
        self.promises = Promises(view)
        self.terms = Terms(view, violations)
        self._view = view
        self._disks = disks
        self._violations = violations
        self._policies: dict[str, float] = {}
        self._born: dict[str, float] = {}
        self._last: dict[str, Json] = {}
        """`source_key` -> the volume that stood for it last, as it was when it went."""
        view.listeners.append(self._committed)

    def restored(self) -> None:
        """Forget the objects that were written since the backup: the server was restored from it."""
        self._policies.clear()
        self._last.clear()
        self.touched |= {volume["metadata"]["uid"] for volume in self._view.volumes.values()}
        self.restored_at = _now()

    # --- commits ------------------------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        match commit.kind:
            case "class" if commit.new is None:
                self._forget_class(commit.name)
            case "volume":
                self._follow_volume(commit)
                if commit.by_controller:
                    self._check_volume(commit)
            case "claim" if commit.new is not None:
                if commit.old is None and _now() < self._class_went.get(
                    commit.new["spec"].get("storageClassName", ""), 0.0
                ):
                    self._classless.add(commit.new["metadata"]["uid"])
                if commit.by_controller:
                    self._check_claim(commit.name, commit.old, commit.new)
            case "pod" if commit.by_controller and commit.old is not None and commit.new is not None:
                self._check_gate(commit.old, commit.new)

    def excused(self) -> bool:
        """Tell whether what takes effect now started while two processes led."""
        return self.overlap or BEGAN.get() <= self.overlap_ended

    def _forget_class(self, name: str) -> None:
        """Record the claims of a deleted class: a damaged intent can be restored only from the class.

        A claim that is created soon may still be begun by it, where watches are behind.
        """
        self._class_went[name] = _now() + BEHIND
        for claim in self._view.claims.values():
            if claim["spec"].get("storageClassName") == name:
                self._classless.add(claim["metadata"]["uid"])

    @property
    def lost(self) -> set[str]:
        """Uids of claims whose driver, or node, cannot be known any more.

        Their intent is damaged, and the class is deleted or the node was changed.
        """
        forgotten = {uid for uid, when in self.forged.items() if self.overlap or when <= self.informed}
        return (self.forged.keys() & self._classless) | (forgotten & self.moved)

    def _follow_volume(self, commit: Commit) -> None:
        new, old = commit.new, commit.old
        if new is None:
            if old is not None:
                self._last[source_of(old["spec"])] = old
            return
        uid = new["metadata"]["uid"]
        if old is None:
            self._born[uid] = _now()
            self._last.pop(source_of(new["spec"]), None)
            disk = self._disks.of(new["spec"])
            if disk is not None and disk.forced and not commit.by_controller:
                # Whoever makes another volume of it answers for the pods of claims that were removed by force.
                for pod in [pod for pod, uid in disk.mounts.items() if uid and uid not in self._view.claims_by_uid]:
                    del disk.mounts[pod]
            return
        if not commit.by_controller:
            if reference_of(old) != reference_of(new) or _intent(old) != _intent(new):
                self.touched.add(uid)
            if _policy(old) != _policy(new):
                self._policies[uid] = _now()

    def saving(self, volume: Mapping[str, Any], believed: Callable[[str], Claim | None]) -> None:
        """Check a controller that is about to create a volume. believed: what it knows about a claim."""
        reference = volume["spec"].get("claimRef") or {}
        claim = believed(f"{reference.get('namespace')}/{reference.get('name')}")
        if claim is None or claim.uid != reference.get("uid") or not claim.terminating:
            return
        if claim.annotation(names.BIND_COMPLETED) is None:
            name = self._view.spell(volume["metadata"]["name"])
            self._violations.report(
                "nothing-for-the-dying",
                f"volume {name} is created for a claim that its creator knows to be terminating",
            )

    def _check_volume(self, commit: Commit) -> None:
        old, new = commit.old, commit.new
        if old is not None:
            self._check_kept(commit.name, old, new)
        if new is None:
            return
        disk = self._disks.of(new["spec"])
        if disk is None:
            return
        if _offered(new) and not _offered(old) and (data := disk.foreign_data()):
            self._violations.report(
                "unscrubbed", f"volume {commit.name} is offered again with the data of {_all(data)}"
            )
        taker = "" if _scrubs(reference_of(new)) else reference_of(new).get("uid")
        if taker and (old is None or reference_of(old).get("uid") != taker) and (data := disk.foreign_data(taker)):
            self._violations.report("unscrubbed", f"volume {commit.name} is given away with the data of {_all(data)}")

    def _check_kept(self, name: str, old: Json, new: Json | None) -> None:
        """Check that a living claim keeps its volume's data, and a volume under Retain is not deleted."""
        asked = (
            new is not None and "deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in old["metadata"]
        )
        if asked and _policy(old) != "Delete":
            self._violations.report("policy-ignored", f"volume {name} is deleted, though its policy is {_policy(old)}")
            return
        claim = self._view.claim_of(old)
        if claim is None:
            return
        pointer = claim["spec"].get("volumeName", "")
        ours = old["metadata"]["name"]
        if new is None or ("deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in old["metadata"]):
            # A volume that a user asked to delete before the bind was complete may go.
            asked = new is None and "deletionTimestamp" in old["metadata"]
            begun = names.BIND_COMPLETED in annotations_of(claim) or old.get("status", {}).get("phase") == "Bound"
            if (pointer == ours and (begun or not asked)) or (not pointer and not asked):
                self._violations.report("bound-stays-bound", f"volume {name} is deleted while its claim lives")
            return
        uid = reference_of(new).get("uid")
        if uid == claim["metadata"]["uid"] or names.BIND_COMPLETED not in annotations_of(claim) or pointer != ours:
            return
        if uid:
            self._violations.report(
                "one-claim-per-volume", f"volume {name} is taken from its claim and given to another"
            )
        else:
            self._violations.report("bound-stays-bound", f"volume {name} is taken from its claim")

    def _check_claim(self, name: str, old: Json | None, new: Json) -> None:
        volume = self._view.volumes.get(new["spec"].get("volumeName", ""))
        if volume is None:
            return
        uid = new["metadata"]["uid"]
        holder = reference_of(volume).get("uid")
        phase = new.get("status", {}).get("phase")
        # For a moment after a restore a process knows only the past that is none any more; the status heals.
        misled = _now() < self.restored_at + FRESH
        if not misled and phase == "Lost" and (old or {}).get("status", {}).get("phase") != "Lost" and holder == uid:
            self._violations.report("bound-stays-bound", f"claim {name} is declared lost, but its volume is there")
        completed = names.BIND_COMPLETED in annotations_of(new)
        if not completed or (old is not None and names.BIND_COMPLETED in annotations_of(old)):
            return
        other = self._view.claim_of(volume)
        if holder != uid and other is not None and volume["metadata"]["uid"] not in self.touched:
            text = (
                f"claim {name} completes a bind to {self._view.spell(volume['metadata']['name'])}, which is another's"
            )
            self._violations.report("one-claim-per-volume", text)

    def _check_gate(self, old: Json, new: Json) -> None:
        """Check that the gate of a scrubber pod is removed only while the volume's intent names the pod."""
        if not _gated(old) or _gated(new):
            return
        volume = self._view.volumes.get(annotations_of(new).get(_SCRUB_VOLUME, ""))
        intent = read_intent(RecycleIntent, _intent(volume)) if volume is not None else None
        if volume is not None and volume["metadata"]["uid"] in self.touched:
            return
        if intent is None or intent.pod != new["metadata"]["uid"]:
            name = self._view.spell(new["metadata"]["name"])
            self._violations.report(
                "permit", f"pod {name} has its gate removed, but the volume's intent does not name it"
            )

    # --- effects ------------------------------------------------------------------------------------------------

    def made(self, driver: str, key: str, owner: Ownership | None, *, again: bool = False) -> Disk:
        """Note that an asset was made. key: `source_key`. owner: None for one that a user made.

        again: this storage makes what it made and destroyed before once more, for a late request too.
        """
        twins = [
            disk
            for disk in self._disks.by_key.values()
            if owner is not None and disk.made_for == owner.claim_uid and disk.generation == owner.generation
        ]
        disk = Disk(
            key,
            driver,
            owner.claim_uid if owner is not None else "",
            owner.generation if owner is not None else 0,
        )
        overlapped = owner is not None and (self.overlap or BEGAN.get() <= self.overlap_ended)
        claim = self._view.claims_by_uid.get(disk.made_for)
        if overlapped and (again or claim is None or "deletionTimestamp" in claim["metadata"]):
            disk.kept = "a leader made it after another one had settled the claim; only the leak check can find that"
        unaware = BEGAN.get() <= self.restored_at + FRESH
        if self.restored_at >= 0 and claim is None:
            disk.kept = "it was made for a claim that the restored server does not know"
        elif unaware and claim is not None and names.INTENT not in annotations_of(claim):
            disk.kept = "its record is younger than the backup, and its maker did not know of the restore yet"
        self._disks.by_key[key] = disk
        # The former leader asked another driver for it, which the class named at that time.
        elsewhere = overlapped and any(twin.driver != driver for twin in twins)
        unknown = owner is not None and (owner.claim_uid, owner.generation) in self.forgotten
        if twins and owner is not None and owner.claim_uid not in self.lost and not elsewhere and not unknown:
            text = f"{key} is made while {twins[0].key} exists, both generation {owner.generation} of one claim"
            self._violations.report("one-asset-per-generation", text)
        return disk

    def unmade(self, key: str) -> None:
        """Check an asset that is destroyed, with its data."""
        disk = self._disks.by_key.pop(key, None)
        if disk is None:
            return
        self._check_unused(disk, "deleted")
        self._check_policy(key)

    def _check_policy(self, key: str) -> None:
        """Check that a deletion follows a live read of the policy shortly before."""
        began = BEGAN.get()
        for volume in [*self._volumes_on(key), *self._last_on(key)]:
            changed = self._policies.get(volume["metadata"]["uid"])
            if changed is None or changed >= began or _policy(volume) == "Delete":
                continue
            read = READ.get().get(volume["metadata"]["name"], float("-inf"))
            if read >= changed or began - read > FRESH:
                self._violations.report(
                    "policy-ignored", f"{key} is deleted, though its policy is {_policy(volume)} now"
                )

    def _last_on(self, key: str) -> list[Json]:
        """Return its last volume, if a claim was ever bound to it: otherwise it has no data to lose.

        A volume whose reference a user took away tells nothing about that.
        """
        last = self._last.get(key)
        if last is not None and last["metadata"]["uid"] in self.touched:
            return []
        claim = self._view.claim_of(last) if last is not None else None
        never_bound = claim is not None and names.BIND_COMPLETED not in annotations_of(claim)
        return [] if last is None or never_bound else [last]

    def erased(self, key: str) -> None:
        """Check an asset that is erased, by its backend or by a scrubber pod."""
        disk = self._disks.by_key.get(key)
        if disk is None:
            return
        self._check_unused(disk, "erased")
        disk.data.clear()

    def seen(self, disk: Disk, claim_uid: str, pod: str) -> None:
        """Check a pod of the claim that reads and writes the asset."""
        if data := disk.foreign_data(claim_uid):
            self._violations.report("unscrubbed", f"pod {pod} sees on {disk.key} the data of {_all(data)}")
        disk.data.add(claim_uid)

    def _check_unused(self, disk: Disk, what: str) -> None:
        if BEGAN.get() <= self.restored_at:
            return  # It was asked for by a server that is no more.
        mounts = {uid: claim for uid, claim in disk.mounts.items() if not self.attachments.torn(disk.key, uid)}
        lost_by_force = disk.forced and what == "deleted"
        if not lost_by_force and any(claim or what == "deleted" for claim in mounts.values()):
            self._violations.report("asset-in-use", f"{disk.key} is {what} while a pod has it mounted")
        if not disk.made_for:
            self._check_used(disk, what)
        for volume in self._volumes_on(disk.key):
            name = self._view.spell(volume["metadata"]["name"])
            claim = self._view.claim_of(volume)
            if what == "erased" and claim is not None and _scrubs(claim["metadata"]):
                continue
            pointer = claim["spec"].get("volumeName", "") if claim is not None else "-"
            excused = _deleted_early(volume) or self._saved_meanwhile(volume)
            if pointer == volume["metadata"]["name"] or (not pointer and not excused):
                self._violations.report("asset-in-use", f"{disk.key} is {what} while volume {name} is bound to a claim")
            alive = "deletionTimestamp" not in volume["metadata"]
            if what == "deleted" and alive and self._born.get(volume["metadata"]["uid"], 0.0) < BEGAN.get() - FRESH:
                self._violations.report("asset-in-use", f"{disk.key} is deleted while volume {name} exists")

    def _check_used(self, disk: Disk, what: str) -> None:
        """Check that the data of a static volume is not destroyed for a claim that never had it."""
        for volume in self._volumes_on(disk.key):
            if self.promises.bind(volume) and volume["metadata"]["uid"] not in self.touched:
                name = self._view.spell(volume["metadata"]["name"])
                self._violations.report("never-used", f"{disk.key} is {what}, and no claim ever had volume {name}")

    def _saved_meanwhile(self, volume: Json) -> bool:
        """Tell whether another leader saved it for a claim that never had it, while this one decided to discard it.

        The live read by which it decided may lie back.
        """
        overlapped = self.overlap or BEGAN.get() - FRESH <= self.overlap_ended
        return overlapped and self._born.get(volume["metadata"]["uid"], 0.0) >= BEGAN.get() - FRESH

    def _volumes_on(self, key: str) -> list[Json]:
        return [volume for volume in self._view.volumes.values() if source_of(volume["spec"]) == key]


def _deleted_early(volume: Json) -> bool:
    """Tell whether a user deleted the volume before a binder wrote its phase: its claim gets another one."""
    return "deletionTimestamp" in volume["metadata"] and volume.get("status", {}).get("phase") != "Bound"


def _policy(volume: Json) -> str:
    return str(volume["spec"].get("persistentVolumeReclaimPolicy", ""))


def _intent(volume: Json) -> str | None:
    return annotations_of(volume).get(names.INTENT)


def _gated(pod: Json) -> bool:
    return any(gate.get("name") == SCRUB_GATE for gate in pod["spec"].get("schedulingGates") or ())


def _all(uids: set[str]) -> str:
    return ", ".join(sorted(uids))
