"""One bridge from start to end: the driver, the socket, an orderly stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from volplane.csi.bridge import Bridge
from volplane.csi.dispatch import Dispatch
from volplane.csi.ids import cluster_of
from volplane.csi.node import Node, NodeOptions
from volplane.csi.registration import SERVICES, Registration, registration_path
from volplane.csi.server import Server, owned
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.drivers.executor import HookCalls, ThreadExecutor
from volplane.drivers.registry import DriverRegistry
from volplane.errors import ConfigurationError
from volplane.operations.operation import DriverLimits

log = logging.getLogger(__name__)

LONGEST_DRIVER: Final = 63
"""Characters of the name of a CSI driver."""
GRACE: Final = 5.0
"""Seconds for the calls that run at the stop. What they have begun has `DRAIN` more."""
DRAIN: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What a bridge is to do."""

    path: Path
    """Of the socket."""
    cluster: str
    """Name of the cluster that is served."""
    topology: bool = True
    limits: DriverLimits = field(default_factory=DriverLimits)
    controls: bool = True
    """Whether there is the service Controller."""
    node: NodeOptions | None = None
    """For the service Node."""
    registers: bool = False
    """Whether the service Node makes itself known to the kubelet."""


async def serve(driver: Driver, options: ServiceOptions, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop`. ready: called once the socket is listened on. Raises ConfigurationError."""
    if flaw := why_no_csi_driver(driver):
        raise ConfigurationError(flaw)
    loaded = LoadedDrivers(drivers=(driver,), limits={driver.name: options.limits})
    calls = HookCalls(loaded, ThreadExecutor({driver.name: options.limits}))
    node_name = options.node.node_id if options.node is not None else None
    drivers = DriverRegistry(loaded, calls, cluster_id=cluster_of(options.cluster), node_name=node_name)
    bridge = Bridge(driver.view, drivers, calls, cluster_of(options.cluster), topology=options.topology)
    node = Node(bridge, options.node) if options.node is not None else None
    with owned(options.path):
        server = Server(Dispatch(bridge, node, controls=options.controls), options.path)
        await server.start()
        keeping = asyncio.create_task(drivers.keep(), name="drivers")
        try:
            log.info("driver %s serves CSI on %s, marks of cluster %s", driver.name, options.path, bridge.cluster_id)
            async with registered(driver.name, options) as refused:
                ready()
                stopped = asyncio.create_task(stop.wait(), name="stop")
                waiting: list[asyncio.Future[Any]] = [stopped, refused]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
            if refused.done():
                raise ConfigurationError(f"the kubelet refuses driver {driver.name}: {refused.result()}")
        finally:
            await server.stop(GRACE)
            left = await bridge.flights.drain(DRAIN)
            if left:
                log.warning("still going on at the end: %s", ", ".join(left))
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            if not left:
                await drivers.stop_all()
            calls.executor.close()


@asynccontextmanager
async def registered(driver: str, options: ServiceOptions) -> AsyncIterator[asyncio.Future[str]]:
    """Answer the kubelet, if it is to know the driver; yield what it says if it refuses.

    The socket stays at the end, so that a restart does not take the driver from the node, with all that runs there.
    """
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with AsyncExitStack() as stack:
        if options.node is not None and options.registers:
            path = registration_path(options.node.kubelet_dir, driver)
            stack.enter_context(owned(path))
            server = Server(Registration(driver, options.path, refused), path, SERVICES, stays=True)
            await server.start()
            stack.push_async_callback(server.stop, GRACE)  # The answer to a refusal may be on its way.
        yield refused


def why_no_csi_driver(driver: Driver) -> str:
    """Explain why this driver cannot be served; "" = it can."""
    if len(driver.name) > LONGEST_DRIVER:
        return f"driver name {driver.name!r} has more than the {LONGEST_DRIVER} characters of a CSI driver's"
    if not (driver.supports("inspect") or driver.supports("list_assets")):
        return (
            f"backend {driver.plugin.name} has neither the hook inspect nor list_assets: callers of CSI know a volume "
            "by its id alone, and nothing would tell whose it is before it is deleted"
        )
    return ""
