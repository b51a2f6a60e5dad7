"""How the stand-ins for stock controllers see an API server: whole objects, PUT, informers and rate-limited queues.

Nothing here is volplane's own code: what is tested beside it must not share its mistakes.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

from volplane_embedded.apiserver.server import ApiServer

Json = dict[str, Any]

CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
CLASSES = "storageclasses"
PODS = "pods"
NODES = "nodes"
GROUPS = {CLASSES: "/apis/storage.k8s.io/v1"}
NAMESPACED = frozenset({CLAIMS, PODS})


class StockError(Exception):
    """The server refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def key_of(item: Json) -> str:
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def note(item: Json, name: str) -> str:
    return str((item["metadata"].get("annotations") or {}).get(name) or "")


class StockApi:
    """Calls with a network's delay before and after the server acts; `latency` seconds one way."""

    def __init__(self, server: ApiServer, latency: float) -> None:
        self.server = server
        self._latency = latency

    async def call(self, method: str, path: str, body: Json | None = None) -> Json:
        await asyncio.sleep(self._latency)
        raw = json.dumps(body).encode() if body is not None else b""
        headers = {"content-type": "application/json"} if body is not None else {}
        answer = self.server.handle(method, path, {}, headers, raw)
        await asyncio.sleep(self._latency)
        told: Json = json.loads(answer.body)
        if answer.status >= 300:
            raise StockError(answer.status, str(told.get("message")))
        return told

    @staticmethod
    def path(plural: str, key: str = "", subresource: str = "") -> str:
        base = GROUPS.get(plural, "/api/v1")
        namespace, _, name = key.rpartition("/")
        if namespace:
            base += f"/namespaces/{namespace}"
        parts = [base, plural, name, subresource]
        return "/".join(part for part in parts if part)

    async def get(self, plural: str, key: str) -> Json | None:
        try:
            return await self.call("GET", self.path(plural, key))
        except StockError as error:
            if error.status != 404:
                raise
            return None

    async def put(self, plural: str, item: Json, subresource: str = "") -> Json:
        """UPDATE the whole object, with the resourceVersion it was read under."""
        return await self.call("PUT", self.path(plural, key_of(item), subresource), item)


class Informer:
    """List and watch of one kind into `items`; `told(key)` after every change."""

    def __init__(self, api: StockApi, plural: str) -> None:
        self._api = api
        self._plural = plural
        self.items: dict[str, Json] = {}
        self.listeners: list[Callable[[str], None]] = []
        self.synced = asyncio.Event()

    async def run(self) -> None:
        path = self._api.path(self._plural)
        listing = await self._api.call("GET", path)
        for item in listing["items"]:
            self._keep(item)
        self.synced.set()
        version = listing["metadata"]["resourceVersion"]
        opened = self._api.server.watch(path, {"watch": "true", "resourceVersion": version}, {})
        async for line in opened:  # type: ignore[union-attr]
            event = json.loads(line)
            if event["type"] == "DELETED":
                self.items.pop(key_of(event["object"]), None)
                self._tell(key_of(event["object"]))
            elif event["type"] in {"ADDED", "MODIFIED"}:
                self._keep(event["object"])

    def _keep(self, item: Json) -> None:
        self.items[key_of(item)] = item
        self._tell(key_of(item))

    def _tell(self, key: str) -> None:
        for listener in self.listeners:
            listener(key)


class Queue:
    """A deduplicated queue with one worker; a key whose work fails comes back after 5 ms x 2^n."""

    def __init__(self, work: Callable[[str], Awaitable[None]]) -> None:
        self._work = work
        self._waiting: dict[str, None] = {}
        self._failures: dict[str, int] = {}
        self._news = asyncio.Event()

    def add(self, key: str) -> None:
        self._waiting[key] = None
        self._news.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            key = next(iter(self._waiting))
            del self._waiting[key]
            try:
                await self._work(key)
            except StockError:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                loop.call_later(min(0.005 * 2.0**failures, 1000.0), self.add, key)
            else:
                self._failures.pop(key, None)


def edited(item: Json) -> Json:
    """A copy to change; informers' objects are shared."""
    return copy.deepcopy(item)
