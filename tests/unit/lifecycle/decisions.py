"""A world for decisions: caches that a test fills, drivers that are there or broken, and no server at all."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from scenarios.backends import ScriptedBackend
from volplane.assets import VolumeSource
from volplane.controller.actions import Notice, Reads
from volplane.kube.client import Client
from volplane.kube.objects import Claim, KubeObject, Node, Pod, StorageClass, Volume
from volplane.kube.transport import LineStream, Response
from volplane.lifecycle.intents import Sealer
from volplane.lifecycle.world import Settings, World
from volplane.loading.driver import Driver
from volplane.operations import OperationRegistry
from volplane.plane import ControlPlane, Parts
from volplane.requests import Context, OwnsRequest

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Drivers:
    """Drivers that can be used, and those that cannot with the reason."""

    def __init__(self, *backends: ScriptedBackend, broken: Mapping[str, str] | None = None) -> None:
        self._drivers = {backend.name: backend.driver() for backend in backends}
        self._broken = dict(broken or {})

    def get(self, name: str) -> Driver | None:
        return self._drivers.get(name)

    def broken(self, name: str) -> str:
        return self._broken.get(name, "")

    def owner_of(self, source: VolumeSource) -> tuple[Driver | None, str]:
        for name, driver in self._drivers.items():
            if driver.owns(OwnsRequest(context=Context(driver=name, cluster_id=""), source=source)):
                return driver, ""
        return None, ""

    async def call(self, driver: Driver, hook: Callable[[Driver, Any], Any], request: Any) -> Any:
        return hook(driver, request)


class _Nowhere:
    """A transport that a decision must never use."""

    async def request(self, *_: Any, **__: Any) -> Response:
        raise AssertionError("a decision called the server")

    @asynccontextmanager
    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[LineStream]:
        raise AssertionError("a decision called the server")
        yield

    async def close(self) -> None: ...


class _Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 1000.0


class _Silent:
    def record(self, notice: Notice) -> None: ...


def plane(*backends: ScriptedBackend, broken: Mapping[str, str] | None = None, **settings: Any) -> ControlPlane:
    parts = Parts(
        client=Client(_Nowhere()),
        drivers=Drivers(*backends, broken=broken),
        registry=OperationRegistry(),
        recorder=_Silent(),
        sealer=Sealer(b"k" * 32),
        clock=_Clock(),
        random=random.Random(1),
    )
    return ControlPlane(Settings(cluster_id="test", **settings), frozenset(), parts)


def world(*objects: KubeObject, backends: tuple[ScriptedBackend, ...] = (), **more: Any) -> World:
    """A world in which these objects exist."""
    made = plane(*backends, **more).world
    put(made, *objects)
    return made


def put(into: World, *objects: KubeObject) -> None:
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


def read(kind: Any, key: str, answer: KubeObject | None = None) -> Reads:
    """What a pass knows that read one object live."""
    reads = Reads()
    reads.put(kind, key, answer)
    return reads
