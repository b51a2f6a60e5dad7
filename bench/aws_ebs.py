"""The time and CPU to create, attach, detach and delete EBS volumes against a mocked EC2.

    python bench/aws_ebs.py [--volumes 1000] [--in-flight 100] [--threads 10] [--rate 5] [--burst 50] [--json]

The mocked EC2 is a process of its own, called over HTTP. Every change of state takes 1.5 s, and each mutating action
has a token bucket of `--rate` calls a second with burst `--burst`, as in EC2. The driver is configured with the same
rate and four fifths of the burst, the proportion of its defaults to EC2's. Hooks are called as volplane calls them: in
`--threads` threads, and again after `InProgress`. CPU time is that of the hooks' threads, and of the calls of boto3
within them. Then the same calls are made with boto3 alone, one after another without a pause: a call that comes after a
pause takes up to twice the CPU of one that follows another, because the processor has forgotten its code by then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from volplane import (
    AccessMode,
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
    StopRequest,
    Throttled,
    VolumeIdentity,
)
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.api import NewClient, ServiceClient, connect
from volplane_aws_ebs.settings import Settings
from volplane_aws_ebs.testing import EC2_LIMITS, Behaviour, FakeEC2, FakeEC2Server, Rate

GIB = 1 << 30
DRIVER = "ebs.volplane.dev"
REGION = "eu-test-1"
ZONE = "topology.kubernetes.io/zone"
ZONES = ("eu-test-1a", "eu-test-1b", "eu-test-1c")
PER_NODE = 20
SECONDS = 1.5
CHANGES = 4
"""Changes of state in the life of a volume: available, attached, detached, gone."""


# --- the mocked EC2, in a process of its own --------------------------------------------------------------------


def serve(channel: multiprocessing.connection.Connection, nodes: int, rate: float, burst: float) -> None:
    """Serve until the second message on the channel; answer the first one with the counted calls."""
    throttle = {
        action: Rate(burst=burst, per_second=rate) if limit.per_second < 20 else limit
        for action, limit in EC2_LIMITS.items()
    }
    fake = FakeEC2(Behaviour(region=REGION, zones=ZONES, throttle=throttle))
    instances = [(fake.add_instance(ZONES[n % len(ZONES)], instance_type="m7i.48xlarge")) for n in range(nodes)]
    with FakeEC2Server(fake) as server:
        channel.send((server.url, [(each.id, each.zone) for each in instances]))
        channel.recv()
        channel.send((dict(fake.calls), dict(fake.refused), len(fake.volumes)))
        at_once = dict.fromkeys(("create_seconds", "attach_seconds", "detach_seconds", "delete_seconds"), 0.0)
        fake.behave(throttle={}, **at_once)
        channel.recv()


class CpuTime:
    """CPU seconds of calls in several threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    def counted(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call it, and count its thread's time."""
        began = time.thread_time()
        try:
            return call(*arguments, **options)
        finally:
            took = time.thread_time() - began
            with self._lock:
                self.seconds += took


class CountedClient:
    """A client of boto3 whose calls' CPU time is counted."""

    def __init__(self, client: ServiceClient, cpu: CpuTime) -> None:
        self._client = client
        self._cpu = cpu

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._client, method)
        return partial(self._cpu.counted, call)


