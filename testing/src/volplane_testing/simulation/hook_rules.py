"""The invariants over hook calls: what a process may ask a storage for, and when."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from volplane.controller.leader import Leadership
from volplane.errors import BackendError
from volplane.kube import names
from volplane.requests import DeleteRequest, Fence, HookRequest, ProvisionRequest
from volplane_testing.simulation.cluster_view import ClusterView, Commit, Json, annotations_of
from volplane_testing.simulation.loop import WHO
from volplane_testing.simulation.safety import BEGAN, FRESH, Safety
from volplane_testing.simulation.trace import FirstViolation

__all__ = ["CHANGING", "HookRules"]

CHANGING: Final = frozenset(
    {"provision", "delete", "recycle", "expand", "modify", "attach", "detach", "create_snapshot", "delete_snapshot"}
)
"""Hooks that change storage."""
_ONE_AT_A_TIME: Final = frozenset({"start", "probe", "list_assets"})


class HookRules:
    """Hears of every hook call as it begins and as it fails."""

    def __init__(self, view: ClusterView, safety: Safety, violations: FirstViolation) -> None:
        self.leaderships: dict[str, Leadership] = {}
        """By process."""
        self.begins: Callable[[str], None] = lambda _hook: None
        """Hears of every hook that a thread takes up."""
        self.dead: set[str] = set()
        """Processes that were killed."""
        self.claim_reads: dict[tuple[str, str], float] = {}
        """(process, name of a claim) -> loop time at which the server answered its last live read."""
        self._view = view
        self._safety = safety
        self._violations = violations
        self._running: Counter[tuple[str, str, str]] = Counter()
        self._places: dict[tuple[str, str, int], Mapping[str, str] | None] = {}
        self._newest: dict[str, Fence] = {}
        """Lease -> the latest term under which a storage was called."""
        self._condemned: set[tuple[str, int]] = set()
        self._classes_since: dict[str, float] = {}
        view.listeners.append(self._committed)

    def restored(self) -> None:
        """Note that the server went back to a backup, and later records are lost."""
        for asset, place in list(self._places.items()):
            driver, uid, generation = asset
            record = _intent_of(self._view.claims_by_uid.get(uid, {"metadata": {}}))
            known = (record.get("driver"), record.get("generation", 1), record.get("segment") or None)
            if known != (driver, generation, place):
                del self._places[asset]
                self._safety.forgotten.add((uid, generation))

    def _committed(self, commit: Commit) -> None:
        if commit.kind == "class":
            self._classes_since[commit.name] = asyncio.get_running_loop().time()
        if commit.kind == "claim" and commit.by_controller and commit.old is not None and commit.new is not None:
            self._check_discard(commit.who, commit.old, commit.new)

    def _check_discard(self, who: str, old: Json, new: Json) -> None:
        """Check that the claim does not want the asset, whose deletion now ends only with its absence."""
        before, intent = _intent_of(old), _intent_of(new)
        if "discard" not in intent or "discard" in before or old["metadata"]["uid"] in self._safety.forged:
            return
        name = f"pvc-{old['metadata']['uid']}"
        since = self._wanted_since(old, intent.get("driver", ""), name, intent.get("generation", 1))
        now = asyncio.get_running_loop().time()
        if since is not None and since <= self.claim_reads.get((who, old["metadata"]["name"]), now - FRESH):
            name = self._view.spell(name)
            self._violations.report("still-wanted", f"the asset of {name} is to be deleted, and its claim waits for it")

    # --- threads ------------------------------------------------------------------------------------------------

    def thread_taken(self, driver: str, hook: str) -> None:
        """Note that a hook takes a thread of its driver in the calling process."""
        self.begins(hook)
        call = (WHO.get(), driver, hook)
        self._running[call] += 1
        if hook in _ONE_AT_A_TIME and self._running[call] > 1:
            self._violations.report("one-thread-hangs", f"{hook} of {driver} is called while an earlier call hangs")

    def thread_left(self, who: str, driver: str, hook: str) -> None:
        self._running[who, driver, hook] -= 1

    # --- calls --------------------------------------------------------------------------------------------------

    def called(self, request: HookRequest[Any]) -> None:
        """Check a hook that is about to take effect."""
        if request.hook in CHANGING:
            self._check_lease(f"calls {request.hook}")
        late = self._is_late(request.context.fence)
        match request:
            case ProvisionRequest() if not late:
                self._check_place(request)
            case DeleteRequest() if not request.volume.uid:
                self._check_unwanted(request)

    def _is_late(self, text: str) -> bool:
        """Tell whether a call of a later term came before, so that the storage must refuse this one."""
        fence = Fence.parse(text)
        if fence is None:
            return False
        newest = self._newest.setdefault(fence.lease, fence)
        if fence.outdates(newest):
            self._newest[fence.lease] = fence
        return newest.outdates(fence)

    def writes(self, method: str, path: str) -> None:
        """Note that a process is about to send a request that changes an object."""
        if "/events" not in path:
            self._check_lease(f"sends {method} {path}")

    def _check_lease(self, does: str) -> None:
        who = WHO.get()
        leadership = self.leaderships.get(who)
        if leadership is not None and asyncio.get_running_loop().time() >= leadership.until:
            self._violations.report("lease-over", f"{who} {does}, and its lease is over")

    def failed(self, request: HookRequest[Any], error: Exception) -> None:
        """Note that a storage has nothing of this asset and will have nothing: it may be made elsewhere."""
        if isinstance(request, ProvisionRequest) and isinstance(error, BackendError) and error.nothing_left:
            self._places.pop(_asset(request), None)

    def _check_place(self, request: ProvisionRequest) -> None:
        if request.owner.claim_uid in self._safety.forged:
            return  # What was damaged is presumed from the claim as it is now.
        place = self._places.setdefault(_asset(request), request.segment)
        if place != request.segment:
            name = self._view.spell(request.name)
            text = f"{name} is asked for in {request.segment}, and may exist in {place}"
            self._violations.report("place-is-kept", text)

    def _check_unwanted(self, request: DeleteRequest) -> None:
        """Check that an asset without a volume is deleted only after its claim was seen not to want it."""
        owner = request.volume.owner
        if owner is None or (owner.claim_uid, owner.generation) in self._condemned:
            return
        claim = self._view.claims_by_uid.get(owner.claim_uid)
        driver, name = request.context.driver, request.volume.name
        since = self._wanted_since(claim, driver, name, owner.generation) if claim is not None else None
        if claim is None or since is None:
            self._condemned.add((owner.claim_uid, owner.generation))
            return
        asked = self.claim_reads.get((WHO.get(), claim["metadata"]["name"]), BEGAN.get() - FRESH)
        if since <= min(asked, BEGAN.get()):
            name = self._view.spell(name)
            self._violations.report("still-wanted", f"the asset of {name} is deleted, and its claim waits for it")

    def _wanted_since(self, claim: Json, driver: str, name: str, generation: int) -> float | None:
        """Return the loop time since which the claim waits for this asset; None if it does not."""
        intent = _intent_of(claim)
        storage_class = self._view.classes.get(claim["spec"].get("storageClassName") or "")
        if "deletionTimestamp" in claim["metadata"] or storage_class is None:
            return None
        if claim["spec"].get("volumeName", "") not in ("", name):
            return None
        if storage_class["provisioner"] != driver or "discard" in intent:
            return None
        if intent.get("driver") != driver or intent.get("generation", 1) != generation:
            return None
        return max(self._classes_since.get(storage_class["metadata"]["name"], 0.0), self._safety.restored_at)


def _asset(request: ProvisionRequest) -> tuple[str, str, int]:
    return (request.context.driver, request.owner.claim_uid, request.owner.generation)


def _intent_of(claim: Json) -> Json:
    """Return the content of the record on a claim, by any writer; {} if it cannot be read."""
    try:
        intent = json.loads(annotations_of(claim).get(names.INTENT) or "{}").get("intent", {})
    except (ValueError, AttributeError):
        return {}
    return intent if isinstance(intent, dict) else {}
