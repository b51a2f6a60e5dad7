"""One bridge from start to end: the driver, the socket, an orderly stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from volplane.csi.bridge import Bridge
from volplane.csi.dispatch import Dispatch
from volplane.csi.ids import cluster_of
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


async def serve(driver: Driver, options: ServiceOptions, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop`. ready: called once the socket is listened on. Raises ConfigurationError."""
    if flaw := why_no_csi_driver(driver):
        raise ConfigurationError(flaw)
    loaded = LoadedDrivers(drivers=(driver,), limits={driver.name: options.limits})
    calls = HookCalls(loaded, ThreadExecutor({driver.name: options.limits}))
    drivers = DriverRegistry(loaded, calls, cluster_id=cluster_of(options.cluster))
    bridge = Bridge(driver.view, drivers, calls, cluster_of(options.cluster), topology=options.topology)
    with owned(options.path):
        server = Server(Dispatch(bridge), options.path)
        await server.start()
        keeping = asyncio.create_task(drivers.keep(), name="drivers")
        try:
            log.info("driver %s serves CSI on %s, marks of cluster %s", driver.name, options.path, bridge.cluster_id)
            ready()
            await stop.wait()
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
