"""The controllers of `volplane run --controllers all --no-leader-elect` with the backends of `bench.backends`.

python -m bench.controller KUBECONFIG [--driver NAME=BACKEND ...] [--root DIR] [--timeout SECONDS] [--rate N] [--loop]
    [--resync SECONDS] [--lease]

Prints the URL of its HTTP endpoints. Without --driver: `memory.volplane.dev=memory`. For each line on stdin it prints
the latencies of the event loop since the line before, as JSON: p50, p99 and max in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from bench.backends import PLUGINS
from bench.counting import percentile
from bench.objects import DRIVER

from volplane.cli.framework import eventloop
from volplane.cli.framework.endpoints import serve_endpoints
from volplane.controller import logs
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.http_access import HttpAddress
from volplane.controller.metrics import Metrics
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.process.duties import ALL_CONTROLLERS
from volplane.process.process import ControllerProcess, Options
from volplane_testing.given_plugins import GivenPlugins

__all__: list[str] = []

PERIOD = 0.005
"""Seconds between two measurements of the loop."""


def _settings(driver: str, root: Path | None, timeout: float, rate: float | None) -> DriverSettings:
    name, _, backend = driver.partition("=")
    on_root = {"root": str(root), "create_root": True, "shared": True, "overcommit_percent": 100_000}
    return DriverSettings(
        name=name, backend=backend, options=on_root if backend == "hostpath" else {}, timeout=timeout, rate=rate
    )


class _LoopLatency:
    """Measures by how much a timer of the event loop is late, every 5 ms; no more than the CPU that the loop's thread
    has used meanwhile, so that other processes do not count.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late: list[float] = []
        self._due, self._used = self._loop.time() + PERIOD, time.thread_time()
        self._loop.call_at(self._due, self._measure)
        self._loop.add_reader(sys.stdin, self._report)

    def _measure(self) -> None:
        now, used = self._loop.time(), time.thread_time()
        self._late.append(min(now - self._due, used - self._used) * 1e3)
        self._due, self._used = now + PERIOD, used
        self._loop.call_at(self._due, self._measure)

    def _report(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            self._loop.remove_reader(sys.stdin)
            return
        late, self._late = self._late, []
        figures = {f"loop_p{part}_ms": percentile(late, part) for part in (50, 99)}
        print(json.dumps({**figures, "loop_max_ms": max(late, default=0.0)}), flush=True)


async def _run(chosen: argparse.Namespace, drivers: tuple[DriverSettings, ...], stop: asyncio.Event) -> None:
    transport = await HttpTransport.connect(chosen.kubeconfig)
    metrics = Metrics()
    process = ControllerProcess(
        Client(transport, metrics=metrics),
        Configuration(drivers=drivers),
        Options(controllers=frozenset(ALL_CONTROLLERS), leader_elect=chosen.lease, resync=chosen.resync),
        metrics=metrics,
        plugins=GivenPlugins(PLUGINS),
    )
    async with serve_endpoints(HttpAddress("127.0.0.1", 0), process) as url:
        print(url, flush=True)
        if chosen.loop:
            _LoopLatency()
        await process.run(stop)
    await transport.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--driver", action="append", metavar="NAME=BACKEND")
    parser.add_argument("--root", type=Path, help="where the backend hostpath keeps its directories")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a hook may take")
    parser.add_argument("--resync", type=float, default=600.0, help="seconds between passes over all objects")
    parser.add_argument("--lease", action="store_true", help="work only while it holds the Lease")
    parser.add_argument("--loop", action="store_true", help="measure the latency of the event loop")
    parser.add_argument("--rate", type=float, help="operations that each driver starts a second; default any number")
    chosen = parser.parse_args()
    settings = tuple(
        _settings(driver, chosen.root, chosen.timeout, chosen.rate) for driver in chosen.driver or [f"{DRIVER}=memory"]
    )
    logs.configure()
    eventloop.run(lambda stop: _run(chosen, settings, stop))
