"""The garbage collector: what workloads and pods own goes with them, or is let go, as the deletion asked.

It sees the objects that the controllers of this package make.
Source: pkg/controller/garbagecollector of Kubernetes 1.36.
"""

from __future__ import annotations

import logging
from asyncio import TaskGroup
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from volplane import _delays as backoff
from volplane.controller.actions import Delete, Patch
from volplane.controller.runner import Steps, Unsettled
from volplane.controller.workqueue import WorkQueue
from volplane.errors import ApiConflict, ApiError, ApiNotFound
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, Kind
from volplane.kube.objects import KubeObject
from volplane_embedded.informers import Informers
from volplane_embedded.objects import CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, REPLICA_SETS, STATEFUL_SETS

_LOG = logging.getLogger(__name__)
_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"
_OWNERS: Final[dict[str, Kind[Any]]] = {kind.kind: kind for kind in (STATEFUL_SETS, DEPLOYMENTS, REPLICA_SETS, PODS)}


class GarbageCollector:
    """The controller."""

    def __init__(self, informers: Informers, steps: Steps) -> None:
        self._steps = steps
        caches = informers.caches
        kinds: tuple[Kind[Any], ...] = (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS, CONTROLLER_REVISIONS, PODS, CLAIMS)
        self._kinds = {kind.plural: kind for kind in kinds}
        self._caches: dict[str, Cache[Any]] = {kind.plural: caches[kind.plural] for kind in kinds}
        self._queue = WorkQueue("garbage-collector")

    async def run(self) -> None:
        """Run until cancelled."""
        with ExitStack() as stack:
            for plural, cache in self._caches.items():
                stack.callback(cache.subscribe(partial(self._changed, plural)))
                for each in cache.values():
                    self._changed(plural, None, each)
            async with TaskGroup() as workers:
                for _ in range(4):
                    workers.create_task(self._work())

    def _changed(self, plural: str, old: KubeObject | None, new: KubeObject | None) -> None:
        if new is not None and self._concerns(new):
            self._queue.add(f"{plural} {new.key}")
        gone = old is not None and (new is None or new.uid != old.uid)
        if gone and old is not None:
            for name, each in self._all_dependents(old):
                self._queue.add(f"{name} {each.key}")
            for owner in old.metadata.owner_references or ():
                if owner.kind in _OWNERS:
                    self._queue.add(f"{_OWNERS[owner.kind].plural} {old.namespace}/{owner.name}")

    def _concerns(self, obj: KubeObject) -> bool:
        if obj.terminating:
            return obj.has_finalizer(_FOREGROUND) or obj.has_finalizer(_ORPHAN)
        owners = obj.metadata.owner_references or ()
        return bool(owners) and all(each.kind in _OWNERS for each in owners)

    def _all_dependents(self, owner: KubeObject) -> list[tuple[str, KubeObject]]:
        """Return what the object owns, with the plural of its kind."""
        return [
            (plural, each)
            for plural, cache in self._caches.items()
            for each in cache.values()
            if each.namespace == owner.namespace
            and any(one.uid == owner.uid for one in each.metadata.owner_references or ())
        ]

    async def _work(self) -> None:
        while (item := await self._queue.get()) is not None:
            plural, _, key = item.partition(" ")
            try:
                found = self._caches[plural].get(key)
                if found is not None and self._concerns(found):
                    await (self._release if found.terminating else self._collect)(self._kinds[plural], found)
                self._queue.forget(item)
            except (ApiConflict, ApiNotFound, Unsettled):
                await self._steps.refresh(self._kinds[plural], key)
                self._queue.retry(item, backoff.RECONCILE_FAILED)
            except ApiError as error:
                seconds = self._queue.retry(item, backoff.API_UNAVAILABLE)
                _LOG.warning("%s is not collected, trying again in %.3g s: %s", item, seconds, error)
            finally:
                self._queue.done(item)

    async def _collect(self, kind: Kind[Any], found: KubeObject) -> None:
        """Delete an object whose owners are all gone."""
        for owner in found.metadata.owner_references or ():
            of = _OWNERS[owner.kind]
            key = f"{found.namespace}/{owner.name}"
            cached = self._caches[of.plural].get(key)
            if cached is None or cached.uid != owner.uid:
                cached = await self._steps.refresh(of, key)
            there = cached is not None and cached.uid == owner.uid
            foreground = cached is not None and cached.terminating and cached.has_finalizer(_FOREGROUND)
            if there and not foreground:
                return
            if foreground and not found.has_finalizer(_FOREGROUND) and any(self._all_dependents(found)):
                body = {"metadata": {"finalizers": found.finalizers_with(_FOREGROUND)}}
                await self._steps.patch(Patch(kind=kind, target=found, body=body, why="its owner waits for its own"))
                found = self._caches[kind.plural].get(found.key) or found
        await self._steps.delete(Delete(kind=kind, target=found, why="its owners are gone", exact=False))

    async def _release(self, kind: Kind[Any], owner: KubeObject) -> None:
        """See to the dependents of an owner that waits for them, then let it go."""
        orphaned = owner.has_finalizer(_ORPHAN)
        for plural, each in self._all_dependents(owner):
            if not orphaned and not each.terminating:
                await self._collect(self._kinds[plural], each)
            elif orphaned and len(each.metadata.owner_references or ()) == 1:
                body = {"metadata": {"ownerReferences": None}}
                await self._steps.patch(Patch(kind=self._kinds[plural], target=each, body=body, why="an orphan"))
        blocking = [
            each
            for _, each in self._all_dependents(owner)
            if any(one.uid == owner.uid and one.block_owner_deletion for one in each.metadata.owner_references or ())
        ]
        if orphaned or not blocking:
            left = {"metadata": {"finalizers": owner.finalizers_without(_FOREGROUND, _ORPHAN)}}
            await self._steps.patch(Patch(kind=kind, target=owner, body=left, why="its dependents are seen to"))
