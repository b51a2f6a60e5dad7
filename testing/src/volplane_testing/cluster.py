"""A whole cluster in the process: the embedded API server, every controller, and the backends to be tested.

    async def main():
        async with Cluster([MyBackend({...})]) as cluster:
            await cluster.create_class("fast")
            claim = await cluster.create_claim("data", storage_class="fast")
            volume = await cluster.wait_bound(claim)
            cluster.fail("delete", "persistentvolumes", status=409, times=2)
            await cluster.delete_claim(claim)
            await cluster.settle()
            assert volume not in cluster.api

    volplane_testing.run(main())

In the virtual time of `run` hours of retries pass in milliseconds, and always the same way. Hooks run in the loop
itself, one at a time; delays come from `FaultyBackend`, hooks that really block hold up everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from volplane.controller.config import ScrubberSettings
from volplane.kube.kinds import Kind
from volplane.kube.transport import Transport
from volplane.operations.operation import DriverLimits
from volplane.process.duties import ALL_CONTROLLERS
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.api import Api, Json
from volplane_testing.control_plane import Controllers, ControllerSpec, reasons_of
from volplane_testing.memory import MemoryBackend
from volplane_testing.transport import (
    ApiCall,
    FaultScript,
    FaultTransport,
    answer_lost,
    delay,
    refuse,
    requests,
    unanswered,
)

__all__ = ["Cluster"]

_BARRIER: Final = 2e-6
"""More than the resolution of the virtual loop, whose time passes only when nothing can run."""
_STEP: Final = 0.05


class Cluster:
    """Use as `async with Cluster(...) as cluster`. All seconds are of the running loop, in `run` virtual."""

    def __init__(
        self,
        backends: Sequence[object] | Mapping[str, object] | None = None,
        *,
        extensions: Sequence[object] = (),
        controllers: frozenset[str] = frozenset(ALL_CONTROLLERS),
        limits: Mapping[str, DriverLimits] | None = None,
        scrubber: ScrubberSettings | None = None,
        feature_gates: Sequence[str] = (),
        transport: Callable[[Transport], Transport] = lambda inner: inner,
        seed: int = 0,
    ) -> None:
        """backends: instances, by driver name or in a list (the driver has the backend's default name, else
        `backend-1.example.com` and so on). A callable makes a fresh instance at every start. None: a `MemoryBackend`.

        extensions: instances, the first is the outermost. limits: by driver name.
        feature_gates: of the API server. transport: what to put around that of the controllers, below the faults.
        seed: of names that the server makes.
        """
        given = [MemoryBackend()] if backends is None else backends
        self._gates = feature_gates
        self._wrapped = transport
        self._random = Random(seed)  # noqa: S311 - names and jitter, no secrets
        self._spec = ControllerSpec(
            backends=given if isinstance(given, Mapping) else _named(given),
            extensions=extensions,
            controllers=controllers,
            limits=limits or {},
            scrubber=scrubber or ScrubberSettings(),
        )
        self.script = FaultScript()
        """What happens to the requests of the controllers, for what `fail` and `delay` cannot say."""
        self._newest: dict[str, int] = {}
        self._changed: asyncio.Event
        self.server: ApiServer
        self.api: Api
        """Reads and writes objects as a user does, without delay and without faults."""
        self.controllers: Controllers

    async def __aenter__(self) -> Self:
        self._changed = asyncio.Event()
        self.server = ApiServer(now=clock.now, random=self._random, feature_gates=self._gates)
        self.api = Api(self.server)
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.controllers.stop() if kind is None else self.controllers.kill())
        self.server.close()

    @property
    def backend(self) -> Any:
        """The first backend instance."""
        return next(iter(self.controllers.backends.values()))

    @property
    def driver(self) -> str:
        """Name of the first driver."""
        return next(iter(self._spec.backends))

    # --- objects ------------------------------------------------------------------------------------------------

    async def create_class(
        self,
        name: str,
        *,
        driver: str = "",
        parameters: Mapping[str, str] | None = None,
        reclaim_policy: str = "Delete",
        binding_mode: str = "Immediate",
        default: bool = False,
        **fields: Any,
    ) -> Json:
        """Create a StorageClass. driver: its provisioner, "" = the first driver. fields: others, as in its JSON."""
        annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "provisioner": driver or self.driver,
            "parameters": dict(parameters or {}),
            "reclaimPolicy": reclaim_policy,
            "volumeBindingMode": binding_mode,
            **fields,
        }
        return self.api.create("storageclasses", body)

    async def create_claim(
        self,
        name: str,
        *,
        storage_class: str | None = None,
        capacity: str = "1Gi",
        access_modes: Sequence[str] = ("ReadWriteOnce",),
        namespace: str = "default",
        selected_node: str = "",
        **spec: Any,
    ) -> Json:
        """Create a PersistentVolumeClaim. storage_class: None = the default class. selected_node: as by the
        scheduler.
        """
        annotations = {"volume.kubernetes.io/selected-node": selected_node} if selected_node else {}
        body: Json = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"accessModes": list(access_modes), "resources": {"requests": {"storage": capacity}}, **spec},
        }
        if storage_class is not None:
            body["spec"]["storageClassName"] = storage_class
        return self.api.create("persistentvolumeclaims", body, namespace)

    async def create_volume(
        self,
        name: str,
        source: Mapping[str, Any],
        *,
        storage_class: str = "",
        capacity: str = "1Gi",
        access_modes: Sequence[str] = ("ReadWriteOnce",),
        reclaim_policy: str = "Retain",
        **spec: Any,
    ) -> Json:
        """Create a PersistentVolume by hand. source: as in its spec, for example {"hostPath": {"path": …}}."""
        body = {
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": capacity},
                "accessModes": list(access_modes),
                "persistentVolumeReclaimPolicy": reclaim_policy,
                "storageClassName": storage_class,
                **source,
                **spec,
            },
        }
        return self.api.create("persistentvolumes", body)

    async def wait_bound(self, claim: Mapping[str, Any], seconds: float = 600.0) -> Json:
        """Return the volume to which the claim is bound. TimeoutError says why it is not after so long."""
        name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]

        def bound() -> Json | None:
            now = self.api.get("persistentvolumeclaims", name, namespace)
            if now is None or now["status"].get("phase") != "Bound":
                return None
            return self.api.get("persistentvolumes", now["spec"]["volumeName"])

        volume: Json = await self.wait_for(bound, seconds, f"claim {namespace}/{name} is bound")
        return volume

    async def delete_claim(self, claim: Mapping[str, Any]) -> None:
        """Delete the claim. The controllers act on that later: see `settle`."""
        self.api.delete("persistentvolumeclaims", claim["metadata"]["name"], claim["metadata"]["namespace"])

    async def finish_pod(self, name: str, *, namespace: str = "volplane-system", succeeded: bool = True) -> None:
        """Set the phase of a pod as its node would; a `Cluster` has no nodes. Scrubber pods are in volplane-system."""
        phase = "Succeeded" if succeeded else "Failed"
        self.api.patch("pods", name, {"status": {"phase": phase}}, namespace, subresource="status")

    # --- time ---------------------------------------------------------------------------------------------------

    async def wait_for(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """What `condition` returns once that is not None or false. TimeoutError, with every known reason, after
        `seconds`.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while not (found := condition()):
            self.controllers.check()
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise TimeoutError(f"after {seconds:g} s this has not happened: {what}; {self._reasons()}")
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return found

    async def settle(self, seconds: float = 3600.0) -> None:
        """Return when nothing more happens before some delay ends; time passes only as far as that takes.

        Then the caches have reached the server's version, no key is queued or in work, no operation is in flight, every
        event is written, and whatever comes next (a back-off, a retry) is in the future. TimeoutError after `seconds`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            await asyncio.sleep(_BARRIER)
            self.controllers.check()
            if self._caught_up() and self.controllers.quiet:
                return
            if loop.time() >= deadline:
                raise TimeoutError(f"after {seconds:g} s it has not settled; {self._reasons()}")
            end = self.controllers.hooks_end
            step = _STEP if end is None else min(end - loop.time(), _STEP)
            await asyncio.sleep(max(step, _BARRIER))

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, then settle."""
        await asyncio.sleep(seconds)
        await self.settle()

    async def restart(self) -> None:
        """Kill the controllers at this very moment, as by SIGKILL, and start them anew: only server and storage
        remain.
        """
        await self.controllers.kill()
        await self._start()

    # --- faults -------------------------------------------------------------------------------------------------

    def fail(self, verb: str, resource: str, status: int = 500, times: int = 1, *, after: bool = False) -> None:
        """Answer the next `times` requests of the controllers with this HTTP status; 0 = no answer at all.

        verb: get, list, watch, create, patch, delete or *. resource: plural, with `/status` for the subresource, or *.
        after: the server has acted by then: the answer is lost, not the request.
        """
        lost = answer_lost if after else unanswered
        self.script.add(requests(verb, resource), refuse(status, after=after) if status else lost, times=times)

    def heal(self) -> None:
        """End all faults of the API server that are left to happen."""
        self.script.faults.clear()

    def delay(self, verb: str, resource: str, seconds: float, times: int = 1) -> None:
        """Delay the next `times` requests of the controllers by so many seconds."""
        self.script.add(requests(verb, resource), delay(seconds), times=times)

    def drop_watches(self) -> None:
        """End every watch, as a restarted or overloaded server does."""
        self.server.end_watches()

    def compact(self) -> None:
        """Compact the server's history: a watch that resumes from an older version gets 410 and lists again."""
        self.server.store.compact()

    @property
    def requests(self) -> Sequence[ApiCall]:
        """The requests of the controllers so far."""
        return tuple(self.script.requests)

    # --- internals -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        transport = FaultTransport(self._wrapped(InProcessTransport(self.server)), self.script)
        self.controllers = Controllers(self._spec, self.server, transport, self._random)
        await self.controllers.start()
        for plural, cache in self.controllers.plane.caches.items():
            if plural not in self._newest:
                self._follow(plural, _storage_of(cache.kind))

    def _follow(self, plural: str, storage: str) -> None:
        """Record the version of the newest change of a kind, which its cache must reach."""
        self._newest[plural] = 0

        def changed(change: Any) -> None:
            self._newest[plural] = change.version
            self._changed.set()

        self.server.store.subscribe(storage, changed)

    def _caught_up(self) -> bool:
        caches = self.controllers.plane.caches
        return all(cache.reached >= self._newest[plural] for plural, cache in caches.items())

    def _reasons(self) -> str:
        waiting = [f"{where}: {reason}" for where, reason in reasons_of(self.controllers.plane).items()]
        running = [f"{state.name} is {state.phase}" for state in self.controllers.plane.operations.snapshot()]
        behind = [] if self._caught_up() else ["caches are behind the server"]
        return "; ".join([*waiting, *running, *behind]) or "nothing is known to wait"


def _storage_of(kind: Kind[Any]) -> str:
    """Return the key of a kind in the server's store."""
    group = kind.api_version.rpartition("/")[0]
    return f"{kind.plural}.{group}" if group else kind.plural


def _named(backends: Sequence[object]) -> dict[str, object]:
    named: dict[str, object] = {}
    for number, backend in enumerate(backends, 1):
        name = getattr(backend, "default_driver_name", "") or f"backend-{number}.example.com"
        if name in named:
            raise ValueError(f"two backends have the default driver name {name}; give a mapping of names to backends")
        named[name] = backend
    return named
