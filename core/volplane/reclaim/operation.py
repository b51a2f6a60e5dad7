"""The operations of released volumes: `delete` and `recycle`, and `identify`, which asks who owns a static volume.

Each makes the live checks, calls one hook, and keeps its result for the next decision.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from volplane.assets import Erased, InProgress, PodScrub, VolumeSource
from volplane.controller.actions import EventRecord, Run, warning
from volplane.drivers.driver import DriverView
from volplane.errors import BackendError, OutcomeUnknown, VolumeInUse
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import shared_with
from volplane.intents.requests import volume_identity
from volplane.kube.kinds import PODS, VOLUMES
from volplane.kube.objects import Volume
from volplane.operations import Work
from volplane.reclaim.delete import recorded_state
from volplane.reclaim.recycle import job_erases, recycles, used_by, users_of_former
from volplane.requests import DeleteRequest, RecycleRequest
from volplane.state.cluster_state import claims_of_pod
from volplane.state.naming import volume_source
from volplane.state.progress import BackendErased, Deleted, Deleting, Erasing, ScrubPlan, VolumeProgress
from volplane.state.records import recycle_intent_of

__all__ = ["DeleteOperation", "IdentifyOperation", "RecycleOperation"]

WakeVolume = Callable[[str], None]
"""Queues a volume, so that its failure is written before the next try."""

Identify = Callable[[VolumeSource], Awaitable[None]]
"""Asks the drivers which of them owns the source (`DriverRegistry.identify`). Raises BackendError or PluginError."""


class IdentifyOperation:
    """Handles the verb `identify`."""

    def __init__(self, deps: OperationDeps, identify: Identify) -> None:
        self._deps = deps
        self._identify = identify

    def __call__(self, run: Run) -> Work:
        source = volume_source(self._deps.volume(run))
        return lambda: self._identify(source)


class _VolumeOperation:
    def __init__(self, deps: OperationDeps, wake: WakeVolume, *, writes_phase: bool = True) -> None:
        """writes_phase: whether a failure is shown by the phase of the volume, which is the binder's to write."""
        self._deps = deps
        self._writes_phase = writes_phase
        self._wake = wake

    def _failed(
        self, run: Run, volume: Volume, progress: VolumeProgress, error: BackendError, *, reason: str, message: str
    ) -> None:
        """Keep the failure for the next decision, which writes phase and event; if the phase shows it, record an event.

        Beside another binder, which writes the phases, every failure is an event alone.
        """
        deps = self._deps
        shown = volume.status.phase == "Failed" and volume.status.message == message
        if shown or not self._writes_phase:
            text = f"{message}; next attempt in {deps.registry.next_delay(run, error):.3g} s"
            deps.recorder.record(warning(VOLUMES, volume, reason, text, same_as=message))
        if volume.name in deps.cluster.volumes:
            progress.failed(message)
            self._wake(volume.key)


class DeleteOperation(_VolumeOperation):
    """Handles the verb `delete`."""

    def __call__(self, run: Run) -> Work:
        volume, driver = self._deps.volume(run), self._deps.driver(run)
        progress = self._deps.cluster.progress.volumes.track(run.uid)
        answered = self._deps.cluster.monotonic() if run.live else -math.inf
        return lambda: self._delete(run, volume, driver, progress, answered)

    async def _delete(
        self, run: Run, volume: Volume, driver: DriverView, progress: VolumeProgress, answered: float
    ) -> None:
        """answered: loop time at which the server last answered with the volume."""
        deps = self._deps
        live = await deps.released_volume(volume, writes_phase=self._writes_phase, answered=answered)
        if live is None or not live.terminating or live.spec.persistent_volume_reclaim_policy != "Delete":
            raise deps.not_justified()
        if shared_with(live, deps.cluster):
            raise deps.not_justified()
        identity = volume_identity(live, deps.cluster.cluster_id)
        generation = identity.owner.generation if identity.owner else 1
        given = recorded_state(live)
        context = deps.context(driver, generation, given)
        try:
            result = await deps.hooks.call(driver, DeleteRequest(context=context, volume=identity))
        except VolumeInUse as error:
            deps.recorder.record(EventRecord(VOLUMES, live, "Normal", "VolumeDelete", str(error)))
            raise
        except BackendError as error:
            self._failed(run, live, progress, error, reason="VolumeFailedDelete", message=str(error))
            raise
        if isinstance(result, InProgress):
            progress.succeeded(Deleting(dict(result.state), deps.next_due(result.retry_after), given))
        else:
            progress.succeeded(Deleted())


class RecycleOperation(_VolumeOperation):
    """Handles the verb `recycle`."""

    def __call__(self, run: Run) -> Work:
        volume, driver = self._deps.volume(run), self._deps.driver(run)
        # The next scrub has a new record: a late answer to this call is lost.
        progress = self._deps.cluster.progress.volumes.track(run.uid)
        return lambda: self._recycle(run, volume, driver, progress)

    async def _recycle(self, run: Run, volume: Volume, driver: DriverView, progress: VolumeProgress) -> None:
        deps = self._deps
        live = await deps.released_volume(volume, writes_phase=self._writes_phase)
        intent = recycle_intent_of(live) if live is not None else None
        if live is None or live.terminating or intent is None or not (recycles(live) or job_erases(intent, progress)):
            progress.recycling = False  # An earlier call has returned: two operations never hold one asset.
            raise deps.not_justified()
        if intent.fence != deps.fence() or shared_with(live, deps.cluster):
            raise deps.not_justified()
        if users := await self._users(live):
            deps.recorder.record(EventRecord(VOLUMES, live, "Normal", "VolumeFailedRecycle", used_by(users)))
            raise deps.not_justified()
        context = deps.context(driver, state=intent.state)
        request = RecycleRequest(context=context, volume=volume_identity(live, deps.cluster.cluster_id))
        progress.recycling = True
        try:
            result = await deps.hooks.call(driver, request)
        except BackendError as error:
            progress.recycling = isinstance(error, OutcomeUnknown)
            self._failed(run, live, progress, error, reason="VolumeFailedRecycle", message=f"Recycle failed: {error}")
            raise
        match result:
            case PodScrub(volume=pod_volume, sub_path=sub_path):
                progress.succeeded(ScrubPlan(pod_volume, sub_path))
            case InProgress():
                progress.succeeded(Erasing(dict(result.state), deps.next_due(result.retry_after), intent.state))
            case Erased():
                progress.succeeded(BackendErased())

    async def _users(self, volume: Volume) -> list[str]:
        """Return the pods that still use the claim it was released from, by a live list: a cache may lack them."""
        reference = volume.spec.claim_ref
        if reference is None or not reference.namespace:
            return []
        key = reference.key
        successor = await self._deps.live_claim(key)
        pods = (await self._deps.client.list(PODS, namespace=reference.namespace)).items
        return users_of_former((pod for pod in pods if key in claims_of_pod(pod)), successor)
