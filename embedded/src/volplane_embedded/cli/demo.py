"""`volplane demo`: the whole life of volumes in half a minute, on real directories."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from pathlib import Path

import typer

from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.controller import logs
from volplane.controller.config import Configuration
from volplane_embedded.cli.demo_steps import Demo, DemoFailed
from volplane_embedded.cli.development_cluster import Directories, development_cluster
from volplane_embedded.cli.embedded_server import ServerSettings

__all__ = ["register"]

TIME_LIMIT = 120.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo() -> None:
    """Watch volumes being provisioned, bound, written to, deleted and scrubbed on a cluster inside this process.

    Uses a temporary directory and asks nothing. Every statement is checked against the disk; if one is not true, the
    exit code is 1 and the reason is the last line.
    """
    logs.configure()
    logs.log_stray_errors()
    for name in ("volplane", "volplane_embedded"):
        logging.getLogger(name).setLevel(logging.WARNING)
    console = Console()
    try:
        eventloop.run(lambda stop: _run(console, stop))
    except* DemoFailed as failures:
        console.failed(str(_first(failures)))
        raise typer.Exit(1) from None


def _first(group: BaseExceptionGroup[DemoFailed]) -> BaseException:
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


async def _run(console: Console, stop: asyncio.Event) -> None:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="volplane-demo-") as name:
        directory = Path(name)
        settings = ServerSettings(data=None, host="127.0.0.1", port=0, kubeconfig=directory / "kubeconfig")
        directories = Directories.beneath(directory)
        async with development_cluster(settings, Configuration(), directories, nodes=1) as cluster:
            demo_run = asyncio.ensure_future(_within_limit(Demo(console, cluster)))
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait({demo_run, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not demo_run.done():
                demo_run.cancel()
                raise DemoFailed("interrupted")
            demo_run.result()
    console.line()
    console.done(f"everything was as it should be, after {time.monotonic() - begun:.1f} s")
    console.line()
    console.note("Where to go next:")
    console.line("  volplane dev                    the same cluster for your own kubectl")
    console.line("  volplane plugins                which backends are installed")
    console.line("  docs/tutorial                   write a backend in ten minutes")


async def _within_limit(demo_run: Demo) -> None:
    try:
        async with asyncio.timeout(TIME_LIMIT):
            await demo_run.run()
    except TimeoutError:
        raise DemoFailed(f"not finished after {TIME_LIMIT:.0f} s; {demo_run.waiting_for}") from None
