"""What the operations of all duties share, and the one that deletes what a claim no longer wants.

An operation may run long after the decision that asked for it. It reads the objects live before it touches an asset,
unless the server answered with them a moment ago, and does nothing if they no longer justify it: the object is decided
again when the operation ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from volplane._delays import LIVE_STATE_FORBIDS, LONG_CALL
from volplane.assets import Asset, InProgress, VolumeSource
from volplane.controller.actions import EventRecord, Queue, Recorder, Run, warning
from volplane.controller.controller import Work
from volplane.controller.logs import traceparent
from volplane.controller.metrics import Metrics
from volplane.drivers.driver import DriverView, LoadedDrivers
from volplane.drivers.registry import DriverRegistry
from volplane.errors import ApiNotFound, BackendError, InvalidArgument, NotFound, OperationError, OutcomeUnknown
from volplane.intents.ownership import claim_elsewhere, held_by_another, volume_elsewhere
from volplane.intents.record import can_never_be_bound, has_newer_intent, holds_asset, presumed_intent
from volplane.intents.requests import asset_identity, owner_of_claim, provision_request, volume_identity
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, VOLUME_ATTRIBUTES_CLASSES
from volplane.kube.objects import Claim, StorageClass, Volume, VolumeAttributesClass
from volplane.operations.operation import Again
from volplane.operations.registry import OperationRegistry
from volplane.requests import Context, DeleteRequest, FindRequest, HookRequest, VolumeIdentity
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, source_of
from volplane.state.naming import volume_name_of
from volplane.state.progress import ClaimProgress, Discarded, Discarding, LongCall, Made, Pending
from volplane.state.records import ClaimIntent

_MOMENT = 0.25
"""Seconds for which an answer of the server counts as a live read: a read may take as long."""

_TELL_SECONDS = 60.0

_OUT_OF_SIGHT = 60.0
"""Seconds between two looks at a claim that left the selector of this process's watch."""

R = TypeVar("R")
T = TypeVar("T")


