"""What a control plane is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from volplane.controller.actions import Recorder
from volplane.controller.clock import Clock
from volplane.controller.metrics import Metrics
from volplane.controller.workqueue import ControllerMetrics
from volplane.drivers.calls import CallHook, call_hook
from volplane.drivers.executor import HookExecutor
from volplane.drivers.registry import Refresh, no_secrets
from volplane.drivers.status import LoadedDrivers
from volplane.kube.client import Client
from volplane.state.records import Sealer

__all__ = ["Dependencies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a control plane is built from. All parts belong to one event loop.

    executor: runs the hooks; the caller closes it. fence: returns the text of our term's `Fence`.
    may_begin: whether the lease lasts long enough to begin something that changes cluster or storage; for any thread.
    refresh: reads the Kubernetes Secrets of drivers. call_hook: calls a hook in a thread of the executor. metrics: of
    runners and reflectors. lifecycle_metrics: of claims, volumes, hooks and leaks. metrics None: nothing is counted.
    """

    client: Client
    loaded: LoadedDrivers
    executor: HookExecutor
    recorder: Recorder
    sealer: Sealer
    clock: Clock
    random: Random
    fence: Callable[[], str] = lambda: ""
    may_begin: Callable[[], bool] = lambda: True
    metrics: ControllerMetrics | None = None
    lifecycle_metrics: Metrics | None = None
    refresh: Refresh = no_secrets
    call_hook: CallHook = call_hook
