"""How costs grow with the number of objects: CPU per claim, memory per object, time to sync, CPU when idle.

    python -m bench.scale curve [--sizes 1000,3000,10000,30000,100000] [--runs 3] [--json FILE] [--plot FILE.svg]
    python -m bench.scale sync [--pairs 100000] [--pods 50000]
    python -m bench.scale resync [--pairs 100000] [--seconds 30]
    python -m bench.scale failover [--pairs 100000] [--seconds 60]
    python -m bench.scale idle [--pairs 10000] [--seconds 30]

curve: controller CPU per claim in a cluster with that many objects (two fifths bound volumes, two fifths their claims,
one fifth free volumes of the requested class). sync: seconds from process start to ready, and memory per object when
idle, less the memory without objects. idle: CPU while nothing changes. resync: 200 claims a second are bound while one
pass over all objects follows the other. failover: CPU of a process that waits for the Lease, and the time from when it
takes the Lease of a killed leader until it has bound a claim that waited. Objects are as in `bench.objects`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import clients, processes
from bench.claims import BUDGETS, REQUESTS
from bench.objects import claim, claim_name
from bench.plot import Line, svg

from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, LEASES

__all__ = ["curve", "failover", "idle", "point", "resync", "sync"]

LEASE = "volplane-system/volplane"

CLAIMS_MEASURED, WARMING = 1000, 200
SYNC_BUDGET, MEMORY_BUDGET, IDLE_BUDGET = 12.0, 2.5, 1.0
FIRST_PASSES = 25.0
"""Seconds after which every object of 100,000 pairs has been decided once after a start."""
RATE, LOOP_BUDGET, FOLLOWER_BUDGET, FAILOVER_BUDGET = 200, 20.0, 0.5, 3.0


@contextmanager
def _cluster(pairs: int, volumes: int = 0, pods: int = 0) -> Iterator[tuple[Path, processes.Process]]:
    with tempfile.TemporaryDirectory() as name:
        kubeconfig = Path(name) / "kubeconfig"
        with processes.server(kubeconfig, pairs=pairs, volumes=volumes, pods=pods) as api:
            yield kubeconfig, api


async def _cost(client: Client, run: processes.Controller, kind: str, count: int, prefix: str) -> float:
    """Controller CPU per claim in ms, from the created claims until the controllers are idle."""
    storage_class = "" if kind == "static" else "memory"
    names = [f"{prefix}-{claim_name(number)}" for number in range(count)]
    before = await asyncio.to_thread(run.quiet)
    run.pause()
    await clients.each(count, lambda number: client.create(CLAIMS, claim(names[number], storage_class)))
    seen = clients.BoundClaims(client, count, prefix=prefix)
    watching = asyncio.create_task(seen.follow((await client.list(CLAIMS, namespace="default")).version))
    run.resume()
    await watching
    after = await asyncio.to_thread(run.quiet)
    return (after.cpu - before.cpu) / count * 1000


def point(size: int) -> dict[str, float]:
    """Measure one size. cpu_ms and what follows: of the dynamic claims."""

    async def main(kubeconfig: Path, run: processes.Controller) -> dict[str, float]:
        async with clients.connected(kubeconfig) as client:
            await clients.create_class(client)
            # The first claims open connections; they are not measured.
            await _cost(client, run, "dynamic", WARMING, "warm")
            static = await _cost(client, run, "static", CLAIMS_MEASURED, "static")
            requests = run.total(REQUESTS)
            (received, sent), _ = run.bytes(), run.loop_latency()
            dynamic = await _cost(client, run, "dynamic", CLAIMS_MEASURED, "dynamic")
            (received_then, sent_then), latency = run.bytes(), run.loop_latency()
            return {
                "static": static,
                "dynamic": dynamic,
                "cpu_ms": dynamic,
                **latency,
                "requests": (run.total(REQUESTS) - requests) / CLAIMS_MEASURED,
                "bytes_sent": (sent_then - sent) / CLAIMS_MEASURED,
                "bytes_received": (received_then - received) / CLAIMS_MEASURED,
            }

    pairs = size * 2 // 5
    empty = _empty()
    with (
        _cluster(pairs, size - 2 * pairs + CLAIMS_MEASURED) as (kubeconfig, _),
        processes.controller(kubeconfig, "--loop") as run,
    ):
        rest = run.quiet()
        synced = {"sync_cpu_s": rest.cpu, "kb_per_object": (rest.memory - empty) / (size + CLAIMS_MEASURED) / 1000}
        latency = {f"sync_{name}": late for name, late in run.loop_latency().items()}
        return {"size": size, "objects": size, **synced, **latency, **asyncio.run(main(kubeconfig, run))}


def curve(sizes: list[int], runs: int) -> list[dict[str, float]]:
    """Measure all sizes in turn, `runs` times; returns the medians."""
    points: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(runs):
        for size in sizes:
            points[size].append(point(size))
    return [
        {name: statistics.median(point[name] for point in points[size]) for name in ("objects", "static", "dynamic")}
        for size in sizes
    ]


def _empty() -> int:
    """Resident bytes of the controllers in an empty cluster."""
    with _cluster(0) as (kubeconfig, _), processes.controller(kubeconfig) as run:
        return run.quiet().memory


def sync(pairs: int, pods: int) -> dict[str, float]:
    """How long the controllers take to list this many volumes and claims, and the memory of their caches."""
    empty = _empty()
    with _cluster(pairs, pods=pods) as (kubeconfig, api):
        server = api.usage().cpu
        begun = time.perf_counter()
        with processes.controller(kubeconfig) as run:
            took = time.perf_counter() - begun
            at_ready = run.usage()
            served = api.usage().cpu - server
            rest = run.quiet()
    return {
        "seconds": took,
        "cpu_seconds": at_ready.cpu,
        "server_cpu_seconds": served,
        "cpu_seconds_to_rest": rest.cpu,
        "kb_per_object": (rest.memory - empty) / (2 * pairs + pods) / 1000,
        "peak_kb_per_object": (rest.peak - empty) / (2 * pairs + pods) / 1000,
        "memory_mib": rest.memory / 2**20,
        "empty_mib": empty / 2**20,
    }


def idle(pairs: int, seconds: float) -> float:
    """Per cent of a core that the controllers use while nothing happens."""
    with _cluster(pairs) as (kubeconfig, _), processes.controller(kubeconfig) as run:
        before = run.quiet()
        begun = time.perf_counter()
        time.sleep(seconds)
        return (run.usage().cpu - before.cpu) / (time.perf_counter() - begun) * 100


def resync(pairs: int, seconds: float) -> dict[str, float]:
    """Latencies of the loop and of binds: without a resync, then while one follows the other."""

    async def main(kubeconfig: Path, run: processes.Controller, prefix: str) -> dict[str, float]:
        async with clients.connected(kubeconfig) as client:
            count = int(RATE * seconds)
            begun: dict[str, float] = {}
            seen = clients.BoundClaims(client, count, prefix=prefix)
            watching = asyncio.create_task(seen.follow((await client.list(CLAIMS, namespace="default")).version))

            async def create(name: str) -> None:
                begun[name] = time.perf_counter()
                await client.create(CLAIMS, claim(name, "memory"))

            run.loop_latency()
            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    await asyncio.sleep(max(0.0, start + number / RATE - time.perf_counter()))
                    group.create_task(create(f"{prefix}-{number:06}"))
            await watching
            late = seen.latencies(begun)
            return {
                **run.loop_latency(),
                "bind_p50_ms": late[len(late) // 2] * 1e3,
                "bind_p99_ms": late[-1 - len(late) // 100] * 1e3,
            }

    async def prepare(kubeconfig: Path) -> None:
        async with clients.connected(kubeconfig) as client:
            await clients.create_class(client)

    figures: dict[str, float] = {}
    with _cluster(pairs) as (kubeconfig, _):
        asyncio.run(prepare(kubeconfig))
        for name, often in (("quiet", 0.0), ("resync", 0.5)):
            with processes.controller(kubeconfig, "--loop", "--resync", str(often)) as run:
                if often:
                    time.sleep(FIRST_PASSES * pairs / 100_000)
                else:
                    run.quiet()
                found = asyncio.run(main(kubeconfig, run, name))
            figures |= {f"{name}_{key}": value for key, value in found.items()}
    return figures


def failover(pairs: int, seconds: float) -> dict[str, float]:
    """What a follower costs at rest, and how soon it works once it has the Lease of a leader that was killed."""

    async def main(kubeconfig: Path, leader: processes.Controller) -> dict[str, float]:
        async with clients.connected(kubeconfig) as client:
            await clients.create_class(client)
            former = (await client.get(LEASES, LEASE)).spec.holder_identity
            os.kill(leader.pid, signal.SIGKILL)
            await client.create(CLAIMS, claim("waits", "memory"))
            seen = clients.BoundClaims(client, 1, prefix="waits")
            watching = asyncio.create_task(seen.follow((await client.list(CLAIMS, namespace="default")).version))
            while (await client.get(LEASES, LEASE)).spec.holder_identity in (former, "", None):
                await asyncio.sleep(0.01)
            taken = time.perf_counter()
            await watching
            return {"first_bind_s": seen.at["waits"] - taken}

    with (
        _cluster(pairs) as (kubeconfig, _),
        processes.controller(kubeconfig, "--lease") as leader,
        processes.controller(kubeconfig, "--lease") as follower,
    ):
        leader.quiet()
        before, begun = follower.quiet(), time.perf_counter()
        time.sleep(seconds)
        rest = (follower.usage().cpu - before.cpu) / (time.perf_counter() - begun) * 100
        return {"follower_percent": rest, **asyncio.run(main(kubeconfig, leader))}


def _resync(options: argparse.Namespace) -> object:
    busy, figures = processes.load(), resync(options.pairs, options.seconds)
    names = {"quiet": "without a resync", "resync": "during one"}
    budgets = {"resync_loop_p99_ms": f" (at most {LOOP_BUDGET:g})"}
    processes.report(
        f"{RATE} claims a second with {options.pairs} volumes and claims ({processes.machine()}; {busy})",
        {
            f"{names[key.partition('_')[0]]}: {key.partition('_')[2]}{budgets.get(key, '')}": figures[key]
            for key in figures
        },
    )
    return figures


def _failover(options: argparse.Namespace) -> object:
    busy, figures = processes.load(), failover(options.pairs, options.seconds)
    processes.report(
        f"a follower of {2 * options.pairs} objects ({processes.machine()}; {busy})",
        {
            f"per cent of a core at rest (at most {FOLLOWER_BUDGET:g})": figures["follower_percent"],
            f"seconds from the Lease to the first bind (at most {FAILOVER_BUDGET:g})": figures["first_bind_s"],
        },
    )
    return figures


def _curve(options: argparse.Namespace) -> object:
    sizes = [int(size) for size in options.sizes.split(",")]
    points = curve(sizes, options.runs)
    print(f"controller CPU per claim, ms ({processes.machine()}; {processes.load()})")
    print(f"  {'objects':>10} {'static':>10} {'dynamic':>10}")
    for point in points:
        print(f"  {point['objects']:>10,.0f} {point['static']:>10.2f} {point['dynamic']:>10.2f}")
    if options.plot is not None:
        options.plot.write_text(_plot(points))
    return points


def _plot(points: list[dict[str, float]]) -> str:
    lines = [
        Line(name=kind, points=[(point["objects"], point[kind]) for point in points], budget=BUDGETS[kind]["cpu_ms"])
        for kind in ("static", "dynamic")
    ]
    note = f"python -m bench.scale curve; {processes.machine()}; {processes.load()}"
    return svg("What a claim costs the controllers", "objects in the cluster", "CPU per claim, ms", lines, note=note)


def _sync(options: argparse.Namespace) -> object:
    figures = sync(options.pairs, options.pods)
    processes.report(
        f"{options.pairs} volumes, claims, {options.pods} pods ({processes.machine()}; {processes.load()})",
        {
            f"seconds from start to ready (at most {SYNC_BUDGET:g})": figures["seconds"],
            "controller CPU seconds until ready": figures["cpu_seconds"],
            "API server CPU seconds until ready": figures["server_cpu_seconds"],
            "controller CPU seconds until at rest": figures["cpu_seconds_to_rest"],
            f"KB per object (at most {MEMORY_BUDGET})": figures["kb_per_object"],
            "KB per object at the peak": figures["peak_kb_per_object"],
            "MiB": figures["memory_mib"],
            "MiB without objects": figures["empty_mib"],
        },
    )
    return figures


def _idle(options: argparse.Namespace) -> object:
    share = idle(options.pairs, options.seconds)
    processes.report(
        f"at rest for {options.seconds:g} s with {options.pairs} volumes and {options.pairs} claims",
        {f"per cent of a core (at most {IDLE_BUDGET:g})": share},
    )
    return {"percent": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("curve", "sync", "idle", "resync", "failover"))
    parser.add_argument("--sizes", default="1000,3000,10000,30000,100000")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--plot", type=Path, help="draw the curve into this SVG file")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    options = parser.parse_args()
    options.pairs = options.pairs or (10_000 if options.what == "idle" else 100_000)
    acts = {"curve": _curve, "sync": _sync, "idle": _idle, "resync": _resync, "failover": _failover}
    processes.keep(options.json, acts[options.what](options))


if __name__ == "__main__":
    main()
