"""The CPU cost of a write, a cached object and a watch event.

    python -m bench.client_floor [--objects 1000] [--rounds 3] [--kubeconfig FILE]

Without a kubeconfig it starts `volplane apiserver`. CPU is user + system time of this process alone; the server
is not included. Decisions are trivial, so only transport, client, cache, queue and runner are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import resource
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from bench.clients import IN_FLIGHT, each
from bench.objects import bound_volume
from bench.processes import server

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Settled
from volplane.controller.metrics import Metrics
from volplane.controller.runner import Runner
from volplane.kube.cache import Cache
from volplane.kube.client import MERGE_PATCH, Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Volume

STEP = "bench.volplane.dev/step"
SPEC = {
    "capacity": {"storage": "1Gi"},
    "accessModes": ["ReadWriteOnce"],
    "hostPath": {"path": "/tmp/volplane-bench"},
    "persistentVolumeReclaimPolicy": "Retain",
    "storageClassName": "bench",
}


@dataclass
class Cost:
    """CPU and wall seconds of `times` repetitions."""

    times: int
    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{1000 * self.cpu / self.times:6.3f} ms CPU each, {self.times / self.wall:6.0f}/s"


class _Silent:
    """A recorder that does nothing."""

    def record(self, _: EventRecord) -> None: ...


async def measured(times: int, work: Callable[[], Awaitable[Any]]) -> Cost:
    """The cost of `work`, which repeats something `times` times."""
    gc.collect()
    cpu, wall = time.process_time(), time.monotonic()
    await work()
    return Cost(times, time.process_time() - cpu, time.monotonic() - wall)


async def each_of(names: list[str], call: Callable[[str], Awaitable[object]]) -> None:
    """Call for all names, IN_FLIGHT at a time."""
    await each(len(names), lambda number: call(names[number]))


async def bare(kubeconfig: Path, names: list[str], target: str) -> None:
    """The floor: one patch per volume with aiohttp alone; bodies are not decoded."""
    config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"authorization": f"Bearer {user['token']}", "content-type": MERGE_PATCH}
    body = msgspec.json.encode({"metadata": {"annotations": {STEP: target}}})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:

        async def patch(name: str) -> None:
            url = f"{cluster['server']}/api/v1/persistentvolumes/{name}"
            async with session.patch(url, data=body, headers=headers) as answer:
                await answer.read()

        await each_of(names, patch)


async def through_runner(client: Client, cache: Cache[Volume], names: list[str], target: str) -> None:
    """One conditional patch per volume, decided and performed by a runner."""
    left = set(names)
    done = asyncio.Event()

    def decide(key: str, _: LiveReads) -> Action:
        volume = cache.get(key)
        if volume is None or (volume.annotation(STEP)) == target:
            left.discard(key)
            if not left:
                done.set()
            return Settled()
        return Patch(kind=VOLUMES, target=volume, body={"metadata": {"annotations": {STEP: target}}}, why="bench")

    runner = Runner(
        "bench",
        decide,
        kind=VOLUMES,
        caches={"persistentvolumes": cache},
        client=client,
        recorder=_Silent(),
        workers=IN_FLIGHT,
        metrics=Metrics(),
    )
    running = asyncio.create_task(runner.run())
    for name in names:
        runner.enqueue(name)
    await done.wait()
    runner.stop()
    await running


async def measure(kubeconfig: Path, objects: int, rounds: int) -> None:
    """Measure and print everything."""
    client = Client(await HttpTransport.connect(kubeconfig), metrics=Metrics())
    names = [f"bench-{number:06}" for number in range(objects)]
    print(f"{objects} volumes, {IN_FLIGHT} in flight; this process only")
    try:
        created = await measured(
            objects,
            lambda: each_of(names, lambda n: client.create(VOLUMES, VOLUMES.body(metadata={"name": n}, spec=SPEC))),
        )
        print(f"create                        {created}")
        for number in range(rounds):
            cost = await measured(objects, lambda: bare(kubeconfig, names, f"floor-{number}"))  # noqa: B023
            print(f"patch, aiohttp alone          {cost}")
        for number in range(rounds):
            body = {"metadata": {"annotations": {STEP: f"bare-{number}"}}}
            cost = await measured(objects, lambda: each_of(names, lambda n: client.patch(VOLUMES, n, body)))  # noqa: B023
            print(f"patch, client alone           {cost}")
        cache: Cache[Volume] = Cache(VOLUMES, {"claim": _claim_of})
        for volume in (await client.list(VOLUMES)).items:
            cache.observe(volume)
        cache.listed.set()
        for number in range(rounds):
            cost = await measured(objects, lambda: through_runner(client, cache, names, f"run-{number}"))  # noqa: B023
            print(f"patch, decided by a runner    {cost}")
        print(f"watch, per event of a patch   {await watch_cost(client, names)}")
    finally:
        await each_of(names, lambda n: client.patch(VOLUMES, n, {"metadata": {"finalizers": None}}))
        await each_of(names, lambda n: client.delete(VOLUMES, n))
        await client.close()


async def watch_cost(client: Client, names: list[str]) -> Cost:
    """Read the history of all patches again through a watch, into a cache."""
    listing = await client.list(VOLUMES)
    version = min(volume.version for volume in listing.items) - 1
    cache: Cache[Volume] = Cache(VOLUMES, {"claim": _claim_of})

    async def follow() -> None:
        async with client.watch(VOLUMES, version=version, seconds=60) as changes:
            async for change in changes:
                if change.object is not None:
                    cache.observe(change.object)
                if change.version >= listing.version:
                    return

    return await measured(len(names), follow)


def _claim_of(volume: Volume) -> list[str]:
    ref = volume.spec.claim_ref
    return [f"{ref.namespace}/{ref.name}"] if ref is not None else []


def memory(count: int = 20_000) -> float:
    """Bytes per cached typical volume with one index, as resident memory grows."""
    cache: Cache[Volume] = Cache(VOLUMES, {"claim": _claim_of})
    decoder = msgspec.json.Decoder(Volume)
    gc.collect()
    before = _resident()
    for number in range(count):
        cache.observe(decoder.decode(_encoded(number)))
    gc.collect()
    return (_resident() - before) / count


def _encoded(number: int) -> bytes:
    volume = bound_volume(number)
    volume["metadata"]["resourceVersion"] = str(1_000_000 + number)
    return msgspec.json.encode(volume)


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * resource.getpagesize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kubeconfig", type=Path)
    chosen = parser.parse_args()
    print(f"memory: {memory() / 1000:.2f} KB per cached volume, index included")
    if chosen.kubeconfig is not None:
        asyncio.run(measure(chosen.kubeconfig, chosen.objects, chosen.rounds))
    else:
        with tempfile.TemporaryDirectory() as directory:
            started = Path(directory) / "kubeconfig"
            with server(started):
                asyncio.run(measure(started, chosen.objects, chosen.rounds))