class HookCaller(Protocol):
    """Calls hooks: the driver registry, or a wrapper of it that counts."""

    async def call(self, driver: DriverView, request: HookRequest[R]) -> R:
        """Call the request's hook in the driver's threads, within its deadline. Raises BackendError or PluginError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDeps:
    """What the controllers of every duty and their operations work with."""

    cluster: ClusterState
    client: Client
    """Writes only while the lease lasts."""
    drivers: DriverRegistry
    loaded: LoadedDrivers
    hooks: HookCaller
    registry: OperationRegistry
    recorder: Recorder
    metrics: Metrics | None
    queue: Callable[[str], Queue]
    """The queue of this name. What is queued is dropped if this process does not have it."""
    listing: Mapping[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Of each driver, held while its assets are listed: a storage that hangs costs one thread, however many ask. The
    same for attachments, by the plural of their kind.
    """

    # Handlers look these up in the turn of the decision. They raise OperationError if the object is gone.

    def claim(self, run: Run) -> Claim:
        """Return the claim that `run` names; one that has vanished is named by its uid."""
        return _found(self.cluster.claims.get(run.key) or self.cluster.progress.vanished.get(run.key), run)

    def storage_class(self, run: Run) -> StorageClass:
        return _found(self.cluster.classes.get(class_of_claim(self.claim(run)) or ""), run)

    def volume(self, run: Run) -> Volume:
        return _found(self.cluster.volumes.get(run.key), run)

    def driver(self, run: Run) -> DriverView:
        return _found(self.cluster.drivers.get(run.driver), run)

    # Live reads.

    def not_justified(self) -> Again:
        """Return what to raise if the live state forbids what was decided: the object is decided again later."""
        return Again(after=LIVE_STATE_FORBIDS.delay())

    async def live_volume(self, name: str) -> Volume | None:
        """Return the volume as the server has it now, and put it into the cache."""
        return await self.client.refresh(self.cluster.volumes, name)

    async def released_volume(
        self, volume: Volume, *, writes_phase: bool, answered: float = -math.inf
    ) -> Volume | None:
        """Return the volume as it is now, if it is still this one and no living claim is bound to it; else None.

        writes_phase: we are the binder: a volume that refers to no claim must have a phase before it is destroyed.
        answered: loop time at which the server answered with it; it is read again unless that was a moment ago.
        """
        live = self.cluster.volumes.get(volume.key)
        if live is None or live.uid != volume.uid or self.cluster.monotonic() - answered > _MOMENT:
            live = await self.live_volume(volume.name)
        if live is None:
            return None
        reference = live.spec.claim_ref
        # Another volume has its name now, or its asset is of another process.
        if live.uid != volume.uid or volume_elsewhere(live, self.cluster):
            return None
        if reference is None or not reference.uid or not reference.complete:
            settled = live.status.phase in ("Released", "Failed") or not writes_phase
            return live if settled or not live.terminating else None
        if self.cluster.claims.gone(reference.uid):
            return live  # A claim that has its name now is another one.
        claim = await self.client.refresh(self.cluster.claims, reference.key)
        if claim is None:
            return live  # The server says that the claim is gone; a cache does not prove it.
        bound_elsewhere = bool(claim.spec.volume_name) and claim.spec.volume_name != live.name
        never = can_never_be_bound(live, claim) and has_newer_intent(live, claim, self.cluster.sealer)
        return live if claim.uid != reference.uid or bound_elsewhere or never else None

    async def know_attachments(self) -> None:
        """Take in what the former leader attached last, once a term: the watch of a follower may lag behind it."""
        attachments = self.cluster.attachments
        async with self.listing[ATTACHMENTS.plural]:
            if attachments.followed:
                async for page in self.client.pages(ATTACHMENTS):
                    for each in page.items:
                        attachments.observe(each)
                attachments.followed = False

    # Hooks.

    def context(self, driver: DriverView, generation: int = 1, state: Mapping[str, Any] | None = None) -> Context:
        """Return what a call of the driver's hooks carries besides its demand."""
        return Context(
            driver=driver.name,
            cluster_id=self.cluster.cluster_id,
            generation=generation,
            attempt=self.registry.attempt(),
            state=dict(state or {}),
            fence=self.cluster.fence(),
            # One for each driver, as loggers are kept for ever. The fields of each message name what is worked on.
            log=logging.getLogger(f"volplane.driver.{driver.name}"),
            traceparent=traceparent(),
        )

    async def find(self, claim: Claim, intent: ClaimIntent, driver: DriverView) -> Asset | None:
        """Return the asset of the claim's intent; None if the backend shows none (see `DriverInfo.settle_seconds`)."""
        context = self.context(driver, intent.generation, intent.state)
        request = FindRequest(
            context=context,
            name=volume_name_of(claim),
            owner=owner_of_claim(claim, context),
            segment=intent.segment or None,
        )
        found = await self.hooks.call(driver, request)
        return found if isinstance(found, Asset) else None

    async def attributes_of(self, claim: Claim, driver: DriverView) -> VolumeAttributesClass | None:
        """Return the class that the claim names. Raises NotFound or InvalidArgument if it cannot be applied."""
        name, csi_name = claim.spec.volume_attributes_class_name, driver.info.csi_driver_name
        if not name:
            return None
        try:
            attributes = await self.client.get(VOLUME_ATTRIBUTES_CLASSES, name)
        except ApiNotFound:
            raise NotFound(f'volumeattributesclass.storage.k8s.io "{name}" not found') from None
        if attributes.driver_name not in (driver.name, csi_name):
            of = f'is of driver "{attributes.driver_name}", the storage class of "{csi_name}"'
            raise InvalidArgument(f'VolumeAttributesClass "{name}" {of}')
        return attributes

    async def copied_by(self, intent: ClaimIntent, claim: Claim | None = None) -> VolumeIdentity | None:
        """Return the volume of which the intent's asset is a copy. Of one that was removed by force little is known.

        claim: for which the copy is made. Raises NotFound if the volume is not that of its source any more.
        """
        if intent.source is None or not intent.source.volume:
            return None
        name, handle = intent.source.of, intent.source.volume
        volume = await self.live_volume(name)
        reference = volume.spec.claim_ref if volume is not None else None
        source = source_of(claim) if claim is not None and reference is not None else None
        if claim and reference and source and reference.key != source.key_from(claim.namespace):
            # Its tenant can remove what holds it, and the volume may have another one's data by now.
            raise NotFound(f'volume "{name}" is another claim\'s now, not that of {source.name}: it is not copied')
        identity = volume_identity(volume, self.cluster.cluster_id) if volume is not None else None
        if identity is None or identity.handle != handle:
            return VolumeIdentity(
                name=name, uid="", handle=handle, source=VolumeSource(kind="", fields={}), capacity_bytes=0
            )
        return identity

    def next_due(self, retry_after: float) -> float:
        """Return the loop time at which a hook that answered `InProgress` is called again."""
        return self.cluster.monotonic() + LONG_CALL.delay(asked=retry_after)

    def tell(self, progress: str, before: object, event: EventRecord) -> float:
        """Tell once a minute how far a long call is: `LongCall.told` of its step. before: its step until now."""
        now = self.cluster.monotonic()
        told = before.told if isinstance(before, LongCall) else now
        if not progress or now < told + _TELL_SECONDS:
            return told
        self.recorder.record(replace(event, message=f"{event.message}: {progress}", same_as=event.message))
        return now


