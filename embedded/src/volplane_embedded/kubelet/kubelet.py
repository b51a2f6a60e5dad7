"""Starts one worker for each pod that is bound to a node of this process, and routes changes to it.

Source: pkg/kubelet/kubelet.go (syncLoop, HandlePodAdditions), pkg/kubelet/pod_workers.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Final

from volplane.controller.actions import EventRecord
from volplane.errors import ApiError
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, Node, Volume, VolumeAttachment
from volplane_embedded.informers import unsubscribing
from volplane_embedded.kubelet.container_runtime import Dependencies
from volplane_embedded.kubelet.expansion import awaits_node
from volplane_embedded.kubelet.mounts import MountError
from volplane_embedded.kubelet.pod_directory import (
    PodDirectory,
    kill_stale_processes,
    left_directories,
    restore_record,
)
from volplane_embedded.kubelet.pod_workers import PodWorker
from volplane_embedded.kubelet.populator import attached_volumes
from volplane_embedded.objects import PODS, Pod, claim_names, is_finished

_LOG = logging.getLogger(__name__)

_STARTS: Final = 8
"""Sandboxes that are set up at the same time, on each node."""
_RETRY_SECONDS: Final = 2.0
_HOUSEKEEPING_SECONDS: Final = 10.0


class Kubelet:
    """Runs the pods of `nodes`."""

    def __init__(self, deps: Dependencies, nodes: Sequence[str]) -> None:
        self._deps = deps
        self._starts = {node: asyncio.Semaphore(_STARTS) for node in nodes}
        self._known: set[str] = set()
        """Uids of pods that have a worker, or get one now."""
        self._workers: dict[str, PodWorker] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run pods until cancelled. Their processes are then ended by `Sandboxes`; the objects stay as they are."""
        informers = self._deps.informers
        await informers.wait_synced()
        left = await self._recovered()
        # From here to the start of the workers nothing is awaited, so that no pod is overlooked.
        with unsubscribing(
            informers.pods.subscribe(self._pod_changed),
            informers.claims.subscribe(self._claim_changed),
            informers.volumes.subscribe(self._volume_changed),
            informers.attachments.subscribe(self._attachment_changed),
            informers.nodes.subscribe(self._node_changed),
        ):
            async with asyncio.TaskGroup() as self._tasks:
                pods = [pod for node in self._starts for pod in informers.on_node(node)]
                self._tasks.create_task(self._clean(pods, left), name="housekeeping")
                for pod in pods:
                    self._pod_changed(None, pod)
                await asyncio.Event().wait()

    def worker(self, pod: Pod) -> PodWorker | None:
        """Return the worker of the pod, None if it has none."""
        return self._workers.get(pod.uid)

    async def _recovered(self) -> set[str]:
        while True:
            try:
                return await self._recover()
            except (ApiError, OSError) as error:
                _LOG.warning(
                    "what a former node agent left is unknown, trying again in %g s: %s", _RETRY_SECONDS, error
                )
                await asyncio.sleep(_RETRY_SECONDS)

    async def _recover(self) -> set[str]:
        """Kill the processes of a former kubelet, find what it had mounted, and report that before anything else.

        Returns the uids of pods of which there is anything. Raises ApiError, OSError.
        """
        deps, nodes = self._deps, tuple(self._starts)
        pods = [pod for node in nodes for pod in deps.informers.on_node(node)]
        await asyncio.to_thread(kill_stale_processes, deps.root)
        await deps.volumes.restore(nodes)
        for pod in pods:
            if not is_finished(pod):
                wanted = attached_volumes(pod, deps.informers.claims.get, deps.informers.volumes.get)
                deps.volumes.in_use.restore(pod.spec.node_name, wanted, pod.uid)
        await deps.volumes.in_use.begin(nodes)
        return await asyncio.to_thread(left_directories, deps.root) | deps.volumes.in_use.pods()

    async def _clean(self, pods: Sequence[Pod], left: set[str]) -> None:
        """Unmount and remove what pods that are gone left, and unmount what those have that are over; try again while
        something stays. left: uids of pods that may have left something.
        """
        known = {pod.uid: pod for pod in pods}
        over = [uid for uid in sorted(left) if uid not in known or is_finished(known[uid])]
        while True:
            over = [uid for uid in over if not await self._clean_one(uid, gone=uid not in known)]
            if not over:
                return
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)

    async def _clean_one(self, uid: str, *, gone: bool) -> bool:
        files = PodDirectory(self._deps.root, uid)
        try:
            await asyncio.to_thread(files.remove if gone else files.tear_down)
            await self._deps.volumes.release(uid)
        except (MountError, ApiError) as error:
            _LOG.warning("what a former node agent left of pod %s stays for now: %s", uid, error)
            return False
        return True

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or pod.spec.node_name not in self._starts:
            return
        if (worker := self._workers.get(pod.uid)) is not None:
            worker.poke()
        elif new is None and pod.uid not in self._known:
            self._spawn(self._remove_directory(pod), pod)
        elif new is not None and not is_finished(new) and new.uid not in self._known:
            self._known.add(new.uid)
            self._spawn(self._work(new), new)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        claim = new or old
        if claim is not None:
            self._poke_users(claim.key)
        if new is not None and awaits_node(new) and (pod := self._running_user(new.key)) is not None:
            self._spawn(self._expand(new.key, pod), pod)

    def _mounted(self, pod: Pod) -> None:
        """Look at what changed while the pod's volumes were being mounted, as they were before."""
        informers = self._deps.informers
        for key in (f"{pod.namespace}/{name}" for name in claim_names(pod)):
            claim = informers.claims.get(key)
            if claim is None or (volume := informers.volumes.get(claim.spec.volume_name)) is None:
                continue
            if volume.spec.volume_mode == "Block":
                self._spawn(self._grow_device(volume, pod), pod)
            if awaits_node(claim):
                self._spawn(self._expand(key, pod), pod)

    def _running_user(self, claim: str) -> Pod | None:
        """Return a pod here that has the volume of the claim `namespace/name` mounted."""
        for pod in self._deps.informers.users(claim):
            worker = self._workers.get(pod.uid)
            if worker is not None and worker.record.prepared and not worker.record.torn_down:
                return pod
        return None

    async def _expand(self, key: str, pod: Pod) -> None:
        """Do the node's half of the growth of the claim, until it is done or not asked for any more."""
        deps = self._deps
        while (claim := deps.informers.claims.get(key)) is not None and awaits_node(claim):
            volume = deps.informers.volumes.get(claim.spec.volume_name)
            if volume is None or self._running_user(key) is None:
                return
            try:
                done = await deps.volumes.expand(claim, volume, pod.spec.node_name)
            except (ApiError, MountError) as error:
                _LOG.debug("claim %s has changed, or its volume cannot be used: %s", key, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if done:
                volume_on_node = f'volume "{claim.spec.volume_name}" {pod.spec.node_name}'
                text = f"MountVolume.NodeExpandVolume succeeded for {volume_on_node}"
                for kind, about in ((PODS, pod), (CLAIMS, claim)):
                    deps.recorder.record(EventRecord(kind, about, "Normal", "FileSystemResizeSuccessful", text))
            return

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        volume = new or old
        if volume is None or (reference := volume.spec.claim_ref) is None:
            return
        claim = reference.key
        self._poke_users(claim)
        grown = old is not None and new is not None and old.spec.capacity != new.spec.capacity
        if grown and (pod := self._running_user(claim)) is not None:
            self._spawn(self._grow_device(volume, pod), pod)

    async def _grow_device(self, volume: Volume, pod: Pod) -> None:
        try:
            await self._deps.volumes.grow_device(volume, pod.spec.node_name)
        except (ApiError, MountError) as error:
            _LOG.warning("the device of volume %s keeps its size until it is used anew: %s", volume.name, error)

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        """Wake the pods that may wait for the attachment."""
        attachment = new or old
        name = attachment.spec.source.persistent_volume_name if attachment is not None else None
        volume = self._deps.informers.volumes.get(name) if name else None
        if volume is not None and (reference := volume.spec.claim_ref) is not None:
            self._poke_users(reference.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Wake the pods that may wait for a volume in the node's list of attached ones."""
        if new is not None and new.name in self._starts and self._deps.volumes.in_use.is_stale(new):
            self._run(self._correct(new.name), f"volumes-in-use-{new.name}")
        if old is None or new is None or old.status.volumes_attached == new.status.volumes_attached:
            return
        for pod in self._deps.informers.on_node(new.name):
            if (worker := self._workers.get(pod.uid)) is not None and not worker.record.prepared:
                worker.poke(volumes=True)

    async def _correct(self, node: str) -> None:
        try:
            await self._deps.volumes.in_use.correct(node)
        except ApiError as error:
            _LOG.warning("volumesInUse of node %s cannot be written: %s", node, error)

    def _poke_users(self, claim_key: str) -> None:
        for pod in self._deps.informers.users(claim_key):
            if (worker := self._workers.get(pod.uid)) is not None:
                worker.poke(volumes=True)

    def _spawn(self, work: Coroutine[None, None, None], pod: Pod) -> None:
        self._run(work, f"pod-{pod.key}")

    def _run(self, work: Coroutine[None, None, None], name: str) -> None:
        if self._tasks is None:
            work.close()
            return
        self._tasks.create_task(work, name=name)

    async def _work(self, pod: Pod) -> None:
        try:
            record, ran = await asyncio.to_thread(restore_record, pod, self._deps.root, self._deps.now())
            worker = PodWorker(
                pod, record, self._deps, ran=ran, starts=self._starts[pod.spec.node_name], mounted=self._mounted
            )
            self._workers[pod.uid] = worker
            await worker.run()
        except Exception:  # noqa: BLE001 -- one pod must not end the kubelet; it is tried again when it changes
            _LOG.exception("pod %s cannot be run", pod.key)
        finally:
            self._known.discard(pod.uid)
            self._workers.pop(pod.uid, None)

    async def _remove_directory(self, pod: Pod) -> None:
        """Remove the directory, with the logs, of a finished pod that was deleted."""
        try:
            await asyncio.to_thread(PodDirectory(self._deps.root, pod.uid).remove)
        except MountError as error:
            _LOG.warning("files of pod %s stay: %s", pod.key, error)
