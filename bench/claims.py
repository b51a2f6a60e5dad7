"""Claims bound or provisioned per second, their CPU cost, and the share of what a bare client reaches.

    python -m bench.claims static 1000
    python -m bench.claims dynamic 10000 --runs 3 --json figures.json
    python -m bench.claims life 1000 --backend hostpath --root DIRECTORY
    python -m bench.claims static 1000 --data
    python -m bench.claims static 1000 --write-ms 1

Three processes: `volplane apiserver --memory` (--data: it answers a write after it is on disk, as etcd does;
--write-ms: each write costs it so much more CPU), the controllers (`--controllers all`) with an in-memory backend, and
this one, which creates the objects and watches the claims. All objects are created while the controllers are paused
(SIGSTOP). After SIGCONT, time is measured until the last claim is Bound, and CPU until they are idle, events included.
`life` is dynamic, then deletes all claims: time until the last claim is Bound, then from the first deletion until the
last volume is gone; CPU for both.
The floor is measured on a fresh server with the same objects: a bare client sends the same writes, with as many in
flight (`bench.floor`), over the same transport, and as many events as the controllers sent until the last claim was
Bound; then another one over a session of aiohttp, for its CPU alone. They alternate `--runs` times. Figures are
medians; the share is the median of the pairs' shares.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench import clients, processes
from bench.objects import DRIVER, NAMESPACE, claim, claim_name, volume, volume_name

from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES

__all__ = ["BUDGETS", "PASSES", "REQUESTS", "floor", "median_of", "ours"]

BUDGETS = {
    "static": {"cpu_ms": 1.2, "writes": 4.0},
    "dynamic": {"cpu_ms": 2.0, "writes": 5.0},
    "life": {"cpu_ms": 4.0, "writes": 9.0},
}
SHARE = 0.75
TIMES_FLOOR = 1.5
PASSES, REQUESTS = "volplane_reconcile_total", "rest_client_requests_total"
KUBECONFIG = "kubeconfig"
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Server:
    """The API server. durable: a write is on disk before it is answered. write_ms: see `bench.server`."""

    durable: bool = False
    write_ms: float = 0.0

    def started(self, directory: Path) -> AbstractContextManager[processes.Process]:
        """Run it with its files in `directory`."""
        special = {"write_ms": self.write_ms} if self.write_ms else {}
        return processes.server(directory / KUBECONFIG, directory / "data" if self.durable else None, **special)


PLAIN = Server()


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The backend of the controllers. root: where hostpath keeps its directories; None: a new one for each run."""

    name: str = "memory"
    root: Path | None = None

    def options(self) -> list[str]:
        """Of `bench.controller`."""
        options = ["--driver", f"{DRIVER}={self.name}"]
        if self.root is None:
            return options
        return [*options, "--root", tempfile.mkdtemp(prefix="volplane-bench-", dir=self.root)]


MEMORY = Backend()


async def _volumes(client: Client, count: int) -> None:
    await clients.each(count, lambda number: client.create(VOLUMES, volume(volume_name(number))))


async def _claims(client: Client, kind: str, count: int) -> None:
    storage_class = "" if kind == "static" else "memory"
    await clients.each(count, lambda number: client.create(CLAIMS, claim(claim_name(number), storage_class)))


async def _ours(
    kind: str, count: int, client: Client, api: processes.Process, run: processes.Controller
) -> dict[str, float]:
    if kind == "static":
        await _volumes(client, count)
        await clients.until_phase(client, "Available", count)
    else:
        await clients.create_class(client)
    before, written = await asyncio.to_thread(run.quiet), run.writes()
    passed, asked = run.total(PASSES), run.total(REQUESTS)
    run.pause()
    await _claims(client, kind, count)
    seen = clients.BoundClaims(client, count)
    watching = asyncio.create_task(seen.follow((await client.list(CLAIMS)).version))
    await asyncio.sleep(0.5)
    created = api.usage()
    begun = time.perf_counter()
    run.resume()
    await watching
    took = max(seen.at.values()) - begun
    gone = await _deleted(client, count) if kind == "life" else None
    ended, in_time = api.usage(), (await asyncio.to_thread(run.writes))[1] - written[1]
    after = await asyncio.to_thread(run.quiet)
    wrote = run.writes()
    return {
        "claims_per_second": count / took,
        **({"gone_per_second": count / gone} if gone is not None else {}),
        "cpu_ms": (after.cpu - before.cpu) / count * 1000,
        "server_cpu_ms": (ended.cpu - created.cpu) / count * 1000,
        "writes": (wrote[0] - written[0]) / count,
        "events": (wrote[1] - written[1]) / count,
        "events_in_time": in_time / count,
        "requests": (run.total(REQUESTS) - asked) / count,
        "passes": (run.total(PASSES) - passed) / count,
        "memory_mib": after.memory / MIB,
        "peak_mib": after.peak / MIB,
    }


async def _deleted(client: Client, count: int) -> float:
    """Delete all claims; the seconds until no volume is left."""
    version = (await client.list(VOLUMES)).version
    begun = time.perf_counter()
    gone = asyncio.create_task(clients.until_gone(client, version, count))
    await clients.each(count, lambda number: client.delete(CLAIMS, f"{NAMESPACE}/{claim_name(number)}"))
    await gone
    return time.perf_counter() - begun


def ours(kind: str, count: int, *, server: Server = PLAIN, backend: Backend = MEMORY) -> dict[str, float]:
    """One measurement of the controllers in fresh processes."""

    async def main(kubeconfig: Path, api: processes.Process, run: processes.Controller) -> dict[str, float]:
        async with clients.connected(kubeconfig) as client:
            return await _ours(kind, count, client, api, run)

    with tempfile.TemporaryDirectory() as name:
        kubeconfig = Path(name) / KUBECONFIG
        options = backend.options()
        with server.started(Path(name)) as api, processes.controller(kubeconfig, *options) as run:
            return asyncio.run(main(kubeconfig, api, run))