# --- the driver, called as volplane calls it --------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """One run of all volumes. calls: hook calls, repetitions after `InProgress` included. cpu: seconds of their threads
    within them; not what this program takes to call them.
    """

    backend: AwsEbsBackend
    threads: ThreadPoolExecutor
    nodes: Sequence[NodeIdentity]
    zones: Sequence[str]
    calls: int = 0
    retries: int = 0
    cpu: CpuTime = field(default_factory=CpuTime)
    lives: list[float] = field(default_factory=list)

    async def finish(self, hook: Callable[[Any], Any], request: Any) -> Any:
        """Call the hook until it is done. No thread waits while it is in progress."""
        loop = asyncio.get_running_loop()
        while True:
            self.calls += 1
            try:
                result = await loop.run_in_executor(self.threads, self.cpu.counted, hook, request)
            except Throttled as error:
                self.retries += 1
                await asyncio.sleep(error.retry_after or 0.5)
                continue
            if not isinstance(result, InProgress):
                return result
            request = replace(request, context=replace(request.context, state=dict(result.state)))
            await asyncio.sleep(result.retry_after)

    async def life(self, number: int) -> None:
        """Create a volume, attach, detach and delete it."""
        began = time.monotonic()
        node, zone = self.nodes[number % len(self.nodes)], self.zones[number % len(self.nodes)]
        uid = f"00000000-0000-4000-8000-{number:012d}"
        owner = Ownership(cluster_id="bench", claim_uid=uid, volume_name=f"pvc-{uid}")
        context = Context(driver=DRIVER, cluster_id="bench")
        demand = ProvisionRequest(
            context=context,
            name=owner.volume_name,
            capacity_bytes=GIB,
            owner=owner,
            claim=ClaimIdentity(namespace="default", name=f"data-{number}", uid=uid),
            segment={ZONE: zone},
            access_modes=(AccessMode.READ_WRITE_ONCE,),
        )
        asset = await self.finish(self.backend.provision, demand)
        volume = VolumeIdentity(
            name=owner.volume_name,
            uid=uid,
            handle=asset.handle,
            source=asset.source,
            capacity_bytes=asset.capacity_bytes,
            owner=owner,
        )
        await self.finish(self.backend.attach, AttachRequest(context=context, volume=volume, node=node))
        await self.finish(self.backend.detach, DetachRequest(context=context, volume=volume, node=node))
        await self.finish(self.backend.delete, DeleteRequest(context=context, volume=volume))
        self.lives.append(time.monotonic() - began)

    async def all(self, volumes: int, in_flight: int) -> None:
        """All volumes, `in_flight` at a time."""
        free = asyncio.Semaphore(in_flight)

        async def one(number: int) -> None:
            async with free:
                await self.life(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(volumes):
                tasks.create_task(one(number))


# --- boto3 alone ------------------------------------------------------------------------------------------------


def bare(
    url: str, nodes: Sequence[NodeIdentity], zones: Sequence[str], *, volumes: int, looks: int, threads: int
) -> float:
    """CPU seconds of the same number of calls, with boto3 alone. looks: DescribeVolumes calls."""
    import boto3  # noqa: PLC0415 - after the driver, so that its import is not measured
    from botocore.config import Config  # noqa: PLC0415

    config = Config(retries={"mode": "standard", "total_max_attempts": 2}, max_pool_connections=32)
    client = boto3.Session(region_name=REGION).client("ec2", endpoint_url=url, config=config)
    tags = [{"Key": f"volplane.dev/key-{number}", "Value": "value"} for number in range(11)]
    tagged = [{"ResourceType": "volume", "Tags": tags}]

    def life(number: int) -> None:
        zone, instance = zones[number % len(zones)], nodes[number % len(zones)].instance_id.rpartition("/")[2]
        token = f"{number:064d}"
        made = client.create_volume(
            AvailabilityZone=zone, Size=1, VolumeType="gp3", ClientToken=token, TagSpecifications=tagged
        )["VolumeId"]
        device = f"/dev/xvd{'ab'[number // 26 % 2]}{chr(97 + number % 26)}"
        client.attach_volume(VolumeId=made, InstanceId=instance, Device=device)
        client.detach_volume(VolumeId=made, InstanceId=instance, Device=device)
        client.delete_volume(VolumeId=made)

    some = [
        client.create_volume(AvailabilityZone=zones[0], Size=1, VolumeType="gp3", TagSpecifications=tagged)["VolumeId"]
        for _ in range(max(1, round(volumes * (CHANGES + 1) / max(1, looks))))
    ]
    cpu = CpuTime()
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(cpu.counted, life, number) for number in range(volumes)]
        jobs += [pool.submit(cpu.counted, client.describe_volumes, VolumeIds=some) for _ in range(looks)]
        for job in jobs:
            job.result()
    return cpu.seconds


# --- the report -------------------------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Start the mocked EC2, run, and return the figures."""
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_EC2_METADATA_DISABLED="true")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    nodes = -(-given.in_flight // PER_NODE) * 2
    server = spawn.Process(target=serve, args=(theirs, nodes, given.rate, given.burst), daemon=True)
    server.start()
    try:
        url, instances = ours.recv()
        report = drive(given, url, instances, ours)
        ours.send("stop")
    finally:
        server.join(10)
        if server.is_alive():
            server.kill()
    return report


def drive(given: argparse.Namespace, url: str, instances: Sequence[tuple[str, str]], ours: Any) -> dict[str, Any]:
    """Run the driver, then boto3 alone; returns the figures."""
    options = {
        "region": REGION,
        "endpoint": url,
        "mutations_per_second": given.rate,
        "mutation_burst": max(1, given.burst * 4 // 5),
    }
    within = CpuTime()

    def counted(settings: Settings) -> NewClient:
        new_client = connect(settings)
        return lambda service, attempts: CountedClient(within.counted(new_client, service, attempts), within)

    backend = AwsEbsBackend(options, connect_to=counted)
    backend.start(StartRequest(context=Context(driver=DRIVER, cluster_id="bench")))
    within.seconds = 0.0
    nodes = [
        NodeIdentity(name=f"node-{n}", instance_id=f"aws:///{zone}/{id_}") for n, (id_, zone) in enumerate(instances)
    ]
    with ThreadPoolExecutor(given.threads) as threads:
        run = Run(backend, threads, nodes, [zone for _, zone in instances])
        began = time.monotonic()
        asyncio.run(run.all(given.volumes, given.in_flight))
        wall, cpu = time.monotonic() - began, run.cpu.seconds
    backend.stop(StopRequest(context=Context(driver=DRIVER, cluster_id="bench")))
    ours.send("count")
    calls, refused, left = ours.recv()
    describes = sum(count for name, count in calls.items() if name.startswith("Describe"))
    looks = calls.get("DescribeVolumes", 0)
    alone = bare(url, nodes, run.zones, volumes=given.volumes, looks=looks, threads=given.threads)
    made = sum(calls.values())
    by_rate = max(given.volumes - given.burst, 0) / given.rate + CHANGES * SECONDS
    by_places = given.volumes * CHANGES * SECONDS / given.in_flight
    return {
        "volumes": given.volumes,
        "in_flight": given.in_flight,
        "threads": given.threads,
        "rate": given.rate,
        "wall_seconds": round(wall, 2),
        "floor_seconds": round(max(by_rate, by_places), 2),
        "life_seconds_median": round(sorted(run.lives)[len(run.lives) // 2], 2),
        "calls": calls,
        "refused": refused,
        "left_over": left,
        "describes_per_volume_and_change": round(describes / given.volumes / CHANGES, 4),
        "hook_calls": run.calls,
        "hook_calls_throttled": run.retries,
        "cpu_seconds": round(cpu, 2),
        "cpu_seconds_boto3_alone": round(alone, 2),
        "cpu_seconds_within_boto3": round(within.seconds, 2),
        "cpu_ms_per_api_call_beyond_boto3": round((cpu - within.seconds) / made * 1000, 3),
        "cpu_ms_per_hook_call_beyond_boto3": round((cpu - within.seconds) / run.calls * 1000, 3),
    }


def main(arguments: Sequence[str]) -> int:
    """Print the report; returns 1 if a volume was left over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--volumes", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--rate", type=int, default=5, help="calls a second of each kind that changes something")
    parser.add_argument("--burst", type=int, default=50, help="how many of them at once")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    report = measure(given)
    if given.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:36} {value}")
    return int(report["left_over"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