def _found(item: T | None, run: Run) -> T:
    if item is None:
        raise OperationError(f"{run.name} was not started: what it was decided for is gone")
    return item


@dataclass(frozen=True, slots=True)
class DiscardOperation:
    """Handles the verb `discard`: make sure that no asset of a claim's intent is left, as one may have been made."""

    deps: OperationDeps

    def __call__(self, run: Run) -> Work:
        claim, driver = self.deps.claim(run), self.deps.driver(run)
        progress = self.deps.cluster.progress.claims.track(run.uid)
        discard = self._discard_vanished if run.key == run.uid else self._discard
        return lambda: discard(claim, driver, progress)

    async def _discard(self, claim: Claim, driver: DriverView, progress: ClaimProgress) -> None:
        live = await self.deps.client.refresh(self.deps.cluster.claims, claim.key)
        if live is not None and live.uid != claim.uid:
            live = None
        sealer, text = self.deps.cluster.sealer, (live or claim).annotation(names.INTENT)
        written = sealer.open(claim.uid, text)
        if written is not None and written.fence != self.deps.cluster.fence():
            raise self.deps.not_justified()  # Of another leader; it was not taken over yet.
        if sealer.other_author(claim.uid, text):
            raise self.deps.not_justified()  # Another installation may work on it.
        intent = self.deps.cluster.intent_of(claim)
        if intent is None or intent.driver != driver.name:
            intent = presumed_intent(claim, driver, self.deps.cluster)
        begun = isinstance(progress.step, Discarding) or intent.discard is not None
        waits = live is not None and live.spec.volume_name in ("", volume_name_of(claim))
        if not await self._may_go(claim, live if waits else None, driver, begun=begun):
            raise self.deps.not_justified()
        # A claim that is gone holds no record, nor does one that points elsewhere and lost what it had.
        can_hold = waits or (live is not None and written is not None)
        try:
            asset = self._not_of_others(await self._asset_of(claim, intent, driver, progress), claim)
            if asset is not None and not begun and can_hold and (intent.state is not None or not claim.terminating):
                # Once this is recorded, `Absent` means that the asset was deleted, not that a job has yet to make it;
                # and the next asset of the claim is of another generation.
                progress.reached(Discarding(asset, LongCall({}, self.deps.cluster.monotonic())))
                return
            if asset is not None:
                # The next step of a long deletion goes on with this asset, and does not look it up again.
                progress.reached(Discarding(asset))
                context = self.deps.context(driver, intent.generation, intent.discard)
                request = DeleteRequest(context=context, volume=asset_identity(asset, claim, context))
                result = await self.deps.hooks.call(driver, request)
                if isinstance(result, InProgress):
                    due = self.deps.next_due(result.retry_after)
                    progress.reached(Discarding(asset, LongCall(dict(result.state), due, intent.discard)))
                    return
        except BackendError as error:
            message = f"Error cleaning provisioned volume for claim {claim.key}: {error}; it is tried again"
            self.deps.recorder.record(warning(CLAIMS, claim, "ProvisioningCleanupFailed", message))
            raise
        progress.reached(Discarded())

    async def _discard_vanished(self, claim: Claim, driver: DriverView, progress: ClaimProgress) -> None:
        # Not into the cache: what another process has must not be worked on here.
        live = await self.deps.client.find(CLAIMS, claim.key)
        if live is not None and live.uid == claim.uid:
            raise Again(after=_OUT_OF_SIGHT)  # It only left the selector of a watch: another process has it.
        volume = await self.deps.live_volume(volume_name_of(claim))
        ours = volume is None and not claim_elsewhere(claim, self.deps.cluster)  # A volume's asset goes with that.
        if ours:
            await self._discard(claim, driver, progress)
        if not ours or isinstance(progress.step, Discarded):
            self.deps.cluster.progress.vanished.pop(claim.uid, None)
            self.deps.cluster.progress.claims.forget(claim.uid)

    async def _may_go(self, claim: Claim, waiting: Claim | None, driver: DriverView, *, begun: bool) -> bool:
        """Return whether the asset is unwanted. waiting: the live claim, if it could still be bound to its volume."""
        volume = await self.deps.live_volume(volume_name_of(claim))
        cluster = self.deps.cluster
        if volume is not None and cluster.node_name and has_newer_intent(volume, claim, cluster.sealer):
            # The asset was made on a node that was given up and came back. The volume has a later asset.
            return True
        wanted = waiting is not None and await self._still_wanted(waiting, driver)
        # An asset that a volume holds goes with that volume.
        held = volume is not None and holds_asset(volume, claim, driver.name)
        return not held and (begun or not wanted)

    async def _still_wanted(self, live: Claim, driver: DriverView) -> bool:
        if live.terminating:
            return False
        storage_class = await self.deps.client.refresh(self.deps.cluster.classes, class_of_claim(live) or "")
        return storage_class is None or storage_class.provisioner == driver.name

    def _not_of_others(self, asset: Asset | None, claim: Claim) -> Asset | None:
        """Return the asset, unless another volume holds it: it is not this claim's to delete, and is not left over."""
        taken = held_by_another(asset, claim, self.deps.cluster) if asset is not None else ""
        if taken:
            message = f"nothing is destroyed for claim {claim.key}: {taken}"
            self.deps.recorder.record(warning(CLAIMS, claim, "ProvisioningCleanupFailed", message))
        return None if taken else asset

    async def _asset_of(
        self, claim: Claim, intent: ClaimIntent, driver: DriverView, progress: ClaimProgress
    ) -> Asset | None:
        match progress.step:
            case Made(asset=asset) | Discarding(asset=asset):
                return asset
        if driver.supports("find"):
            found = await self.deps.find(claim, intent, driver)
            if found is not None:
                return found
            if (left := progress.absence_seen(self.deps.cluster.monotonic(), driver.info.settle_seconds)) > 0:
                raise Again(after=left)
            if intent.state is None or intent.discard is not None:
                return None
        return await self._provision_once_more(claim, intent, driver, progress)

    async def _provision_once_more(
        self, claim: Claim, intent: ClaimIntent, driver: DriverView, progress: ClaimProgress
    ) -> Asset | None:
        """Resolve an unknown outcome by the same call: without `find`, or in a long job, `Absent` proves nothing."""
        class_name = class_of_claim(claim) or ""
        storage_class = self.deps.cluster.classes.get(class_name)
        if storage_class is None and intent.state is not None and not driver.info.marks:
            storage_class = StorageClass()  # The state is the whole request.
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
        context = self.deps.context(driver, intent.generation, intent.state)
        attributes, places = None, self.deps.cluster.places
        with suppress(BackendError):  # Without them the call may still show what has become of the job.
            attributes = await self.deps.attributes_of(claim, driver)
        copied = await self.deps.copied_by(intent)
        request = provision_request(
            claim, storage_class, driver, intent, context, places=places, attributes=attributes, copied=copied
        )
        progress.provision_began()  # It may be the first call, and the claim may vanish before its end.
        try:
            result = await self.deps.hooks.call(driver, request)
        except BackendError as error:
            # An error such as InvalidArgument proves nothing about the earlier call, nor about its job: the classes
            # may demand something else now.
            if error.nothing_left:
                return None
            raise
        if isinstance(result, InProgress):
            due = self.deps.next_due(result.retry_after)
            progress.reached(Pending(dict(result.state), due, intent.state), self.deps.cluster.monotonic())
            raise Again(after=LONG_CALL.delay(asked=result.retry_after))
        return result
