"""The decisions without the controllers: read a cluster once, decide, and do nothing.

For `volplane explain` where no controller can be asked.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from http import HTTPStatus
from random import Random

from volplane.controller.clock import SystemClock
from volplane.controller.config import Configuration
from volplane.drivers.discovery import InstalledPlugins, PluginSource
from volplane.drivers.executor import ThreadExecutor
from volplane.drivers.loading import load_drivers
from volplane.drivers.registry import DriverRegistry
from volplane.errors import ApiError
from volplane.intents.bootstrap import cluster_id_of, find_sealer
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.operations import OperationRegistry
from volplane.plane import ControlPlane, Parts
from volplane.process import Options
from volplane.reconcile.explain import Explanation
from volplane.state.cluster_state import Settings
from volplane.state.records import Sealer

__all__ = ["Onlooker", "look"]

NO_KEY = (
    "the key that seals intents may not be read here, so a record on a claim of what was made for it is not believed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Onlooker:
    """A plane whose caches were filled once and whose runners never run. doubts: what it could not see."""

    plane: ControlPlane
    doubts: tuple[str, ...]

    def explain(self, key: str) -> Explanation:
        """What the controllers would say of the claim `namespace/name` if they had only just started; needs the running loop."""
        return self.plane.explain(key)


async def look(
    client: Client, configuration: Configuration, options: Options, *, plugins: PluginSource | None = None
) -> Onlooker:
    """Read the cluster. No hook is called but `describe`, nothing is written. Raises ApiError, ConfigurationError."""
    loaded = await asyncio.to_thread(load_drivers, configuration, plugins or InstalledPlugins())
    doubts = [f"driver {broken.name} is not usable here: {broken.error}" for broken in loaded.broken]
    try:
        sealer = await find_sealer(client, options.namespace)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        sealer = None
        doubts.append(NO_KEY)
    cluster_id = await cluster_id_of(client, configuration.cluster_id)
    executor = ThreadExecutor(loaded.limits)
    drivers = DriverRegistry(loaded, executor, cluster_id=cluster_id, node_name=options.node_name)
    drivers.presume_started()
    clock = SystemClock()
    parts = Parts(
        client=client,
        drivers=drivers,
        registry=OperationRegistry(loaded.limits),
        recorder=EventRecorder(client, instance=options.identity, now=clock.now),
        sealer=sealer or Sealer(secrets.token_bytes(32)),
        clock=clock,
        random=Random(),  # noqa: S311 - jitter, not secrets
    )
    settings = Settings.of(
        options.controllers, cluster_id=cluster_id, namespace=options.namespace, scrub=configuration.scrubber
    )
    plane = ControlPlane(settings, options.controllers, parts)
    try:
        await plane.read_once()
    finally:
        executor.close()
    return Onlooker(plane=plane, doubts=tuple(doubts))
