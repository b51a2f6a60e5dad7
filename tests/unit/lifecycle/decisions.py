"""A world for decisions: caches that a test fills, drivers that are there or broken, and no server at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from scenarios.backends import ScriptedBackend
from volplane.assets import VolumeSource
from volplane.controller.actions import LiveReads
from volplane.drivers.driver import Driver
from volplane.drivers.owners import SourceOwner
from volplane.drivers.view import DriverView
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Claim, KubeObject, Node, Pod, StorageClass, Volume
from volplane.requests import Context, OwnsRequest
from volplane.state.cluster_state import ClusterState, Settings
from volplane.state.indexes import CLAIM_INDEXES, POD_INDEXES
from volplane.state.records import Sealer

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Drivers:
    """Drivers that can be used, and those that cannot with the reason."""

    def __init__(self, *backends: ScriptedBackend, broken: Mapping[str, str] | None = None) -> None:
        self._drivers = {backend.name: backend.driver() for backend in backends}
        self._broken = dict(broken or {})

    def get(self, name: str) -> DriverView | None:
        driver = self._drivers.get(name)
        return driver.view if driver is not None else None

    def broken(self, name: str) -> str:
        return self._broken.get(name, "")

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        for name, driver in self._drivers.items():
            if driver.owns(OwnsRequest(context=Context(driver=name, cluster_id=""), source=source)):
                return SourceOwner(driver=driver.view)
        return SourceOwner()

    async def identify(self, source: VolumeSource) -> None: ...

    def forget_source(self, source: VolumeSource) -> None: ...

    async def call(self, driver: DriverView, hook: Callable[[Driver, Any], Any], request: Any) -> Any:
        return hook(self._drivers[driver.name], request)


def bare_world(*backends: ScriptedBackend, broken: Mapping[str, str] | None = None, **settings: Any) -> ClusterState:
    """A world without objects; nothing follows its caches."""
    drivers = Drivers(*backends, broken=broken)
    return ClusterState(
        settings=Settings(cluster_id="test", **settings),
        claims=Cache(CLAIMS, CLAIM_INDEXES),
        volumes=Cache(VOLUMES),
        classes=Cache(STORAGE_CLASSES),
        pods=Cache(PODS, POD_INDEXES),
        nodes=Cache(NODES),
        drivers=drivers,
        sealer=Sealer(b"k" * 32),
        now=lambda: NOW,
        monotonic=lambda: 1000.0,
    )


def world(*objects: KubeObject, backends: tuple[ScriptedBackend, ...] = (), **more: Any) -> ClusterState:
    """A world in which these objects exist."""
    made = bare_world(*backends, **more)
    made.volumes.subscribe(made.free.changed)
    put(made, *objects)
    return made


def put(into: ClusterState, *objects: KubeObject) -> None:
    for item in objects:
        match item:
            case Claim():
                into.claims.observe(item)
            case Volume():
                into.volumes.observe(item)
            case StorageClass():
                into.classes.observe(item)
            case Pod():
                into.pods.observe(item)
            case Node():
                into.nodes.observe(item)
            case _:
                raise TypeError(item)


def read(kind: Any, key: str, answer: KubeObject | None = None) -> LiveReads:
    """What a pass knows that read one object live."""
    reads = LiveReads()
    reads.put(kind, key, answer)
    return reads
