"""Known bugs, each planted into the production code for as long as a test or a search needs it.

Every one is a mistake that somebody could make, and that somebody in this field has made.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from simulation.leader_plants import LEADER_PLANTS
from simulation.need_plants import NEED_PLANTS
from simulation.planting import Plant, by_name, replace
from simulation.proxy_plants import PROXY_PLANTS
from volplane import reclaim
from volplane._delays import API_REFUSED, Backoff
from volplane.binding import decide as binding
from volplane.controller.actions import Create, Patch, Settled, Wait
from volplane.controller.runner import Runner, Steps
from volplane.errors import ApiError
from volplane.intents import operation, ownership, record
from volplane.intents.operation import OperationDeps
from volplane.kube import reflector
from volplane.kube.cache import Cache
from volplane.kube.credentials import Credentials
from volplane.kube.kinds import PODS
from volplane.kube.objects import Claim, KubeObject, Volume
from volplane.kube.reflector import Reflector
from volplane.provision import decide as provision
from volplane.provision.decide import volume_body
from volplane.reclaim import scrub_claim, scrub_pod
from volplane.reclaim.recycle import Scrub
from volplane.roles import whole
from volplane.roles.whole import Whole
from volplane.state import records
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import ClaimProgress, Discarding, Full, Made, Pending


def skip_the_live_reread(stack: ExitStack) -> None:
    """Delete what the cache says, without asking the server first."""

    async def believed(_self: OperationDeps, volume: Volume, **_options: Any) -> Volume | None:
        return volume

    replace(stack, OperationDeps, "released_volume", believed)


def write_over_conflicts(stack: ExitStack) -> None:
    """Patch without a resourceVersion: the last writer wins."""

    async def forced(self: Steps, step: Patch) -> KubeObject:
        answer = await self.client.patch(step.kind, step.target.key, step.body, subresource=step.subresource)
        self._learn(step.kind, answer)
        return answer

    replace(stack, Steps, "patch", forced)


def remember_intents_only(stack: ExitStack) -> None:
    """Let a claim go if this process knows of nothing that was made for it: a crash forgets."""
    settled = record.settle

    def forgetful(claim: Claim, world: ClusterState) -> Any:
        progress = world.progress.claims.get(claim.uid)
        known = isinstance(progress.step, Made | Pending | Full) or progress.attempted is not None
        return settled(claim, world) if known or not claim.terminating else _end(claim)

    replace(stack, record, "settle", forgetful)


def _end(claim: Claim) -> Any:
    return record._end_intent(claim) if record.settled_metadata(claim) else None


def share_the_scrub_pod(stack: ExitStack) -> None:
    """Call every scrubber pod alike, as the stock recycler does."""
    for module in (scrub_claim, scrub_pod, reclaim):
        replace(stack, module, "pod_name", lambda _volume: "volplane-scrub-0000000000000000")


def release_before_it_is_erased(stack: ExitStack) -> None:
    """Take a scrubber pod that runs for one that is done."""
    follow = Scrub._follow_pod

    def hasty(self: Scrub, pod: Any, made: Any) -> Any:
        if self.intent.pod == pod.uid and pod.status.phase == "Running":
            return self.note("it will be erased", erased=True)
        return follow(self, pod, made)

    replace(stack, Scrub, "_follow_pod", hasty)


def lift_the_gate_without_a_permit(stack: ExitStack) -> None:
    """Let a scrubber pod start without noting its uid on the volume first."""
    follow = Scrub._follow_pod

    def trusting(self: Scrub, pod: Any, made: Any) -> Any:
        permitted = msgspec.structs.replace(self.intent, pod=pod.uid)
        return follow(dataclasses.replace(self, intent=permitted), pod, made)

    replace(stack, Scrub, "_follow_pod", trusting)


def delete_under_any_policy(stack: ExitStack) -> None:
    """Look at the policy when the deletion is decided, and not again before it is done."""
    released = OperationDeps.released_volume

    async def whatever_the_policy(self: OperationDeps, volume: Volume, **options: Any) -> Volume | None:
        live = await released(self, volume, **options)
        if live is None or not live.terminating:
            return live
        spec = msgspec.structs.replace(live.spec, persistent_volume_reclaim_policy="Delete")
        finalizers = [*(live.metadata.finalizers or ()), "volplane.dev/reclaim"]
        metadata = msgspec.structs.replace(live.metadata, finalizers=finalizers)
        return msgspec.structs.replace(live, spec=spec, metadata=metadata)

    replace(stack, OperationDeps, "released_volume", whatever_the_policy)


def save_a_volume_for_a_dying_claim(stack: ExitStack) -> None:
    """Finish what was begun, although the claim was deleted meanwhile."""
    settled = record.settle

    def finishing(claim: Claim, world: ClusterState) -> Any:
        step = world.progress.claims.get(claim.uid).step
        intent = world.intent_of(claim)
        storage_class = world.classes.get(claim.spec.storage_class_name or "")
        if not claim.terminating or not isinstance(step, Made | Discarding) or intent is None or storage_class is None:
            return settled(claim, world)
        driver = world.drivers.get(intent.driver)
        if driver is None or f"pvc-{claim.uid}" in world.volumes:
            return settled(claim, world)
        body = volume_body(claim, storage_class, driver, intent, step.asset)
        return Create(kind=provision.VOLUMES, body=body, why="finish what was begun")

    replace(stack, record, "settle", finishing)


def forget_to_settle(stack: ExitStack) -> None:
    """Let a deleted claim go without looking whether something was made for it."""
    replace(stack, record, "settle", lambda claim, _world: _end(claim))


def accept_forged_intents(stack: ExitStack) -> None:
    """Read the record on a claim without checking its seal."""
    replace(stack, records.hmac, "compare_digest", lambda _given, _right: True)


def believe_the_cache_that_a_claim_is_gone(stack: ExitStack) -> None:
    """Release a volume because its claim is not in the cache."""

    async def without_asking(self: OperationDeps, volume: Volume, **_options: Any) -> Volume | None:
        live = await self.live_volume(volume.name)
        return live if live is not None and live.uid == volume.uid else None

    replace(stack, OperationDeps, "released_volume", without_asking)
    replace(stack, whole, "require_claim_gone", lambda _volume, action, *_: action)


def take_absent_for_proof(stack: ExitStack) -> None:
    """Believe `find` at once, although a request may still be on its way."""
    replace(stack, ClaimProgress, "absence_seen", lambda *_: 0.0)


def choose_a_place_anew(stack: ExitStack) -> None:
    """Forget where an asset was begun when the scheduler changes its mind, or a tenant the record."""
    declare = provision._declare

    def elsewhere(claim: Any, storage_class: Any, driver: Any, _old: Any, world: Any, **terms: Any) -> Any:
        return declare(claim, storage_class, driver, None, world, **terms)

    replace(stack, provision, "_declare", elsewhere)
    for module in (operation, record):
        replace(stack, module, "presumed_intent", lambda _claim, driver, _world: _blank(driver.name))
    replace(stack, ClusterState, "intent_of", _written)


def _blank(driver: str) -> records.ClaimIntent:
    return records.ClaimIntent(v=records.INTENT_VERSION, driver=driver)


def _written(self: ClusterState, claim: Claim) -> records.ClaimIntent | None:
    return self.sealer.open(claim.uid, claim.annotation("volplane.dev/intent"))


def hold_what_is_gone(stack: ExitStack) -> None:
    """Forget to let a volume go once its asset is deleted."""
    replace(stack, ownership, "without_finalizer", lambda _volume, *, why, **_: Wait(reason=why))


def say_nothing_of_a_release(stack: ExitStack) -> None:
    """Leave the phase of a released volume as it is."""
    step = binding.volume_phase_step

    def quiet(volume: Volume, phase: str, *more: Any, **options: Any) -> Any:
        return None if phase == "Released" else step(volume, phase, *more, **options)

    replace(stack, binding, "volume_phase_step", quiet)


def leave_the_scrubber_pod(stack: ExitStack) -> None:
    """Offer a volume again without removing the pod that has erased it."""
    release = Scrub._release

    def hasty(self: Scrub) -> Any:
        without_pods = dataclasses.replace(self.cluster, pods=Cache(PODS))
        return release(dataclasses.replace(self, cluster=without_pods))

    replace(stack, Scrub, "_release", hasty)
    replace(stack, whole, "remove_strays", lambda *_: None)


def poll_what_is_kept(stack: ExitStack) -> None:
    """Look at a released volume again and again, although somebody would tell if it changed."""
    reclaim = Whole._reclaim

    def again(self: Whole, volume: Volume, reads: Any) -> Any:
        action = reclaim(self, volume, reads)
        return Wait(reason="perhaps it has changed", seconds=5.0) if isinstance(action, Settled) else action

    replace(stack, Whole, "_reclaim", again)


def delete_without_preconditions(stack: ExitStack) -> None:
    """Delete the object of a name, whichever it is by now."""

    async def by_name(self: Steps, step: Any) -> None:
        await self.client.delete(step.kind, step.target.key, grace_seconds=step.grace_seconds)
        await self.refresh(step.kind, step.target.key)

    replace(stack, Steps, "delete", by_name)


def keep_the_first_credentials(stack: ExitStack) -> None:
    """Read certificates and tokens once, at the start."""

    async def never(_self: Credentials, *, refused: bool) -> None:
        return None

    replace(stack, Credentials, "_look", never)


def give_up_a_watch_that_is_refused(stack: ExitStack) -> None:
    """Take a refusal of a list or a watch (401, 403) for the last word."""
    pause = Reflector._pause

    async def for_ever(self: Reflector[Any], error: ApiError | None) -> None:
        if error is not None and error.status in (401, 403):
            await asyncio.get_running_loop().create_future()
        await pause(self, error)

    replace(stack, Reflector, "_pause", for_ever)


def drop_what_is_refused(stack: ExitStack) -> None:
    """Wait for a change after a refused write, because the server would answer the same."""
    retry = Runner._retry

    def dropped(self: Runner, key: str, error: Exception, row: Backoff, **named: Any) -> float:
        if row is not API_REFUSED:
            return retry(self, key, error, row, **named)
        self.reasons[key] = str(error)
        return 0.0

    replace(stack, Runner, "_retry", dropped)


def wait_for_bookmarks(stack: ExitStack) -> None:
    """Follow kinds that get no bookmarks in watches longer than a connection may be silent, and call that lost."""
    take = Reflector._take

    async def impatient(self: Reflector[Any], *watch: Any) -> int:
        try:
            return await take(self, *watch)
        finally:
            self._heard = asyncio.get_running_loop().time()

    replace(stack, Reflector, "_take", impatient)
    replace(stack, reflector, "_SHORT", reflector._LONG)


def resume_after_a_restore(stack: ExitStack) -> None:
    """Go on watching at a version that a restored server has not reached."""

    async def trusting(_self: Reflector[Any], _version: int) -> None:
        return None

    replace(stack, Reflector, "_verify", trusting)


PLANTS: Mapping[str, Plant] = {
    **by_name(
        skip_the_live_reread,
        write_over_conflicts,
        remember_intents_only,
        share_the_scrub_pod,
        release_before_it_is_erased,
        lift_the_gate_without_a_permit,
        delete_under_any_policy,
        save_a_volume_for_a_dying_claim,
        forget_to_settle,
        accept_forged_intents,
        believe_the_cache_that_a_claim_is_gone,
        take_absent_for_proof,
        choose_a_place_anew,
        hold_what_is_gone,
        say_nothing_of_a_release,
        leave_the_scrubber_pod,
        poll_what_is_kept,
        delete_without_preconditions,
        keep_the_first_credentials,
        give_up_a_watch_that_is_refused,
        drop_what_is_refused,
        wait_for_bookmarks,
        resume_after_a_restore,
    ),
    **NEED_PLANTS,
    **LEADER_PLANTS,
    **PROXY_PLANTS,
}
"""By name; each is caught in a seed of `recorded.CAUGHT`."""
