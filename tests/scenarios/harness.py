"""A cluster of one process in virtual time: the embedded API server, people, and a control plane that can be killed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self

from scenarios.backends import AttachingBackend, ScriptedBackend
from scenarios.faults import Call, Rules, refusing
from volplane.controller.actions import EventRecord
from volplane.controller.controller import Role
from volplane.controller.metrics import Metrics
from volplane.drivers.driver import BrokenDriver, LoadedDrivers
from volplane.intents.bootstrap import ensure_namespace, find_sealer
from volplane.kube.client import Client
from volplane.kube.transport import Request, Transport
from volplane.operations.operation import DriverLimits
from volplane.process.assembly import Dependencies
from volplane.process.control_plane import ControlPlane
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.control_plane import VirtualProcess
from volplane_testing.executor import InlineExecutor, Latency
from volplane_testing.transport import FaultTransport

Json = dict[str, Any]

PATHS = {
    "classes": "/apis/storage.k8s.io/v1/storageclasses",
    "attributes": "/apis/storage.k8s.io/v1/volumeattributesclasses",
    "volumes": "/api/v1/persistentvolumes",
    "nodes": "/api/v1/nodes",
    "attachments": "/apis/storage.k8s.io/v1/volumeattachments",
    "csidrivers": "/apis/storage.k8s.io/v1/csidrivers",
    "namespaces": "/api/v1/namespaces",
    "claims": "persistentvolumeclaims",
    "pods": "pods",
}
HEAD = {
    "classes": {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"},
    "attributes": {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass"},
    "volumes": {"apiVersion": "v1", "kind": "PersistentVolume"},
    "nodes": {"apiVersion": "v1", "kind": "Node"},
    "attachments": {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment"},
    "csidrivers": {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver"},
    "namespaces": {"apiVersion": "v1", "kind": "Namespace"},
    "claims": {"apiVersion": "v1", "kind": "PersistentVolumeClaim"},
    "pods": {"apiVersion": "v1", "kind": "Pod"},
}
NAMESPACED = frozenset({"claims", "pods"})
SETTLED_AFTER = 300.0
"""Seconds without a write after which nothing more is expected: longer than the longest back-off."""
NEVER_SETTLES = 4 * 3600.0
STANDARD = frozenset({"binder", "provisioner", "reclaimer"})
OURS = "volplane-system"


class Refused(Exception):
    """The server said no to a person."""

    def __init__(self, status: int, answer: Json) -> None:
        super().__init__(f"{status}: {answer.get('message')}")
        self.status = status


class Harness:
    """Everything a scenario needs, in virtual time. Use as `async with Harness(...) as harness`."""

    def __init__(
        self,
        *backends: ScriptedBackend | AttachingBackend,
        controllers: frozenset[str] = STANDARD,
        settings: Mapping[str, Any] | None = None,
        disabled_admission: Iterable[str] = ("StorageObjectInUseProtection", "DefaultStorageClass"),
        limits: Mapping[str, DriverLimits] | None = None,
        latency: Latency = lambda _driver, _hook: (0.0, 0.0),
        namespace: str = OURS,
        beside: Harness | None = None,
    ) -> None:
        """latency: of hooks, see `InlineExecutor`. beside: another installation, on whose server this one works."""
        fresh = ApiServer(now=clock.now, random=random.Random(7), disabled_admission=frozenset(disabled_admission))
        self.server = fresh if beside is None else beside.server
        self.rules = Rules()
        self.recorded: list[EventRecord] = []
        self.backends: dict[str, Any] = {backend.name: backend for backend in backends}
        self.broken: tuple[BrokenDriver, ...] = ()
        self.restarts = 0
        self.known_uids: dict[str, str] = {}
        """Names of the claims that people made, by uid."""
        self.phases: dict[str, list[str]] = {}
        self.pods_seen: dict[str, list[Json]] = {}
        self.metrics = Metrics()
        always = {"binder", "provisioner", "reclaimer", "expander", "assigner", "capacity"}
        self._role = Role(controllers=frozenset(always | controllers), cluster_id="cluster-1", namespace=namespace)
        self.change_role(**(settings or {}))
        self._limits = dict(limits or {})
        self._latency = latency
        self._people = InProcessTransport(self.server)
        self._transport: FaultTransport | None = None
        self._process: VirtualProcess | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._crashing: asyncio.Task[None] | None = None
        self.adjust: Callable[[ControlPlane], None] = lambda _plane: None
        """Changes a control plane before it runs."""

    # --- the control plane --------------------------------------------------------------------------------------

    def change_role(self, **changes: Any) -> None:
        """Change the role of the next process. changes: of `Role`; name=False ends the controller of this name."""
        others = {name: value for name, value in changes.items() if hasattr(self._role, name)}
        named = {name.replace("_", "-"): value for name, value in changes.items() if name not in others}
        off, on = ({name for name, value in named.items() if value is wanted} for wanted in (False, True))
        self._role = dataclasses.replace(self._role, controllers=self._role.controllers - off | on, **others)

    @property
    def plane(self) -> ControlPlane:
        assert self._process is not None, "no controller was started"
        return self._process.plane

    def way_to_server(self) -> Transport:
        """What lies between a control plane and the server."""
        return InProcessTransport(self.server)

    async def build(self) -> VirtualProcess:
        """A fresh process, not started: nothing survives but the server, the backends and the rules."""
        self._transport = FaultTransport(self.way_to_server(), self.rules)
        bootstrap = Client(InProcessTransport(self.server))
        await ensure_namespace(bootstrap, self._role.namespace)
        loaded = LoadedDrivers(
            drivers=tuple(b.driver() for b in self.backends.values()), broken=self.broken, limits=self._limits
        )
        sealer = await find_sealer(bootstrap, self._role.namespace, make=True)
        assert sealer is not None
        parts = Dependencies(
            client=Client(self._transport),
            loaded=loaded,
            executor=InlineExecutor(self._latency),
            recorder=self,
            sealer=sealer,
            now=clock.now,
            random=random.Random(11),
            metrics=self.metrics,
            lifecycle_metrics=self.metrics,
        )
        self._process = VirtualProcess(self._role, parts, self._transport)
        self.adjust(self._process.plane)
        return self._process

    async def start(self) -> None:
        await (await self.build()).start()

    async def kill(self) -> None:
        """SIGKILL: what is under way reaches nothing any more."""
        if self._process is not None:
            await self._process.kill()

    async def restart(self) -> None:
        """Kill it and start another one."""
        await self.kill()
        await self.start()

    def crash(self) -> None:
        """Kill it now and start another one; to be called from anywhere."""
        if self._transport is not None:
            self._transport.dead = True
        self._crashing = asyncio.create_task(self._restart(), name="crash")

    async def _restart(self) -> None:
        await self.kill()
        self.restarts += 1
        await self.start()

    def record(self, event: EventRecord) -> None:
        if self._transport is not None and not self._transport.dead:
            self.recorded.append(event)

    @property
    def events(self) -> Counter[str]:
        return Counter(f"{n.type} {n.reason}" for n in self.recorded)

    def messages(self, reason: str) -> list[str]:
        return [event.message for event in self.recorded if event.reason == reason]

    # --- people -------------------------------------------------------------------------------------------------

    async def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        answer = await self._people.send(
            Request(
                method=method,
                path=path,
                headers={"content-type": kind} if body is not None else {},
                body=json.dumps(body).encode() if body is not None else None,
                seconds=30,
            )
        )
        told: Json = json.loads(answer.body)
        if answer.status >= 300:
            raise Refused(answer.status, told)
        return told

    @staticmethod
    def path(kind: str, name: str = "", namespace: str = "default") -> str:
        base = PATHS[kind]
        if kind in NAMESPACED:
            base = f"/api/v1/namespaces/{namespace}/{base}"
        return f"{base}/{name}" if name else base

    async def create(self, kind: str, body: Json) -> Json:
        """Create an object with its status; `metadata.deletionTimestamp` present = delete it at once."""
        body = json.loads(json.dumps(body))
        meta = body.setdefault("metadata", {})
        namespace = meta.get("namespace", "default") if kind in NAMESPACED else ""
        if namespace:
            meta["namespace"] = namespace
            await self._need_namespace(namespace)
        status, deleted = body.pop("status", None), meta.pop("deletionTimestamp", None)
        grace = meta.pop("deletionGracePeriodSeconds", None)
        finalizers = meta.get("finalizers")
        made = await self.request("POST", self.path(kind, namespace=namespace), {**HEAD[kind], **body})
        if kind == "claims":
            self.known_uids[made["metadata"]["uid"]] = meta["name"]
        path = self.path(kind, meta["name"], namespace)
        if finalizers is not None and sorted(made["metadata"].get("finalizers") or []) != sorted(finalizers):
            made = await self.patch(kind, meta["name"], {"metadata": {"finalizers": finalizers}}, namespace)
        if status is not None:
            made = await self.request("PUT", f"{path}/status", {**made, "status": status})
        if deleted is not None:
            options = {"apiVersion": "v1", "kind": "DeleteOptions"}
            if grace is not None:
                options |= {"gracePeriodSeconds": grace}
            made = await self.request("DELETE", path, options)
        return made

    async def _need_namespace(self, name: str) -> None:
        try:
            await self.request("GET", self.path("namespaces", name))
        except Refused:
            await self.request("POST", PATHS["namespaces"], {**HEAD["namespaces"], "metadata": {"name": name}})

    async def get(self, kind: str, name: str, namespace: str = "default") -> Json | None:
        try:
            return await self.request("GET", self.path(kind, name, namespace))
        except Refused as error:
            if error.status != 404:
                raise
            return None

    async def claim(self, name: str) -> Json:
        return await self.see("claims", name)

    async def volume(self, name: str) -> Json:
        return await self.see("volumes", name)

    async def volumes(self) -> dict[str, str]:
        """Phases by name."""
        return {v["metadata"]["name"]: v["status"].get("phase", "") for v in await self.everything("volumes")}

    async def claims(self) -> dict[str, str]:
        return {c["metadata"]["name"]: c["status"].get("phase", "") for c in await self.everything("claims")}

    async def see(self, kind: str, name: str, namespace: str = "default") -> Json:
        found = await self.get(kind, name, namespace)
        assert found is not None, f"{kind} {name} is not there"
        return found

    async def everything(self, kind: str, namespace: str = "") -> list[Json]:
        path = f"/api/v1/{PATHS[kind]}" if kind in NAMESPACED and not namespace else self.path(kind, "", namespace)
        listing = await self.request("GET", path)
        return list(listing["items"])

    async def patch(
        self, kind: str, name: str, body: Json, namespace: str = "default", *, subresource: str = ""
    ) -> Json:
        path = self.path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        return await self.request("PATCH", path, body, "application/merge-patch+json")

    async def delete(self, kind: str, name: str, namespace: str = "default", *, grace: int | None = None) -> None:
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self.request("DELETE", self.path(kind, name, namespace), options)

    # --- time ---------------------------------------------------------------------------------------------------

    async def settle(self, seconds: float = SETTLED_AFTER) -> None:
        """Wait until nobody has written anything for so long."""
        loop = asyncio.get_running_loop()
        begun, version, since = loop.time(), self.server.store.version, loop.time()
        while loop.time() < since + seconds:
            await asyncio.sleep(seconds / 30)
            if self._process is not None and self._crashing is None:
                self._process.check()
            if self._crashing is not None and self._crashing.done():
                self._crashing.result()
            if self.server.store.version != version:
                version, since = self.server.store.version, loop.time()
            assert loop.time() < begun + NEVER_SETTLES, f"it never comes to rest: {self.reasons()}"

    async def until(self, truth: Callable[[], Awaitable[bool]], seconds: float = 30.0, what: str = "it") -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not await truth():
            assert loop.time() < begun + seconds, f"{what} did not happen within {seconds} s: {self.reasons()}"
            await asyncio.sleep(0.01)

    def reasons(self) -> dict[str, dict[str, str]]:
        return {r.name: dict(r.reasons) for r in self.plane.runners} if self._process is not None else {}

    # --- faults -------------------------------------------------------------------------------------------------

    def fail(self, what: str, error: str, times: int = 1, *, skip: int = 0) -> None:
        """Answer the next calls (`update persistentvolumes/status`) with an error; the server does not see them."""
        match error:
            case "Conflict":
                answer = refusing(409, "Conflict", "the object has been modified")
            case "AlreadyExists":
                answer = refusing(409, "AlreadyExists", "already exists")
            case "Forbidden":
                answer = refusing(403, "Forbidden", "forbidden by the scenario")
            case text:
                answer = refusing(500, "InternalError", text)
        self.rules.fault(lambda call: call.what == what, times=times, before=answer, skip=skip)

    def crash_after(self, what: str, *, skip: int = 0) -> None:
        """Kill the controller when such a write has taken effect and before it hears of it, then start another."""

        def die(_call: Call) -> bool:
            self.crash()
            return True

        self.rules.fault(lambda call: call.what == what, after=die, skip=skip)

    def crash_at_write(self, number: int) -> None:
        """The same after the `number`-th write of any kind, from 0."""

        def die(_call: Call) -> bool:
            self.crash()
            return True

        writes = {"create", "update", "delete"}
        self.rules.fault(lambda call: call.verb in writes, after=die, skip=number)

    # --- watching -----------------------------------------------------------------------------------------------

    def follow(self, kind: str, told: Callable[[str, Json], Awaitable[None] | None]) -> None:
        """Call `told` with (event type, object) for every change of a kind from now on."""
        path = f"/api/v1/{PATHS[kind]}" if kind in NAMESPACED else PATHS[kind]
        opened = self.server.watch(path, {"watch": "true", "resourceVersion": str(self.server.store.version)}, {})

        async def read() -> None:
            async for line in opened:  # type: ignore[union-attr]
                event = json.loads(line)
                answer = told(event["type"], event["object"])
                if answer is not None:
                    await answer

        task = asyncio.create_task(read(), name=f"follow {kind}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aenter__(self) -> Self:
        """Nothing is started yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._crashing is not None:
            await asyncio.gather(self._crashing, return_exceptions=True)
        await self.kill()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
