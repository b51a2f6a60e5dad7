"""The nodes of `volplane dev`: scheduler, node registration, kubelet, and the controllers of ephemeral volumes, of the
protection of VolumeAttributesClasses and of quotas, run together beside an API server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType

from volplane.controller.runner import Steps
from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.kube.objects import Node
from volplane_embedded.apiserver.errors import bad_request, not_found
from volplane_embedded.apiserver.execution import ExecRequest
from volplane_embedded.attributes_class_protection import AttributesClassProtection
from volplane_embedded.ephemeral_volumes import EphemeralVolumes
from volplane_embedded.garbage_collector import GarbageCollector
from volplane_embedded.informers import Informers
from volplane_embedded.kubelet.attached_disks import AttachedDisks
from volplane_embedded.kubelet.container_runtime import Dependencies
from volplane_embedded.kubelet.execution import RunningCommand, run_command
from volplane_embedded.kubelet.kubelet import Kubelet
from volplane_embedded.kubelet.local_exports import LocalExport
from volplane_embedded.kubelet.logs import LogQuery, read_log_options, read_logs
from volplane_embedded.kubelet.mounts import MountError, remove_tree
from volplane_embedded.kubelet.node_plugins import PluginRegistration
from volplane_embedded.kubelet.node_status import NodeRegistration, node_names
from volplane_embedded.kubelet.pod_directory import PodDirectory, attempt_of
from volplane_embedded.kubelet.sandboxes import Sandboxes
from volplane_embedded.kubelet.volume_manager import VolumeManager
from volplane_embedded.objects import Now, Pod
from volplane_embedded.quota_status import QuotaStatus
from volplane_embedded.sandbox.limits import why_no_cgroup
from volplane_embedded.scheduler.scheduler import Scheduler
from volplane_embedded.workloads.controllers import run_workloads

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 2.0


class LocalNodes:
    """Nodes that are this machine.

    count: how many (`node-1`, `node-2`, ...), unless `names` lists them. state_dir: holds volumes and logs of pods over
    a restart; no other process may use it. hidden: directories and files that no container may see, besides state_dir.
    now: wall time, aware, UTC. disks: where mocked clouds show their disks; None: csi volumes cannot be mounted.
    exports: NFS exports of this machine. labels: node -> labels besides those of every node.
    """

    def __init__(
        self,
        client: Client,
        *,
        count: int = 1,
        names: Sequence[str] = (),
        state_dir: Path,
        now: Now,
        random: Random,
        hidden: Sequence[Path] = (),
        disks: Path | None = None,
        exports: Sequence[LocalExport] = (),
        labels: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self.names = tuple(names) or tuple(node_names(count))
        self._client = client
        self._state_dir = state_dir.absolute()
        self._hidden = (self._state_dir, *hidden, *([disks] if disks is not None else []))
        self._exports = exports
        self._labels = labels
        self._disks = AttachedDisks(client, disks)
        self._now = now
        self._random = random
        self._informers = Informers()
        self.plugins = PluginRegistration(client, self._informers, self.names)
        """Lists CSI drivers in the nodes' CSINodes."""
        self._agent: Kubelet | None = None
        self._ready = asyncio.Event()

    @property
    def root(self) -> Path:
        """Directory of the pods' files."""
        return self._state_dir / "pods"

    async def wait_ready(self) -> None:
        """Return when the nodes are registered and pods are scheduled."""
        await self._ready.wait()

    async def run(self) -> None:
        """Register the nodes, schedule and run pods until cancelled. Then all processes are killed; the objects
        stay.
        """
        await asyncio.to_thread(self._state_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
        scheduled = EventRecorder(self._client, "default-scheduler", instance=self.names[0], now=self._now)
        ran = EventRecorder(self._client, "volplane-node", instance=self.names[0], now=self._now)
        controlled = EventRecorder(self._client, "ephemeral_volume", instance=self.names[0], now=self._now)
        deployed = EventRecorder(self._client, "workload-controller", instance=self.names[0], now=self._now)
        async with Sandboxes() as sandboxes, asyncio.TaskGroup() as tasks:
            dependencies = self._dependencies(sandboxes, ran)
            self._agent = Kubelet(dependencies, self.names)
            nodes = NodeRegistration(
                self._client,
                self.names,
                exists=self._exists,
                now=self._now,
                labels=self._labels,
                synced=dependencies.volumes.in_use.synced,
            )
            collector = GarbageCollector(self._informers, dependencies.steps)
            ephemeral = EphemeralVolumes(self._client, self._informers, recorder=controlled)
            protection = AttributesClassProtection(self._client, self._informers, recorder=controlled)
            scheduler = Scheduler(self._client, self._informers, recorder=scheduled, now=self._now)
            for recorder in (scheduled, ran, controlled, deployed):
                tasks.create_task(recorder.run(), name="node-events")
            await self._check(sandboxes)
            await self._register(nodes)
            tasks.create_task(self._informers.follow(self._client, self._random), name="node-informers")
            await self._informers.wait_synced()
            tasks.create_task(nodes.run(), name="node-leases")
            tasks.create_task(self.plugins.run(), name="node-plugins")
            tasks.create_task(self._agent.run(), name="node-agent")
            tasks.create_task(scheduler.run(), name="node-scheduler")
            tasks.create_task(ephemeral.run(), name="node-ephemeral")
            tasks.create_task(collector.run(), name="node-garbage-collector")
            tasks.create_task(run_workloads(self._informers, self._client, deployed, self._now), name="node-workloads")
            tasks.create_task(protection.run(), name="node-vac-protection")
            tasks.create_task(QuotaStatus(self._client, self._informers).run(), name="node-quota-status")
            self._ready.set()

    async def _check(self, sandboxes: Sandboxes) -> None:
        directory = self._state_dir / "check"
        try:
            await asyncio.to_thread(remove_tree, directory)
            message = await sandboxes.check(directory)
            await asyncio.to_thread(remove_tree, directory)
        except (MountError, OSError) as error:
            message = f"{directory} cannot be used: {error}"
        if message:
            _LOG.warning("pods will fail: %s", message)
        elif why := why_no_cgroup():
            _LOG.info("memory is limited for each process of a container, not for all together: %s", why)

    async def _register(self, nodes: NodeRegistration) -> None:
        while True:
            try:
                await nodes.register()
            except ApiError as error:
                _LOG.warning("the nodes could not be registered, trying again in %g s: %s", _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _dependencies(self, sandboxes: Sandboxes, recorder: EventRecorder) -> Dependencies:
        return Dependencies(
            client=self._client,
            informers=self._informers,
            steps=Steps(self._client, self._informers.caches),
            recorder=recorder,
            now=self._now,
            sandboxes=sandboxes,
            volumes=VolumeManager(self._client, self.root, self._node, self._disks, exports=self._exports),
            root=self.root,
            hidden=self._hidden,
        )

    def _node(self, name: str) -> Node | None:
        return self._informers.nodes.get(name)

    def _exists(self, name: str) -> bool:
        return name in self._informers.nodes

    def log_source(
        self, namespace: str, pod: str, container: str | None, follow: bool, query: LogQuery
    ) -> AsyncIterator[bytes]:
        """Open the output of a container, for `ApiServer.log_source`.

        Raises StatusError: 404 for an unknown pod, 400 if the container did not start yet or runs elsewhere.
        """
        found = self._informers.pods.get(f"{namespace}/{pod}")
        if found is None:
            raise not_found("pods", "", pod)
        if found.spec.node_name and found.spec.node_name not in self.names:
            raise bad_request(f"pod {pod} runs on node {found.spec.node_name}, which this node agent does not serve")
        name = container or found.spec.containers[0].name
        wanted = read_log_options(query, self._now())
        attempt = self._attempt(found, name)
        log = PodDirectory(self.root, found.uid).places(name, attempt - wanted.previous).log
        if wanted.previous and (attempt < 1 or not log.exists()):
            raise bad_request(f'previous terminated container "{name}" in pod "{pod}" not found')
        if attempt < 0 or not log.exists():
            raise bad_request(f'container "{name}" in pod "{pod}" is waiting to start: ContainerCreating')
        follows = follow and not wanted.previous
        return read_logs(log, wanted, runs=(lambda: self._runs(found, name, attempt)) if follows else None)

    async def exec_source(self, asked: ExecRequest) -> RunningCommand:
        """Start a command in a container, for `ApiServer.exec_source`.

        Raises StatusError (400, 404) unless the container runs here, and OSError.
        """
        found = self._informers.pods.get(f"{asked.namespace}/{asked.pod}")
        if found is None:
            raise not_found("pods", "", asked.pod)
        name = asked.container or found.spec.containers[0].name
        worker = self._agent.worker(found) if self._agent is not None else None
        sandbox = worker.sandbox(name) if worker is not None else None
        if sandbox is None:
            raise bad_request(f'container "{name}" of pod "{asked.pod}" does not run on a node of this node agent')
        return await run_command(sandbox, asked.command, tty=asked.tty)

    def _attempt(self, pod: Pod, container: str) -> int:
        """Number of the newest start of a container, -1 if it was never started."""
        worker = self._agent.worker(pod) if self._agent is not None else None
        if worker is not None:
            return worker.record.container(container).attempt
        logs = PodDirectory(self.root, pod.uid).places(container, 0).log.parent.glob("*.log")
        return max(map(attempt_of, logs), default=-1)

    def _runs(self, pod: Pod, container: str, attempt: int) -> bool:
        worker = self._agent.worker(pod) if self._agent is not None else None
        if worker is None:
            return False
        record = worker.record.container(container)
        return record.active and record.attempt == attempt
