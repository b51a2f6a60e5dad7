"""What attaching costs the controllers: pods with one volume each, spread over nodes, started and ended.

python -m bench.attach [--pods 1000] [--nodes 100] [--json FILE]
python -m bench.attach --lost-node 100 [--rate 20] [--json FILE]
python -m bench.attach --queued 100 [--json FILE]

The volumes are static, bound beforehand, and attached by a backend that only says yes; kubelets report nothing. The
whole control plane is measured: from the creation of the pods until every node lists its volumes, and from their
deletion until no VolumeAttachment is left.

--lost-node: so many volumes are in use on one node, which is declared out of service; how long until none of them is
attached, by a driver that starts `--rate` operations a second. --queued: how long a pod waits for its volume while so
many detaches are queued, against one for which nothing waits, with calls of half a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from bench import clients, processes
from bench.backends import AttachingBackend
from bench.objects import NAMESPACE, claim, claim_name, volume, volume_name

from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, PODS, VOLUMES
from volplane.kube.names import ATTACH_BY_CONTROLLER, OUT_OF_SERVICE

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
    await clients.each(pods, lambda number: _start_one(client, number, nodes))


async def _start_one(client: Client, number: int, nodes: int) -> None:
    mounted = {"name": "data", "persistentVolumeClaim": {"claimName": claim_name(number)}}
    spec = {
        "nodeName": f"node-{number % nodes:04}",
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [mounted],
    }
    metadata = {"name": f"pod-{number:06}", "namespace": NAMESPACE}
    await client.create(PODS, PODS.body(metadata=metadata, spec=spec))


async def _until(what: str, reached: Callable[[], Awaitable[bool]]) -> float:
    begun = time.perf_counter()
    while not await reached():
        if time.perf_counter() > begun + LONGEST:
            raise SystemExit(f"{what} did not happen within {LONGEST:.0f} s")
        await asyncio.sleep(0.2)
    return time.perf_counter()


async def _measure(client: Client, run: processes.Controller, pods: int, nodes: int) -> dict[str, float]:
    await _prepare(client, pods, nodes)
    await _until("binding", partial(_bound, client, pods))
    figures: dict[str, float] = {}
    before, written = await asyncio.to_thread(run.quiet), run.writes()

    async def start() -> None:
        await _start(client, pods, nodes)

    async def end() -> None:
        await clients.each(pods, lambda number: _end(client, number))

    for phase, act, reached in (
        ("attach", start, partial(_all_listed, client, pods)),
        ("detach", end, partial(_none_attached, client)),
    ):
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


async def _bound(client: Client, pods: int) -> bool:
    return sum(each.status.phase == "Bound" for each in (await client.list(CLAIMS)).items) == pods


async def _listed(client: Client) -> int:
    return sum(len(each.status.volumes_attached or ()) for each in (await client.list(NODES)).items)


async def _all_listed(client: Client, pods: int) -> bool:
    return await _listed(client) == pods


async def _none_attached(client: Client) -> bool:
    """A list of thousands of attachments costs the server more than what is measured: nodes are asked first."""
    return await _listed(client) == 0 and not (await client.list(ATTACHMENTS)).items


async def _lose_node(client: Client, pods: int, rate: float) -> dict[str, float]:
    await _prepare(client, pods, 1)
    await _until("binding", partial(_bound, client, pods))
    await _start(client, pods, 1)
    await _until("attach", partial(_all_listed, client, pods))
    [node] = (await client.list(NODES)).items
    used = [each.name for each in node.status.volumes_attached or ()]
    await client.patch(NODES, node.name, {"status": {"volumesInUse": used}}, subresource="status")
    await clients.each(pods, lambda number: _end(client, number))
    begun = time.perf_counter()
    taint = {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    await client.patch(NODES, node.name, {"spec": {"taints": [taint]}})
    seconds = await _until("detach", partial(_none_attached, client)) - begun
    return {"volumes": pods, "seconds": seconds, "seconds_at_the_rate": pods / rate}


async def _queue(client: Client, pods: int) -> dict[str, float]:
    """The pods are spread over as many nodes; the last two are started alone, and beside the detaches."""
    all_of_them, first = pods + 2, pods

    async def wait(number: int) -> float:
        begun = time.perf_counter()
        await _start_one(client, number, all_of_them)
        while not (await client.get(NODES, f"node-{number:04}")).status.volumes_attached:
            await asyncio.sleep(0.005)
        return time.perf_counter() - begun

    await _prepare(client, all_of_them, all_of_them)
    await _until("binding", partial(_bound, client, all_of_them))
    await _start(client, pods, all_of_them)
    await _until("attach", partial(_all_listed, client, pods))
    alone = await wait(first)
    await clients.each(pods, lambda number: _end(client, number))
    beside = await wait(first + 1)
    left = len((await client.list(ATTACHMENTS)).items) - 2
    return {"alone_seconds": alone, "beside_seconds": beside, "ratio": beside / alone, "detaches_left": left}


async def _run(measure: Callable[[Client, processes.Controller], Awaitable[dict[str, float]]], *options: str) -> None:
    with tempfile.TemporaryDirectory(prefix="volplane-bench-") as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        with processes.server(kubeconfig), processes.controller(kubeconfig, *options) as run:
            transport = await HttpTransport.connect(kubeconfig)
            try:
                measured = await measure(Client(transport), run)
            finally:
                await transport.close()
    title = f"{' '.join(sys.argv[1:])} ({processes.machine()}, {processes.load()})"
    processes.report(title, {name: f"{value:.2f}" for name, value in measured.items()})
    processes.keep(given.json, measured)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--lost-node", type=int, metavar="VOLUMES")
    parser.add_argument("--rate", type=float, default=20.0, help="of the driver of --lost-node, operations a second")
    parser.add_argument("--queued", type=int, metavar="DETACHES")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    given = parser.parse_args()
    quick, slow = ("--driver", f"{DRIVER}=attaching"), ("--driver", f"{DRIVER}=attaching-slowly")
    if given.lost_node:
        options = (*quick, "--rate", str(given.rate))
        asyncio.run(_run(lambda client, _: _lose_node(client, given.lost_node, given.rate), *options))
    elif given.queued:
        asyncio.run(_run(lambda client, _: _queue(client, given.queued), *slow))
    else:
        asyncio.run(_run(lambda client, run: _measure(client, run, given.pods, given.nodes), *quick))
