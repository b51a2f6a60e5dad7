"""`volplane dev`: a whole small cluster on this machine, for kubectl."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.endpoints import HttpAddress, serve_endpoints
from volplane.cli.framework.options import DataDirectory, Host, InMemory, KubeconfigOut, Port, Verbose
from volplane.controller import logs
from volplane.controller.config import Configuration, read_configuration
from volplane_embedded.cli.development_cluster import (
    DEFAULT_DRIVER,
    DevelopmentCluster,
    Directories,
    development_cluster,
)
from volplane_embedded.cli.embedded_server import ServerSettings, server_settings
from volplane_embedded.kubelet.local_exports import LocalExport

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dev")(dev)


def dev(
    *,
    data: DataDirectory = None,
    memory: InMemory = False,
    host: Host = "127.0.0.1",
    port: Port = 6443,
    kubeconfig_out: KubeconfigOut = None,
    nodes: Annotated[int, typer.Option(min=1, max=100, help="How many nodes run pods; all are this machine.")] = 1,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Each node has storage of its own, and a process as `volplane run --node-name`.",
        ),
    ] = False,
    volumes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Root of the default driver's volumes; else beneath --data, or temporary."),
    ] = None,
    disks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where a mocked cloud that runs with the same option shows its disks, for pods with attached volumes.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Drivers and their options, YAML.")
    ] = None,
    nfs_export: Annotated[
        list[str] | None,
        typer.Option(
            "--nfs-export",
            metavar="SERVER:/PATH=DIRECTORY",
            help="An NFS export of this machine: pods get its volumes by a bind of the directory. Repeatable.",
        ),
    ] = None,
    http: Annotated[
        str,
        typer.Option(
            "--http", metavar="ADDRESS:PORT", help="Where health, metrics and answers for commands are served."
        ),
    ] = "127.0.0.1:9809",
    verbose: Verbose = 0,
) -> None:
    """Run an API server, nodes, a scheduler and every controller in this process, until Ctrl-C.

    Pods run as processes of this machine in a sandbox of their own, with their volumes in place and everything else
    read-only. For development and tests: whoever can read the kubeconfig may do everything.
    """
    logs.configure(verbosity=verbose)
    logs.log_stray_errors()
    settings = server_settings(data=data, memory=memory, host=host, port=port, kubeconfig_out=kubeconfig_out)
    configuration = read_configuration(config) if config is not None else Configuration()
    address = HttpAddress.parse("--http", http)
    exports = [LocalExport.parse(text) for text in nfs_export or ()]
    with _directories(data, volumes) as made:
        directories = replace(made, disks=disks.resolve() if disks is not None else None)
        eventloop.run(
            lambda stop: _serve(
                settings,
                configuration,
                directories,
                nodes=nodes,
                distributed=distributed,
                exports=exports,
                address=address,
                stop=stop,
            )
        )


@contextmanager
def _directories(data: Path | None, volumes: Path | None) -> Iterator[Directories]:
    """Directories beneath --data, or temporary ones that go with the process."""
    if data is not None:
        beneath = Directories.beneath(data.resolve())
        yield Directories(volumes=volumes.resolve() if volumes else beneath.volumes, pods=beneath.pods)
        return
    with tempfile.TemporaryDirectory(prefix="volplane-dev-", ignore_cleanup_errors=True) as directory:
        beneath = Directories.beneath(Path(directory))
        yield Directories(volumes=volumes.resolve() if volumes else beneath.volumes, pods=beneath.pods)


async def _serve(
    settings: ServerSettings,
    configuration: Configuration,
    directories: Directories,
    *,
    nodes: int,
    distributed: bool,
    exports: Sequence[LocalExport],
    address: HttpAddress,
    stop: asyncio.Event,
) -> None:
    console = Console()
    async with (
        development_cluster(
            settings, configuration, directories, nodes=nodes, exports=exports, distributed=distributed
        ) as cluster,
        serve_endpoints(address, cluster.process),
    ):
        _print_introduction(console, settings, cluster, nodes, distributed=distributed)
        await stop.wait()
    console.note("stopped")


def _print_introduction(
    console: Console, settings: ServerSettings, cluster: DevelopmentCluster, nodes: int, *, distributed: bool
) -> None:
    embedded = cluster.embedded
    console.line(f"serving {embedded.url} with {nodes} node{'s' if nodes > 1 else ''}")
    console.line(f"objects in {settings.data}" if settings.data else "objects in memory only; --data DIR keeps them")
    where = "; each node has a directory and a process of its own" if distributed else ""
    console.line(f"volumes of driver {DEFAULT_DRIVER} in {cluster.directories.volumes}{where}")
    console.line(f"kubeconfig {embedded.kubeconfig}")
    console.line()
    console.note("Try:")
    console.line(f"  {embedded.kubectl('get nodes,storageclasses,persistentvolumes,persistentvolumeclaims -A')}")
    console.note("Ctrl-C stops it.")
