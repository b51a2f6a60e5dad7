"""Rates of `volplane csi` over a backend that only remembers, beside an empty call of the same server.

    python -m bench.csi [--calls 2000] [--rounds 7] [--in-flight 16] [--profile FILE] [--json]

One server, one client with so many calls in flight. A round is so many calls of Probe and then so many of CreateVolume;
every second round begins with CreateVolume. The figure is the median of the rounds' ratios, with the middle half beside
it. CPU is that of the server's process, user and system.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
from bench import backends
from bench.paired import spread
from bench.processes import Process, child, load, machine

from volplane import Absent, InspectRequest, ListedAsset, hookimpl
from volplane.cli.framework import eventloop
from volplane.csi.server import socket_path
from volplane.csi.service import ServiceOptions, serve
from volplane.csi.wire import build, method_path
from volplane.drivers.contract import Plugin
from volplane.drivers.loading import build_driver

DRIVER = "memory.volplane.dev"
METHODS = ("Probe", "CreateVolume")


class Remembering(backends.MemoryBackend):
    """What a bridge wants besides."""

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        asset = self._assets.get(request.handle)
        if asset is None:
            return Absent()
        return ListedAsset(handle=asset.handle, name=asset.handle, owner=None, capacity_bytes=asset.capacity_bytes)


def run_server(path: str, profile: str) -> None:
    """Serve on this path until SIGTERM. profile: file for what the loop's thread did, as pstats reads it; "": none."""
    driver = build_driver(DRIVER, Plugin(kind="backend", name="remembering", factory=Remembering), {})
    options = ServiceOptions(path=socket_path(f"unix://{path}"), cluster="bench")
    profiler = cProfile.Profile() if profile else None

    async def main(stop: asyncio.Event) -> None:
        if profiler is not None:
            profiler.enable()
        await serve(driver, options, stop, lambda: print("ready", flush=True))
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(profile)

    eventloop.run(main)


def requests(method: str, first: int, count: int) -> Iterator[bytes]:
    """Yield the requests of so many calls, as bytes: those of sidecars, each for another volume."""
    for number in range(first, first + count):
        if method == "Probe":
            yield b""
            continue
        uid = f"00000000-0000-4000-8000-{number:012d}"
        metadata = {"pvc/name": f"data-{number}", "pvc/namespace": "team", "pv/name": f"pvc-{uid}"}
        yield build(
            "CreateVolumeRequest",
            name=f"pvc-{uid}",
            capacity_range={"required_bytes": 1 << 30},
            volume_capabilities=[{"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}],
            parameters={f"csi.storage.k8s.io/{key}": value for key, value in metadata.items()},
        ).SerializeToString()


class Client:
    """Calls a server with so many calls in flight."""

    def __init__(self, path: str, in_flight: int) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self._in_flight = in_flight
        self._made = 0

    def measure(self, method: str, count: int, server: Process) -> tuple[float, float]:
        """Return calls a second, and the server's CPU seconds of one, of so many calls."""
        made = [*requests(method, self._made, count)]
        self._made += count
        stub: Any = self._channel.unary_unary(method_path(method))
        room = threading.Semaphore(self._in_flight)
        failed: list[str] = []

        def ended(call: Any) -> None:
            if call.code() is not grpc.StatusCode.OK:
                failed.append(call.details())
            room.release()

        before, began = server.usage().cpu, time.perf_counter()
        for content in made:
            room.acquire()
            stub.future(content, timeout=60).add_done_callback(ended)
        for _ in range(self._in_flight):
            room.acquire()
        seconds = time.perf_counter() - began
        if failed:
            raise SystemExit(f"{method}: {failed[0]}")
        return count / seconds, (server.usage().cpu - before) / count


def rounds(calls: int, many: int, in_flight: int, profile: str = "") -> list[dict[str, tuple[float, float]]]:
    """Measure so many rounds, after one that does not count."""
    with tempfile.TemporaryDirectory(prefix="csi-") as directory:
        path = f"{directory}/csi.sock"
        with child("-m", "bench.csi", "--serve", path, "--profile", profile) as server:
            server.line()
            client = Client(path, in_flight)
            for method in METHODS:
                client.measure(method, max(calls // 10, 1), server)
            return [
                {method: client.measure(method, calls, server) for method in METHODS[:: 1 if number % 2 == 0 else -1]}
                for number in range(many)
            ]


def figures(measured: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, Any]:
    """Return what is printed: rates, ms of CPU, and the ratio of the rates."""
    ratios = [each["CreateVolume"][0] / each["Probe"][0] for each in measured]
    more = [(each["CreateVolume"][1] - each["Probe"][1]) * 1000 for each in measured]
    rates = {method: statistics.median(each[method][0] for each in measured) for method in METHODS}
    cpu = {method: statistics.median(each[method][1] for each in measured) * 1000 for method in METHODS}
    return {
        "rate": rates,
        "cpu_ms": cpu,
        "ratio": statistics.median(ratios),
        "ratio_between": spread(ratios),
        "more_cpu_ms": statistics.median(more),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="of each method in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--in-flight", type=int, default=16, help="calls at once")
    parser.add_argument("--profile", default="", metavar="FILE", help="of the server's loop, for pstats")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        run_server(given.serve, given.profile)
        return
    found = figures(rounds(given.calls, given.rounds, given.in_flight, given.profile))
    if given.json:
        print(json.dumps(found))
        return
    print(f"{machine()}, {load()}, {given.in_flight} calls in flight")
    for method in METHODS:
        print(f"{method:12} {found['rate'][method]:7,.0f} a second, {found['cpu_ms'][method]:.3f} ms of CPU a call")
    low, high = found["ratio_between"]
    print(
        f"ratio {found['ratio']:.2f} ({low:.2f} to {high:.2f}), {found['more_cpu_ms']:.3f} ms of CPU more,"
        f" {given.rounds} rounds"
    )


if __name__ == "__main__":
    main()
