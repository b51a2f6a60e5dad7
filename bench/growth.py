"""How costs grow: curves over the numbers of objects, nodes, classes, drivers, selectors, deletions and changes.

    python -m bench.growth [AXIS ...] [--sizes 100,1000] [--json FILE] [--plots DIRECTORY]
    python -m bench.growth processes [--sizes 1000,10000,100000]

Each point is measured in a fresh process: API server and controllers in one loop, in virtual time, so that only work
counts and nothing waits. CPU and loop (CPU of one callback) are those of the controllers, without the server's.
"steps" are lines of core that run for one unit (`bench.counting`), each turn of a loop again; they read no clock and
are the same on every machine.
The exponent is that of the whole: n units at size n cost n ** exponent, 1 = a unit costs the same at every size.
`processes` measures the axis of objects on a server and controllers in processes of their own, over sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import processes, scale
from bench.backends import MemoryBackend
from bench.counting import Counting, LoopSteps, Tally, lines_of_core, percentile, time_of_calls
from bench.objects import DRIVER, bound_claim, bound_volume, claim, free_volume, volume
from bench.plot import Line, svg

import volplane_testing
from volplane.cli.framework import eventloop
from volplane_embedded.apiserver.store import Store, key_of
from volplane_testing import Cluster
from volplane_testing.memory import ZONE
from volplane_testing.memory import MemoryBackend as PlacedBackend
from volplane_testing.memory_storage import MemoryStorage

__all__ = ["AXES", "Axis", "World", "exponent", "steps_of"]

EXPONENT: Final = 1.02
FEW, MANY = 4, 400
"""Claims whose steps are counted, one after the other, and claims together whose CPU is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What grows. fill: puts `size` of it into the store of a cluster that is stopped. units: what is measured."""

    title: str
    sizes: tuple[int, ...]
    backends: Callable[[int], Mapping[str, object]] = lambda _size: {DRIVER: MemoryBackend({})}
    fill: Callable[[Store, int], None] = lambda _store, _size: None
    classes: Callable[[int], int] = lambda _size: 1
    """How many classes the claims that are measured take in turn."""
    act: Callable[[World, int], Awaitable[None]] | None = None
    """Makes `count` units and waits for their end; None: whole lives of dynamic claims."""
    unit: str = "life of a claim"


@dataclass(slots=True)
class World:
    """A cluster at one size."""

    cluster: Cluster
    classes: int
    size: int
    number: int = 0
    """Of the next claim."""

    async def live(self, count: int) -> None:
        """Provision, bind, delete and remove `count` claims."""
        api, names = self.cluster.api, [f"life-{self.number + each:06}" for each in range(count)]
        for each, name in enumerate(names):
            api.create("persistentvolumeclaims", claim(name, f"class-{(self.number + each) % self.classes}"))
        await self.cluster.settle()
        for name in names:
            bound = api.get("persistentvolumeclaims", name)
            if bound is None or bound["status"].get("phase") != "Bound":
                raise SystemExit(f"{name} is not bound")
            api.delete("persistentvolumeclaims", name)
        await self.cluster.settle()
        self.number += count


def _put(store: Store, storage: str, body: Mapping[str, Any]) -> None:
    store.put(storage, key_of(body["metadata"].get("namespace", ""), body["metadata"]["name"]), dict(body))


def _pairs(store: Store, size: int) -> None:
    """Two fifths bound volumes, two fifths their claims, one fifth free volumes."""
    for number in range(size * 2 // 5):
        _put(store, "persistentvolumes", bound_volume(number))
        _put(store, "persistentvolumeclaims", bound_claim(number))
    for number in range(size // 5):
        _put(store, "persistentvolumes", free_volume(number))


def _classes(store: Store, count: int, driver: Callable[[int], str] = lambda _number: DRIVER) -> None:
    for number in range(count):
        fields = {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}
        metadata = {"name": f"class-{number}", "uid": f"class-{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        _put(store, "storageclasses.storage.k8s.io", {"metadata": metadata, "provisioner": driver(number), **fields})


def _driver(number: int) -> str:
    return f"driver-{number}.example.com"


def _node(number: int, *, ready: bool = True) -> dict[str, Any]:
    name = f"node-{number:05}"
    labels = {ZONE: name, "kubernetes.io/hostname": name}
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": [condition]}}


def _nodes(store: Store, size: int) -> None:
    for number in range(size):
        _put(store, "nodes", _node(number))


def _placed(size: int) -> dict[str, object]:
    storage = MemoryStorage(zones=[_node(number)["metadata"]["name"] for number in range(size)])
    return {DRIVER: PlacedBackend(storage=storage)}


_SELECTORS: Final[tuple[Callable[[str], dict[str, Any]], ...]] = (
    lambda own: {"matchLabels": {"disk": own}},
    lambda own: {"matchExpressions": [{"key": "disk", "operator": "In", "values": [own, f"{own}-b"]}]},
    lambda own: {"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": own, "operator": "Exists"}]},
)


def _selectors(store: Store, size: int) -> None:
    """Claims that wait for volumes that nobody makes, each with a selector of its own."""
    for number in range(size):
        body = claim(f"waiting-{number:06}")
        body["metadata"] |= {"uid": f"waiting-{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        body["spec"] |= {"volumeMode": "Filesystem"}
        body["spec"]["selector"] = _SELECTORS[number % len(_SELECTORS)](f"own-{number}")
        _put(store, "persistentvolumeclaims", {key: body[key] for key in ("metadata", "spec")} | {"status": {}})


async def _chosen(world: World, count: int) -> None:
    """Static volumes that claims choose by a label, bound, deleted."""
    api = world.cluster.api
    for number in range(world.number, world.number + count):
        body = volume(f"chosen-{number:06}")
        body["metadata"]["labels"] = {"disk": f"chosen-{number}", "tier": "silver"}
        api.create("persistentvolumes", body)
        wanted = claim(f"chosen-{number:06}")
        wanted["spec"]["selector"] = {"matchLabels": {"disk": f"chosen-{number}"}}
        api.create("persistentvolumeclaims", wanted)
    await world.cluster.settle()
    for number in range(world.number, world.number + count):
        bound = api.get("persistentvolumeclaims", f"chosen-{number:06}")
        if bound is None or bound["status"].get("phase") != "Bound":
            raise SystemExit(f"chosen-{number:06} is not bound")
        api.delete("persistentvolumeclaims", f"chosen-{number:06}")
    await world.cluster.settle()
    for number in range(world.number, world.number + count):
        api.delete("persistentvolumes", f"chosen-{number:06}")
    await world.cluster.settle()
    world.number += count


async def _namespaces(world: World, count: int) -> None:
    """Namespaces of `size` bound claims that are deleted, until `count` claims at least are gone."""
    api, left = world.cluster.api, count
    while left > 0:
        namespace = f"team-{world.number}"
        for number in range(world.size):
            body = claim(f"data-{number:06}", "class-0")
            body["metadata"]["namespace"] = namespace
            api.create("persistentvolumeclaims", body, namespace)
        await world.cluster.settle()
        api.delete("namespaces", namespace)
        await world.cluster.settle()
        if world.cluster.api.all("persistentvolumeclaims", namespace):
            raise SystemExit(f"claims of {namespace} are left")
        world.number += 1
        left -= world.size


async def _changes(world: World, count: int) -> None:
    """Changes of one volume that has changed `size` times before, each seen before the next."""
    api = world.cluster.api
    if not world.number:
        for number in range(world.size):
            api.patch("persistentvolumes", "free-000000", {"metadata": {"labels": {"turn": f"before-{number}"}}})
        await world.cluster.settle()
    for _ in range(count):
        world.number += 1
        api.patch("persistentvolumes", "free-000000", {"metadata": {"labels": {"turn": str(world.number)}}})
        await asyncio.sleep(0.01)
    await world.cluster.settle()


async def _flips(world: World, count: int) -> None:
    """Changes of one node: cordoned, made schedulable again."""
    for number in range(count):
        world.cluster.api.patch("nodes", "node-00000", {"spec": {"unschedulable": number % 2 == 0}})
        await asyncio.sleep(0.01)
    await world.cluster.settle()


def _objects(store: Store, size: int) -> None:
    _pairs(store, size)
    _classes(store, 1)


def _places(store: Store, size: int) -> None:
    _nodes(store, size)
    _classes(store, 1)


def _flipping(store: Store, size: int) -> None:
    _objects(store, size)
    _nodes(store, 10)


AXES: Final[Mapping[str, Axis]] = {
    "objects": Axis(
        title="objects in the cluster",
        sizes=(1_000, 10_000, 100_000, 1_000_000),
        fill=_objects,
    ),
    "nodes": Axis(
        title="nodes, each a place of its own",
        sizes=(10, 100, 1_000, 10_000),
        backends=_placed,
        fill=_places,
    ),
    "flips": Axis(
        title="volumes, and a node that is cordoned",
        sizes=(10, 100, 1_000, 10_000, 100_000),
        fill=_flipping,
        act=_flips,
        unit="change of a node",
    ),
    "classes": Axis(
        title="storage classes",
        sizes=(10, 100, 1_000),
        fill=_classes,
        classes=lambda size: size,
    ),
    "drivers": Axis(
        title="drivers",
        sizes=(10, 100, 1_000),
        backends=lambda size: {_driver(number): MemoryBackend({}) for number in range(size)},
        fill=lambda store, size: _classes(store, size, _driver),
        classes=lambda size: size,
    ),
    "selectors": Axis(
        title="claims that wait with selectors of their own",
        sizes=(1, 10, 100, 1_000),
        fill=_selectors,
        act=_chosen,
        unit="static claim with a selector",
    ),
    "namespace": Axis(
        title="claims of a namespace that is deleted",
        sizes=(1, 10, 100, 1_000, 10_000),
        fill=lambda store, _size: _classes(store, 1),
        act=_namespaces,
        unit="life of a claim",
    ),
    "changes": Axis(
        title="earlier changes of one volume",
        sizes=(1, 10, 100, 1_000, 10_000),
        fill=lambda store, _size: _objects(store, 100),
        act=_changes,
        unit="change of the volume",
    ),
    "processes": Axis(
        title="objects in the cluster, over sockets",
        sizes=(1_000, 10_000, 100_000),
        unit="dynamic claim",
    ),
}


@dataclass(slots=True)
class _Meters:
    loop: LoopSteps = field(default_factory=LoopSteps)
    tally: Tally = field(default_factory=Tally)


async def _world(axis: Axis, size: int, meters: _Meters) -> World:
    """Start a cluster at this size; the caller ends it."""
    cluster = Cluster(axis.backends(size), transport=lambda inner: Counting(inner, meters.tally))
    await cluster.__aenter__()
    await cluster.controllers.kill()
    elsewhere = {"server": ("handle", "watch"), "api": ("create", "get", "all", "patch", "delete")}
    for part, calls in elsewhere.items():
        for name in calls:
            owner = getattr(cluster, part)
            setattr(owner, name, time_of_calls(getattr(owner, name), meters.loop))
    axis.fill(cluster.server.store, size)
    cluster.server.store.compact()
    gc.collect()
    return World(cluster, axis.classes(size), size)


def steps_of(axis: Axis, size: int, count: int = FEW) -> float:
    """Return the steps of one unit: lines of core that run for it."""

    async def main() -> float:
        world = await _world(axis, size, _Meters())
        await world.cluster.restart()
        await world.cluster.settle()
        act = axis.act or World.live
        units = max(count, size) if axis.act is _namespaces else count
        await act(world, units)
        with lines_of_core() as lines:
            await act(world, units)
        await world.cluster.__aexit__(None, None, None)
        return lines.count / units

    return volplane_testing.run(main())


def _point(axis: Axis, size: int) -> dict[str, float]:
    """Measure one size, in this process."""
    meters = _Meters()

    async def main() -> dict[str, float]:
        world = await _world(axis, size, meters)
        memory, cpu, there = processes.Usage.of(os.getpid()).memory, time.thread_time(), meters.loop.elsewhere
        with meters.loop.measured():
            await world.cluster.restart()
            await world.cluster.settle()
        synced = time.thread_time() - cpu - (meters.loop.elsewhere - there)
        gc.collect()
        figures = {
            "sync_cpu_s": synced,
            "sync_loop_p99_ms": percentile(meters.loop.milliseconds, 99),
            "sync_loop_max_ms": max(meters.loop.milliseconds),
            "kb": (processes.Usage.of(os.getpid()).memory - memory) / 1000,
        }
        act, units = axis.act or World.live, MANY
        if axis.act is _namespaces:
            units = -(-max(MANY, size) // size) * size
        world.size = min(size, MANY)
        await act(world, FEW)  # what only the first units cost
        world.size = size
        gc.collect()
        gc.freeze()
        meters.loop.milliseconds.clear()
        meters.tally.requests.clear()
        meters.tally.sent = meters.tally.received = 0
        rounds = []
        for _ in range(3 if units < 5_000 else 1):
            cpu, there = time.thread_time(), meters.loop.elsewhere
            with meters.loop.measured():
                await act(world, units)
            rounds.append((time.thread_time() - cpu - (meters.loop.elsewhere - there)) / units * 1e3)
        done, tally = units * len(rounds), meters.tally
        asked = {
            "requests": sum(tally.requests.values()) / done,
            "bytes_sent": tally.sent / done,
            "bytes_received": tally.received / done,
        }
        with lines_of_core() as lines:
            counted = FEW if axis.act is not _namespaces else size
            await act(world, counted)
        return figures | {
            "steps": lines.count / counted,
            "cpu_ms": statistics.median(rounds),
            "loop_p50_ms": percentile(meters.loop.milliseconds, 50),
            "loop_p99_ms": percentile(meters.loop.milliseconds, 99),
            "loop_max_ms": max(meters.loop.milliseconds),
            **asked,
        }

    gc.set_threshold(eventloop.YOUNG, *gc.get_threshold()[1:])  # as in a process of controllers
    return {"size": size, **volplane_testing.run(main())}


def exponent(points: Sequence[Mapping[str, float]], figure: str = "cpu_ms") -> float:
    """Return the exponent of the whole: 1 + the slope of the cost of a unit over the size, both as logarithms."""
    if len(points) < 2:
        return 1.0
    found = statistics.linear_regression(
        [math.log(point["size"]) for point in points], [math.log(point[figure]) for point in points]
    )
    return 1.0 + found.slope


def _child(axis: str, size: int) -> dict[str, float]:
    if axis == "processes":
        return scale.point(size)
    with processes.child("-m", "bench.growth", axis, "--point", str(size)) as process:
        measured: dict[str, float] = json.loads(process.line(7200.0))
        return measured


COLUMNS: Final = (
    ("steps", "steps", "{:,.1f}"),
    ("cpu_ms", "CPU, ms", "{:.3f}"),
    ("loop_p50_ms", "loop p50", "{:.3f}"),
    ("loop_p99_ms", "p99", "{:.2f}"),
    ("loop_max_ms", "max, ms", "{:.1f}"),
    ("requests", "requests", "{:.2f}"),
    ("bytes_sent", "B sent", "{:,.0f}"),
    ("bytes_received", "received", "{:,.0f}"),
    ("sync_cpu_s", "sync, s CPU", "{:.2f}"),
    ("sync_loop_p99_ms", "its p99", "{:.2f}"),
    ("sync_loop_max_ms", "its max, ms", "{:.1f}"),
    ("kb_per_object", "KB an object", "{:.2f}"),
)


def _print(axis: Axis, points: Sequence[Mapping[str, float]]) -> None:
    shown = [column for column in COLUMNS if column[0] in points[0]]
    print(f"{axis.title}; a unit is one {axis.unit}")
    print(f"  {'size':>10}" + "".join(f"{name:>13}" for _, name, _ in shown))
    for point in points:
        print(f"  {point['size']:>10,.0f}" + "".join(f"{pattern.format(point[key]):>13}" for key, _, pattern in shown))
    told = [f"CPU {exponent(points):.3f} (at most {EXPONENT})"]
    if "steps" in points[0]:
        told.insert(0, f"steps {exponent(points, 'steps'):.4f}")
    print(f"  exponent of the whole: {', '.join(told)}", flush=True)


def _plot(name: str, axis: Axis, points: Sequence[Mapping[str, float]], directory: Path) -> None:
    note = f"python -m bench.growth {name}; {processes.machine()}; {datetime.now(UTC):%Y-%m-%d}"
    line = Line(name=f"exponent {exponent(points):.3f}", points=[(each["size"], each["cpu_ms"]) for each in points])
    text = svg(f"CPU of one {axis.unit}", axis.title, "controller CPU, ms", [line], note=note)
    (directory / f"growth-{name}.svg").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(AXES)}; default: all")
    parser.add_argument("--sizes", help="instead of those of the axis")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--plots", type=Path, help="draw growth-AXIS.svg into this directory")
    chosen = parser.parse_args()
    if chosen.point is not None:
        print(json.dumps(_point(AXES[chosen.axes[0]], chosen.point)), flush=True)
        return
    print(f"{processes.machine()}; {processes.load()}; {datetime.now(UTC):%Y-%m-%d}")
    kept: dict[str, list[dict[str, float]]] = {}
    for name in chosen.axes or AXES:
        axis = AXES[name]
        sizes = [int(size) for size in chosen.sizes.split(",")] if chosen.sizes else axis.sizes
        kept[name] = [_child(name, size) for size in sizes]
        _print(axis, kept[name])
        if chosen.plots is not None:
            _plot(name, axis, kept[name], chosen.plots)
        processes.keep(chosen.json, kept)


if __name__ == "__main__":
    main()
