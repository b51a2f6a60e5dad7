"""Volumes of hostpath made and deleted on a directory of this machine, hook by hook.

    python -m bench.hostpath DIRECTORY [--pairs 2000] [--threads 1 8] [--profile FILE] [--json]

Each run has a new root in the directory, which is removed afterwards. A pair is `provision` and then `delete` of an
empty volume, by the thread that takes it. Four namespaces are used. Seconds are those of a hook, from call to return.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from volplane import (
    ClaimIdentity,
    Context,
    DeleteRequest,
    InProgress,
    Ownership,
    ProvisionRequest,
    StartRequest,
    StopRequest,
    VolumeIdentity,
)
from volplane_hostpath import HostPathBackend

MIB = 1 << 20
DRIVER = "hostpath.volplane.dev"
NAMESPACES = 4
CONTEXT = Context(driver=DRIVER, cluster_id="bench")


def provision_request(number: int) -> ProvisionRequest:
    """The demand of one claim."""
    uid = f"00000000-0000-4000-8000-{number:012d}"
    name = f"pvc-{uid}"
    return ProvisionRequest(
        context=CONTEXT,
        name=name,
        capacity_bytes=MIB,
        owner=Ownership(cluster_id="bench", claim_uid=uid, volume_name=name),
        claim=ClaimIdentity(namespace=f"team-{number % NAMESPACES}", name=f"data-{number}", uid=uid),
    )


def pair(backend: HostPathBackend, number: int) -> tuple[float, float]:
    """Make a volume and delete it; returns the seconds of each."""
    request = provision_request(number)
    began = time.perf_counter()
    asset = backend.provision(request)
    made = time.perf_counter()
    if isinstance(asset, InProgress):
        raise TypeError(f"{request.name} has no source, and is not made at once")
    volume = VolumeIdentity(
        name=request.name,
        uid=f"pv-{number}",
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=asset.capacity_bytes,
        owner=request.owner,
    )
    while isinstance(backend.delete(DeleteRequest(context=CONTEXT, volume=volume)), InProgress):
        pass
    return made - began, time.perf_counter() - made


def percentile(seconds: Sequence[float], share: float) -> float:
    """Milliseconds."""
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)


def run(directory: Path, *, pairs: int, threads: int, profile: str | None) -> dict[str, Any]:
    """All pairs by so many threads on a new root."""
    with tempfile.TemporaryDirectory(prefix="volplane-bench-", dir=directory) as root:
        backend = HostPathBackend({"root": root, "node_name": "node-a", "overcommit_percent": 100_000})
        backend.start(StartRequest(context=CONTEXT))
        for number in range(NAMESPACES):
            # One volume stays in every namespace: its directory is not made and removed again by every pair.
            backend.provision(provision_request(number))
        profiler = cProfile.Profile() if profile else None
        profiled = threading.Lock()

        def timed(number: int) -> tuple[float, float]:
            if profiler is None or not profiled.acquire(blocking=False):
                return pair(backend, number)
            try:
                return profiler.runcall(pair, backend, number)
            finally:
                profiled.release()

        cpu, began = time.process_time(), time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            lives = list(pool.map(timed, range(NAMESPACES, NAMESPACES + pairs)))
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        backend.stop(StopRequest(context=CONTEXT))
    if profiler is not None:
        pstats.Stats(profiler).dump_stats(f"{profile}.{threads}")
    made, deleted = [each[0] for each in lives], [each[1] for each in lives]
    return {
        "threads": threads,
        "pairs_per_second": round(pairs / wall),
        "cpu_ms_per_pair": round(cpu / pairs * 1000, 3),
        "provision_ms_p50": percentile(made, 0.5),
        "provision_ms_p99": percentile(made, 0.99),
        "delete_ms_p50": percentile(deleted, 0.5),
        "delete_ms_p99": percentile(deleted, 0.99),
    }


def main(arguments: Sequence[str]) -> int:
    """Print one line per count of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the root is made: its file system is measured")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--profile", help="write cProfile figures of one thread to FILE.<threads>")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    for threads in given.threads:
        report = run(given.directory, pairs=given.pairs, threads=threads, profile=given.profile)
        print(json.dumps(report) if given.json else "  ".join(f"{name} {value}" for name, value in report.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
