"""What the assembly gives the controllers of every duty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from volplane.controller.actions import Queue, Recorder
from volplane.controller.metrics import Metrics
from volplane.drivers.registry import DriverRegistry
from volplane.drivers.status import LoadedDrivers
from volplane.intents.operation import OperationDeps
from volplane.kube.client import Client
from volplane.state.cluster_state import ClusterState

__all__ = ["Shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The state of the cluster, and what operations work with."""

    cluster: ClusterState
    deps: OperationDeps
    drivers: DriverRegistry
    loaded: LoadedDrivers
    client: Client
    """For reads. That of `deps` writes only while the lease lasts."""
    recorder: Recorder
    metrics: Metrics | None
    """None: nothing is counted."""
    queue: Callable[[str], Queue]
    """The queue of this name. What is queued is dropped if this process does not have it."""
