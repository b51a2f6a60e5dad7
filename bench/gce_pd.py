"""The time that lives of disks take at Compute Engine's published rates, and their calls, on a mocked Compute Engine.

    python -m bench.gce_pd [--disks 1000] [--in-flight 100] [--rate 25] [--json]

Each disk is made, attached, detached and deleted. Everything is in one process and in virtual time: hooks are called as
volplane calls them, one thread is enough for all, and no call waits. Operations take 1 s, those of machines 2 s. The
rate quotas are those that Compute Engine publishes, 1,500 changes a minute. The limit is what they allow: a change each
1/25 s, and the seconds of the last life; or the places in flight, if they are fewer.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from volplane import (
    AttachRequest,
    ClaimIdentity,
    Context,
    DeleteRequest,
    DetachRequest,
    InProgress,
    NodeIdentity,
    Ownership,
    ProvisionRequest,
    StartRequest,
    Throttled,
    VolumeIdentity,
)
from volplane_gce_pd import GcePdBackend
from volplane_gce_pd.testing import COMPUTE_QUOTAS, Behaviour, FakeCompute, InProcess
from volplane_testing.cloud import SteppedClock

GIB = 1 << 30
ZONE = "topology.gke.io/zone"
CHANGES = 4
"""In the life of a disk: made, attached, detached, deleted."""
LIFE_SECONDS = 6.0
MINUTE = 60.0
CONTEXT = Context(driver="pd.volplane.dev", cluster_id="bench")


def demand(number: int, zone: str) -> ProvisionRequest:
    uid = f"00000000-0000-4000-8000-{number:012d}"
    owner = Ownership(cluster_id="bench", claim_uid=uid, volume_name=f"pvc-{uid}")
    return ProvisionRequest(
        context=CONTEXT,
        name=owner.volume_name,
        capacity_bytes=GIB,
        owner=owner,
        claim=ClaimIdentity(namespace="default", name=f"data-{number}", uid=uid),
        segment={ZONE: zone},
    )


def life(
    backend: GcePdBackend, number: int, node: NodeIdentity, zone: str
) -> Generator[tuple[Callable[[Any], Any], Any], Any, None]:
    """Yield hooks and requests; each result is sent back."""
    request = demand(number, zone)
    asset = yield backend.provision, request
    volume = VolumeIdentity(
        name=request.name,
        uid=request.claim.uid,
        handle=asset.handle,
        source=asset.source,
        capacity_bytes=asset.capacity_bytes,
        owner=request.owner,
    )
    yield backend.attach, AttachRequest(context=CONTEXT, volume=volume, node=node)
    yield backend.detach, DetachRequest(context=CONTEXT, volume=volume, node=node)
    yield backend.delete, DeleteRequest(context=CONTEXT, volume=volume)


def live(clock: SteppedClock, lives: Sequence[Any], in_flight: int) -> None:
    """Live all of them, `in_flight` at a time; a hook is called again when it asks for that."""
    waiting = iter(enumerate(lives))
    due: list[tuple[float, int, Any, Any, Any]] = []

    def begin() -> None:
        for number, each in waiting:
            heapq.heappush(due, (clock.now, number, each, *next(each)))
            return

    for _ in range(in_flight):
        begin()
    while due:
        moment, number, each, hook, request = heapq.heappop(due)
        clock.advance(max(moment - clock.now, 0.0))
        try:
            result = hook(request)
        except Throttled as error:
            heapq.heappush(due, (clock.now + (error.retry_after or 0.5), number, each, hook, request))
            continue
        if isinstance(result, InProgress):
            later = replace(request, context=replace(request.context, state=dict(result.state)))
            heapq.heappush(due, (clock.now + result.retry_after, number, each, hook, later))
            continue
        try:
            heapq.heappush(due, (clock.now, number, each, *each.send(result)))
        except StopIteration:
            begin()


def measure(disks: int, in_flight: int, rate: int) -> dict[str, Any]:
    """Live all lives, from the beginning of a minute of the quotas; returns the figures."""
    clock = SteppedClock()
    fake = FakeCompute(Behaviour(calls_per_minute=COMPUTE_QUOTAS), clock=clock)
    behaviour = fake.behaviour
    options = {"project": behaviour.project, "region": behaviour.region, "mutations_per_second": rate}
    backend = GcePdBackend({**options, "mutation_burst": 1}, connect_to=InProcess(fake), clock=clock)
    backend.start(StartRequest(context=CONTEXT))
    lives, machines = [], set()
    for number in range(disks):
        zone = behaviour.zones[number % len(behaviour.zones)]
        name = f"node-{number % in_flight}-{zone}"  # A machine works off its operations one after another.
        if name not in machines:
            machines.add(name)
            fake.add_instance(name, zone)
        node = NodeIdentity(name=name, instance_id=f"gce://{behaviour.project}/{zone}/{name}")
        lives.append(life(backend, number, node, zone))
    clock.advance(MINUTE - clock.now % MINUTE)
    before, began, cpu = dict(fake.calls), clock.now, time.process_time()
    live(clock, lives, in_flight)
    limit = max((CHANGES * disks - 1) / 25.0 + LIFE_SECONDS, disks * LIFE_SECONDS / in_flight)
    calls = {action: count - before.get(action, 0) for action, count in fake.calls.items()}
    reads = {action: count for action, count in calls.items() if count and action.endswith(("get", "ist"))}
    return {
        "disks": disks,
        "in_flight": in_flight,
        "rate": rate,
        "limit_seconds": round(limit, 2),
        "seconds": round(clock.now - began, 2),
        "of_limit": round((clock.now - began) / limit, 3),
        "reads_per_disk_and_change": round(sum(reads.values()) / disks / CHANGES, 4),
        "reads": reads,
        "changes": {action: count for action, count in calls.items() if count and action not in reads},
        "cpu_ms_per_disk": round(1_000 * (time.process_time() - cpu) / disks, 2),
        "refused": dict(fake.refused),
        "left": len(fake.disks),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disks", type=int, default=1_000)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--rate", type=int, default=25, help="changes a second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    report = measure(given.disks, given.in_flight, given.rate)
    if given.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:28} {value}")
    return int(report["left"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
