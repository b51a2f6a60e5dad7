"""The invariants of a run at rest: nothing is left over, and nothing that can proceed waits.

They are checked on the objects alone and share no code with the decisions of the controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from volplane.kube import names
from volplane.kube.quantity import Quantity, parse
from volplane.state.records import RecycleIntent, read_intent
from volplane_testing.simulation.actors import Actors
from volplane_testing.simulation.cluster_view import Json, annotations_of, finalizers_of, key_of, reference_of
from volplane_testing.simulation.disks import source_of
from volplane_testing.simulation.external_backends import ExternalBackend
from volplane_testing.simulation.nodes import Nodes
from volplane_testing.simulation.process import ATTEMPTS
from volplane_testing.simulation.run_context import RunContext
from volplane_testing.simulation.safety import recycles
from volplane_testing.simulation.tenants import OWN_FINALIZER

__all__ = ["MOST_WRITES", "Liveness"]

MOST_WRITES: Final = 100
"""Of controllers to one object, in its whole life."""
_DRIVERS: Final = frozenset({"alpha.sim", "beta.sim"})
_SCRUB_PREFIX: Final = "volplane-scrub-"


class Reasons(Protocol):
    """A process that knows why keys wait."""

    def reasons(self) -> dict[str, str]:
        """By runner and key."""


class Liveness:
    """Checks a run at rest and reports the first broken invariant."""

    def __init__(
        self, run_context: RunContext, actors: Actors, nodes: Nodes, externals: Mapping[str, ExternalBackend]
    ) -> None:
        self.holds: Callable[[Json], bool] = lambda _claim: False
        """Whether a claim that is being deleted is held because something is still made of it."""
        self._unscrubbed = {role for role, external in externals.items() if not external.scrubs}
        self._view = run_context.view
        self._disks = run_context.disks
        self._safety = run_context.safety
        self._actors = actors
        self._nodes = nodes
        self._violations = run_context.violations

    def unending(self) -> set[str]:
        """Uids of claims for which something is tried again without end: only a person can bring it to one."""
        gone = (reference_of(volume) for volume in self._view.volumes.values() if self._lost_since_the_backup(volume))
        return self._safety.lost | {str(reference.get("uid", "")) for reference in gone}

    def _lost_since_the_backup(self, volume: Json) -> bool:
        """Tell whether server or volume was restored, and the volume's asset was gone by then."""
        restored = self._safety.restored_at >= 0 or volume["metadata"]["name"] in self._actors.restored
        return restored and source_of(volume["spec"]) not in self._disks.by_key

    def check(self, process: Reasons) -> None:
        """Report broken invariants. process: knows why keys wait."""
        reasons = process.reasons()
        for claim in self._view.claims.values():
            for why in self._wrong_claim(claim):
                self._broke("claim", claim, why, reasons)
        for volume in self._view.volumes.values():
            for why in self._wrong_volume(volume):
                self._broke("volume", volume, why, reasons)
        if self._nodes.ATTACHES:
            self._check_attachments(reasons)
        self._check_scrubbers()
        self._check_assets()
        for (name, _), count in self._view.writes.items():
            if count > MOST_WRITES:
                self._violations.report("no-hot-loop", f"{name} was written {count} times")

    def _broke(self, kind: str, obj: Json, why: tuple[str, str], reasons: dict[str, str]) -> None:
        invariant, text = why
        key = key_of(obj)
        waiting = [reason for about, reason in reasons.items() if about.endswith(f" {key}")]
        name = self._view.spell(obj["metadata"]["name"])
        why_waiting = f"; it waits because: {' / '.join(waiting)}" if waiting else ""
        self._violations.report(invariant, f"{kind} {name} {text}{why_waiting}")

    # --- claims -------------------------------------------------------------------------------------------------

    def _wrong_claim(self, claim: Json) -> Iterator[tuple[str, str]]:
        annotations = annotations_of(claim)
        if "deletionTimestamp" in claim["metadata"]:
            users = self._pods_on_nodes(claim)
            # A restore may bring back a claim that its tenant holds.
            if not users and finalizers_of(claim) != [OWN_FINALIZER] and not self.holds(claim):
                yield "no-stuck-finalizer", f"cannot go: {finalizers_of(claim)}"
            return
        if names.BIND_COMPLETED in annotations:
            yield from self._wrong_bound(claim)
            return
        if claim["spec"].get("dataSource"):
            return  # `Snapshots` knows when it could be made.
        if (volume := self._could_bind(claim)) is not None:
            yield "what-can-proceed-does", f"is not bound, though volume {volume} is there for it"
        elif self._could_be_provisioned(claim):
            yield "what-can-proceed-does", "is not bound, though its class has a driver"

    def _wrong_bound(self, claim: Json) -> Iterator[tuple[str, str]]:
        meta, phase = claim["metadata"], claim.get("status", {}).get("phase")
        volume = self._view.volumes.get(claim["spec"].get("volumeName", ""))
        ours = volume is not None and reference_of(volume).get("uid") == meta["uid"]
        if ours and phase != "Bound":
            yield "what-can-proceed-does", f"is {phase}, though its volume is there"
        if not ours and phase != "Lost":
            yield "phases-tell-the-truth", f"is {phase}, but no volume is bound to it"
        if names.PROVISIONING_FINALIZER in finalizers_of(claim):
            yield "no-stuck-finalizer", "is bound and still held for provisioning"
        if not ours and volume is not None and not reference_of(volume).get("uid") and self._mutual(claim, volume):
            yield "what-can-proceed-does", f"is {phase}, though its volume waits for it"
        has = claim.get("status", {}).get("capacity")
        judged_here = has and not self._nodes.ATTACHES  # `Changes` knows what is asked for there
        if (
            judged_here
            and has
            and volume is not None
            and ours
            and _alive(volume)
            and not self._lost_since_the_backup(volume)
            and parse(has["storage"]) < _asked(claim)
        ):
            yield "what-can-proceed-does", "has less than it asks for, though its volume can grow"

    def _mutual(self, claim: Json, volume: Json) -> bool:
        reference = reference_of(volume)
        return _names(reference, claim) and names.INTENT not in annotations_of(volume) and _alive(volume)

    def _could_bind(self, claim: Json) -> str | None:
        """Return a volume that this unbound claim can bind, by name or because it fits."""
        wanted = claim["spec"].get("volumeName", "")
        storage_class = claim["spec"].get("storageClassName") or ""
        waits = self._binding_mode(storage_class) == "WaitForFirstConsumer"
        for name, volume in sorted(self._view.volumes.items()):
            if not _alive(volume) or names.INTENT in annotations_of(volume) or _in_trash(volume):
                continue
            reference = reference_of(volume)
            if reference and not (
                _names(reference, claim) and reference.get("uid", "") in ("", claim["metadata"]["uid"])
            ):
                continue
            if wanted and wanted != name:
                continue
            if not reference and not wanted and waits:
                continue
            if not wanted and not _large_enough(volume, claim):
                continue
            if wanted and not reference and not _large_enough(volume, claim):
                continue
            if not reference and (volume["spec"].get("storageClassName") or "") != storage_class:
                continue
            return name
        return None

    def _binding_mode(self, name: str) -> str:
        storage_class = self._view.classes.get(name)
        return "" if storage_class is None else str(storage_class.get("volumeBindingMode", "Immediate"))

    def _could_be_provisioned(self, claim: Json) -> bool:
        storage_class = self._view.classes.get(claim["spec"].get("storageClassName") or "")
        if storage_class is None or claim["spec"].get("volumeName") or storage_class["provisioner"] not in _DRIVERS:
            return False
        if claim["metadata"]["uid"] in self._safety.lost:
            return False  # Its asset may be in another place, and the storage may refuse a second one.
        if f"pvc-{claim['metadata']['uid']}" in self._view.volumes:
            return False  # A user took it from the claim: a second volume for one asset is not allowed.
        waits = self._binding_mode(storage_class["metadata"]["name"]) == "WaitForFirstConsumer"
        return not waits or names.SELECTED_NODE in annotations_of(claim)

    def _pods_on_nodes(self, claim: Json) -> list[str]:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        return [
            key for key, pod in self._view.pods.items() if pod["spec"].get("nodeName") and _uses(pod, namespace, name)
        ]

    # --- volumes ------------------------------------------------------------------------------------------------

    def _wrong_volume(self, volume: Json) -> Iterator[tuple[str, str]]:
        claim, reference = self._view.claim_of(volume), reference_of(volume)
        phase = volume.get("status", {}).get("phase")
        if not _alive(volume):
            # What two volumes lie on is destroyed for none of them.
            unwanted = claim is None or claim["spec"].get("volumeName") != volume["metadata"]["name"]
            if unwanted and not self._has_twin(volume):
                yield "no-stuck-finalizer", f"cannot go: {finalizers_of(volume)} ({phase})"
            return
        if claim is not None:
            yield from self._wrong_held(volume, claim, phase)
        elif reference.get("uid"):
            yield from self._wrong_released(volume, phase)
        elif names.INTENT in annotations_of(volume):
            if not self._given_up(volume) and not self._cannot_be_scrubbed(volume, phase):
                yield "what-can-proceed-does", f"is still to be scrubbed ({phase})"
        elif phase != "Available" and not _in_trash(volume):
            yield "phases-tell-the-truth", f"is free, but its phase is {phase}"
        maker = annotations_of(volume).get(names.PROVISIONED_BY)
        if volume["metadata"]["name"] in self._actors.restored or self._safety.restored_at >= 0:
            return
        if maker in _DRIVERS and source_of(volume["spec"]) not in self._disks.by_key and claim is not None:
            yield "no-ghost", "is bound, and its asset does not exist"

    def _has_twin(self, volume: Json) -> bool:
        """Tell whether another volume is on the same asset."""
        place = source_of(volume["spec"])
        return sum(source_of(each["spec"]) == place for each in self._view.volumes.values()) > 1

    def _wrong_held(self, volume: Json, claim: Json, phase: Any) -> Iterator[tuple[str, str]]:
        name = volume["metadata"]["name"]
        pointer = claim["spec"].get("volumeName", "")
        if pointer != name:
            yield "what-can-proceed-does", f"is held for claim {key_of(claim)}, which has {pointer or 'nothing'}"
        elif phase != "Bound":
            yield "phases-tell-the-truth", f"is bound, but its phase is {phase}"
        if names.INTENT in annotations_of(volume):
            yield "what-can-proceed-does", "is bound, and there is an intent to scrub it"

    def _wrong_released(self, volume: Json, phase: Any) -> Iterator[tuple[str, str]]:
        policy = volume["spec"]["persistentVolumeReclaimPolicy"]
        if recycles(volume):
            given_up = self._given_up(volume) or self._cannot_be_scrubbed(volume, phase)
            if not given_up and not self._waited_for(volume):
                yield "what-can-proceed-does", f"is not scrubbed and offered again ({phase})"
        elif policy == "Delete":
            if not self._has_twin(volume):
                yield "what-can-proceed-does", f"is not deleted ({phase})"
        elif phase not in ("Released", "Failed"):
            yield "phases-tell-the-truth", f"is released, but its phase is {phase}"

    def _given_up(self, volume: Json) -> bool:
        """Tell whether the permitted number of scrubs failed."""
        intent = read_intent(RecycleIntent, annotations_of(volume).get(names.INTENT))
        if intent is None or not intent.given_up:
            return False
        pods = {
            name: n for name, n in self._nodes.failed_scrubs.items() if volume["metadata"]["name"] in self._about(name)
        }
        return sum(pods.values()) >= ATTEMPTS

    def _cannot_be_scrubbed(self, volume: Json, phase: Any) -> bool:
        """Tell whether its backend has no `recycle`, and the volume is Failed."""
        return annotations_of(volume).get(names.PROVISIONED_BY) in self._unscrubbed and phase == "Failed"

    def _about(self, pod: str) -> str:
        """Return the name of the volume of a scrubber pod."""
        return self._view.scrubbed_by(pod)

    def _waited_for(self, volume: Json) -> bool:
        """Tell whether a pod that has not ended still names the claim it was released from."""
        reference = reference_of(volume)
        return any(
            _uses(pod, reference.get("namespace", ""), reference.get("name", ""))
            and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            for pod in self._view.pods.values()
        )

    # --- attachments ----------------------------------------------------------------------------------------------

    def _check_attachments(self, reasons: dict[str, str]) -> None:
        wanted: set[tuple[str, str]] = set()
        for pod in self._view.pods.values():
            node, phase = pod["spec"].get("nodeName"), pod.get("status", {}).get("phase")
            if node and phase in ("Pending", "Running", None):
                places = {(key, node) for key in self._attached_volumes(pod)}
                wanted |= places
                could_run = places <= self._safety.attachments.at and not self._uses_what_goes(pod)
                if places and phase != "Running" and could_run:
                    text = f"pod {pod['metadata']['name']} does not run, though what it needs is attached to {node}"
                    self._violations.report("pods-run", text)
        for invariant, text in self._safety.attachments.wrong_at_rest(wanted):
            waiting = [why for about, why in reasons.items() if about.startswith(("attacher ", "attach-detach "))]
            self._violations.report(invariant, f"{text}; {' / '.join(waiting)}")

    def _uses_what_goes(self, pod: Json) -> bool:
        mounted = [each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"]]
        claims = [self._view.claims.get(f"default/{name}") for name in mounted]
        return any(claim is None or "deletionTimestamp" in claim["metadata"] for claim in claims)

    def _attached_volumes(self, pod: Json) -> Iterator[str]:
        for volume in pod["spec"].get("volumes") or ():
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            claim = self._view.claims.get(f"{pod['metadata']['namespace']}/{name}")
            found = self._view.volumes.get(claim["spec"].get("volumeName", "")) if claim is not None else None
            if found is not None and "csi" in found["spec"]:
                yield source_of(found["spec"])

    # --- what is left -------------------------------------------------------------------------------------------

    def _check_scrubbers(self) -> None:
        for key, pod in self._view.pods.items():
            volume = self._view.volumes.get(self._view.scrubbed_by(pod["metadata"]["name"]))
            if volume is not None and self._waited_for(volume):
                continue
            if pod["metadata"]["name"].startswith(_SCRUB_PREFIX):
                self._violations.report(
                    "nothing-left-over", f"pod {self._view.spell(key.rpartition('/')[2])} is still there"
                )
        for key, claim in self._view.claims.items():
            if claim["metadata"]["name"].startswith(_SCRUB_PREFIX):
                self._violations.report("nothing-left-over", f"the scrub's claim {key} is still there")

    def _check_assets(self) -> None:
        pointed = {source_of(volume["spec"]) for volume in self._view.volumes.values()}
        for key, disk in sorted(self._disks.by_key.items()):
            if key in pointed or disk.kept or disk.made_for in self._actors.stripped:
                continue
            if f"pvc-{disk.made_for}" in self._view.retained or disk.made_for in self._safety.lost:
                continue
            if self._waits(disk.made_for):
                continue
            if disk.made_for in self._actors.hidden:
                # What a process knew goes with it: the leak check finds the asset.
                if self._safety.started == 1 and disk.made_for not in self._view.claims_by_uid:
                    self._violations.report("quota", f"{key} is accounted for by no claim and no volume")
                continue
            self._violations.report("no-leak", f"{key} on {disk.driver} has no owner")

    def _waits(self, uid: str) -> bool:
        """Tell whether a claim keeps its record until its class is back, it has a consumer, or it is deleted."""
        claim = self._view.claims_by_uid.get(uid)
        if claim is None or "deletionTimestamp" in claim["metadata"]:
            return False
        held = names.PROVISIONING_FINALIZER in finalizers_of(claim) and names.INTENT in annotations_of(claim)
        name = claim["spec"].get("storageClassName", "")
        without_consumer = self._binding_mode(name) == "WaitForFirstConsumer" and not annotations_of(claim).get(
            names.SELECTED_NODE
        )
        return held and (name not in self._view.classes or without_consumer)


def _alive(volume: Json) -> bool:
    return "deletionTimestamp" not in volume["metadata"]


def _in_trash(volume: Json) -> bool:
    """Tell whether it is kept though nothing but a record says for whom."""
    deletes = volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    return deletes and names.TRASHED in annotations_of(volume) and not reference_of(volume)


def _names(reference: Json, claim: Json) -> bool:
    meta = claim["metadata"]
    return bool(reference.get("name") == meta["name"] and reference.get("namespace") == meta["namespace"])


def _large_enough(volume: Json, claim: Json) -> bool:
    return parse(volume["spec"]["capacity"]["storage"]) >= _asked(claim)


def _asked(claim: Json) -> Quantity:
    return parse(claim["spec"]["resources"]["requests"]["storage"])


def _uses(pod: Json, namespace: str, claim: str) -> bool:
    return pod["metadata"]["namespace"] == namespace and any(
        (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim
        for volume in pod["spec"].get("volumes") or ()
    )
