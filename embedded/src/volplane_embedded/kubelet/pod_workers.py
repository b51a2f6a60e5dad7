"""Runs one pod: decides on an action, performs it, and decides again, until the pod has finished or is gone.

Source: pkg/kubelet/pod_workers.go (podWorkerLoop), pkg/kubelet/kubelet.go (SyncPod, SyncTerminatingPod).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from volplane.controller import logs
from volplane.controller.actions import EventRecord
from volplane.errors import ApiConflict, ApiError, ApiNotFound
from volplane_embedded.kubelet.container_config import MountedVolume, config_error
from volplane_embedded.kubelet.container_runtime import ContainerRuntime, Dependencies
from volplane_embedded.kubelet.mounts import MountError
from volplane_embedded.kubelet.pod_actions import (
    DeletePod,
    FailPod,
    Idle,
    KillContainers,
    MountVolumes,
    PodAction,
    StartContainer,
    TerminateContainers,
    UnmountVolumes,
    compute_pod_action,
    pod_phase,
)
from volplane_embedded.kubelet.pod_directory import PodDirectory
from volplane_embedded.kubelet.pod_state import PodRecord
from volplane_embedded.kubelet.sandboxes import Sandbox
from volplane_embedded.kubelet.status import generate_pod_status
from volplane_embedded.kubelet.volume_manager import VolumesNotReady
from volplane_embedded.objects import PODS, Pod, is_finished, timestamp

_LOG = logging.getLogger(__name__)

_FIRST_RETRY: Final = 0.5
_LONGEST_RETRY: Final = 30.0
_MOUNT_SECONDS: Final = 123.0
"""podAttachAndMountTimeout."""
_TIMED_OUT: Final = "timed out waiting for the condition"
_NODE_FULL: Final = (
    "VolumeAttachmentLimitExceeded",
    "Node has reached its volume attachment limit, rejecting pod",
)
"""pkg/kubelet/volumemanager, VolumeAttachmentLimitExceededReason."""
_FINAL: Final = frozenset({"Succeeded", "Failed"})


class PodWorker:
    """Runs one pod. Call `poke` when something that it depends on may have changed.

    ran: its containers ran under a former process. starts: bounds how many sandboxes are set up at the same time.
    """

    def __init__(
        self,
        pod: Pod,
        record: PodRecord,
        deps: Dependencies,
        *,
        ran: bool,
        starts: asyncio.Semaphore,
        mounted: Callable[[Pod], None],
    ) -> None:
        """mounted: called when the volumes of the pod are mounted."""
        self._pod = pod
        self._mounted = mounted
        self._record = record
        self._deps = deps
        self._ran = ran
        self._starts = starts
        self._files = PodDirectory(deps.root, pod.uid)
        self._sources: Mapping[str, MountedVolume] = {}
        self._running: ContainerRuntime | None = None
        self._poked = asyncio.Event()
        self._reported: dict[str, Any] = {}
        self._prepare_pause = 0.0
        self._waits_until = 0.0
        """Loop time at which the pod's volumes should be mounted; the wait then begins anew."""
        self._removed = False

    def poke(self, *, volumes: bool = False) -> None:
        """Decide again now. volumes: a claim or volume of the pod changed, so that mounting may succeed now."""
        if volumes:
            self._record.prepare_due = 0.0
        self._poked.set()

    @property
    def record(self) -> PodRecord:
        return self._record

    async def run(self) -> None:
        """Run until the pod is finished or gone, and its processes with it. If cancelled, `Sandboxes` ends them."""
        with logs.bound(object=self._pod.key):
            async with asyncio.TaskGroup() as tasks:
                self._running = ContainerRuntime(
                    self._deps, self._files, self._record, tasks=tasks, starts=self._starts, changed=self.poke
                )
                while not await self._sync(self._running):
                    pass

    def sandbox(self, container: str) -> Sandbox | None:
        """Return the sandbox of a container whose command runs, None for another one."""
        started = self.record.container(container).active and self._running is not None
        return self._running.sandbox(container) if started and self._running is not None else None

    async def _sync(self, running: ContainerRuntime) -> bool:
        """Perform one action. Returns whether nothing is left to do."""
        self._poked.clear()
        try:
            gone = self._read()
            return await self._perform(self._next(gone=gone), running, gone=gone)
        except ApiConflict:
            await self._refresh()
        except ApiError as error:
            _LOG.warning("trying again in %g s: %s", _LONGEST_RETRY / 10, error)
            await self._sleep(_LONGEST_RETRY / 10)
        except Exception:  # noqa: BLE001 -- an error in one pod must not stop the others
            _LOG.exception("a step failed; trying again in %g s", _LONGEST_RETRY)
            await self._sleep(_LONGEST_RETRY)
        return False

    def _read(self) -> bool:
        """Read the pod from the cache. Returns whether it is gone."""
        found = self._deps.informers.pods.get(self._pod.key)
        if found is None or found.uid != self._pod.uid:
            return True
        self._pod = found
        return False

    def _next(self, *, gone: bool) -> PodAction:
        pod, record = self._pod, self._record
        if record.failure is None and not gone:
            if (refused := config_error(pod)) is not None:
                return FailPod(refused.reason, refused.message)
            if is_finished(pod) and pod_phase(pod, record) not in _FINAL:
                return FailPod(pod.status.reason, pod.status.message)
        return compute_pod_action(pod, record, mono=_mono(), wall=self._deps.now(), gone=gone)

    async def _perform(self, action: PodAction, running: ContainerRuntime, *, gone: bool) -> bool:
        record = self._record
        match action:
            case MountVolumes():
                await self._mount_volumes()
            case StartContainer():
                running.launch(self._pod, action.container, self._sources)
            case FailPod():
                record.failure = (action.reason, action.message)
            case TerminateContainers():
                record.stopping = _mono()
                running.stop(self._pod)
            case KillContainers():
                record.killed = True
                running.kill()
            case UnmountVolumes():
                await self._unmount_volumes()
            case DeletePod():
                await self._report()
                await self._remove()
            case Idle():
                return await self._idle(action, gone=gone)
        return False

    async def _idle(self, action: Idle, *, gone: bool) -> bool:
        if gone:
            if self._record.torn_down:
                await asyncio.to_thread(self._files.remove)
                return True
        else:
            await self._report()
            if self._record.torn_down and pod_phase(self._pod, self._record) in _FINAL and not self._pod.terminating:
                return True
        await self._sleep(action.seconds)
        return False

    async def _sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        except TimeoutError:
            return

    async def _mount_volumes(self) -> None:
        record = self._record
        if not self._waits_until:
            self._waits_until = _mono() + _MOUNT_SECONDS
        try:
            self._sources = await self._deps.volumes.mount(self._pod, ran=self._ran)
        except VolumesNotReady as lacking:
            if lacking.full:
                record.failure = _NODE_FULL
                return
            record.mount_error = str(lacking)
            self._prepare_pause = min(max(_FIRST_RETRY, self._prepare_pause * 2), _LONGEST_RETRY)
            self._tell(lacking)
            record.prepare_due = min(_mono() + self._prepare_pause, self._waits_until)
        else:
            record.mount_error = ""
            record.prepared = True
            self._mounted(self._pod)

    def _tell(self, lacking: VolumesNotReady) -> None:
        """Say what failed at once, and what is only waited for after the time that a mount may take."""
        for failure in lacking.failed:
            self._notice("Warning", failure.reason, failure.message)
        if lacking.unprocessed:
            self._notice("Warning", "FailedMount", str(lacking))
        if _mono() >= self._waits_until:
            self._waits_until = _mono() + _MOUNT_SECONDS
            if lacking.unattached and not lacking.unprocessed:
                self._notice("Warning", "FailedMount", lacking.text(f"{_TIMED_OUT}: {lacking.cause}"))

    async def _unmount_volumes(self) -> None:
        try:
            await self._deps.volumes.unmount(self._pod.uid, self._pod.spec.node_name)
        except MountError as error:
            self._notice("Warning", "FailedUnMount", str(error))
            await self._sleep(_LONGEST_RETRY)
        else:
            self._record.torn_down = True

    async def _report(self) -> None:
        """Write the pod's status if it changed."""
        pod = self._pod
        status = generate_pod_status(pod, self._record, mono=_mono(), now=timestamp(self._deps.now()))
        if status == self._reported:
            return
        body = {"metadata": {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}, "status": status}
        try:
            answer = await self._deps.client.patch(PODS, pod.key, body, subresource="status")
        except ApiNotFound:
            self._deps.informers.pods.observe_deleted(pod.key, pod.uid)
            self.poke()
            return
        self._reported = status
        self._deps.informers.pods.observe(answer)
        self._pod = answer

    async def _remove(self) -> None:
        if self._removed:
            await self._sleep(None)
            return
        pod = self._pod
        try:
            left = await self._deps.client.delete(PODS, pod.key, uid=pod.uid, grace_seconds=0)
        except ApiNotFound:
            left = None
        self._removed = True
        if left is None:
            self._deps.informers.pods.observe_deleted(pod.key, pod.uid)

    async def _refresh(self) -> None:
        try:
            await self._deps.steps.refresh(PODS, self._pod.key)
        except ApiError as error:
            _LOG.debug("reading the pod again: %s", error)
            await self._sleep(_FIRST_RETRY)

    def _notice(self, kind: str, reason: str, message: str) -> None:
        self._deps.recorder.record(EventRecord(PODS, self._pod, kind, reason, message))


def _mono() -> float:
    return asyncio.get_running_loop().time()
