"""The operation `provision`: the live checks, one call of the hook, and its result kept for the next decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from volplane import errors
from volplane._delays import LONG_CALL
from volplane.assets import Asset, InProgress
from volplane.controller.actions import EventRecord, Run, warning
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import held_by_another
from volplane.intents.record import provisioning_failed
from volplane.intents.requests import asset_identity, provision_request, trash_of_class
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, StorageClass, VolumeAttributesClass
from volplane.operations.operation import Again
from volplane.provision.decide import awaits_recognition
from volplane.requests import Context, DeleteRequest, ModifyRequest, ProvisionRequest, ValidateRequest, VolumeIdentity
from volplane.state.matching import source_of
from volplane.state.naming import is_in_tree, volume_name_of
from volplane.state.progress import ClaimProgress, Discarded, Full, Made, Pending, Planned
from volplane.state.records import ClaimIntent, trashed
from volplane.trash.decide import first_to_go

MOST_CLASSES = 1_000
HELD_SECONDS = 60.0
"""Until a backend is asked again that returned the asset of another volume, which may be about to go."""


@dataclass(slots=True)
class ProvisionOperation:
    deps: OperationDeps
    _valid: set[tuple[str, str]] = field(default_factory=set, init=False)
    """Parameters that the `validate` of a driver has accepted."""

    def __call__(self, run: Run) -> Work:
        storage_class, driver = self.deps.storage_class(run), self.deps.driver(run)
        progress = self.deps.cluster.progress.claims.track(run.uid)
        return lambda: self._provision(run, storage_class, driver, progress)

    async def _provision(
        self, run: Run, storage_class: StorageClass, driver: DriverView, progress: ClaimProgress
    ) -> None:
        claim = self.deps.cluster.claims.get(run.key)
        if claim is None or claim.uid != run.uid:
            return
        planned = run.planned if isinstance(run.planned, ClaimIntent) else None
        intent = planned or self._justified(claim, driver)
        if driver.supports("find") and volume_name_of(claim) in self.deps.cluster.volumes:
            await self._recognise(claim, intent, driver, progress)
            return
        selected = claim.annotation(names.SELECTED_NODE)
        if planned is None:
            progress.provision_began()
        try:
            result = await self._answer(claim, storage_class, driver, intent, planned=planned is not None)
        except errors.BackendError as error:
            progress.provision_failed(error, self.deps.cluster.monotonic())
            failure = f'Failed to provision volume with StorageClass "{storage_class.name}": {error}'
            message = f"{failure}; next attempt in {self.deps.registry.next_delay(run, error):.3g} s"
            self.deps.recorder.record(provisioning_failed(claim, message, same_as=failure))
            self._make_room(claim, storage_class, intent, error)
            if selected and await self._gives_back(claim, intent, driver, error):
                # Still a failure: if every place is full, the back-off keeps scheduler and driver from looping.
                progress.reached(Full())
            raise
        now = self.deps.cluster.monotonic()
        if planned is not None and isinstance(result, InProgress):
            progress.reached(Planned(replace(planned, state=dict(result.state))))
        elif isinstance(result, InProgress):
            due, text = self.deps.next_due(result.retry_after), f"The volume is being made by {driver.name}"
            event = EventRecord(CLAIMS, claim, "Normal", "ProvisioningProgress", text)
            told = self.deps.tell(result.progress, progress.step, event)
            progress.reached(Pending(dict(result.state), due, intent.state, result.progress, told), now)
        else:
            progress.reached(Made(result), now)

    async def _answer(
        self, claim: Claim, storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, *, planned: bool
    ) -> Asset | InProgress:
        """Return what the hook answers. Raises what it raises, and BackendError for what cannot be the claim's."""
        context = self.deps.context(driver, intent.generation, intent.state)
        attributes = await self.deps.attributes_of(claim, driver)
        copied, places = await self.deps.copied_by(intent, claim), self.deps.cluster.places
        request = provision_request(
            claim, storage_class, driver, intent, context, places=places, attributes=attributes, copied=copied
        )
        await self._validate(driver, request)
        if self.deps.cluster.node_name and intent.generation > 1 and driver.supports("find"):
            await self._discard_former(claim, intent, driver)
        result = await self.deps.hooks.call(driver, request)
        if isinstance(result, InProgress):
            return result
        if planned:
            raise errors.OutcomeUnknown(f"{result.handle} was made before it was recorded (DriverInfo.plans_first)")
        if result.capacity_bytes < request.capacity_bytes:
            made, asked = result.capacity_bytes, request.capacity_bytes
            raise errors.OutcomeUnknown(f"made {made} bytes where {asked} were asked for")
        if taken := held_by_another(result, claim, self.deps.cluster):
            text = f"the backend gives one asset to two claims: {taken}; nothing of it is destroyed"
            raise errors.AlreadyExists(text, retry_after=HELD_SECONDS)
        if attributes is None:
            return result
        return (
            await _apply_attributes(attributes, asset_identity(result, claim, context), driver, context, self.deps)
            or result
        )

    def _make_room(
        self, claim: Claim, storage_class: StorageClass, intent: ClaimIntent, error: errors.BackendError
    ) -> None:
        """Let the first volume leave the trash if the storage has no room for the claim, and its class allows that."""
        if not isinstance(error, errors.ResourceExhausted) or not trash_of_class(storage_class, names.TRASH_EARLY):
            return
        volume = first_to_go(claim, intent.segment or {}, self.deps.cluster)
        if volume is not None and (record := trashed(volume)) is not None:
            self.deps.cluster.progress.volumes.track(volume.uid).in_the_way = record.claim
            message = f"it leaves the trash before {record.until}: there is no room for claim {claim.key}"
            self.deps.recorder.record(warning(VOLUMES, volume, "VolumePurgedEarly", message))
            self.deps.queue("volumes").enqueue(volume.key)

    def _justified(self, claim: Claim, driver: DriverView) -> ClaimIntent:
        """Return the record by which the hook may be called. Raises Again if it may not."""
        intent = self.deps.cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
        volume = self.deps.cluster.volumes.get(volume_name_of(claim))
        if volume is not None:
            needed = awaits_recognition(claim, volume, self.deps.cluster)
        else:
            # Nothing is made empty that has a source.
            sourced = (intent is not None and intent.source is not None) or source_of(claim) is None
            needed = not claim.terminating and not claim.bound and sourced
        # Without a record that is ours a crash would leak the asset, and another driver's is not this one's.
        if intent is None or intent.driver != driver.name or not needed:
            raise self.deps.not_justified()
        if intent.fence != self.deps.cluster.fence():
            raise self.deps.not_justified()  # Another leader works on it, or did and it was not taken over yet.
        return intent

    async def _recognise(self, claim: Claim, intent: ClaimIntent, driver: DriverView, progress: ClaimProgress) -> None:
        found, now = await self.deps.find(claim, intent, driver), self.deps.cluster.monotonic()
        if found is not None:
            progress.reached(Made(found), now)
        elif (left := progress.absence_seen(now, driver.info.settle_seconds)) > 0:
            raise Again(after=left)
        else:
            progress.reached(Discarded())

    async def _discard_former(self, claim: Claim, intent: ClaimIntent, driver: DriverView) -> None:
        """Delete what an earlier generation has left on this node, which was given up and came back with it.

        It has the same name, and was never a volume's: that would have ended the intent. Raises Again while it is
        being deleted.
        """
        # A volume may hold what is found under this name.
        if await self.deps.live_volume(volume_name_of(claim)) is not None:
            raise self.deps.not_justified()
        for generation in range(1, intent.generation):
            former = replace(intent, generation=generation, state=None)
            found = await self.deps.find(claim, former, driver)
            if found is not None and not held_by_another(found, claim, self.deps.cluster):
                context = self.deps.context(driver, generation)
                request = DeleteRequest(context=context, volume=asset_identity(found, claim, context))
                result = await self.deps.hooks.call(driver, request)
                if isinstance(result, InProgress):
                    raise Again(after=LONG_CALL.delay(asked=result.retry_after))

    async def _validate(self, driver: DriverView, request: ProvisionRequest) -> None:
        """Let the backend validate a class's parameters before they are first used."""
        given = (driver.name, repr(sorted(request.parameters.items())))
        if given in self._valid or not driver.supports("validate"):
            return
        question = ValidateRequest(context=request.context, parameters=request.parameters)
        await self.deps.hooks.call(driver, question)
        if len(self._valid) >= MOST_CLASSES:
            self._valid.clear()
        self._valid.add(given)

    async def _gives_back(
        self, claim: Claim, intent: ClaimIntent, driver: DriverView, error: errors.BackendError
    ) -> bool:
        """Return whether the scheduler shall choose another node, as nothing is, or will be, in this full place."""
        if isinstance(error, errors.AlreadyDeleted):
            return False  # The next generation may well be made here.
        if not is_in_tree(driver.name) and not (isinstance(error, errors.ResourceExhausted) and error.reschedule):
            return False
        if intent.segment is None or error.nothing_left:
            return True  # What a class of error proves is about this call alone: one before may have made something.
        if intent.state is not None:
            return False  # A job of the driver was started, and may go on.
        if not driver.supports("find") or driver.info.settle_seconds > 0:
            return False  # It cannot be proven now that nothing was made here.
        return await self.deps.find(claim, intent, driver) is None


# --- the VolumeAttributesClass ------------------------------------------------------------------------------------
#
# The volume names the class from its creation, so it must have the attributes by then. `provision` gets them, but may
# ignore them, and another class may be named since the asset was made: `modify` follows, before the volume is created.
# Source: external-provisioner, which passes them to CreateVolume as mutable parameters; KEP-3751.


async def _apply_attributes(
    attributes: VolumeAttributesClass, asset: VolumeIdentity, driver: DriverView, context: Context, deps: OperationDeps
) -> InProgress | None:
    """Give the asset that was made in this context the attributes; None when that is done.

    `InProgress` carries the state of `provision`, which is called again first. Raises OutcomeUnknown: the asset exists,
    whatever the class of the backend's error proves.
    """
    change = ModifyRequest(context=context, volume=asset, parameters=dict(attributes.parameters or {}))
    try:
        answer = await deps.hooks.call(driver, change)
    except errors.BackendError as error:
        what = f'the asset is made, and is not changed to VolumeAttributesClass "{attributes.name}": {error.message}'
        raise errors.OutcomeUnknown(what, code=error.code, retry_after=error.retry_after) from error
    if isinstance(answer, InProgress):
        return InProgress(retry_after=answer.retry_after, state=dict(context.state))
    return None
