"""The operations `expand` and `modify`: the live checks, one call of the hook, and its result kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from volplane.assets import Asset, Done, InProgress
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
from volplane.requests import Context, ExpandRequest, ModifyRequest, VolumeIdentity
from volplane.state.matching import refers_to
from volplane.state.progress import Changed, ChangeProgress, Changing, Refused, Untouched

__all__ = ["ExpandOperation", "ModifyOperation"]

R = TypeVar("R")
Wake = Callable[[str], None]
"""Queues a claim, so that its failure is written before the next try."""


class _ChangeOperation:
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

    def _identity(self, volume: Volume) -> VolumeIdentity:
        return volume_identity(volume, self._deps.cluster.cluster_id)

    def _context(self, driver: DriverView, identity: VolumeIdentity, given: Mapping[str, Any] | None) -> Context:
        """Return the context of a call. given: the state that an earlier call for the same target returned."""
        generation = identity.owner.generation if identity.owner else 1
        return self._deps.context(driver, generation, given)

    def _long(self, result: InProgress, target: str, given: Mapping[str, Any] | None) -> Changing:
        return Changing(dict(result.state), self._deps.next_due(result.retry_after), given, target=target)

    async def _call(
        self, run: Run, claim: Claim, target: str, progress: ChangeProgress, call: Awaitable[R], *, reason: str
    ) -> R:
        """Return the hook's answer. An error becomes an event, and one that proves the target impossible a step."""
        deps = self._deps
        try:
            return await call
        except BackendError as error:
            delay = deps.registry.next_delay(run, error)
            deps.recorder.record(warning(CLAIMS, claim, reason, f"{error}; next attempt in {delay:.3g} s"))
            if _is_infeasible(error):
                progress.step = Refused(target, str(error))
                self._wake(run.key)
            elif not isinstance(progress.step, Changing):
                nothing_done = error.nothing_done or isinstance(error, VolumeInUse | PermissionDenied)
                progress.step = Untouched(target) if nothing_done else None
            raise


class ExpandOperation(_ChangeOperation):
    """Handles the verb `expand`."""

    def __call__(self, run: Run) -> Work:
        driver = self._deps.driver(run)
        return lambda: self._expand(run, driver)

    async def _expand(self, run: Run, driver: DriverView) -> None:
        deps = self._deps
        claim, volume = await self._live(run)
        size = expansion_target(claim, volume)
        if size is None or recorded_target(claim) != size:
            raise deps.not_justified()
        target = str(size)
        progress = deps.cluster.progress.changes.track((volume.uid, EXPAND))
        identity = self._identity(volume)
        given = recorded_state(volume.annotation(names.EXPANSION), target)
        request = ExpandRequest(
            context=self._context(driver, identity, given),
            volume=identity,
            capacity_bytes=size,
        )
        call = self._grown(driver, request)
        result = await self._call(run, claim, target, progress, call, reason="VolumeResizeFailed")
        if isinstance(result, InProgress):
            progress.step = self._long(result, target, given)
        else:
            progress.step = Changed(target, result.capacity_bytes)

    async def _grown(self, driver: DriverView, request: ExpandRequest) -> Asset | InProgress:
        result = await self._deps.hooks.call(driver, request)
        if isinstance(result, Asset) and result.capacity_bytes < request.capacity_bytes:
            has, asked = format_bytes(result.capacity_bytes), format_bytes(request.capacity_bytes)
            raise OutcomeUnknown(f"the asset has {has} where {asked} were asked for")
        return result


class ModifyOperation(_ChangeOperation):
    """Handles the verb `modify`."""

    def __call__(self, run: Run) -> Work:
        driver = self._deps.driver(run)
        return lambda: self._modify(run, driver)

    async def _modify(self, run: Run, driver: DriverView) -> None:
        deps = self._deps
        claim, volume = await self._live(run)
        shown = claim.status.modify_volume_status
        target = modification_target(claim, volume)
        if not target or shown is None or shown.target_volume_attributes_class_name != target:
            raise deps.not_justified()
        try:
            attributes = await deps.client.get(VOLUME_ATTRIBUTES_CLASSES, target)
        except ApiNotFound:
            raise deps.not_justified() from None
        progress = deps.cluster.progress.changes.track((volume.uid, MODIFY))
        identity = self._identity(volume)
        given = recorded_state(volume.annotation(names.MODIFICATION), target)
        request = ModifyRequest(
            context=self._context(driver, identity, given),
            volume=identity,
            parameters=dict(attributes.parameters or {}),
        )
        call: Awaitable[Done | InProgress] = deps.hooks.call(driver, request)
        result = await self._call(run, claim, target, progress, call, reason="VolumeModifyFailed")
        if isinstance(result, InProgress):
            progress.step = self._long(result, target, given)
        else:
            progress.step = Changed(target)


def _is_infeasible(error: BackendError) -> bool:
    """Return whether the target is impossible and nothing was done towards it: another one may be asked for."""
    if isinstance(error, InvalidArgument | Unsupported | AlreadyExists | NotFound):
        return True
    return isinstance(error, ResourceExhausted) and error.nothing_done
