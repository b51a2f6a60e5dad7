"""Metrics of claims and volumes: wraps hook calls and listens to the caches.

What is counted under which name follows the external provisioner (attempts, by class) and the reference controller
(from a user's point of view: first attempt until bound, first deletion until gone). An attempt that answers
`InProgress` is neither a success nor a failure yet. Volumes and claims are counted by the changes of the caches, so
that a scrape walks no cache, under names and labels of the reference controller's `pv_collector_*`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from volplane.assets import Asset, Done
from volplane.controller.metrics import Metrics
from volplane.drivers.driver import DriverView
from volplane.errors import BackendError, PluginError
from volplane.intents.operation import HookCaller
from volplane.kube.cache import Cache
from volplane.kube.names import VOLUME_SOURCES
from volplane.kube.objects import Claim, KubeObject, Volume
from volplane.requests import DeleteRequest, HookRequest, ProvisionRequest
from volplane.state.matching import capacity_of, class_of_claim
from volplane.state.naming import SOURCES
from volplane.state.records import may_be_kept
from volplane.trash.decide import in_trash

R = TypeVar("R")
T = TypeVar("T", bound=KubeObject)
Count = tuple[str, tuple[str, ...], int]
"""Key in `Metrics.inventory`, labels, and how much."""

_COUNTED = {
    attribute: known["counted"]
    for attribute, key in SOURCES
    if "counted" in (known := VOLUME_SOURCES["sources"].get(key, {}))
}
"""Attribute of a source -> the name under which its volumes are counted."""


class MeasuredHooks:
    """Calls hooks (`HookCaller`), counting attempts and how long users waited. Also counts what is in the caches."""

    def __init__(self, inner: HookCaller, claims: Cache[Claim], volumes: Cache[Volume], metrics: Metrics) -> None:
        self._inner = inner
        self._claims = claims
        self._volumes = volumes
        self._metrics = metrics
        self._provisioning: dict[str, tuple[str, float]] = {}
        self._deleting: dict[str, tuple[str, float]] = {}
        claims.subscribe(self._claim_changed)
        volumes.subscribe(self._volume_changed)
        count_inventory(volumes, claims, metrics)

    async def call(self, driver: DriverView, request: HookRequest[R]) -> R:
        count = self._attempt(driver, request)
        if count is None:
            return await self._inner.call(driver, request)
        began = _now()
        try:
            result = await self._inner.call(driver, request)
        except (BackendError, PluginError):
            count(None)
            raise
        match request, result:
            case ProvisionRequest(), Asset() if result.capacity_bytes < request.capacity_bytes:
                count(None)
            case _, Asset() | Done():
                count(_now() - began)
        return result

    def _attempt(self, driver: DriverView, request: object) -> Callable[[float | None], None] | None:
        """Return what counts the call when it ends, given its seconds (None: it failed); None for a call that makes or
        deletes nothing a user asked for.
        """
        match request:
            case ProvisionRequest(claim=identity):
                claim = self._claims.get(f"{identity.namespace}/{identity.name}")
                if claim is None or claim.uid != identity.uid or claim.terminating:
                    return None  # The call finds out what exists.
                self._provisioning.setdefault(claim.uid, (driver.name, _now()))
                source = claim.spec.data_source.kind if claim.spec.data_source is not None else ""
                return partial(self._metrics.attempt_ended, "provision", (class_of_claim(claim) or "", source))
            case DeleteRequest(volume=asset):
                volume = self._volumes.get(asset.name)
                if volume is None or volume.uid != asset.uid:
                    return None  # The asset never became a volume.
                self._deleting.setdefault(volume.uid, (driver.name, _now()))
                return partial(self._metrics.attempt_ended, "delete", (class_of_claim(volume) or "",))
        return None

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if new is None and old is not None:
            self._provisioning.pop(old.uid, None)
        elif new is not None and new.uid in self._provisioning and new.bound:
            plugin, began = self._provisioning.pop(new.uid)
            self._metrics.lives[plugin, "provision"].observe(_now() - began)

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if new is None and old is not None and old.uid in self._deleting:
            plugin, began = self._deleting.pop(old.uid)
            self._metrics.lives[plugin, "delete"].observe(_now() - began)


def _now() -> float:
    return asyncio.get_running_loop().time()


def count_inventory(volumes: Cache[Volume], claims: Cache[Claim], metrics: Metrics) -> None:
    """Count the objects in the caches and follow their changes, until `metrics.counted` is another one."""
    counted = metrics.counted = Counter()
    _follow(volumes, _of_volume, counted)
    _follow(claims, _of_claim, counted)


def _follow(
    cache: Cache[T], counts: Callable[[T], tuple[Count, ...]], counted: Counter[tuple[str, tuple[str, ...]]]
) -> None:
    def changed(old: T | None, new: T | None) -> None:
        before = counts(old) if old is not None else ()
        after = counts(new) if new is not None else ()
        if before != after:
            for what, labels, much in after:
                counted[what, labels] += much
            for what, labels, much in before:
                counted[what, labels] -= much
                if not counted[what, labels]:
                    del counted[what, labels]

    cache.subscribe(changed)
    for obj in cache.values():
        changed(None, obj)


def _of_volume(volume: Volume) -> tuple[Count, ...]:
    """Count a volume under its plugin's name in the reference controller; CSI is one plugin there, here its drivers."""
    spec = volume.spec
    plugin = next((name for field, name in _COUNTED.items() if getattr(spec, field) is not None), "N/A")
    if spec.csi is not None:
        plugin = str(spec.csi.get("driver", "N/A"))
    bound = "bound_pv" if volume.status.phase == "Bound" else "unbound_pv"
    found: tuple[Count, ...] = (
        ("total_pv", (plugin, spec.volume_mode or "Filesystem"), 1),
        (bound, (spec.storage_class_name,), 1),
    )
    if may_be_kept(volume) and in_trash(volume) is not None:
        size, of_class = capacity_of(volume) // 10**9, (spec.storage_class_name,)
        return (*found, ("trash", of_class, 1), ("trash_bytes", of_class, size))
    return found


def _of_claim(claim: Claim) -> tuple[Count, ...]:
    spec = claim.spec
    what = "bound_pvc" if claim.status.phase == "Bound" else "unbound_pvc"
    return ((what, (claim.namespace, spec.storage_class_name or "", spec.volume_attributes_class_name or ""), 1),)
