"""Claims of one namespace deleted at once, beside pods that use others: time, CPU, and live lists of pods.

    python -m bench.deletions 1000 [--pods 1000] [--runs 3] [--json FILE]

A claim may go only once a live list has shown that no pod uses it. A list is long where there are many pods, so the
claims that wait at the same time share one. COUNT claims are provisioned by a backend in memory; each pod has a claim
of its own. Then all COUNT claims are deleted while the controllers are paused (SIGSTOP). After SIGCONT, time is
measured until their volumes are gone, and CPU until the controllers are idle. Figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from bench import clients, processes
from bench.claims import PASSES, REQUESTS, median_of
from bench.objects import NAMESPACE, claim, claim_name

from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES

__all__: list[str] = []

LISTS = 'rest_client_requests_total{code="200",method="list",resource="pods"}'
READS = 'rest_client_requests_total{code="404",method="get",resource="persistentvolumeclaims"}'


async def _pod(client: Client, number: int) -> None:
    """A pod on a node that uses the claim of this number."""
    mounted = {"name": "data", "persistentVolumeClaim": {"claimName": claim_name(number)}}
    spec = {"nodeName": "node", "containers": [{"name": "c", "image": "i"}], "volumes": [mounted]}
    await client.create(PODS, PODS.body(metadata={"name": f"pod-{number:06}", "namespace": NAMESPACE}, spec=spec))


async def _measure(client: Client, run: processes.Controller, count: int, pods: int) -> dict[str, float]:
    await clients.create_class(client)
    seen = clients.BoundClaims(client, count + pods)
    await clients.each(count + pods, lambda number: client.create(CLAIMS, claim(claim_name(number), "memory")))
    await seen.follow(0)
    await clients.each(pods, lambda number: _pod(client, count + number))
    before, counted, written = await asyncio.to_thread(run.quiet), run.metrics(), run.writes()
    passed, asked = run.total(PASSES), run.total(REQUESTS)
    run.pause()
    await clients.each(count, lambda number: client.delete(CLAIMS, f"{NAMESPACE}/{claim_name(number)}"))
    version = (await client.list(VOLUMES)).version
    begun = time.perf_counter()
    run.resume()
    await clients.until_gone(client, version, count)
    took = time.perf_counter() - begun
    after, total, wrote = await asyncio.to_thread(run.quiet), run.metrics(), run.writes()
    return {
        "seconds": took,
        "gone_per_second": count / took,
        "cpu_ms": (after.cpu - before.cpu) / count * 1000,
        "pod_lists": total.get(LISTS, 0.0) - counted.get(LISTS, 0.0),
        "claim_reads": (total.get(READS, 0.0) - counted.get(READS, 0.0)) / count,
        "writes": (wrote[0] - written[0]) / count,
        "requests": (run.total(REQUESTS) - asked) / count,
        "passes": (run.total(PASSES) - passed) / count,
    }


def measure(count: int, pods: int) -> dict[str, float]:
    """One measurement in fresh processes."""

    async def main(kubeconfig: Path, run: processes.Controller) -> dict[str, float]:
        async with clients.connected(kubeconfig) as client:
            return await _measure(client, run, count, pods)

    with tempfile.TemporaryDirectory(prefix="volplane-bench-") as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        with processes.server(kubeconfig), processes.controller(kubeconfig) as run:
            return asyncio.run(main(kubeconfig, run))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep the figures of every run in this file")
    chosen = parser.parse_args()
    busy = processes.load()
    figures = [measure(chosen.count, chosen.pods) for _ in range(chosen.runs)]
    rows = {
        "seconds until the last volume was gone": "seconds",
        "volumes gone/s": "gone_per_second",
        "controller CPU per claim, ms": "cpu_ms",
        "live lists of pods": "pod_lists",
        "live reads of claims, per claim": "claim_reads",
        "API writes per claim": "writes",
        "requests per claim": "requests",
        "passes of the controllers per claim": "passes",
    }
    median = median_of(figures)
    processes.report(
        f"{chosen.count} claims deleted at once beside {chosen.pods} pods, median of {chosen.runs} "
        f"({processes.machine()}; {busy})",
        {text: median[name] for text, name in rows.items()},
    )
    processes.keep(chosen.json, figures)
