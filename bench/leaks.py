"""Memory and CPU of a leak check of many assets, each with its volume.

    python -m bench.leaks [--assets 1000000]

The caches are filled by hand in this process, which then runs one leak check: the driver lists every asset, in pages of
1,000. Printed is what the check takes beyond the caches: the highest resident memory, and the longest step of the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
from bench import processes
from bench.counting import LoopSteps, percentile
from bench.objects import DRIVER, bound_volume

from volplane import AssetPage, DriverInfo, ListedAsset, Ownership
from volplane.drivers.driver import DriverView
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, NODES, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Volume
from volplane.leaks.check import LeakCheck

__all__ = ["measure"]

PAGE, GIB, BUDGET = 1_000, 2**30, 50.0


class _Listing:
    """Answers `list_assets` for volumes of `bench.objects`."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def call(self, _driver: DriverView, request: Any) -> AssetPage:
        await asyncio.sleep(0)
        first = int(request.page or 0)
        last = min(first + PAGE, self._count)
        return AssetPage(
            assets=tuple(_asset(number) for number in range(first, last)),
            next_page=str(last) if last < self._count else None,
        )


def _asset(number: int) -> ListedAsset:
    claim = f"deadbeef-1111-4222-8333-{number:012d}"
    owner = Ownership(cluster_id="bench", claim_uid=claim, volume_name=f"pvc-{claim}")
    return ListedAsset(
        handle=f"handle-{number}", name=owner.volume_name, capacity_bytes=(1 + number % 40) * GIB, owner=owner
    )


def _check(count: int) -> tuple[LeakCheck, DriverView]:
    info = DriverInfo(version="1", marks=True)
    view = DriverView(name=DRIVER, backend="bench", info=info, hooks=frozenset({"list_assets"}))
    volumes: Cache[Volume] = Cache(VOLUMES)
    for number in range(count):
        body = bound_volume(number)
        body["metadata"] |= {"resourceVersion": str(number + 1)}
        body["metadata"].pop("managedFields")
        volumes.observe(msgspec.convert(body, Volume))
    cluster: Any = SimpleNamespace(
        cluster_id="bench", claims=Cache(CLAIMS), volumes=volumes, nodes=Cache(NODES), classes=Cache(STORAGE_CLASSES)
    )
    cluster.drivers = SimpleNamespace(get=lambda _name: view)
    cluster.fence, cluster.node_name = (lambda: ""), ""
    deps: Any = SimpleNamespace(
        cluster=cluster,
        metrics=None,
        drivers=SimpleNamespace(names=lambda: {DRIVER}),
        context=lambda _driver: None,
        hooks=_Listing(count),
        listing={DRIVER: asyncio.Semaphore(1)},
    )
    return LeakCheck(deps, Random(0)), view


def _forget_peak() -> None:
    """Let the kernel count the highest memory from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(count: int) -> dict[str, float]:
    """Fill the caches, check once, and return the figures."""

    async def main() -> dict[str, float]:
        check, view = _check(count)
        gc.collect()
        gc.freeze()
        _forget_peak()
        before, cpu, steps = processes.Usage.of(os.getpid()).memory, time.process_time(), LoopSteps()
        with steps.measured():
            complete = await asyncio.create_task(check.check(view))
        if not complete or check.observations.findings():
            raise SystemExit(check.status[DRIVER].error or check.observations.findings()[0].detail)
        peak = processes.Usage.of(os.getpid()).peak
        return {
            f"MiB more at the peak (at most {BUDGET:g} for 1,000,000)": (peak - before) / 2**20,
            "CPU seconds": time.process_time() - cpu,
            "steps of the loop, p99, ms": percentile(steps.milliseconds, 99),
            "the longest, ms": max(steps.milliseconds),
        }

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=int, default=1_000_000)
    chosen = parser.parse_args()
    busy = processes.load()
    figures = measure(chosen.assets)
    processes.report(f"leak check of {chosen.assets:,} assets ({processes.machine()}; {busy})", figures)


if __name__ == "__main__":
    main()
