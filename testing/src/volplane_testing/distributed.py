"""A cluster with storage on its nodes, in virtual time: one central process and one process a node, on one API server.

    async with DistributedCluster(["a", "b"]) as cluster:
        cluster.create_class("local")
        claim = cluster.create_claim("data", "local")
        await cluster.settle()
        assert cluster.node_of(claim) == "a"

Each process has its own client, caches and executor; only the API server and the storage of the nodes outlive it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from volplane import (
    AccessMode,
    DescribeRequest,
    DriverInfo,
    Erased,
    PodScrub,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    Unavailable,
    VolumeMode,
    VolumeSource,
    hookimpl,
)
from volplane.controller.controller import Role
from volplane.drivers.contract import HOOKS, Plugin
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.intents.bootstrap import SEAL_SECRET, Bootstrap
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import SECRETS
from volplane.kube.transport import Transport
from volplane.process.assembly import Dependencies
from volplane.process.control_plane import ControlPlane
from volplane.process.duties import ALL_CONTROLLERS, NODE_CONTROLLERS
from volplane.requests import HookRequest
from volplane.state.naming import nodes_namespace
from volplane.state.records import Sealer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.api import Api, Json
from volplane_testing.control_plane import NAMESPACE, VirtualProcess, idle, reasons_of
from volplane_testing.executor import InlineExecutor
from volplane_testing.memory import ZONE, MemoryBackend
from volplane_testing.memory_storage import MemoryAsset, MemoryStorage
from volplane_testing.transport import FaultScript, FaultTransport

__all__ = ["CENTRAL", "NODE_DRIVER", "DistributedCluster", "NodeDisk"]

R = TypeVar("R")

NODE_DRIVER: Final = "disks.example.com"
CENTRAL: Final = "central"
"""Name of the process that serves the whole cluster, where nodes have theirs."""
_STEP: Final = 0.02


class NodeDisk(MemoryBackend):
    """Directories of one node, in memory. Placed by the zone label, which is the name of the node here."""

    default_driver_name: ClassVar[str] = NODE_DRIVER
    identity: int = 0
    """Of the disk; part of the handles."""
    pod_volume: Mapping[str, Any] | None = None
    """What a scrubber pod is to mount; None = the driver erases volumes itself."""

    def __dir__(self) -> Iterable[str]:
        """Return the hooks alone: pluggy looks at each name, which takes more than the rest of a driver."""
        return HOOKS

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Describe a driver with one access mode that needs no attaching."""
        modes = frozenset({AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD})
        return DriverInfo(
            version="1",
            topology_keys=(ZONE,),
            access_modes=modes,
            volume_modes=frozenset({VolumeMode.FILESYSTEM}),
        )

    @hookimpl
    def recycle(self, request: RecycleRequest) -> Erased | PodScrub:
        """Forget the contents, or ask for a pod."""
        if self.pod_volume is None:
            return super().recycle(request)
        return PodScrub(volume=self.pod_volume, sub_path=request.volume.handle)

    def handle_of(self, name: str) -> str:
        """Return the disk's identity, as the root of a file system has one."""
        return f"{self.identity}-{self.storage.made}-{name}"

    def source_of(self, asset: MemoryAsset) -> VolumeSource:
        """Return the source, a local path."""
        return VolumeSource(kind="local", fields={"path": f"/disks/{asset.handle}"})

    def _make(self, request: ProvisionRequest) -> MemoryAsset:
        if request.capacity_bytes > self.storage.room():
            room = self.storage.room()
            raise ResourceExhausted(
                f"{request.capacity_bytes} bytes were asked for, there are {room}", reschedule=True, nothing_done=True
            )
        return super()._make(request)


