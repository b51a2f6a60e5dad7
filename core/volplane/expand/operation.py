"""The operations `expand` and `modify`: the live checks, one call of the hook, and its result kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from volplane import errors
from volplane.assets import Asset, InProgress
from volplane.controller.actions import Run, warning
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.expand.modify import MODIFY, modification_target
from volplane.expand.resize import EXPAND, expansion_target, recorded_state, recorded_target
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUME_ATTRIBUTES_CLASSES
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import format_bytes
from volplane.requests import ExpandRequest, HookRequest, ModifyRequest
from volplane.state.matching import refers_to
from volplane.state.progress import Changed, Changing, Refused, Untouched

Request = Callable[..., HookRequest[Any]]
"""Makes the request of (context=, volume=)."""


@dataclass(frozen=True, slots=True)
class _ChangeOperation:
    deps: OperationDeps
    wake: Callable[[str], None]
    """Queues a claim, so that its failure is written before the next try."""
    verb: ClassVar[str]
    annotation: ClassVar[str]
    """Of the volume; it keeps the state of a long call."""
    reason: ClassVar[str]
    """Of the Event that reports a failure."""

    def __call__(self, run: Run) -> Work:
        return partial(self._change, run, self.deps.driver(run))

    @abstractmethod
    async def _target(self, claim: Claim, volume: Volume) -> tuple[str, Request]:
        """Return the target that the live claim asks for, and the request; raise Again if its status differs."""

    async def _change(self, run: Run, driver: DriverView) -> None:
        """Call the hook and keep its answer. An error becomes an event; one that proves the target impossible stays."""
        deps = self.deps
        claim = await deps.client.refresh(deps.cluster.claims, run.key)
        # The claim may have been deleted, or made again, since the decision.
        if claim is None or claim.uid != run.uid or claim.terminating or not claim.spec.volume_name:
            raise deps.not_justified()
        volume = await deps.live_volume(claim.spec.volume_name)
        # Only the claim's own asset is changed: both objects must still refer to each other.
        if volume is None or volume.terminating or not refers_to(volume, claim):
            raise deps.not_justified()
        target, request = await self._target(claim, volume)
        progress = deps.cluster.progress.changes.track((volume.uid, self.verb))
        identity = volume_identity(volume, deps.cluster.cluster_id)
        given = recorded_state(volume.annotation(self.annotation), target)
        context = deps.context(driver, identity.owner.generation if identity.owner else 1, given)
        try:
            result = await deps.hooks.call(driver, request(context=context, volume=identity))
            if isinstance(result, Asset) and result.capacity_bytes < int(target):
                has, asked = format_bytes(result.capacity_bytes), format_bytes(int(target))
                raise errors.OutcomeUnknown(f"the asset has {has} where {asked} were asked for")
        except errors.BackendError as error:
            delay = deps.registry.next_delay(run, error)
            deps.recorder.record(warning(CLAIMS, claim, self.reason, f"{error}; next attempt in {delay:.3g} s"))
            impossible = isinstance(
                error, errors.InvalidArgument | errors.Unsupported | errors.AlreadyExists | errors.NotFound
            )
            # Another target may be asked for only if nothing was done towards this one.
            if impossible or (isinstance(error, errors.ResourceExhausted) and error.nothing_done):
                progress.step = Refused(target, str(error))
                self.wake(run.key)
            elif not isinstance(progress.step, Changing):
                nothing_done = error.nothing_done or isinstance(error, errors.VolumeInUse | errors.PermissionDenied)
                progress.step = Untouched(target) if nothing_done else None
            raise
        if isinstance(result, InProgress):
            progress.step = Changing(dict(result.state), deps.next_due(result.retry_after), given, target=target)
        else:
            changed = Changed(target)
            if isinstance(result, Asset):
                changed = Changed(target, result.capacity_bytes, result.node_expansion_required)
            progress.step = changed


class ExpandOperation(_ChangeOperation):
    verb, annotation, reason = EXPAND, names.EXPANSION, "VolumeResizeFailed"

    async def _target(self, claim: Claim, volume: Volume) -> tuple[str, Request]:
        size = expansion_target(claim, volume)
        # The claim's status declares a size before the backend is asked for it.
        if size is None or recorded_target(claim) != size:
            raise self.deps.not_justified()
        return str(size), partial(ExpandRequest, capacity_bytes=size)


class ModifyOperation(_ChangeOperation):
    verb, annotation, reason = MODIFY, names.MODIFICATION, "VolumeModifyFailed"

    async def _target(self, claim: Claim, volume: Volume) -> tuple[str, Request]:
        shown, target = claim.status.modify_volume_status, modification_target(claim, volume)
        # The claim's status declares a class before the backend is asked for it.
        if not target or shown is None or shown.target_volume_attributes_class_name != target:
            raise self.deps.not_justified()
        try:
            attributes = await self.deps.client.get(VOLUME_ATTRIBUTES_CLASSES, target)
        except errors.ApiNotFound:
            raise self.deps.not_justified() from None
        return target, partial(ModifyRequest, parameters=dict(attributes.parameters or {}))
