"""The controllers of `volplane run --controllers all --no-leader-elect` with the backends of `bench.backends`.

python -m bench.controller KUBECONFIG [--driver NAME=BACKEND ...] [--root DIR] [--timeout SECONDS] [--rate N]

Prints the URL of its HTTP endpoints. Without --driver: `memory.volplane.dev=memory`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.backends import PLUGINS
from bench.objects import DRIVER

from volplane.cli.framework import eventloop
from volplane.cli.framework.endpoints import serve_endpoints
from volplane.controller import logs
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.http import HttpAddress
from volplane.controller.metrics import Metrics
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.process.process import ControllerProcess, Options
from volplane_testing.given_plugins import GivenPlugins

__all__: list[str] = []


def _settings(driver: str, root: Path | None, timeout: float, rate: float | None) -> DriverSettings:
    name, _, backend = driver.partition("=")
    on_root = {"root": str(root), "create_root": True, "shared": True, "overcommit_percent": 100_000}
    return DriverSettings(
        name=name, backend=backend, options=on_root if backend == "hostpath" else {}, timeout=timeout, rate=rate
    )


async def _run(kubeconfig: Path, drivers: tuple[DriverSettings, ...], stop: asyncio.Event) -> None:
    transport = await HttpTransport.connect(kubeconfig)
    metrics = Metrics()
    process = ControllerProcess(
        Client(transport, metrics=metrics),
        Configuration(drivers=drivers),
        Options(leader_elect=False),
        metrics=metrics,
        plugins=GivenPlugins(PLUGINS),
    )
    async with serve_endpoints(HttpAddress("127.0.0.1", 0), process) as url:
        print(url, flush=True)
        await process.run(stop)
    await transport.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--driver", action="append", metavar="NAME=BACKEND")
    parser.add_argument("--root", type=Path, help="where the backend hostpath keeps its directories")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a hook may take")
    parser.add_argument("--rate", type=float, help="operations that each driver starts a second; default any number")
    chosen = parser.parse_args()
    settings = tuple(
        _settings(driver, chosen.root, chosen.timeout, chosen.rate) for driver in chosen.driver or [f"{DRIVER}=memory"]
    )
    logs.configure()
    eventloop.run(lambda stop: _run(chosen.kubeconfig, settings, stop))
