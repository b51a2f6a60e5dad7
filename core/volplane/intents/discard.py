"""The operation `discard`: make sure that no asset of a claim's intent is left, as one may have been made."""

from __future__ import annotations

from volplane.assets import Asset, InProgress
from volplane.controller.actions import Run, warning
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, OutcomeUnknown
from volplane.intents.operation import OperationDeps
from volplane.intents.record import has_newer_intent, holds_asset, presumed_intent
from volplane.intents.requests import asset_identity, owner_of_claim, provision_request
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, StorageClass
from volplane.operations import Again, Work
from volplane.requests import DeleteRequest
from volplane.state.matching import class_of_claim
from volplane.state.naming import volume_name_of
from volplane.state.progress import ClaimProgress, Discarding, Made
from volplane.state.records import ClaimIntent

__all__ = ["DiscardOperation"]


class DiscardOperation:
    """Handles the verb `discard`."""

    def __init__(self, deps: OperationDeps, *, on_node: bool = False) -> None:
        """on_node: a process that serves one node runs it."""
        self._deps = deps
        self._on_node = on_node
        self._cluster = deps.cluster

    def __call__(self, run: Run) -> Work:
        claim, driver = self._deps.claim(run), self._deps.driver(run)
        progress = self._cluster.progress.claims.track(run.uid)
        return lambda: self._discard(claim, driver, progress)

    async def _discard(self, claim: Claim, driver: DriverView, progress: ClaimProgress) -> None:
        live = await self._deps.live_claim(claim.key)
        if live is not None and live.uid != claim.uid:
            live = None
        sealer, text = self._cluster.sealer, (live or claim).annotation(names.INTENT)
        written = sealer.open(claim.uid, text)
        if written is not None and written.fence != self._deps.fence():
            raise self._deps.not_justified()  # Of another leader; it was not taken over yet.
        if sealer.other_author(claim.uid, text):
            raise self._deps.not_justified()  # Another installation may work on it.
        intent = self._cluster.intent_of(claim)
        if intent is None or intent.driver != driver.name:
            intent = presumed_intent(claim, driver, self._cluster)
        begun = isinstance(progress.step, Discarding) or intent.discard is not None
        waits = live is not None and live.spec.volume_name in ("", volume_name_of(claim))
        if not await self._may_go(claim, live if waits else None, driver, begun=begun):
            raise self._deps.not_justified()
        # A claim that is gone holds no record, nor does one that points elsewhere and lost what it had.
        can_hold = waits or (live is not None and written is not None)
        try:
            asset = await self._asset_of(claim, intent, driver, progress)
            if asset is not None and not begun and can_hold and (intent.state is not None or not claim.terminating):
                # Once this is recorded, `Absent` means that the asset was deleted, not that a job has yet to make it;
                # and the next asset of the claim is of another generation.
                progress.discard_pending(asset, {}, self._cluster.monotonic())
                return
            if asset is not None:
                # The next step of a long deletion goes on with this asset, and does not look it up again.
                progress.discard_began(asset)
                context = self._deps.context(driver, intent.generation, intent.discard)
                owner = owner_of_claim(claim, context.cluster_id, intent.generation)
                request = DeleteRequest(context=context, volume=asset_identity(asset, claim, owner))
                result = await self._deps.hooks.call(driver, request)
                if isinstance(result, InProgress):
                    due = self._deps.next_due(result.retry_after)
                    progress.discard_pending(asset, result.state, due, given=intent.discard)
                    return
        except BackendError as error:
            message = f"Error cleaning provisioned volume for claim {claim.key}: {error}; it is tried again"
            self._deps.recorder.record(warning(CLAIMS, claim, "ProvisioningCleanupFailed", message))
            raise
        progress.discarded()

    async def _may_go(self, claim: Claim, waiting: Claim | None, driver: DriverView, *, begun: bool) -> bool:
        """Return whether the asset is unwanted. waiting: the live claim, if it could still be bound to its volume."""
        volume = await self._deps.live_volume(volume_name_of(claim))
        if volume is not None and self._on_node and has_newer_intent(volume, claim, self._cluster.sealer):
            # The asset was made on a node that was given up and came back. The volume has a later asset.
            return True
        wanted = waiting is not None and await self._still_wanted(waiting, driver)
        held = volume is not None and holds_asset(volume, claim, driver.name)
        return not held and (begun or not wanted)

    async def _still_wanted(self, live: Claim, driver: DriverView) -> bool:
        if live.terminating:
            return False
        storage_class = await self._deps.live_class(class_of_claim(live) or "")
        return storage_class is None or storage_class.provisioner == driver.name

    async def _asset_of(
        self, claim: Claim, intent: ClaimIntent, driver: DriverView, progress: ClaimProgress
    ) -> Asset | None:
        match progress.step:
            case Made(asset=asset) | Discarding(asset=asset):
                return asset
        if driver.supports("find"):
            found = await self._deps.find(claim, intent, driver)
            if found is not None:
                return found
            self._wait_until_settled(driver, progress)
            if intent.state is None or intent.discard is not None:
                return None
        return await self._provision_once_more(claim, intent, driver, progress)

    def _wait_until_settled(self, driver: DriverView, progress: ClaimProgress) -> None:
        """Raise Again until `Absent` is proof: `settle_seconds` after the last attempt, or after our first look."""
        now = self._cluster.monotonic()
        left = progress.absence_seen(now) + driver.info.settle_seconds - now
        if left > 0:
            raise Again(after=left)

    async def _provision_once_more(
        self, claim: Claim, intent: ClaimIntent, driver: DriverView, progress: ClaimProgress
    ) -> Asset | None:
        """Resolve an unknown outcome by the same call, which returns what it made before.

        That is needed without `find`, and while a job of the driver goes on: until its end `Absent` proves nothing.
        """
        class_name = class_of_claim(claim) or ""
        storage_class = self._cluster.classes.get(class_name)
        if storage_class is None:
            unable = "follow what it began" if driver.supports("find") else "look assets up"
            raise OutcomeUnknown(
                f'class "{class_name}" is gone and without it driver "{driver.name}" cannot {unable}; '
                "create the class again so that the asset can be found and deleted"
            )
        if storage_class.provisioner != driver.name:
            # The class is another driver's now, and this one may refuse its parameters: none are passed. If the asset
            # was made for another demand, `provision` raises AlreadyExists.
            storage_class = StorageClass(metadata=storage_class.metadata, provisioner=driver.name)
        context = self._deps.context(driver, intent.generation, intent.state)
        request = provision_request(claim, storage_class, driver, intent, context, nodes=self._deps.nodes)
        try:
            result = await self._deps.hooks.call(driver, request)
        except BackendError as error:
            # An error such as InvalidArgument proves nothing about an earlier call whose outcome is unknown. With
            # `find` there is no such call: it has found nothing, and this call has asked for the job.
            if error.nothing_left or (error.nothing_done and driver.supports("find")):
                return None
            raise
        if isinstance(result, InProgress):
            now = self._cluster.monotonic()
            due = self._deps.next_due(result.retry_after)
            progress.provision_pending(result.state, due, now, given=intent.state)
            raise Again(after=result.retry_after)
        return result
