"""Metrics of claims and volumes: wraps hook calls, listens to the caches and watches the decisions.

What is counted under which name follows the external provisioner (attempts, by class) and the reference controller
(from a user's point of view: first attempt until bound, first deletion until gone). An attempt that answers
`InProgress` is neither a success nor a failure yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from volplane.assets import Asset, Done
from volplane.binding.matching import class_of_claim, class_of_volume
from volplane.controller.actions import Action, LiveReads, Patch
from volplane.controller.inventory import count_inventory
from volplane.controller.metrics import Metrics
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, PluginError
from volplane.intents.operation import HookCaller
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, Volume
from volplane.requests import DeleteRequest, HookRequest, ProvisionRequest

__all__ = ["CountedAssignments", "MeasuredHooks"]

R = TypeVar("R")


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
        self._stop_counting = count_inventory(volumes, claims, metrics)

    def close(self) -> None:
        """Take back what is counted of the caches: another process has them from now on."""
        self._stop_counting()

    async def call(self, driver: DriverView, request: HookRequest[R]) -> R:
        attempt = self._attempt(driver, request)
        if attempt is None:
            return await self._inner.call(driver, request)
        began = _now()
        try:
            result = await self._inner.call(driver, request)
        except (BackendError, PluginError):
            self._failed(request, *attempt)
            raise
        self._ended(request, result, _now() - began, *attempt)
        return result

    def _attempt(self, driver: DriverView, request: object) -> tuple[str, str] | None:
        """Class and kind of data source; None for what is no attempt to make or delete what a user asked for."""
        match request:
            case ProvisionRequest(claim=identity):
                claim = self._claims.get(f"{identity.namespace}/{identity.name}")
                if claim is None or claim.uid != identity.uid or claim.terminating:
                    return None  # It finds out what exists.
                self._provisioning.setdefault(claim.uid, (driver.name, _now()))
                source = claim.spec.data_source.kind if claim.spec.data_source is not None else ""
                return class_of_claim(claim) or "", source
            case DeleteRequest(volume=asset):
                volume = self._volumes.get(asset.name)
                if volume is None or volume.uid != asset.uid:
                    return None  # The asset never became a volume.
                self._deleting.setdefault(volume.uid, (driver.name, _now()))
                return class_of_volume(volume), ""
        return None

    def _failed(self, request: object, class_name: str, source: str) -> None:
        if isinstance(request, DeleteRequest):
            self._metrics.delete_failed(class_name)
        else:
            self._metrics.provision_failed(class_name, source=source)

    def _ended(self, request: object, result: object, seconds: float, class_name: str, source: str) -> None:
        match request, result:
            case ProvisionRequest(), Asset() if result.capacity_bytes < request.capacity_bytes:
                self._failed(request, class_name, source)
            case ProvisionRequest(), Asset():
                self._metrics.provision_succeeded(class_name, seconds, source=source)
            case DeleteRequest(), Done():
                self._metrics.delete_succeeded(class_name, seconds)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        if not self._provisioning:
            return
        if new is None:
            if old is not None:
                self._provisioning.pop(old.uid, None)
        elif new.uid in self._provisioning and new.annotation(names.BIND_COMPLETED) is not None:
            plugin, began = self._provisioning.pop(new.uid)
            self._metrics.operation_finished(plugin, "provision", _now() - began)

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        if new is None and old is not None and old.uid in self._deleting:
            plugin, began = self._deleting.pop(old.uid)
            self._metrics.operation_finished(plugin, "delete", _now() - began)


class CountedAssignments:
    """A decision about claims, counting those that get the default class later, and the writes of it that failed."""

    def __init__(self, decide: Callable[[str, LiveReads], Action], claims: Cache[Claim], metrics: Metrics) -> None:
        self._decide = decide
        self._metrics = metrics
        self._asked: set[str] = set()
        claims.subscribe(self._claim_changed)

    def __call__(self, key: str, reads: LiveReads) -> Action:
        action = self._decide(key, reads)
        if isinstance(action, Patch) and action.kind is CLAIMS and "storageClassName" in action.body.get("spec", ()):
            if action.target.uid in self._asked:
                self._metrics.class_given_later(refused=True)
            self._asked.add(action.target.uid)
        return action

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        present = new or old
        if not self._asked or present is None or present.uid not in self._asked:
            return
        if new is None:
            self._asked.discard(present.uid)
        elif class_of_claim(new) is not None:
            self._asked.discard(present.uid)
            self._metrics.class_given_later()


def _now() -> float:
    return asyncio.get_running_loop().time()
