"""The operations `expand` and `modify`: the live checks, one call of the hook, and its result kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from volplane.assets import Asset, InProgress
from volplane.controller.actions import Run, warning
from volplane.drivers.view import DriverView
from volplane.errors import (
    AlreadyExists,
    ApiNotFound,
    BackendError,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    ResourceExhausted,
    Unsupported,
    VolumeInUse,
)
from volplane.expand.change import recorded_state
from volplane.expand.modify import MODIFY, modification_target
from volplane.expand.resize import EXPAND, expansion_target, recorded_target
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUME_ATTRIBUTES_CLASSES
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import format_bytes
from volplane.operations import Work
from volplane.requests import Context, ExpandRequest, HookRequest, ModifyRequest, VolumeIdentity
from volplane.state.matching import refers_to
from volplane.state.progress import Changed, Changing, Refused, Untouched

__all__ = ["ExpandOperation", "ModifyOperation"]

R = TypeVar("R")
Wake = Callable[[str], None]
"""Queues a claim, so that its failure is written before the next try."""


class _ChangeOperation:
    verb: ClassVar[str]
    annotation: ClassVar[str]
    """Of the volume; it keeps the state of a long call."""
    reason: ClassVar[str]
    """Of the Event that reports a failure."""

    def __init__(self, deps: OperationDeps, wake: Wake) -> None:
        self._deps = deps
        self._wake = wake

    async def _live(self, run: Run) -> tuple[Claim, Volume]:
        """Return claim and volume as they are now; raise Again unless they are still bound to each other."""
        deps = self._deps
        claim = await deps.live_claim(run.key)
        if claim is None or claim.uid != run.uid or claim.terminating or not claim.spec.volume_name:
            raise deps.not_justified()
        volume = await deps.live_volume(claim.spec.volume_name)
        if volume is None or volume.terminating or not refers_to(volume, claim):
            raise deps.not_justified()
        return claim, volume

    async def _change(
        self,
        run: Run,
        driver: DriverView,
        claim: Claim,
        volume: Volume,
        *,
        target: str,
        request: Callable[[Context, VolumeIdentity], HookRequest[R]],
    ) -> None:
        """Call the hook and keep its answer. An error becomes an event; one that proves the target impossible stays."""
        deps = self._deps
        progress = deps.cluster.progress.changes.track((volume.uid, self.verb))
        identity = volume_identity(volume, deps.cluster.cluster_id)
        given = recorded_state(volume.annotation(self.annotation), target)
        context = deps.context(driver, identity.owner.generation if identity.owner else 1, given)
        try:
            result = await deps.hooks.call(driver, request(context, identity))
            if isinstance(result, Asset) and result.capacity_bytes < int(target):
                has, asked = format_bytes(result.capacity_bytes), format_bytes(int(target))
                raise OutcomeUnknown(f"the asset has {has} where {asked} were asked for")
        except BackendError as error:
            delay = deps.registry.next_delay(run, error)
            deps.recorder.record(warning(CLAIMS, claim, self.reason, f"{error}; next attempt in {delay:.3g} s"))
            if _is_infeasible(error):
                progress.step = Refused(target, str(error))
                self._wake(run.key)
            elif not isinstance(progress.step, Changing):
                nothing_done = error.nothing_done or isinstance(error, VolumeInUse | PermissionDenied)
                progress.step = Untouched(target) if nothing_done else None
            raise
        if isinstance(result, InProgress):
            progress.step = Changing(dict(result.state), deps.next_due(result.retry_after), given, target=target)
        else:
            progress.step = Changed(target, result.capacity_bytes if isinstance(result, Asset) else 0)


class ExpandOperation(_ChangeOperation):
    """Handles the verb `expand`."""

    verb, annotation, reason = EXPAND, names.EXPANSION, "VolumeResizeFailed"

    def __call__(self, run: Run) -> Work:
        driver = self._deps.driver(run)

        async def expand() -> None:
            claim, volume = await self._live(run)
            size = expansion_target(claim, volume)
            if size is None or recorded_target(claim) != size:
                raise self._deps.not_justified()

            def request(context: Context, identity: VolumeIdentity) -> ExpandRequest:
                return ExpandRequest(context=context, volume=identity, capacity_bytes=size)

            await self._change(run, driver, claim, volume, target=str(size), request=request)

        return expand


class ModifyOperation(_ChangeOperation):
    """Handles the verb `modify`."""

    verb, annotation, reason = MODIFY, names.MODIFICATION, "VolumeModifyFailed"

    def __call__(self, run: Run) -> Work:
        driver = self._deps.driver(run)

        async def modify() -> None:
            claim, volume = await self._live(run)
            shown = claim.status.modify_volume_status
            target = modification_target(claim, volume)
            if not target or shown is None or shown.target_volume_attributes_class_name != target:
                raise self._deps.not_justified()
            try:
                attributes = await self._deps.client.get(VOLUME_ATTRIBUTES_CLASSES, target)
            except ApiNotFound:
                raise self._deps.not_justified() from None
            parameters = dict(attributes.parameters or {})

            def request(context: Context, identity: VolumeIdentity) -> ModifyRequest:
                return ModifyRequest(context=context, volume=identity, parameters=parameters)

            await self._change(run, driver, claim, volume, target=target, request=request)

        return modify


def _is_infeasible(error: BackendError) -> bool:
    """Return whether the target is impossible and nothing was done towards it: another one may be asked for."""
    if isinstance(error, InvalidArgument | Unsupported | AlreadyExists | NotFound):
        return True
    return isinstance(error, ResourceExhausted) and error.nothing_done
