"""Static claims a second on an API server that exists, and the most that any controller could have there.

    python -m bench.cluster KUBECONFIG 1000 [--runs 3] [--who client,volplane]
    python -m bench.cluster KUBECONFIG 1000 --who stock

The server is a real one or the embedded one, for this alone. Free volumes are made first. Then claims are created, 50
at a time, and watched until the last is Bound: the time from the first creation to then counts.
`volplane`: the controllers run (`--controllers all`); no other binder may. `client`: nobody runs; this process sends
the four writes of each bind itself as soon as the claim is created, and reads two watches and throws them away: what
any controller must share the server with. `stock`: the binder of the cluster does it.
Those of `--who` alternate; figures are medians, the share is the median of the pairs' shares.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import clients, processes
from bench.floor import bind
from bench.objects import NAMESPACE, claim, claim_name, volume, volume_name

from volplane.errors import ApiNotFound
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.transport import Request

__all__: list[str] = []

WHO = ("client", "volplane", "stock")
SECONDS = 120.0


async def _make_volumes(client: Client, count: int) -> None:
    await clients.each(count, lambda number: client.create(VOLUMES, volume(volume_name(number))))


async def _bound(client: Client, count: int) -> float:
    """Create the claims and wait until all are bound; the seconds that took."""
    version = (await client.list(CLAIMS, namespace=NAMESPACE)).version
    bound = clients.BoundClaims(client, count)
    following = asyncio.ensure_future(bound.follow(version))
    begun = time.perf_counter()
    await clients.each(count, lambda number: client.create(CLAIMS, claim(claim_name(number))))
    await following
    return time.perf_counter() - begun


async def _by_controllers(kubeconfig: Path, count: int) -> float:
    """With whoever is the binder now."""
    async with clients.connected(kubeconfig) as client:
        await _make_volumes(client, count)
        await clients.until_phase(client, "Available", count)
        return await _bound(client, count)


async def _by_client(kubeconfig: Path, count: int) -> float:
    """With nobody as the binder."""
    transport = await HttpTransport.connect(kubeconfig)
    async with clients.connected(kubeconfig) as client:
        await _make_volumes(client, count)
        version = (await client.list(CLAIMS)).version
        watches = [asyncio.ensure_future(_thrown_away(client, kind, version)) for kind in (CLAIMS, VOLUMES)]

        async def one(number: int) -> None:
            made = await client.create(CLAIMS, claim(claim_name(number)))
            for write in bind(number, made.uid):
                headers = {"content-type": write.content_type}
                answer = await transport.send(
                    Request(method=write.method, path=write.path, headers=headers, body=write.body, seconds=SECONDS)
                )
                if answer.status >= 300:
                    raise SystemExit(f"{write.method} {write.path}: {answer.status} {answer.body[:200]!r}")

        begun = time.perf_counter()
        await clients.each(count, one)
        seconds = time.perf_counter() - begun
        for watch in watches:
            watch.cancel()
        await asyncio.wait(watches)
        await transport.close()
        return seconds


async def _thrown_away(client: Client, kind: Kind[Any], version: int) -> None:
    async with client.watch(kind, version=version, seconds=3600) as changes:
        async for _ in changes:
            pass


async def _remove(kubeconfig: Path, count: int) -> None:
    """All that was made, finalizers too: nobody may run who takes them off."""
    async with clients.connected(kubeconfig) as client:

        async def one(number: int) -> None:
            made: tuple[tuple[Kind[Any], str], ...] = (
                (CLAIMS, f"{NAMESPACE}/{claim_name(number)}"),
                (VOLUMES, volume_name(number)),
            )
            for kind, key in made:
                with suppress(ApiNotFound):
                    await client.delete(kind, key)
                    await client.patch(kind, key, {"metadata": {"finalizers": None}})

        await clients.each(count, one)


def _measure(who: str, kubeconfig: Path, count: int) -> tuple[float, float]:
    """(claims a second, CPU of the controllers or of the client in ms per claim; 0 = unknown)."""
    cpu = 0.0
    if who == "volplane":
        with processes.controller(kubeconfig) as controller:
            before = controller.quiet().cpu
            seconds = asyncio.run(_by_controllers(kubeconfig, count))
            cpu = controller.quiet().cpu - before
    elif who == "client":
        before = time.process_time()
        seconds = asyncio.run(_by_client(kubeconfig, count))
        cpu = time.process_time() - before
    else:
        seconds = asyncio.run(_by_controllers(kubeconfig, count))
    asyncio.run(_remove(kubeconfig, count))
    return count / seconds, 1000 * cpu / count


def main(kubeconfig: Path, count: int, who: list[str], runs: int) -> None:
    """Measure in turn and print."""
    rates: dict[str, list[float]] = {each: [] for each in who}
    for _ in range(runs):
        for each in who:
            rate, cpu = _measure(each, kubeconfig, count)
            rates[each].append(rate)
            print(f"{each:9} {rate:8.1f} claims/s  {cpu:6.2f} ms of CPU a claim  {processes.load()}", flush=True)
    for each, found in rates.items():
        print(f"{each:9} median {statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})")
    if "client" in rates and "volplane" in rates:
        shares = [ours / most for ours, most in zip(rates["volplane"], rates["client"], strict=True)]
        print(f"share of the most: median {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--who", default="client,volplane", help=f"some of {', '.join(WHO)}")
    chosen = parser.parse_args()
    names = [name for name in chosen.who.split(",") if name]
    if unknown := sorted(set(names) - set(WHO)):
        parser.error(f"--who: {unknown[0]!r} is none of {', '.join(WHO)}")
    main(chosen.kubeconfig, chosen.count, names, chosen.runs)
