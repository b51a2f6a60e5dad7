"""The operations of claims and volumes: live checks, then one hook call, then its outcome kept for the next decision.

Everything here may run long after the decision that asked for it, so each reads the objects live before it touches an
asset, and does nothing if they no longer justify it: the object is decided anew when the operation ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from volplane.assets import Absent, Asset, Erased, InProgress, Ownership, PodScrub
from volplane.backoff import LIVE_STATE_FORBIDS
from volplane.binding.matching import class_of_claim
from volplane.controller.actions import Notice, Run
from volplane.drivers.driver import Driver
from volplane.drivers.view import DriverView
from volplane.errors import ApiNotFound, BackendError, OperationError, OutcomeUnknown, ResourceExhausted, VolumeInUse
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.lifecycle.delete import volume_source
from volplane.lifecycle.finalizers import is_in_tree
from volplane.lifecycle.identity import (
    asset_identity,
    context_of,
    owner_of_claim,
    provision_request,
    volume_identity,
)
from volplane.lifecycle.intents import ClaimIntent, epoch_of, read_delete_intent, read_recycle_intent
from volplane.lifecycle.made import volume_name_of
from volplane.lifecycle.outliving import can_never_be_bound, outlived
from volplane.lifecycle.provision import holds_asset, presumed_intent
from volplane.lifecycle.recycle import recycles
from volplane.lifecycle.world import Drivers, Pending, Reschedule, ScrubPlan, World
from volplane.operations import Again, Dispatcher, OperationRegistry, Work
from volplane.requests import Context, DeleteRequest, FindRequest, ProvisionRequest, RecycleRequest, ValidateRequest

__all__ = ["Operations"]

MOST_CLASSES = 1_000
SECOND_LOOK = LIVE_STATE_FORBIDS.delay()
"""Seconds after which an object is decided again whose live state forbade what was decided: by then the cache knows it."""


class Recorder(Protocol):
    def record(self, notice: Notice) -> None:
        """Queue an event; never blocks."""


class Operations:
    """Handlers of the verbs provision, discard, delete and recycle."""

    def __init__(
        self,
        *,
        world: World,
        client: Client,
        registry: OperationRegistry,
        drivers: Drivers,
        recorder: Recorder,
        fence: Callable[[], str],
        wake_volume: Callable[[str], None],
    ) -> None:
        """wake_volume: queues a volume, whose failure is to be said before the next try."""
        self.world = world
        self._client = client
        self._registry = registry
        self._drivers = drivers
        self._recorder = recorder
        self._fence = fence
        self._wake_volume = wake_volume
        self._valid: set[tuple[str, str]] = set()
        """Parameters that the `validate` of a driver has taken."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Make these the handlers of their verbs."""
        dispatcher.register("provision", self.provision)
        dispatcher.register("discard", self.discard)
        dispatcher.register("delete", self.delete)
        dispatcher.register("recycle", self.recycle)
        dispatcher.register("identify", self.identify)

    # --- provision ----------------------------------------------------------------------------------------------

    def provision(self, run: Run) -> Work:
        claim = self.world.claims.get(run.key)
        storage_class = self.world.classes.get(class_of_claim(claim) or "") if claim is not None else None
        driver = self.world.drivers.get(run.driver)
        if storage_class is None or driver is None:
            raise _gone(run)
        return lambda: self._provision(run, storage_class, driver)

    async def _provision(self, run: Run, storage_class: StorageClass, driver: DriverView) -> None:
        uid = run.uid
        claim = self.world.claims.get(run.key)
        if claim is None or claim.uid != uid:
            return
        intent = self.world.sealer.open(uid, claim.annotation(names.INTENT))
        bound = claim.annotation(names.BIND_COMPLETED) is not None or volume_name_of(claim) in self.world.volumes
        if claim.terminating or bound or intent is None or intent.driver != driver.name:
            raise Again(after=SECOND_LOOK)
        selected = claim.annotation(names.SELECTED_NODE)
        node = self.world.nodes.get(selected) if selected else None
        context = self._context(driver, intent.generation, intent.state)
        self.world.outcomes.attempted.pop(uid, None)
        self.world.outcomes.discarded.discard(uid)
        try:
            request = provision_request(claim, storage_class, driver, intent, context, node=node)
            await self._validate(driver, request)
            result = await self._drivers.call(driver, Driver.provision, request)
            if isinstance(result, Asset) and result.capacity_bytes < request.capacity_bytes:
                raise OutcomeUnknown(
                    f"made {result.capacity_bytes} bytes where {request.capacity_bytes} were asked for"
                )
            self.world.outcomes.attempted[uid] = self.world.monotonic()
        except BackendError as error:
            if not isinstance(error, OutcomeUnknown):
                # One that overran its deadline may be under way until the asset is let go: looks count from the first.
                self.world.outcomes.attempted[uid] = self.world.monotonic()
            self._provision_failed(run, claim, storage_class, error)
            if selected and await self._gives_back(claim, intent, driver, error):
                # A failure all the same: where every place is full, scheduler and driver must not chase each other.
                self._keep(claim, Reschedule())
            raise
        self._keep(claim, self._kept(result) if isinstance(result, InProgress) else result)

    async def _validate(self, driver: DriverView, request: ProvisionRequest) -> None:
        """Ask the backend about a class's parameters before it is first used; again only for others."""
        given = (driver.name, repr(sorted(request.parameters.items())))
        if given in self._valid or not driver.supports("validate"):
            return
        question = ValidateRequest(context=request.context, parameters=request.parameters)
        await self._drivers.call(driver, Driver.validate, question)
        if len(self._valid) >= MOST_CLASSES:
            self._valid.clear()
        self._valid.add(given)

    def _keep(self, claim: Claim, result: Asset | Pending | Reschedule) -> None:
        current = self.world.claims.get(claim.key)
        if current is not None and current.uid == claim.uid:
            self.world.outcomes.made[claim.uid] = result

    def _provision_failed(self, run: Run, claim: Claim, storage_class: StorageClass, error: BackendError) -> None:
        delay = self._registry.next_delay(run, error)
        message = f'Failed to provision volume with StorageClass "{storage_class.name}": {error}; next attempt in {delay:.3g} s'
        self._recorder.record(Notice(CLAIMS, claim, "Warning", "ProvisioningFailed", message))

    async def _gives_back(self, claim: Claim, intent: ClaimIntent, driver: DriverView, error: BackendError) -> bool:
        """Whether the scheduler shall choose another node: the place is full; as in-tree plugins do it, always.

        Another segment may be tried only once nothing is, or will be, in this one.
        """
        if not is_in_tree(driver.name) and not (isinstance(error, ResourceExhausted) and error.reschedule):
            return False
        return intent.segment is None or await self._proves_absence(claim, intent, driver, error)

    async def _proves_absence(self, claim: Claim, intent: ClaimIntent, driver: DriverView, error: BackendError) -> bool:
        if error.nothing_done:
            return True
        if not driver.supports("find") or driver.info.settle_seconds > 0:
            return False
        return isinstance(await self._find(claim, intent, driver), Absent)

    def _kept(self, result: InProgress) -> Pending:
        return Pending(dict(result.state), self.world.monotonic() + max(result.retry_after, 0.0))

    # --- discard ------------------------------------------------------------------------------------------------

    def discard(self, run: Run) -> Work:
        claim, driver = self.world.claims.get(run.key), self.world.drivers.get(run.driver)
        if claim is None or driver is None:
            raise _gone(run)
        return lambda: self._discard(claim, driver)

    async def _discard(self, claim: Claim, driver: DriverView) -> None:
        """Make sure that no asset of the claim is left, though one may have been made."""
        live = await self._live_volume(volume_name_of(claim))
        if await self._still_wanted(claim, driver) or (live is not None and holds_asset(live, claim, driver.name)):
            raise Again(after=SECOND_LOOK)
        intent = self.world.intent_of(claim)
        if intent is None or intent.driver != driver.name:
            intent = presumed_intent(claim, driver, self.world)
        try:
            asset = await self._asset_of(claim, intent, driver)
            if asset is not None:
                # A deletion in several steps goes on with this one, rather than look, or make it, once more.
                self.world.outcomes.made[claim.uid] = asset
                await self._delete_asset(claim, intent, driver, asset)
        except BackendError as error:
            message = f"Error cleaning provisioned volume for claim {claim.key}: {error}; it is tried again"
            self._recorder.record(Notice(CLAIMS, claim, "Warning", "ProvisioningCleanupFailed", message))
            raise
        self.world.outcomes.forget_claim(claim.uid)
        if claim.key in self.world.claims:
            self.world.outcomes.discarded.add(claim.uid)

    async def _still_wanted(self, claim: Claim, driver: DriverView) -> bool:
        try:
            live = await self._client.get(CLAIMS, claim.key)
        except ApiNotFound:
            return False
        self.world.claims.observe(live)
        if live.uid != claim.uid:
            return False
        elsewhere = live.spec.volume_name not in ("", volume_name_of(live))
        storage_class = self.world.classes.get(class_of_claim(live) or "")
        superseded = storage_class is not None and storage_class.provisioner != driver.name
        return not (live.terminating or elsewhere or superseded)

    async def _asset_of(self, claim: Claim, intent: ClaimIntent, driver: DriverView) -> Asset | None:
        made = self.world.outcomes.made.get(claim.uid)
        if isinstance(made, Asset):
            return made
        if driver.supports("find"):
            found = await self._find(claim, intent, driver)
            if isinstance(found, Asset):
                return found
            self._wait_until_settled(claim, driver)
            return None
        return await self._provision_once_more(claim, intent, driver)

    def _wait_until_settled(self, claim: Claim, driver: DriverView) -> None:
        """`Absent` is proof only so long after the last attempt; one before our start counts from our first look."""
        since = self.world.outcomes.attempted.setdefault(claim.uid, self.world.monotonic())
        left = since + driver.info.settle_seconds - self.world.monotonic()
        if left > 0:
            raise Again(after=left)

    async def _provision_once_more(self, claim: Claim, intent: ClaimIntent, driver: DriverView) -> Asset | None:
        """Without `find`, an unknown outcome is resolved by the same call: it returns what it made before."""
        class_name = class_of_claim(claim) or ""
        storage_class = self.world.classes.get(class_name)
        if storage_class is None:
            raise OutcomeUnknown(
                f'class "{class_name}" is gone and driver "{driver.name}" cannot look assets up; '
                "create the class again so that the asset can be found and deleted"
            )
        context = self._context(driver, intent.generation, intent.state)
        request = provision_request(claim, storage_class, driver, intent, context)
        try:
            result = await self._drivers.call(driver, Driver.provision, request)
        except BackendError as error:
            # A class such as InvalidArgument speaks of this call only, not of the one whose outcome is unknown.
            if error.nothing_left:
                return None
            raise
        if isinstance(result, InProgress):
            raise Again(after=result.retry_after)
        return result

    async def _find(self, claim: Claim, intent: ClaimIntent, driver: DriverView) -> Asset | Absent:
        context = self._context(driver, intent.generation, intent.state)
        request = FindRequest(
            context=context,
            name=volume_name_of(claim),
            owner=owner_of_claim(claim, context.cluster_id, intent.generation),
            segment=intent.segment or None,
        )
        return await self._drivers.call(driver, Driver.find, request)

    async def _delete_asset(self, claim: Claim, intent: ClaimIntent, driver: DriverView, asset: Asset) -> None:
        context = self._context(driver, intent.generation, self.world.outcomes.discarding.get(claim.uid))
        owner: Ownership = owner_of_claim(claim, context.cluster_id, intent.generation)
        request = DeleteRequest(context=context, volume=asset_identity(asset, claim, owner))
        result = await self._drivers.call(driver, Driver.delete, request)
        if isinstance(result, InProgress):
            self.world.outcomes.discarding[claim.uid] = dict(result.state)
            raise Again(after=result.retry_after)

    # --- delete and recycle -------------------------------------------------------------------------------------

    def delete(self, run: Run) -> Work:
        volume, driver = self._asked_for(run)
        return lambda: self._delete(run, volume, driver)

    async def _delete(self, run: Run, volume: Volume, driver: DriverView) -> None:
        live = await self._released_volume(volume)
        if live is None or not live.terminating or live.spec.persistent_volume_reclaim_policy != "Delete":
            raise Again(after=SECOND_LOOK)
        known = read_delete_intent(live.annotation(names.INTENT))
        identity = volume_identity(live, self.world.settings.cluster_id)
        generation = identity.owner.generation if identity.owner else 1
        context = self._context(driver, generation, known.delete_state if known is not None else None)
        request = DeleteRequest(context=context, volume=identity)
        try:
            result = await self._drivers.call(driver, Driver.delete, request)
        except VolumeInUse as error:
            self._recorder.record(Notice(VOLUMES, live, "Normal", "VolumeDelete", str(error)))
            raise
        except BackendError as error:
            self._volume_failed(run, live, "VolumeFailedDelete", str(error), error)
            raise
        self.world.outcomes.succeeded(live.uid)
        self.world.outcomes.deleted[live.uid] = self._kept(result) if isinstance(result, InProgress) else None

    def _volume_failed(self, run: Run, volume: Volume, reason: str, message: str, error: BackendError) -> None:
        """A failure becomes the volume's phase and event by its next decision; the same one again is an event alone.

        Where another is the binder, phases are its own: every failure is an event alone.
        """
        shown = volume.status.phase == "Failed" and volume.status.message == message
        if shown or not self.world.settings.binder:
            told = f"{message}; next attempt in {self._registry.next_delay(run, error):.3g} s"
            self._recorder.record(Notice(VOLUMES, volume, "Warning", reason, told))
        if volume.name in self.world.volumes:
            self.world.outcomes.failed[volume.uid] = message
            self.world.outcomes.unsaid.add(volume.uid)
            self._wake_volume(volume.key)

    def recycle(self, run: Run) -> Work:
        volume, driver = self._asked_for(run)
        return lambda: self._recycle(run, volume, driver)

    async def _recycle(self, run: Run, volume: Volume, driver: DriverView) -> None:
        live = await self._released_volume(volume)
        intent = read_recycle_intent(live.annotation(names.INTENT)) if live is not None else None
        if live is None or live.terminating or not recycles(live) or intent is None:
            raise Again(after=SECOND_LOOK)
        if epoch_of(intent.fence) != epoch_of(self._fence()):
            raise Again(after=SECOND_LOOK)
        before = self.world.outcomes.scrubs.get(live.uid)
        context = self._context(driver, state=before.state if isinstance(before, Pending) else None)
        request = RecycleRequest(context=context, volume=volume_identity(live, self.world.settings.cluster_id))
        try:
            result = await self._drivers.call(driver, Driver.recycle, request)
        except BackendError as error:
            self._volume_failed(run, live, "VolumeFailedRecycle", f"Recycle failed: {error}", error)
            raise
        self.world.outcomes.succeeded(live.uid)
        current = self.world.volumes.get(live.name)
        if current is not None and intent.same_scrub(read_recycle_intent(current.annotation(names.INTENT))):
            self.world.outcomes.scrubs[live.uid] = self._plan(result)

    def _plan(self, result: PodScrub | Erased | InProgress) -> ScrubPlan | Pending | None:
        match result:
            case PodScrub(volume=volume):
                return ScrubPlan(volume)
            case InProgress():
                return self._kept(result)
            case Erased():
                return None

    def _asked_for(self, run: Run) -> tuple[Volume, DriverView]:
        volume, driver = self.world.volumes.get(run.key), self.world.drivers.get(run.driver)
        if volume is None or driver is None:
            raise _gone(run)
        return volume, driver

    def identify(self, run: Run) -> Work:
        volume = self.world.volumes.get(run.key)
        if volume is None:
            raise _gone(run)
        source = volume_source(volume)
        return lambda: self._drivers.identify(source)

    # --- live reads and calls -----------------------------------------------------------------------------------

    async def _live_volume(self, name: str) -> Volume | None:
        try:
            live = await self._client.get(VOLUMES, name)
        except ApiNotFound:
            return None
        self.world.volumes.observe(live)
        return live

    async def _released_volume(self, volume: Volume) -> Volume | None:
        """The volume as it is now, if it is still this one and no living claim is bound to it."""
        live = await self._live_volume(volume.name)
        if live is None:
            self.world.volumes.observe_deleted(volume.key, volume.uid)
            return None
        reference = live.spec.claim_ref
        if live.uid != volume.uid:
            return None
        if reference is None or not reference.uid or not reference.namespace or not reference.name:
            settled = live.status.phase in ("Released", "Failed") or not self.world.settings.binder
            return live if settled or not live.terminating else None
        try:
            claim = await self._client.get(CLAIMS, f"{reference.namespace}/{reference.name}")
        except ApiNotFound:
            return live
        self.world.claims.observe(claim)
        bound_elsewhere = bool(claim.spec.volume_name) and claim.spec.volume_name != live.name
        never = can_never_be_bound(live, claim) and outlived(live, claim, self.world.sealer)
        return live if claim.uid != reference.uid or bound_elsewhere or never else None

    def _context(self, driver: DriverView, generation: int = 1, state: Mapping[str, Any] | None = None) -> Context:
        """Of a call that the running operation makes."""
        return context_of(
            driver,
            self.world.settings.cluster_id,
            generation=generation,
            attempt=self._registry.attempt(),
            state=state,
            fence=self._fence(),
        )


def _gone(run: Run) -> OperationError:
    return OperationError(f"{run.name} was not started: what it was decided for is gone")
