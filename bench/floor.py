"""A bare client: the writes of binding or provisioning without logic, cache or watch.

python -m bench.floor static|dynamic COUNT KUBECONFIG [--events N] [--aiohttp]

The objects exist already, named as in `bench.objects`. It prints `ready`, waits for a line on stdin, sends, and prints
its wall and CPU seconds as JSON. Bodies are prepared before; only the status of answers is read. The writes are those
of the controllers without preconditions, over the same transport, or over a session of aiohttp, which is what most
clients in Python would take; the first N claims get an event each.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml
from bench.objects import DRIVER, NAMESPACE, claim_name, volume_name

from volplane.cli.framework import eventloop
from volplane.kube.http.transport import HttpTransport
from volplane.kube.transport import Request

__all__: list[str] = []

IN_FLIGHT = 64
"""As many as a runner of the controllers has workers."""
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
PATCH, CREATE = "application/merge-patch+json", "application/json"
MARKS = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
SEALED = json.dumps({"intent": {"v": 1, "driver": DRIVER}, "seal": "0" * 64})
PROTECTED = "kubernetes.io/pvc-protection"


@dataclass(frozen=True)
class Write:
    """One request, ready to send."""

    method: str
    path: str
    content_type: str
    body: bytes


def _patch(path: str, body: dict[str, Any]) -> Write:
    return Write("PATCH", path, PATCH, json.dumps(body).encode())


def _reference(number: int, uid: str) -> dict[str, str]:
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": NAMESPACE,
        "name": claim_name(number),
        "uid": uid,
        "resourceVersion": "1",
    }


def _end_of_bind(claim: str, volume: str, metadata: dict[str, Any]) -> Iterator[Write]:
    status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    yield _patch(f"{VOLUMES}/{volume}/status", {"status": {"phase": "Bound"}})
    yield _patch(claim, {"metadata": metadata, "spec": {"volumeName": volume}})
    yield _patch(f"{claim}/status", {"status": status})


def bind(number: int, uid: str) -> Iterator[Write]:
    """The four writes that bind a claim to a static volume."""
    claim, volume = f"{CLAIMS}/{claim_name(number)}", volume_name(number)
    marked = {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}
    yield _patch(f"{VOLUMES}/{volume}", {"metadata": marked, "spec": {"claimRef": _reference(number, uid)}})
    yield from _end_of_bind(claim, volume, {"annotations": MARKS})


def provision(number: int, uid: str) -> Iterator[Write]:
    """The five writes from an unbound claim to one that is bound to a volume made for it."""
    claim, volume = f"{CLAIMS}/{claim_name(number)}", f"pvc-{uid}"
    asked = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
    declared = {**dict.fromkeys(asked, DRIVER), "volplane.dev/intent": SEALED}
    yield _patch(claim, {"metadata": {"annotations": declared, "finalizers": [PROTECTED, "volplane.dev/provisioning"]}})
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "pv.kubernetes.io/bound-by-controller": "yes",
                "volplane.dev/handle": volume,
                "volplane.dev/generation": "1",
                "volplane.dev/driver": DRIVER,
                "volplane.dev/schema-version": "1",
            },
            "finalizers": ["volplane.dev/reclaim"],
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": _reference(number, uid),
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "memory",
            "volumeMode": "Filesystem",
            "hostPath": {"path": f"/srv/{volume}"},
        },
    }
    yield Write("POST", VOLUMES, CREATE, json.dumps(made).encode())
    ended = {"annotations": {**MARKS, "volplane.dev/intent": None}, "finalizers": [PROTECTED]}
    yield from _end_of_bind(claim, volume, ended)


def event(number: int, uid: str) -> Write:
    """The event that a provisioned claim gets."""
    name, now = claim_name(number), "2026-01-01T00:00:00Z"
    about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": NAMESPACE, "uid": uid}
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{number:016x}", "namespace": NAMESPACE},
        "involvedObject": {**about, "resourceVersion": "1"},
        "type": "Normal",
        "reason": "ProvisioningSucceeded",
        "message": f"provisioned pvc-{uid} with {DRIVER}",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": "volplane"},
        "reportingComponent": "volplane",
        "reportingInstance": "bench",
    }
    return Write("POST", EVENTS, CREATE, json.dumps(body).encode())


class BareClient(Protocol):
    """Sends requests and looks at nothing but the status of the answers."""

    async def request(self, method: str, path: str, content_type: str = CREATE, body: bytes | None = None) -> bytes:
        """The answer's body. Ends the benchmark if the server refuses."""
        ...


class TransportClient:
    """A client that is only our transport."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._headers = {kind: {"accept": "application/json", "content-type": kind} for kind in (PATCH, CREATE)}

    async def request(self, method: str, path: str, content_type: str = CREATE, body: bytes | None = None) -> bytes:
        answer = await self._transport.send(
            Request(method=method, path=path, headers=self._headers[content_type], body=body, seconds=60.0)
        )
        _require(answer.status, f"{method} {path}", answer.body)
        return answer.body


class AiohttpClient:
    """A client that is only a session of aiohttp."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    async def request(self, method: str, path: str, content_type: str = CREATE, body: bytes | None = None) -> bytes:
        headers = {"content-type": content_type}
        async with self._session.request(method, self._server + path, data=body, headers=headers) as answer:
            text = await answer.read()
            _require(answer.status, f"{method} {path}", text)
            return text


def _require(status: int, call: str, body: bytes) -> None:
    if status not in (200, 201):
        raise SystemExit(f"{call}: {status} {body[:300]!r}")


@asynccontextmanager
async def _client(kubeconfig: Path, *, with_aiohttp: bool) -> AsyncIterator[BareClient]:
    if not with_aiohttp:
        transport = await HttpTransport.connect(kubeconfig)
        yield TransportClient(transport)
        await transport.close()
        return
    config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(
        headers={"authorization": f"Bearer {user['token']}"}, connector=connector
    ) as session:
        yield AiohttpClient(session, cluster["server"])


async def _main(kind: str, count: int, kubeconfig: Path, *, events: int, with_aiohttp: bool) -> None:
    async with _client(kubeconfig, with_aiohttp=with_aiohttp) as client:
        await _measure(client, kind, count, events)


async def _measure(client: BareClient, kind: str, count: int, events: int) -> None:
    listed = json.loads(await client.request("GET", CLAIMS))
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in listed["items"]}
    make = bind if kind == "static" else provision
    every = [list(make(number, uids[claim_name(number)])) for number in range(count)]
    for number in range(events):
        every[number].append(event(number, uids[claim_name(number)]))
    waiting = iter(every)

    async def work() -> None:
        for writes in waiting:
            for write in writes:
                await client.request(write.method, write.path, write.content_type, write.body)

    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu, wall = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())
    spent = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("static", "dynamic"))
    parser.add_argument("count", type=int)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--events", type=int, default=0, help="how many claims get an event, at most COUNT")
    parser.add_argument("--aiohttp", action="store_true", help="over a session of aiohttp, not our transport")
    chosen = parser.parse_args()
    most = min(chosen.events, chosen.count)
    eventloop.run(
        lambda _: _main(chosen.kind, chosen.count, chosen.kubeconfig, events=most, with_aiohttp=chosen.aiohttp)
    )
