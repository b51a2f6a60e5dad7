"""A control plane that reads a cluster once, decides and writes nothing.

`volplane explain` uses it when no controller answers.
"""

from __future__ import annotations

import asyncio
import secrets
from http import HTTPStatus
from random import Random

from volplane.controller.clock import SystemClock
from volplane.controller.config import Configuration
from volplane.drivers.discovery import InstalledPlugins, PluginSource
from volplane.drivers.executor import ThreadExecutor
from volplane.drivers.loading import load_drivers
from volplane.errors import ApiError
from volplane.intents.bootstrap import cluster_id_of, find_sealer
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.process.assembly import Dependencies, build
from volplane.process.control_plane import ControlPlane
from volplane.process.process import Options
from volplane.state.records import Sealer

__all__ = ["read_control_plane"]

NO_KEY = (
    "the key that seals intents may not be read here, so a record on a claim of what was made for it is not believed"
)


async def read_control_plane(
    client: Client, configuration: Configuration, options: Options, *, plugins: PluginSource | None = None
) -> tuple[ControlPlane, tuple[str, ...]]:
    """Fill the caches of a control plane once; return it, and sentences on what is not known. Its runners never run.

    Calls no hook but `describe`, writes nothing. Raises ApiError, ConfigurationError.
    """
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
    clock = SystemClock()
    parts = Dependencies(
        client=client,
        loaded=loaded,
        executor=executor,
        recorder=EventRecorder(client, instance=options.identity, now=clock.now),
        sealer=sealer or Sealer(secrets.token_bytes(32)),
        clock=clock,
        random=Random(),  # noqa: S311 - jitter, not secrets
    )
    plane = build(options.role(cluster_id, configuration), parts)
    plane.drivers.presume_started()
    try:
        await plane.read_once()
    finally:
        executor.close()
    return plane, tuple(doubts)
