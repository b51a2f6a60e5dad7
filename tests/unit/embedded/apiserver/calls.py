"""An API server in the process, called with JSON and answered with JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store
from volplane_embedded.apiserver.watch import Watch

MERGE = "application/merge-patch+json"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@dataclass
class Reply:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason"))

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]

    @property
    def causes(self) -> list[tuple[str, str]]:
        return [(cause["field"], cause["reason"]) for cause in self.body["details"]["causes"]]


def at_noon() -> datetime:
    return datetime(2026, 1, 1, 12, tzinfo=UTC)


class Calls:
    """`now` may be replaced between calls."""

    def __init__(self, *, store: Store | None = None, now: Any = at_noon, **options: Any) -> None:
        self.now = now
        options.setdefault("random", random.Random(1))
        self.server = ApiServer(now=self._time, store=store, **options)

    def _time(self) -> datetime:
        moment: datetime = self.now()
        return moment

    def send(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: str) -> Reply:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        answer = self.server.handle(method, path, query, {"Content-Type": kind}, data)
        return Reply(answer.status, json.loads(answer.body), answer.headers)

    def get(self, path: str, **query: str) -> Reply:
        return self.send("GET", path, **query)

    def create(self, path: str, body: Any, **query: str) -> Reply:
        return self.send("POST", path, body, **query)

    def put(self, path: str, body: Any, **query: str) -> Reply:
        return self.send("PUT", path, body, **query)

    def patch(self, path: str, body: Any, *, kind: str = MERGE, **query: str) -> Reply:
        return self.send("PATCH", path, body, kind=kind, **query)

    def delete(self, path: str, body: Any = None, **query: str) -> Reply:
        return self.send("DELETE", path, body, **query)

    def made(self, path: str, body: Any, **query: str) -> Reply:
        """Create what must be possible."""
        reply = self.create(path, body, **query)
        assert reply.status == 201, reply.body
        return reply

    def watch(self, path: str, *, accept: str = "application/json", **query: str) -> Watch:
        opened = self.server.watch(path, {"watch": "true", **query}, {"Accept": accept})
        assert isinstance(opened, Watch), opened
        return opened

    def refused_watch(self, path: str, **query: str) -> Answer:
        opened = self.server.watch(path, {"watch": "true", **query}, {})
        assert isinstance(opened, Answer)
        return opened


async def events(watch: Watch, count: int) -> list[tuple[str, str]]:
    """The next events as (type, name)."""
    found = [json.loads(await anext(watch)) for _ in range(count)]
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in found]


async def rest(watch: Watch) -> list[Any]:
    """Every event until the watch ends."""
    return [json.loads(line) async for line in watch]


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def volume(name: str, **metadata: Any) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": f"/srv/{name}"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}
