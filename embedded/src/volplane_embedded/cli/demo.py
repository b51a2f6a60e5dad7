"""`volplane demo`: the whole life of volumes in half a minute, on real directories."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from volplane.cli.framework import eventloop
from volplane.controller import logs
from volplane_embedded.cli.demo_console import DemoConsole
from volplane_embedded.cli.demo_disks import DemoCloud, NotInstalled, demo_cloud
from volplane_embedded.cli.demo_steps import Demo, DemoFailed
from volplane_embedded.cli.demo_storage import DemoStorage, demo_storage
from volplane_embedded.cli.development_cluster import Directories, development_cluster, with_default_driver
from volplane_embedded.cli.embedded_server import ServerSettings

TIME_LIMIT = 120.0
_NODES = 2
_MEMORY = "/dev/shm"  # noqa: S108 -- a directory with a random name is made below it


class Backend(Enum):
    """Of the demo's volumes."""

    HOSTPATH = "hostpath"
    NFS = "nfs"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    *,
    backend: Annotated[
        Backend,
        typer.Option(help="Where volumes are: in a directory, or on a private NFS-Ganesha."),
    ] = Backend.HOSTPATH,
) -> None:
    """Watch volumes being provisioned, bound, written to, deleted, scrubbed, undeleted and attached on a cluster inside
    this process.

    Uses a temporary directory and asks nothing. Every statement is checked against the disk; if one is not true, the
    exit code is 1 and the reason is the last line.
    """
    logs.configure()
    logs.log_stray_errors()
    for name in ("volplane", "volplane_embedded"):
        logging.getLogger(name).setLevel(logging.WARNING)
    console = DemoConsole()
    try:
        eventloop.run(lambda stop: _run(console, stop, backend))
    except* DemoFailed as failures:
        console.failed(str(_first(failures)))
        raise typer.Exit(1) from None


def _first(group: BaseExceptionGroup[DemoFailed]) -> BaseException:
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


async def _run(console: DemoConsole, stop: asyncio.Event, backend: Backend) -> None:
    begun = time.monotonic()
    # Ganesha cannot export a directory of an overlay, which a container's /tmp is.
    place = _MEMORY if backend is Backend.NFS and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="volplane-demo-", dir=place) as name:
        directory = Path(name)
        with ExitStack() as parts:
            volumes = Directories.beneath(directory).volumes
            storage = parts.enter_context(demo_storage(backend.value, directory / "server", volumes))
            if not await _walk(console, stop, directory, storage, _cloud(console, parts, directory)):
                return
    console.line()
    console.done(f"everything was as it should be, after {time.monotonic() - begun:.1f} s")
    console.line()
    console.note("Where to go next:")
    console.line("  volplane dev                    the same cluster for your own kubectl")
    console.line("  volplane plugins                which backends are installed")
    console.line("  docs/tutorial                   write a backend in ten minutes")


def _cloud(console: DemoConsole, parts: ExitStack, directory: Path) -> DemoCloud | None:
    """Return the mocked cloud, None where its distributions are not installed."""
    place = directory / "cloud"
    place.mkdir()
    try:
        return parts.enter_context(demo_cloud(place))
    except NotInstalled as missing:
        console.note(f"no volume is attached in this demo: {missing}")
        return None


async def _walk(
    console: DemoConsole, stop: asyncio.Event, directory: Path, storage: DemoStorage, cloud: DemoCloud | None
) -> bool:
    """Run the demo; whether it came to its end before `stop`."""
    settings = ServerSettings(data=None, host="127.0.0.1", port=0, kubeconfig=directory / "kubeconfig")
    directories = Directories.beneath(directory)
    exports = [storage.export] if storage.export is not None else []
    configuration = with_default_driver(storage.configuration, directories, _NODES)
    if cloud is not None:
        configuration = replace(configuration, drivers=(*(configuration.drivers or ()), cloud.driver))
        directories = replace(directories, disks=cloud.disks)
    async with development_cluster(settings, configuration, directories, nodes=_NODES, exports=exports) as cluster:
        demo_run = asyncio.ensure_future(_within_limit(Demo(console, cluster, storage, cloud)))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({demo_run, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not demo_run.done():
            demo_run.cancel()
            await asyncio.wait({demo_run})
            return False
        demo_run.result()
        return True


async def _within_limit(demo_run: Demo) -> None:
    try:
        async with asyncio.timeout(TIME_LIMIT):
            await demo_run.run()
    except TimeoutError:
        why = f": {reason}" if (reason := demo_run.reason()) else ""
        raise DemoFailed(f"not finished after {TIME_LIMIT:.0f} s; {demo_run.waiting_for}{why}") from None
