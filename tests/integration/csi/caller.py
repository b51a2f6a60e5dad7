"""A bridge over a backend in virtual time, and a caller that knows its methods only by their names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from backends import start_all
from volplane import NodeIdentity
from volplane.csi.bridge import Bridge
from volplane.csi.codes import CsiError
from volplane.csi.dispatch import Dispatch
from volplane.csi.ids import cluster_of
from volplane.csi.node import Node, NodeOptions
from volplane.csi.wire import build, message
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.drivers.executor import HookCalls, PendingCall
from volplane.drivers.loading import build_driver
from volplane.drivers.registry import DriverRegistry
from volplane.operations.operation import DriverLimits
from volplane_testing.conformance import Subject
from volplane_testing.executor import InlineExecutor

GIB = 1 << 30
WRITER = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


class InStep(InlineExecutor):
    """Moves the clock of the storage with that of the loop."""

    def __init__(self, subject: Subject, latency: Any = lambda _driver, _what: (0.0, 0.0)) -> None:
        super().__init__(latency)
        self._advance = (lambda _seconds: None) if subject.advance is time.sleep else subject.advance
        self._last = 0.0

    async def call(self, call: PendingCall) -> Any:
        now = asyncio.get_running_loop().time()
        self._advance(now - self._last)
        self._last = now
        return await super().call(call)


@dataclass(eq=False)
class Caller:
    """Calls a bridge as gRPC would, and keeps what it made."""

    dispatch: Dispatch
    bridge: Bridge
    subject: Subject
    made: list[str] = field(default_factory=list)

    async def call(self, method: str, *, seconds: float = float("inf"), **fields: Any) -> Any:
        content = await self.dispatch.call(method, build(f"{method}Request", **fields).SerializeToString(), seconds)
        return message(f"{method}Response").FromString(content)

    async def refused(self, code: str, method: str, *, seconds: float = float("inf"), **fields: Any) -> str:
        """Return the text of the error that must come."""
        with pytest.raises(CsiError) as error:
            await self.call(method, seconds=seconds, **fields)
        assert error.value.code == code, error.value
        return error.value.message

    async def create(self, name: str = "sanity", **fields: Any) -> Any:
        """Return a new volume."""
        return (await self.call("CreateVolume", **self.demand(name, **fields))).volume

    def demand(self, name: str, **fields: Any) -> dict[str, Any]:
        usual: dict[str, Any] = {
            "name": name,
            "capacity_range": {"required_bytes": self.subject.capacity_bytes},
            "volume_capabilities": [WRITER],
            "parameters": dict(self.subject.parameters),
        }
        if self.subject.segments:
            places = [{"segments": dict(each)} for each in self.subject.segments]
            usual["accessibility_requirements"] = {"requisite": places, "preferred": places[:1]}
        return usual | fields

    async def delete(self, volume_id: str) -> None:
        await self.call("DeleteVolume", volume_id=volume_id)

    async def ids(self) -> list[str]:
        return [each.volume.volume_id for each in (await self.call("ListVolumes")).entries]

    def has(self, *hooks: str) -> bool:
        return self.bridge.supports(*hooks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes, as the official node plugin of the cloud gives them."""
        return tuple(node_id(each) for each in self.subject.nodes)

    @property
    def node(self) -> str:
        return self.nodes[0]


def node_id(node: NodeIdentity) -> str:
    machine = node.instance_id
    if machine.startswith("gce://"):
        project, zone, name = machine.removeprefix("gce://").split("/")
        return f"projects/{project}/zones/{zone}/instances/{name}"
    return machine.rpartition("/")[2] or node.name


def driver_of(subject: Subject) -> Driver:
    plugin = Plugin(kind="backend", name="sanity", factory=subject.factory)
    return build_driver(subject.driver_name, plugin, subject.options)


@asynccontextmanager
async def bridged(
    subject: Subject,
    *,
    settled: bool = True,
    latency: Any = None,
    concurrency: int = 10,
    driver: Driver | None = None,
    node: NodeOptions | None = None,
) -> AsyncIterator[Caller]:
    """Serve a subject. settled: nothing that an earlier process did can still come to light."""
    driver = driver or driver_of(subject)
    loaded = LoadedDrivers(drivers=(driver,), limits={driver.name: DriverLimits(concurrency=concurrency)})
    executor = InStep(subject, latency) if latency else InStep(subject)
    calls = HookCalls(loaded, executor)
    registry = DriverRegistry(loaded, calls, cluster_id=cluster_of("sanity"), node_name=subject.node_name)
    await start_all(registry)
    began = asyncio.get_running_loop().time() - (1000.0 if settled else 0.0)
    bridge = Bridge(driver.view, registry, calls, cluster_of("sanity"), began=began)
    yield Caller(Dispatch(bridge, Node(bridge, node) if node else None), bridge, subject)
    await registry.stop_all()
    executor.close()
