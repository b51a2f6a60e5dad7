"""The time that disks take at Compute Engine's published rates, and the calls they need, on a mocked Compute Engine.

    python -m bench.gce_pd [--disks 1000] [--rate 25] [--json]

Everything is in one process and in virtual time: hooks are called as volplane calls them, one thread is enough for all,
and no call waits. Every operation takes 1 s. Compute Engine's rate quotas are those it publishes, 1,500 changes a
minute. The limit is what they allow: a change each 1/25 s, and the second of the last operation.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from volplane import (
    Asset,
    ClaimIdentity,
    Context,
    DeleteRequest,
    InProgress,
    Ownership,
    ProvisionRequest,
    StartRequest,
    VolumeIdentity,
)
from volplane_gce_pd import GcePdBackend
from volplane_gce_pd.testing import COMPUTE_QUOTAS, Behaviour, FakeCompute, InProcess
from volplane_testing.cloud import SteppedClock

GIB = 1 << 30
ZONE = "topology.gke.io/zone"
SECONDS = 1.0
MINUTE = 60.0
CONTEXT = Context(driver="pd.volplane.dev", cluster_id="bench")


def finish_all(clock: SteppedClock, hook: Callable[[Any], Any], requests: Sequence[Any]) -> list[Any]:
    """Call the hook for every request until all are over, each again when it asks for that; results in their order."""
    due = [(clock.now, number, request) for number, request in enumerate(requests)]
    results: list[Any] = [None] * len(due)
    while due:
        moment, number, request = heapq.heappop(due)
        clock.advance(max(moment - clock.now, 0.0))
        result = hook(request)
        if not isinstance(result, InProgress):
            results[number] = result
            continue
        later = replace(request, context=replace(request.context, state=dict(result.state)))
        heapq.heappush(due, (clock.now + result.retry_after, number, later))
    return results


def demand(number: int, zones: Sequence[str]) -> ProvisionRequest:
    uid = f"00000000-0000-4000-8000-{number:012d}"
    owner = Ownership(cluster_id="bench", claim_uid=uid, volume_name=f"pvc-{uid}")
    return ProvisionRequest(
        context=CONTEXT,
        name=owner.volume_name,
        capacity_bytes=GIB,
        owner=owner,
        claim=ClaimIdentity(namespace="default", name=f"data-{number}", uid=uid),
        segment={ZONE: zones[number % len(zones)]},
    )


def deletion(request: ProvisionRequest, asset: Asset) -> DeleteRequest:
    volume = VolumeIdentity(
        name=request.name,
        uid=request.claim.uid,
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=asset.capacity_bytes,
        owner=request.owner,
    )
    return DeleteRequest(context=CONTEXT, volume=volume)


def measure(disks: int, rate: int) -> dict[str, Any]:
    """Make and delete the disks, each phase from the beginning of a minute of the quotas."""
    clock = SteppedClock()
    fake = FakeCompute(Behaviour(default_seconds=SECONDS, calls_per_minute=COMPUTE_QUOTAS), clock=clock)
    options = {"project": fake.behaviour.project, "region": fake.behaviour.region, "mutations_per_second": rate}
    backend = GcePdBackend({**options, "mutation_burst": 1}, connect_to=InProcess(fake), clock=clock)
    backend.start(StartRequest(context=CONTEXT))
    limit = (disks - 1) / 25.0 + SECONDS
    report: dict[str, Any] = {"disks": disks, "rate": rate, "limit_seconds": round(limit, 2)}
    demands = [demand(number, fake.behaviour.zones) for number in range(disks)]
    assets: list[Asset] = []
    for phase in ("create", "delete"):
        clock.advance(MINUTE - clock.now % MINUTE)
        before, began, cpu = dict(fake.calls), clock.now, time.process_time()
        if phase == "create":
            assets = finish_all(clock, backend.provision, demands)
        else:
            finish_all(clock, backend.delete, [deletion(*each) for each in zip(demands, assets, strict=True)])
        calls = {action: count - before.get(action, 0) for action, count in fake.calls.items()}
        reads = sum(count for action, count in calls.items() if "Operations." in action)
        others = sum(count for action, count in calls.items() if action.endswith(("get", "ist"))) - reads
        report[phase] = {
            "seconds": round(clock.now - began, 2),
            "of_limit": round((clock.now - began) / limit, 3),
            "operation_reads_per_disk": round(reads / disks, 4),
            "other_reads_per_disk": round(others / disks, 4),
            "cpu_ms_per_disk": round(1_000 * (time.process_time() - cpu) / disks, 2),
        }
    report["refused"], report["left"] = dict(fake.refused), len(fake.disks)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disks", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=25, help="changes a second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    report = measure(given.disks, given.rate)
    if given.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
