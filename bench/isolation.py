"""Whether a failing driver, or a busy object, delays the others: latencies from creation to Bound.

    python -m bench.isolation hanging|storm|recycles|failing|burst [--runs 3]

Claims of four healthy drivers arrive at a fixed rate, first undisturbed, then disturbed:
hanging: 100 claims of a driver whose `provision` never returns. failing: 10,000 claims of a driver whose `provision`
always fails, after each has failed once. burst: the same, during the first attempts. storm: a client patches the labels
of 20 claims at a time without pause while they are bound; in the undisturbed part the same patches go to ConfigMaps,
which no controller watches. recycles: 100 released volumes are scrubbed at once by pods that end after 50 ms. The
report has median and 99th percentile of both parts, and the ratio of the 99th percentiles.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import clients, processes
from bench.objects import claim, volume

from volplane.errors import ApiError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES, Kind
from volplane.kube.objects import Claim, KubeObject, Pod

__all__ = ["SCENARIOS"]

HEALTHY = [f"healthy-{number}.volplane.dev" for number in range(4)]
HANGING, FAILING = "hanging.volplane.dev", "failing.volplane.dev"
OURS = "volplane-system"
RATE = 40.0
SECONDS = 15.0
RATIO = 2.0
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps", True, KubeObject)

Disturb = Callable[[Client], AsyncIterator[None]]


async def _stream(client: Client, prefix: str) -> list[float]:
    """Latencies in seconds, ascending, of claims that are created at a fixed rate."""
    count = int(RATE * SECONDS)
    begun: dict[str, float] = {}
    seen = clients.BoundClaims(client, count, prefix=prefix)
    watching = asyncio.create_task(seen.follow((await client.list(CLAIMS, namespace="default")).version))

    async def create(number: int) -> None:
        name = f"{prefix}-{number:06}"
        begun[name] = time.perf_counter()
        await client.create(CLAIMS, claim(name, f"class-{number % len(HEALTHY)}"))

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, start + number / RATE - time.perf_counter()))
            group.create_task(create(number))
    await watching
    return seen.latencies(begun)


@asynccontextmanager
async def _nothing(_: Client) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _claims_of(client: Client, storage_class: str, count: int) -> AsyncIterator[None]:
    await clients.each(count, lambda n: client.create(CLAIMS, claim(f"{storage_class}-{n:06}", storage_class)))
    await asyncio.sleep(2.0)
    yield


@asynccontextmanager
async def _hanging(client: Client) -> AsyncIterator[None]:
    async with _claims_of(client, "hanging", 100):
        yield


@asynccontextmanager
async def _failing(client: Client) -> AsyncIterator[None]:
    async with _claims_of(client, "failing", 10_000):
        while any(item.annotation(names.INTENT) is None for item in await _claims_named(client, "failing")):
            await asyncio.sleep(2.0)
        await asyncio.sleep(2.0)
        yield


async def _claims_named(client: Client, prefix: str) -> list[Claim]:
    return [item for item in (await client.list(CLAIMS)).items if item.name.startswith(prefix)]


@asynccontextmanager
async def _burst(client: Client) -> AsyncIterator[None]:
    async with _claims_of(client, "failing", 10_000):
        yield


async def _patching(client: Client, make: Callable[[str], Awaitable[Any]], kind: Kind[Any], victim: int) -> None:
    """Patch one new object after the other, 20 times each, until cancelled."""
    turn = 0
    while True:
        name = f"victim-{victim}-{turn}"
        await make(name)
        for number in range(20):
            await client.patch(kind, f"default/{name}", {"metadata": {"labels": {"storm": str(number)}}})
            await asyncio.sleep(0.1)
        turn += 1


@asynccontextmanager
async def _storming(client: Client, kind: Kind[Any], make: Callable[[str], Awaitable[Any]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_patching(client, make, kind, victim)) for victim in range(20)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


@asynccontextmanager
async def _storm(client: Client) -> AsyncIterator[None]:
    async with _storming(client, CLAIMS, lambda name: client.create(CLAIMS, claim(name, "class-0"))):
        yield


@asynccontextmanager
async def _storm_elsewhere(client: Client) -> AsyncIterator[None]:
    def make(name: str) -> Awaitable[Any]:
        body = CONFIG_MAPS.body(metadata={"name": name, "namespace": "default"}, data={"a": "b"})
        return client.create(CONFIG_MAPS, body)

    async with _storming(client, CONFIG_MAPS, make):
        yield


async def _end_pods(client: Client, ended: dict[str, str]) -> None:
    """End scrubber pods after 50 ms, as a node would that has nothing to scrub. ended: pod uid -> name."""

    async def end(pod: Pod) -> None:
        await asyncio.sleep(0.05)
        try:
            await client.patch(PODS, pod.key, {"status": {"phase": "Succeeded"}}, subresource="status")
        except ApiError as error:
            raise SystemExit(f"pod {pod.key}: {error}") from error

    async with asyncio.TaskGroup() as group, client.watch(PODS, version=0, namespace=OURS, seconds=1800) as changes:
        async for change in changes:
            pod = change.object
            started = pod is not None and not pod.spec.scheduling_gates and change.type != "DELETED"
            if pod is not None and started and pod.uid not in ended:
                ended[pod.uid] = pod.name
                group.create_task(end(pod))


@asynccontextmanager
async def _recycles(client: Client) -> AsyncIterator[None]:
    count = 100
    await clients.each(count, lambda n: client.create(VOLUMES, volume(f"volume-{n:06}", "Recycle")))
    await clients.each(count, lambda n: client.create(CLAIMS, claim(f"static-{n:06}")))
    await clients.until_phase(client, "Bound", count)
    ended: dict[str, str] = {}
    node = asyncio.create_task(_end_pods(client, ended))
    begun = time.perf_counter()

    async def scrubbed() -> float:
        await clients.until_phase(client, "Available", count)
        return time.perf_counter() - begun

    await clients.each(count, lambda n: client.delete(CLAIMS, f"default/static-{n:06}"))
    scrubbing = asyncio.create_task(scrubbed())
    yield
    print(f"  {count} volumes were scrubbed within {await scrubbing:.1f} s by {len(set(ended.values()))} pods")
    node.cancel()
    await asyncio.wait([node])


SCENARIOS: dict[str, tuple[Any, Any]] = {
    "hanging": (_nothing, _hanging),
    "failing": (_nothing, _failing),
    "burst": (_nothing, _burst),
    "storm": (_storm_elsewhere, _storm),
    "recycles": (_nothing, _recycles),
}
"""Name -> (what happens while undisturbed, what happens while disturbed)."""


async def _compare(client: Client, scenario: str) -> tuple[list[float], list[float]]:
    for number, driver in enumerate(HEALTHY):
        await clients.create_class(client, f"class-{number}", driver)
    await clients.create_class(client, "hanging", HANGING)
    await clients.create_class(client, "failing", FAILING)
    calm, disturbed = SCENARIOS[scenario]
    await _stream(client, "warm")
    async with calm(client):
        undisturbed = await _stream(client, "calm")
    async with disturbed(client):
        return undisturbed, await _stream(client, "rough")


def measure(scenario: str) -> dict[str, float]:
    """One run in fresh processes."""
    drivers = [*(f"{name}=memory" for name in HEALTHY), f"{HANGING}=hanging", f"{FAILING}=failing"]
    drivers += ["memory.volplane.dev=memory"]
    options = [text for driver in drivers for text in ("--driver", driver)]

    async def main(kubeconfig: Path) -> tuple[list[float], list[float]]:
        async with clients.connected(kubeconfig) as client:
            return await _compare(client, scenario)

    with tempfile.TemporaryDirectory() as name:
        kubeconfig = Path(name) / "kubeconfig"
        with processes.server(kubeconfig), processes.controller(kubeconfig, *options, "--timeout", "5") as run:
            undisturbed, disturbed = asyncio.run(main(kubeconfig))
            memory = run.usage().memory
    parts = {"calm": undisturbed, "rough": disturbed}
    figures = {f"{which}_p{part}_ms": _percentile(values, part) for which, values in parts.items() for part in (50, 99)}
    return {**figures, "ratio": figures["rough_p99_ms"] / figures["calm_p99_ms"], "memory_mib": memory / 2**20}


def _percentile(ascending: list[float], part: int) -> float:
    return ascending[min(len(ascending) - 1, len(ascending) * part // 100)] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=tuple(SCENARIOS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep the figures of every run in this file")
    chosen = parser.parse_args()
    busy = processes.load()
    figures = [measure(chosen.scenario) for _ in range(chosen.runs)]
    median = {name: statistics.median(one[name] for one in figures) for name in figures[0]}
    processes.report(
        f"{chosen.scenario}, median of {chosen.runs} ({processes.machine()}; {busy})",
        {
            "undisturbed: median, ms": median["calm_p50_ms"],
            "undisturbed: 99th percentile, ms": median["calm_p99_ms"],
            "disturbed: median, ms": median["rough_p50_ms"],
            "disturbed: 99th percentile, ms": median["rough_p99_ms"],
            f"ratio of the 99th percentiles (at most {RATIO:g})": median["ratio"],
            "controller memory, MiB": median["memory_mib"],
        },
    )
    processes.keep(chosen.json, figures)


if __name__ == "__main__":
    main()
