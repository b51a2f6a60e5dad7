"""What attaching costs the controllers: pods with one volume each, spread over nodes, started and ended.

python -m bench.attach [--pods 1000] [--nodes 100] [--json FILE]

The volumes are static, bound beforehand, and attached by a backend that only says yes; kubelets report nothing. The
whole control plane is measured: from the creation of the pods until every node lists its volumes, and from their
deletion until no VolumeAttachment is left.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import clients, processes
from bench.backends import AttachingBackend
from bench.objects import NAMESPACE, claim, claim_name, volume, volume_name

from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, PODS, VOLUMES
from volplane.kube.names import ATTACH_BY_CONTROLLER

__all__: list[str] = []

DRIVER = AttachingBackend.default_driver_name
LONGEST = 600.0


async def _prepare(client: Client, pods: int, nodes: int) -> None:
    async def node(number: int) -> None:
        meta = {"name": f"node-{number:04}", "annotations": {ATTACH_BY_CONTROLLER: "true"}}
        await client.create(NODES, NODES.body(metadata=meta, spec={"providerID": f"bench:///{number}"}))

    async def pair(number: int) -> None:
        made = volume(volume_name(number))
        del made["spec"]["hostPath"]
        made["spec"]["csi"] = {"driver": DRIVER, "volumeHandle": f"disk-{number}"}
        made["spec"]["claimRef"] = {"namespace": NAMESPACE, "name": claim_name(number)}
        await client.create(VOLUMES, made)
        await client.create(CLAIMS, claim(claim_name(number)))

    await clients.each(nodes, node)
    await clients.each(pods, pair)


async def _start(client: Client, pods: int, nodes: int) -> None:
    async def pod(number: int) -> None:
        mounted = {"name": "data", "persistentVolumeClaim": {"claimName": claim_name(number)}}
        spec = {
            "nodeName": f"node-{number % nodes:04}",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [mounted],
        }
        metadata = {"name": f"pod-{number:06}", "namespace": NAMESPACE}
        await client.create(PODS, PODS.body(metadata=metadata, spec=spec))

    await clients.each(pods, pod)


async def _until(what: str, reached: Callable[[], Awaitable[bool]]) -> float:
    begun = time.perf_counter()
    while not await reached():
        if time.perf_counter() > begun + LONGEST:
            raise SystemExit(f"{what} did not happen within {LONGEST:.0f} s")
        await asyncio.sleep(0.2)
    return time.perf_counter()


async def _measure(client: Client, run: processes.Controller, pods: int, nodes: int) -> dict[str, float]:
    async def bound() -> bool:
        return sum(each.status.phase == "Bound" for each in (await client.list(CLAIMS)).items) == pods

    async def listed() -> bool:
        return sum(len(each.status.volumes_attached or ()) for each in (await client.list(NODES)).items) == pods

    async def gone() -> bool:
        return not (await client.list(ATTACHMENTS)).items

    await _prepare(client, pods, nodes)
    await _until("binding", bound)
    figures: dict[str, float] = {}
    before, written = await asyncio.to_thread(run.quiet), run.writes()

    async def start() -> None:
        await _start(client, pods, nodes)

    async def end() -> None:
        await clients.each(pods, lambda number: _end(client, number))

    for phase, act, reached in (("attach", start, listed), ("detach", end, gone)):
        begun = time.perf_counter()
        await act()
        figures[f"{phase}_seconds"] = await _until(phase, reached) - begun
        after, wrote = await asyncio.to_thread(run.quiet), run.writes()
        figures[f"{phase}_cpu_ms"] = (after.cpu - before.cpu) / pods * 1000
        figures[f"{phase}_writes"] = (wrote[0] - written[0]) / pods
        figures[f"{phase}_events"] = (wrote[1] - written[1]) / pods
        before, written = after, wrote
    figures["cpu_ms"] = figures["attach_cpu_ms"] + figures["detach_cpu_ms"]
    return figures


async def _end(client: Client, number: int) -> None:
    await client.delete(PODS, f"{NAMESPACE}/pod-{number:06}", grace_seconds=0)


async def _run(pods: int, nodes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="volplane-bench-") as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        with processes.server(kubeconfig), processes.controller(kubeconfig, "--driver", f"{DRIVER}=attaching") as run:
            transport = await HttpTransport.connect(kubeconfig)
            try:
                return await _measure(Client(transport), run, pods, nodes)
            finally:
                await transport.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    given = parser.parse_args()
    measured = asyncio.run(_run(given.pods, given.nodes))
    title = f"{given.pods} pods on {given.nodes} nodes ({processes.machine()}, load {processes.load()})"
    processes.report(title, {name: f"{value:.2f}" for name, value in measured.items()})
    processes.keep(given.json, measured)
