"""Claims bound or provisioned per second, and what each costs the controller.

    python bench/claims.py static 1000
    python bench/claims.py dynamic 10000 --floor

Three processes on loopback, as in real life: `volplane apiserver --memory`, the controllers (`--controllers all`) with a
backend that does nothing but remember, and this one, which creates the objects and watches. Reported: claims/s from the
first create to the last Bound, controller CPU per claim, API writes per claim by the controller, and its memory. With
`--floor` a bare client sends the same writes to the same server, with no logic, and the share of that rate is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES

DRIVER = "memory.volplane.dev"
NAMESPACE = "default"
IN_FLIGHT = 50
TICKS = os.sysconf("SC_CLK_TCK")
TIME_LIMIT = 900.0


@dataclass(frozen=True)
class Usage:
    """CPU seconds and resident bytes of a process."""

    cpu: float
    memory: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls((int(fields[11]) + int(fields[12])) / TICKS, pages * os.sysconf("SC_PAGE_SIZE"))


@contextmanager
def _child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _written(metrics: str) -> float:
    """API writes so far, events not counted, by the controller's own count."""
    total = 0.0
    for line in metrics.splitlines():
        counted = line.startswith("rest_client_requests_total{") and 'resource="events"' not in line
        if counted and any(f'method="{verb}"' in line for verb in ("create", "patch", "delete")):
            total += float(line.rpartition(" ")[2])
    return total


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _claim(number: int, storage_class: str) -> dict[str, Any]:
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return CLAIMS.body(metadata={"name": f"claim-{number:06}", "namespace": NAMESPACE}, spec=spec)


def _volume(number: int) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/srv/{number}"},
    }
    return VOLUMES.body(metadata={"name": f"volume-{number:06}"}, spec=spec)


async def _each(count: int, act: Any) -> None:
    """`act(number)` for all numbers, so many in flight at once."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await act(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())


async def _count(client: Client, path: str, phase: str) -> int:
    listing = json.loads(await client.raw(path))
    return sum(1 for item in listing["items"] if item["status"].get("phase") == phase)


async def _until_bound(client: Client, count: int) -> None:
    """Follow a watch (which costs this process, not the controller) until so many claims are Bound."""
    bound: set[str] = set()
    async with asyncio.timeout(TIME_LIMIT), client.watch(CLAIMS, version=0, seconds=int(TIME_LIMIT)) as changes:
        async for change in changes:
            item = change.object
            if item is not None and item.status.phase == "Bound":
                bound.add(item.key)
                if len(bound) >= count:
                    return


async def measure(kind: str, count: int, kubeconfig: Path, controller: int, port: int) -> dict[str, float]:
    """Create everything and wait until all claims are bound."""
    transport = await HttpTransport.connect(kubeconfig)
    client = Client(transport, deadline=120.0)
    storage_class = "" if kind == "static" else "memory"
    await client.create(STORAGE_CLASSES, STORAGE_CLASSES.body(metadata={"name": "memory"}, provisioner=DRIVER))
    if kind == "static":
        await _each(count, lambda number: client.create(VOLUMES, _volume(number)))
        while await _count(client, VOLUMES.path(), "Available") < count:
            await asyncio.sleep(0.5)  # another process makes them so
    before, written = Usage.of(controller), _written(_metrics(port))
    begun = time.perf_counter()
    watching = asyncio.create_task(_until_bound(client, count))
    await _each(count, lambda number: client.create(CLAIMS, _claim(number, storage_class)))
    created = time.perf_counter() - begun
    await watching
    took = time.perf_counter() - begun
    after, wrote = Usage.of(controller), _written(_metrics(port))
    await transport.close()
    return {
        "claims_per_second": count / took,
        "seconds": took,
        "creating_seconds": created,
        "controller_cpu_ms_per_claim": (after.cpu - before.cpu) / count * 1000,
        "writes_per_claim": (wrote - written) / count,
        "controller_mib": after.memory / 2**20,
    }


async def floor(count: int, kubeconfig: Path) -> float:
    """Binds per second of a bare client: the same four writes, no logic, as many in flight."""
    transport = await HttpTransport.connect(kubeconfig)
    client = Client(transport, deadline=120.0)
    await _each(count, lambda number: client.create(VOLUMES, _volume(number)))
    await _each(count, lambda number: client.create(CLAIMS, _claim(number, "none")))

    async def bind(number: int) -> None:
        claim, volume = f"{NAMESPACE}/claim-{number:06}", f"volume-{number:06}"
        reference = {"namespace": NAMESPACE, "name": f"claim-{number:06}", "kind": "PersistentVolumeClaim"}
        await client.patch(VOLUMES, volume, {"spec": {"claimRef": reference}})
        await client.patch(VOLUMES, volume, {"status": {"phase": "Bound"}}, subresource="status")
        marks = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
        await client.patch(CLAIMS, claim, {"metadata": {"annotations": marks}, "spec": {"volumeName": volume}})
        status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
        await client.patch(CLAIMS, claim, {"status": status}, subresource="status")

    begun = time.perf_counter()
    await _each(count, bind)
    took = time.perf_counter() - begun
    await transport.close()
    return count / took


@contextmanager
def _server(directory: Path) -> Iterator[Path]:
    kubeconfig = directory / "kubeconfig"
    command = ("-m", "volplane", "apiserver", "--memory", "--port", "0", "--kubeconfig-out", str(kubeconfig))
    with _child(*command) as process:
        _wait_for(kubeconfig.exists, process)
        yield kubeconfig


def _wait_for(reached: Any, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while not reached():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"a process did not start: {process.args!r}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def run(kind: str, count: int, *, with_floor: bool, port: int) -> dict[str, float]:
    """One measurement in fresh processes."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with _server(directory) as kubeconfig:
            controller = Path(__file__).with_name("controller.py")
            with _child(str(controller), str(kubeconfig), str(port)) as process:
                _wait_for(lambda: _answers(port), process)
                figures = asyncio.run(measure(kind, count, kubeconfig, process.pid, port))
        if with_floor and kind == "static":
            with _server(directory / "floor") as kubeconfig:
                figures["floor_binds_per_second"] = asyncio.run(floor(count, kubeconfig))
            figures["share_of_floor"] = figures["claims_per_second"] / figures["floor_binds_per_second"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("static", "dynamic"))
    parser.add_argument("count", type=int)
    parser.add_argument("--floor", action="store_true", help="also measure a bare client")
    parser.add_argument("--port", type=int, default=19810)
    chosen = parser.parse_args()
    figures = run(chosen.kind, chosen.count, with_floor=chosen.floor, port=chosen.port)
    print(f"{chosen.kind} N={chosen.count}")
    for name, value in figures.items():
        print(f"  {name:30} {value:10.2f}")


if __name__ == "__main__":
    main()