async def _prepare_floor(kind: str, count: int, kubeconfig: Path) -> None:
    async with clients.connected(kubeconfig) as client:
        if kind == "static":
            await _volumes(client, count)
            available = {"status": {"phase": "Available"}}
            await clients.each(
                count, lambda number: client.patch(VOLUMES, volume_name(number), available, subresource="status")
            )
        await _claims(client, kind, count)


async def _observe(count: int, kubeconfig: Path, api: processes.Process, bare: processes.Process) -> dict[str, float]:
    async with clients.connected(kubeconfig) as client:
        seen = clients.BoundClaims(client, count)
        watching = asyncio.create_task(seen.follow((await client.list(CLAIMS)).version))
        await asyncio.sleep(0.5)
        created = api.usage()
        begun = time.perf_counter()
        bare.write("go")
        await watching
        took = max(seen.at.values()) - begun
        spent = json.loads(await asyncio.to_thread(bare.line))
        ended = api.usage()
    return {
        "floor_per_second": count / took,
        "floor_cpu_ms": spent["cpu"] / count * 1000,
        "floor_server_cpu_ms": (ended.cpu - created.cpu) / count * 1000,
    }


def floor(
    kind: str, count: int, *, events: int = 0, server: Server = PLAIN, with_aiohttp: bool = False
) -> dict[str, float]:
    """One measurement of the bare client in fresh processes. events: how many it sends, besides the writes."""
    options = ["--events", str(events), *(["--aiohttp"] if with_aiohttp else [])]
    with tempfile.TemporaryDirectory() as name:
        kubeconfig = Path(name) / KUBECONFIG
        with server.started(Path(name)) as api:
            asyncio.run(_prepare_floor(kind, count, kubeconfig))
            with processes.child("-m", "bench.floor", kind, str(count), str(kubeconfig), *options) as bare:
                bare.line()
                return asyncio.run(_observe(count, kubeconfig, api, bare))


def measure(
    kind: str, count: int, runs: int, *, server: Server = PLAIN, backend: Backend = MEMORY
) -> list[dict[str, float]]:
    """Measure controllers and floor alternately; a whole life has no floor."""
    figures = []
    for _ in range(runs):
        pair = ours(kind, count, server=server, backend=backend)
        figures.append(pair)
        if kind == "life":
            continue
        events = round(pair["events_in_time"] * count)
        pair |= floor(kind, count, events=events, server=server)
        pair["aiohttp_cpu_ms"] = floor(kind, count, events=events, server=server, with_aiohttp=True)["floor_cpu_ms"]
        pair["share_of_floor"] = pair["claims_per_second"] / pair["floor_per_second"]
        pair["cpu_over_floor"] = pair["cpu_ms"] / pair["floor_cpu_ms"]
    return figures


def median_of(figures: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(one[name] for one in figures) for name in figures[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("static", "dynamic", "life"))
    parser.add_argument("count", type=int)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--data", action="store_true", help="the server is durable: every write waits for the disk")
    parser.add_argument("--write-ms", type=float, default=0.0, help="CPU that each write costs the server besides")
    parser.add_argument("--backend", choices=("memory", "hostpath"), default="memory")
    parser.add_argument("--root", type=Path, help="directory below which the backend hostpath keeps its own")
    parser.add_argument("--json", type=Path, help="keep the figures of every run in this file")
    chosen = parser.parse_args()
    if chosen.data and chosen.write_ms:
        parser.error("--data and --write-ms exclude each other")
    if chosen.backend == "hostpath" and chosen.root is None:
        parser.error("--backend hostpath needs --root")
    server = Server(durable=chosen.data, write_ms=chosen.write_ms)
    busy = processes.load()
    figures = measure(
        chosen.kind, chosen.count, chosen.runs, server=server, backend=Backend(name=chosen.backend, root=chosen.root)
    )
    median = median_of(figures)
    budget = BUDGETS[chosen.kind]
    rows = {
        "claims/s": ("claims_per_second", ""),
        "volumes gone/s": ("gone_per_second", ""),
        "claims/s of a bare client": ("floor_per_second", ""),
        "share of that": ("share_of_floor", f" (at least {SHARE})"),
        "controller CPU per claim, ms": ("cpu_ms", f" (at most {budget['cpu_ms']})"),
        "bare client's CPU per claim, ms": ("floor_cpu_ms", ""),
        "CPU, times that of the bare client": ("cpu_over_floor", f" (static: at most {TIMES_FLOOR})"),
        "CPU of a bare client over aiohttp, ms": ("aiohttp_cpu_ms", ""),
        "API server's CPU per claim, ms": ("server_cpu_ms", ""),
        "the same for the bare client": ("floor_server_cpu_ms", ""),
        "API writes per claim": ("writes", f" ({budget['writes']:g})"),
        "events written per claim": ("events", ""),
        "of these before the last was Bound": ("events_in_time", ""),
        "requests per claim, reads and events included": ("requests", ""),
        "passes of the controllers per claim": ("passes", ""),
        "controller memory, MiB": ("memory_mib", ""),
    }
    processes.report(
        f"{chosen.kind}, {chosen.count} claims, backend {chosen.backend}, {'durable server, ' if chosen.data else ''}"
        f"{f'{chosen.write_ms:g} ms more a write, ' if chosen.write_ms else ''}"
        f"median of {chosen.runs} ({processes.machine()}; {busy})",
        {text + bound: median[name] for text, (name, bound) in rows.items() if name in median},
    )
    processes.keep(chosen.json, figures)


if __name__ == "__main__":
    main()
