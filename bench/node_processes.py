"""Distributed provisioning by processes: an API server, a central `volplane run`, and one a node, all on this machine.

    python -m bench.node_processes [--nodes 20] [--claims 2000] [--directory DIR]

The backend is hostpath, and each node has a directory of its own as its storage. All claims are created at once and
bind immediately. Printed are the times until they are bound and until they are gone again, the conflicts that all
processes met, their CPU, and what lies on the storage: every volume must be on one node, and that of its claim.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from bench import processes
from bench.objects import NAMESPACE, claim, claim_name

from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import CLAIMS, NODES, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Volume
from volplane.state.naming import node_hash

__all__: list[str] = []

DRIVER = "hostpath.volplane.dev"
CLASS = "local"
HOSTNAME = "kubernetes.io/hostname"
IN_FLIGHT = 64
SECONDS = 600.0


@contextmanager
def volplane_run(kubeconfig: Path, config: Path, *options: str) -> Iterator[processes.Controller]:
    """`volplane run` without a lease."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = ["--kubeconfig", str(kubeconfig), "--config", str(config), "--no-leader-elect"]
    command = ["-m", "volplane", "run", *common, "--http", f"127.0.0.1:{port}", *options]
    with processes.child(*command, kind=processes.Controller) as process:
        process.url = f"http://127.0.0.1:{port}"
        yield process


def configuration(directory: Path, name: str) -> Path:
    """The file of one process, whose storage is `directory / name`."""
    options = {"root": str(directory / name), "create_root": True, "overcommit_percent": 100_000}
    driver = {"name": DRIVER, "backend": "hostpath", "distributed": True, "options": options}
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"drivers": [driver]}))
    return path


async def make_cluster(client: Client, nodes: list[str]) -> None:
    """The nodes, and the class whose claims go to each of them in turn."""
    for name in nodes:
        await client.create(NODES, NODES.body(metadata={"name": name, "labels": {HOSTNAME: name}}))
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await client.patch(NODES, name, ready, subresource="status")
        await client.patch(NODES, name, {"spec": {"taints": None}})  # that of a node that is not ready yet
    body = STORAGE_CLASSES.body(
        metadata={"name": CLASS}, provisioner=DRIVER, parameters={"volplane.dev/placement": "round-robin"}
    )
    await client.create(STORAGE_CLASSES, body)


async def each_claim(count: int, work: Callable[[str], object]) -> None:
    """`work`, a coroutine function, with the name of every claim; some at a time."""
    free = asyncio.Semaphore(IN_FLIGHT)

    async def one(name: str) -> None:
        async with free:
            await work(name)  # type: ignore[misc]

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(claim_name(number)))


async def until(what: str, reached: Callable[[], object]) -> float:
    """Seconds until the coroutine function `reached` answers true."""
    began = time.monotonic()
    while not await reached():  # type: ignore[misc]
        if time.monotonic() > began + SECONDS:
            raise SystemExit(f"not within {SECONDS:g} s: {what}")
        await asyncio.sleep(0.5)
    return time.monotonic() - began


def where_they_are(volumes: Sequence[Volume], nodes: list[str], directory: Path) -> tuple[Counter[str], int]:
    """How many volumes each node has by its label, and how many are not on the storage of that node."""
    labels = {node_hash(name): name for name in nodes}
    on_node = Counter(dict.fromkeys(nodes, 0))
    misplaced = 0
    for volume in volumes:
        node = labels[(volume.metadata.labels or {})[names.NODE]]
        on_node[node] += 1
        where = Path((volume.spec.host_path or volume.spec.local or {}).get("path", "/"))
        misplaced += not (where.is_dir() and where.is_relative_to(directory / node))
    return on_node, misplaced


async def lives(
    client: Client, count: int, nodes: list[str], directory: Path, conflicts: Callable[[], float]
) -> dict[str, float]:
    """Create all claims, look where their volumes are, and delete them."""

    async def all_bound() -> bool:
        return sum(each.status.phase == "Bound" for each in (await client.list(CLAIMS)).items) == count

    async def all_gone() -> bool:
        return not (await client.list(CLAIMS)).items and not (await client.list(VOLUMES)).items

    async def create(name: str) -> None:
        await client.create(CLAIMS, claim(name, CLASS))

    async def delete(name: str) -> None:
        await client.delete(CLAIMS, f"{NAMESPACE}/{name}")

    began = time.monotonic()
    await each_claim(count, create)
    await until("all claims are bound", all_bound)
    bound = time.monotonic() - began
    met = conflicts()
    on_node, misplaced = where_they_are((await client.list(VOLUMES)).items, nodes, directory)
    began = time.monotonic()
    await each_claim(count, delete)
    await until("all claims and volumes are gone", all_gone)
    seconds = time.monotonic() - began
    left = sum(len(list((directory / name).rglob("*pvc-*"))) for name in nodes)
    return {
        "seconds until all are bound": bound,
        "claims bound a second": count / bound,
        "conflicts until then (0)": met,
        "volumes on a node, fewest": min(on_node.values()),
        "volumes on a node, most": max(on_node.values()),
        "volumes elsewhere than on their node (0)": misplaced,
        "seconds until all are gone": seconds,
        "conflicts since (0)": conflicts() - met,
        "directories left (0)": left,
    }


async def measure(directory: Path, nodes: int, claims: int) -> dict[str, float]:
    """Start everything, run, and return the figures."""
    known = [f"node-{number:02}" for number in range(nodes)]
    kubeconfig = directory / "kubeconfig"
    with ExitStack() as running:
        running.enter_context(processes.server(kubeconfig))
        transport = await HttpTransport.connect(kubeconfig)
        client = Client(transport)
        await make_cluster(client, known)
        central = volplane_run(kubeconfig, configuration(directory, "central"), "--controllers", "all")
        started = [running.enter_context(central)]
        for name in known:
            instance = volplane_run(kubeconfig, configuration(directory, name), "--node-name", name)
            started.append(running.enter_context(instance))
        for each in started:
            each.wait_ready()
        before = [each.usage().cpu for each in started]

        def conflicts() -> float:
            return sum(n for each in started for sample, n in each.metrics().items() if _conflict(sample))

        figures = await lives(client, claims, known, directory, conflicts)
        used = [each.usage().cpu - cpu for each, cpu in zip(started, before, strict=True)]
        await client.close()
        return figures | {
            "CPU of the central process per claim, ms": used[0] / claims * 1000,
            "CPU of all processes of nodes per claim, ms": sum(used[1:]) / claims * 1000,
            "memory of a process of a node, MiB": max(each.usage().memory for each in started[1:]) / 2**20,
        }


def _conflict(sample: str) -> bool:
    """A change or deletion that was refused because the object had changed."""
    counted = sample.startswith("rest_client_requests_total{") and 'code="409"' in sample
    return counted and 'method="create"' not in sample


def main() -> int:
    """Print the figures; 1 if a volume was not where it belongs, or was left over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--claims", type=int, default=2000)
    parser.add_argument("--directory", type=Path, help="for the volumes; else a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory, ignore_cleanup_errors=True) as made:
        figures = asyncio.run(measure(Path(made), given.nodes, given.claims))
    processes.report(f"{given.claims} claims, {given.nodes} nodes, {processes.load()}", figures)
    return int(figures["volumes elsewhere than on their node (0)"] + figures["directories left (0)"] > 0)


if __name__ == "__main__":
    sys.exit(main())
