"""Distributed provisioning at scale, in virtual time on the embedded server: conflicts, events, writes, bytes.

    python -m bench.distributed assigner [--nodes 1000] [--claims 10000]
    python -m bench.distributed race [--nodes 100] [--claims 3000]
    python -m bench.distributed choose [--nodes 1000] [--claims 10000]

assigner: a central process and one for each node, all in this process, each with clients and caches of its own; claims
that bind immediately, 150 a second, as in the scalability tests of the external provisioner. Every request takes 10 ms
to the server and its answer 10 ms back. What is printed is what all of them asked of the server and got from it. race:
the same without an assigner (`--placement race`). choose: real time and CPU of the assigner alone, over decisions
that are written to nothing: how many claims a second it places.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from bench.counting import Counting, Tally

import volplane_testing
from volplane.controller.actions import LiveReads, Patch
from volplane.drivers.driver import DriverView
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Claim, CsiStorageCapacity, Node, StorageClass
from volplane.kube.transport import Transport
from volplane.placement.assign import decide_assignment
from volplane.placement.nodes import NodeBook
from volplane.placement.state import PlacementState
from volplane.schemas import DriverInfo
from volplane.state.cluster_state import CLAIM_INDEXES, POD_INDEXES, ClusterState
from volplane.state.naming import node_hash
from volplane.state.records import Sealer
from volplane_testing.distributed import CENTRAL, DistributedCluster
from volplane_testing.memory import ZONE

__all__ = ["run"]

LATENCY: Final = 0.01
RATE: Final = 150.0
OWN: Final = ("persistentvolumeclaims", "persistentvolumes")


class Own:
    """How often objects with the label of each node changed, as the server saw it."""

    def __init__(self, cluster: DistributedCluster) -> None:
        self.changes: Counter[str] = Counter()
        for storage in OWN:
            cluster.server.store.subscribe(storage, self._changed)

    def _changed(self, change: Any) -> None:
        old = change.old()
        labels = {_label(each) for each in (old, change.new()) if each is not None}
        for label in labels - {""}:
            self.changes[label] += 1


def _label(item: Mapping[str, Any]) -> str:
    found: str = (item["metadata"].get("labels") or {}).get(names.NODE, "")
    return found


async def run(nodes: int, claims: int, *, race: bool) -> dict[str, float]:
    """The story, and its figures."""
    known = [f"node-{number:04d}" for number in range(nodes)]
    tallies: dict[str, Tally] = {}

    def counted(name: str, transport: Transport) -> Transport:
        return Counting(transport, tallies.setdefault(name, Tally()), LATENCY)

    settings: dict[str, Any] = {"race": (20.0, 60.0)} if race else {}
    began = time.process_time()
    async with DistributedCluster(known, transport=counted, **settings) as cluster:
        own = Own(cluster)
        cluster.create_class("local")
        await cluster.settle(600.0)
        for tally in tallies.values():
            tally.requests.clear()
            tally.events.clear()
            tally.sent = tally.received = tally.conflicts = 0
        own.changes.clear()
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(claims):
            cluster.create_claim(f"c{number}", "local")
            await asyncio.sleep(1 / RATE)
        created = loop.time() - started
        while sum(c["status"].get("phase") == "Bound" for c in cluster.api.all("persistentvolumeclaims")) < claims:
            await asyncio.sleep(0.5)
        bound = loop.time() - started
        await cluster.settle(600.0)
        per_node = Counter(cluster.node_of(f"c{number}") for number in range(claims))
        made = sum(map(len, cluster.assets().values()))
        placed = [per_node[name] for name in known]
        instances = [tallies[name] for name in known]
        ratios = [
            sum(tally.events[plural] for plural in OWN) / max(own.changes[node_hash(name)], 1)
            for name, tally in zip(known, instances, strict=True)
        ]
        everything = [*instances, tallies[CENTRAL]]
        return {
            "claims": claims,
            "volumes made": made,
            "seconds until created": created,
            "seconds until bound": bound,
            "conflicts": sum(tally.conflicts for tally in everything),
            "volumes on a node, fewest": min(placed),
            "volumes on a node, most": max(placed),
            "writes per claim": sum(t.requests["POST"] + t.requests["PATCH"] for t in everything) / claims,
            "reads per claim": sum(t.requests["GET"] for t in everything) / claims,
            "events of claims and volumes per instance, mean": statistics.mean(
                sum(tally.events[plural] for plural in OWN) for tally in instances
            ),
            "the same over changes of its own objects, mean": statistics.mean(ratios),
            "the same over changes of its own objects, worst": max(ratios),
            "all events per instance, mean": statistics.mean(sum(tally.events.values()) for tally in instances),
            "KiB received per instance, mean": statistics.mean(tally.received for tally in instances) / 1024,
            "MiB received by the central process": tallies[CENTRAL].received / 2**20,
            "CPU seconds of this simulation": time.process_time() - began,
        }


async def choose(nodes: int, claims: int) -> dict[str, float]:
    """Decisions of the assigner over published room, each followed by the change that its write would make."""
    cluster = Placing(nodes)
    for number in range(claims):
        cluster.add(number)
    began = time.process_time()
    for number in range(claims):
        cluster.place(number)
    seconds = time.process_time() - began
    return {"nodes": nodes, "claims": claims, "CPU seconds": seconds, "claims a second": claims / seconds}


class Placing:
    """The assigner over caches that are filled by hand."""

    def __init__(self, nodes: int) -> None:
        driver = DriverView(
            name="d.example.com", backend="d", info=DriverInfo(version="1", topology_keys=(ZONE,)), hooks=frozenset()
        )
        self._state = _state(driver)
        book = NodeBook(self._state.nodes, {ZONE}, time.monotonic)
        queue = _Ignored()
        self._placing = PlacementState(
            cluster=self._state, drivers=[driver.name], nodes=book, claims=queue, volumes=queue, node_names=queue
        )
        self._state.follow(self._placing)
        body = {"metadata": _meta("fast", 1), "provisioner": driver.name, "volumeBindingMode": "Immediate"}
        self._state.classes.observe(msgspec.convert(body, StorageClass))
        for number in range(nodes):
            name = f"node-{number:04d}"
            self._state.nodes.observe(
                msgspec.convert({"metadata": {**_meta(name, number + 2), "labels": {ZONE: name}}}, Node)
            )
            labels = {names.CAPACITY_DRIVER: driver.name, names.NODE: node_hash(name)}
            room = {
                "metadata": {**_meta(f"csisc-{number}", number + 2), "labels": labels},
                "storageClassName": "fast",
                "nodeTopology": {"matchLabels": {ZONE: name}},
                "capacity": "1Ti",
            }
            self._state.capacities.observe(msgspec.convert(room, CsiStorageCapacity))

    def add(self, number: int) -> None:
        """A claim for which the binder has asked."""
        asked = {names.STORAGE_PROVISIONER: "d.example.com"}
        self._observe(number, {"annotations": asked}, number + 10_000)

    def _observe(self, number: int, metadata: dict[str, Any], version: int) -> None:
        spec = {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {**_meta(f"c{number}", version), "namespace": "default", **metadata}, "spec": spec}
        self._state.claims.observe(msgspec.convert(body, Claim))

    def place(self, number: int) -> None:
        """Decide, and take in what the server would answer."""
        action = decide_assignment(f"default/c{number}", self._placing, LiveReads())
        if not isinstance(action, Patch):
            raise TypeError(action)
        written = action.body["metadata"]
        asked = {names.STORAGE_PROVISIONER: "d.example.com"}
        metadata = {"labels": written["labels"], "annotations": {**asked, **written["annotations"]}}
        self._observe(number, metadata, number + 10_000_000)


class _Ignored:
    def enqueue(self, key: str, after: float = 0.0) -> None:
        """Nothing is queued: the measurement decides itself what is next."""


def _meta(name: str, version: int) -> dict[str, Any]:
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}


class _Drivers:
    def __init__(self, driver: DriverView) -> None:
        self._driver = driver

    def distributed(self, name: str) -> DriverView | None:
        return self._driver if name == self._driver.name else None


def _state(driver: DriverView) -> ClusterState:
    return ClusterState(
        cluster_id="bench",
        claims=Cache(CLAIMS, CLAIM_INDEXES),
        volumes=Cache(VOLUMES),
        classes=Cache(STORAGE_CLASSES),
        pods=Cache(PODS, POD_INDEXES),
        nodes=Cache(NODES),
        drivers=cast("Any", _Drivers(driver)),
        sealer=Sealer(b"k" * 32),
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
    )


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.distributed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("assigner", "race", "choose"))
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--claims", type=int)
    asked = parser.parse_args()
    race = asked.what == "race"
    nodes, claims = asked.nodes or (100 if race else 1000), asked.claims or (3000 if race else 10_000)
    if asked.what == "choose":
        figures = asyncio.run(choose(nodes, claims))
    else:
        figures = volplane_testing.run(run(nodes, claims, race=race))
    for name, figure in figures.items():
        print(f"{name:60} {figure:14,.2f}")


if __name__ == "__main__":
    main()
