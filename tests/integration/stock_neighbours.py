"""Stand-ins for the other stock controllers that meet claims: both protections, and a scheduler that selects nodes."""

from __future__ import annotations

import asyncio

from integration.stock_api import CLAIMS, CLASSES, NODES, PODS, VOLUMES, Informer, Json, Queue, StockApi, edited, note
from integration.stock_binder import BIND_COMPLETED, SELECTED_NODE, StockBinder, class_of
from volplane_embedded.apiserver.server import ApiServer

CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
SCHEDULER_PAUSE = 0.5


class StockProtection:
    """Takes a protection finalizer from what is being deleted and no longer in use."""

    def __init__(self, api: StockApi) -> None:
        self._api = api
        self._informers = {plural: Informer(api, plural) for plural in (CLAIMS, VOLUMES, PODS)}
        self._queues = {CLAIMS: Queue(self._claim), VOLUMES: Queue(self._volume)}
        for plural, queue in self._queues.items():
            self._informers[plural].listeners.append(queue.add)
        self._informers[PODS].listeners.append(lambda _key: self._all_claims())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for runnable in (*self._informers.values(), *self._queues.values()):
                group.create_task(runnable.run())

    def _all_claims(self) -> None:
        for key in self._informers[CLAIMS].items:
            self._queues[CLAIMS].add(key)

    async def _claim(self, key: str) -> None:
        claim = self._informers[CLAIMS].items.get(key)
        if claim is not None and not self._used(claim):
            await self._let_go(CLAIMS, claim, CLAIM_PROTECTION)

    def _used(self, claim: Json) -> bool:
        meta = claim["metadata"]
        for pod in self._informers[PODS].items.values():
            mounted = [volume.get("persistentVolumeClaim", {}) for volume in pod["spec"].get("volumes", ())]
            names = [volume.get("claimName") for volume in mounted]
            if (
                pod["metadata"]["namespace"] == meta["namespace"]
                and pod["spec"].get("nodeName")
                and meta["name"] in names
            ):
                return True
        return False

    async def _volume(self, key: str) -> None:
        volume = self._informers[VOLUMES].items.get(key)
        if volume is not None and (volume.get("status") or {}).get("phase") != "Bound":
            await self._let_go(VOLUMES, volume, VOLUME_PROTECTION)

    async def _let_go(self, plural: str, item: Json, finalizer: str) -> None:
        meta = item["metadata"]
        if "deletionTimestamp" not in meta or finalizer not in meta.get("finalizers", ()):
            return
        fresh = edited(item)
        fresh["metadata"]["finalizers"].remove(finalizer)
        await self._api.put(plural, fresh)


class StockScheduler:
    """Selects a node for the delayed claims of each pod, and binds the pod once its claims are bound.

    A claim that is given back (the annotation removed) gets the next node in turn.
    """

    def __init__(self, api: StockApi) -> None:
        self.selected: list[str] = []
        self._api = api
        self._informers = {plural: Informer(api, plural) for plural in (CLAIMS, CLASSES, NODES, PODS)}
        self._queue = Queue(self._pod)
        self._informers[PODS].listeners.append(self._queue.add)
        self._informers[CLAIMS].listeners.append(lambda _key: self._all_pods())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for runnable in (*self._informers.values(), self._queue):
                group.create_task(runnable.run())

    def _all_pods(self) -> None:
        for key in self._informers[PODS].items:
            self._queue.add(key)

    async def _pod(self, key: str) -> None:
        pod = self._informers[PODS].items.get(key)
        if pod is None or pod["spec"].get("nodeName"):
            return
        namespace = pod["metadata"]["namespace"]
        mounted = [volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes", ())]
        keys = [f"{namespace}/{volume['claimName']}" for volume in mounted if volume]
        claims = [self._informers[CLAIMS].items.get(name) for name in keys]
        if any(claim is None or "deletionTimestamp" in claim["metadata"] for claim in claims):
            return
        open_claims = [claim for claim in claims if claim is not None and not note(claim, BIND_COMPLETED)]
        for claim in open_claims:
            await self._select(claim)
        nodes = sorted(self._informers[NODES].items)
        if not open_claims and nodes:
            chosen = next((note(claim, SELECTED_NODE) for claim in claims if claim is not None), "") or nodes[0]
            target = {"apiVersion": "v1", "kind": "Node", "name": chosen}
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod["metadata"]["name"]},
                "target": target,
            }
            await self._api.call("POST", self._api.path(PODS, key, "binding"), body)

    async def _select(self, claim: Json) -> None:
        storage_class = self._informers[CLASSES].items.get(class_of(claim) or "")
        delayed = storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        nodes = sorted(self._informers[NODES].items)
        if not delayed or note(claim, SELECTED_NODE) or not nodes:
            return
        await asyncio.sleep(SCHEDULER_PAUSE)
        chosen = nodes[len(self.selected) % len(nodes)]
        fresh = edited(claim)
        fresh["metadata"].setdefault("annotations", {})[SELECTED_NODE] = chosen
        await self._api.put(CLAIMS, fresh)
        self.selected.append(chosen)


class StockCluster:
    """A stock control plane as one task; `stop` ends it."""

    def __init__(self, server: ApiServer, *, latency: float = 0.002, beta_only: bool = False) -> None:
        self._server = server
        self._latency = latency
        self._beta_only = beta_only
        self._task: asyncio.Task[None] | None = None
        self._build()

    def _build(self) -> None:
        api = StockApi(self._server, self._latency)
        self.binder = StockBinder(api, beta_only=self._beta_only)
        self.protection = StockProtection(api)
        self.scheduler = StockScheduler(api)

    async def start(self) -> None:
        """A fresh process: nothing is remembered of a former one."""
        self._build()
        self._task = asyncio.create_task(self._run(), name="stock controllers")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for part in (self.binder, self.protection, self.scheduler):
                group.create_task(part.run())

    async def stop(self) -> None:
        """Raises what ended it before."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if not isinstance(ended, asyncio.CancelledError):
            raise ended if isinstance(ended, BaseException) else AssertionError("the stock controllers ended")