class DistributedCluster:
    """Use as `async with`. nodes: names of those that exist at the start, each with a process and `capacity` bytes."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        capacity: int = 100 << 30,
        publish: bool = True,
        pod_volume: Mapping[str, Any] | None = None,
        transport: Callable[[str, Transport], Transport] = lambda _name, transport: transport,
        controllers: frozenset[str] = frozenset(ALL_CONTROLLERS),
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """publish: whether the nodes publish how much room they have. pod_volume: see `NodeDisk`. transport: what to
        put around the transport of the process of this name. controllers: of the central process. settings: of `Role`,
        for every process.
        """
        self.disks: dict[str, MemoryStorage] = {}
        """What is on the disk of each node. It stays when the node goes."""
        self.scripts: dict[str, FaultScript] = {}
        """Faults and requests of each process, by the name of its node, or `CENTRAL`."""
        self.failing: set[str] = set()
        """Nodes whose disks cannot be reached: every hook there fails."""
        self.clocks: dict[str, clock.LoopClock] = {}
        """Of each process that was started, by its name; `offset` says how wrong it is. They outlive the process."""
        self._first = tuple(nodes)
        self._capacity = capacity
        self._publish = publish
        self._pod_volume = pod_volume
        self._transport = transport
        self._controllers = controllers
        self._random = Random(seed)  # noqa: S311 - names and jitter, no secrets
        self._settings = settings
        self._running: dict[str, tuple[VirtualProcess, EventRecorder]] = {}
        self._served: list[MemoryStorage] = []
        self.old_disks: list[MemoryStorage] = []
        """Disks that were taken out of their node."""
        self.sealers: dict[str, Sealer]
        """With the key of each process that has one of its own, and, under "", with that of the others."""
        self.server: ApiServer
        self.api: Api

    async def __aenter__(self) -> Self:
        self.server = ApiServer(now=clock.now, random=self._random)
        self.api = Api(self.server)
        client = Client(InProcessTransport(self.server))
        self._cluster_id, _ = await Bootstrap(client, namespace=NAMESPACE).run()
        secret = await client.get(SECRETS, f"{NAMESPACE}/{SEAL_SECRET}")
        # No object of the server: a schedule of the simulation would change with the uids of what is made first.
        nodes = Sealer(b"the key of the processes of nodes", nodes_namespace(NAMESPACE))
        key = base64.b64decode((secret.data or {})["key"])
        self.sealers = {CENTRAL: Sealer(key, NAMESPACE, nodes, (NODE_DRIVER,)), "": nodes}
        for name in self._first:
            self.create_node(name)
        for name in (CENTRAL, *self._first):
            await self.start(name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            await self.kill(name)
        self.server.close()

    # --- objects -------------------------------------------------------------------------------------------------

    def create_node(self, name: str, *, ready: bool = True, **labels: str) -> Json:
        """Create a node, with a new disk unless there is one of its name."""
        self.disks.setdefault(name, MemoryStorage(capacity_bytes=self._capacity, zones=(name,), clock=_now))
        self.api.create("nodes", {"metadata": {"name": name, "labels": {ZONE: name, **labels}}})
        return self.set_ready(name, ready=ready)

    def set_ready(self, name: str, *, ready: bool) -> Json:
        """Set the condition as the kubelet or the node lifecycle controller does, with the latter's taint."""
        taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
        self.api.patch("nodes", name, {"spec": {"taints": [] if ready else [taint]}})
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test"}
        return self.api.patch("nodes", name, {"status": {"conditions": [condition]}}, subresource="status")

    def create_class(
        self, name: str, *, late: bool = False, parameters: Mapping[str, str] | None = None, **fields: Any
    ) -> Json:
        """Return a class of the driver. late: it binds once a pod is scheduled."""
        mode = "WaitForFirstConsumer" if late else "Immediate"
        body = {
            "metadata": {"name": name},
            "provisioner": NODE_DRIVER,
            "parameters": dict(parameters or {}),
            "volumeBindingMode": mode,
        }
        return self.api.create("storageclasses", {**body, **fields})

    def create_claim(self, name: str, storage_class: str, capacity: str = "1Gi", *, node: str = "") -> Json:
        """Return a claim. node: as the scheduler, or somebody else, selects it."""
        annotations = {names.SELECTED_NODE: node} if node else {}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": capacity}},
            "storageClassName": storage_class,
        }
        return self.api.create(
            "persistentvolumeclaims", {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        )

    def claim(self, name: str) -> Json:
        """Return the claim as it is now. KeyError if it is gone."""
        found = self.api.get("persistentvolumeclaims", name)
        if found is None:
            raise KeyError(name)
        return found

    def volume(self, claim: str) -> Json | None:
        """Return the volume that the claim is bound to."""
        name = self.claim(claim)["spec"].get("volumeName", "")
        return self.api.get("persistentvolumes", name) if name else None

    def node_of(self, claim: str) -> str:
        """Return the node on which the claim's volume is, by its affinity; "" without one."""
        volume = self.volume(claim)
        if volume is None:
            return ""
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        node: str = term["matchExpressions"][0]["values"][0]
        return node

    def assets(self) -> dict[str, list[str]]:
        """Node -> names of what is on its disk."""
        return {name: sorted(disk.assets) for name, disk in self.disks.items()}

    # --- processes -----------------------------------------------------------------------------------------------

    def plane(self, name: str) -> ControlPlane:
        """Return the control plane of the process of a node, or of `CENTRAL`."""
        return self._running[name][0].plane

    async def start(self, name: str, *, twin: bool = False) -> None:
        """Start the process of a node, or of `CENTRAL`, and return once its caches are filled.

        twin: a second one of the node, as the process `NAME#2`.
        """
        node = "" if name == CENTRAL else name
        name = f"{name}#2" if twin else name
        script = self.scripts.setdefault(name, FaultScript())
        transport = FaultTransport(self._transport(name, InProcessTransport(self.server)), script)
        client = Client(transport)
        recorder = EventRecorder(client, instance=name, now=clock.now)
        role = Role(
            controllers=frozenset(NODE_CONTROLLERS) if node else self._controllers,
            cluster_id=self._cluster_id,
            namespace=NAMESPACE,
            node_name=node,
            **self._settings,
        )
        parts = Dependencies(
            client=client,
            loaded=self._loaded(node),
            executor=InlineExecutor(),
            recorder=recorder,
            sealer=self.sealers.get(name, self.sealers[""]),
            now=self.clocks.setdefault(name, clock.LoopClock()).now,
            random=self._random,
            call_hook=partial(self._call_hook, node),
        )
        process = VirtualProcess(role, parts, transport)
        process.begin("events", recorder.run())
        self._running[name] = (process, recorder)
        await process.start()

    def _loaded(self, node: str) -> LoadedDrivers:
        disk = NodeDisk(storage=self.disks[node] if node else MemoryStorage())
        disk.identity, disk.pod_volume = self._identity(disk.storage), self._pod_volume
        plugin = Plugin(kind="backend", name="disks", factory=lambda _options: disk)
        driver = Driver(NODE_DRIVER, plugin, disk)
        publishing = frozenset({NODE_DRIVER}) if self._publish else frozenset[str]()
        if node:
            return LoadedDrivers(drivers=(driver,), publishing=publishing)
        return LoadedDrivers(distributed=(driver,), publishing=publishing)

    def _call_hook(self, node: str, driver: Driver, request: HookRequest[R], /) -> R:
        if node in self.failing:
            raise Unavailable(f"the disk of {node} cannot be reached")
        return driver.call(request)

    def _identity(self, disk: MemoryStorage) -> int:
        """Return a number that no other disk has, and the same in each run."""
        if not any(each is disk for each in self._served):
            self._served.append(disk)
        return next(number for number, each in enumerate(self._served) if each is disk)

    async def kill(self, name: str) -> None:
        """End a process at this very moment, as by SIGKILL."""
        process, _ = self._running.pop(name)
        await process.kill()

    def why(self, name: str) -> list[str]:
        """Return the reasons that the processes give for a claim of namespace default, or a volume, of this name."""
        return [
            f"{process}: {runner}: {reason}"
            for process, (running, _) in self._running.items()
            for runner, waiting in running.plane.reasons().items()
            for key, reason in waiting.items()
            if key in (name, f"default/{name}")
        ]

    async def restart(self, name: str) -> None:
        """Kill a process and start it anew."""
        await self.kill(name)
        await self.start(name)

    async def settle(self, seconds: float = 60.0) -> None:
        """Return once nothing happens before some delay ends. TimeoutError, with every reason, after `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        quiet = 0
        while quiet < 3:
            before = self.server.store.version
            await asyncio.sleep(_STEP)
            for process, _ in self._running.values():
                process.check()
            still = before == self.server.store.version and all(map(_is_idle, self._running.values()))
            quiet = quiet + 1 if still else 0
            if asyncio.get_running_loop().time() > deadline:
                waiting = {name: reasons_of(process.plane) for name, (process, _) in self._running.items()}
                raise TimeoutError(f"after {seconds:g} s it has not settled; {waiting}")

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, then settle."""
        await asyncio.sleep(seconds)
        await self.settle()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_idle(running: tuple[VirtualProcess, EventRecorder]) -> bool:
    process, recorder = running
    plane = process.plane
    busy = [each for each in plane.operations.snapshot() if each.phase in ("queued", "running")]
    return all(idle(runner) for runner in plane.runners) and recorder.idle and not busy
