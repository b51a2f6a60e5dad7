"""`volplane dev`: a whole small cluster on this machine, for kubectl."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.endpoints import Answers
from volplane.cli.framework.options import ConfigFile, Verbose
from volplane.controller import logs
from volplane.controller.config import Configuration, read_configuration
from volplane.controller.http_access import HttpAddress
from volplane.drivers.driver import DriverStatus
from volplane.errors import ConfigurationError
from volplane.ui.server import serve_page
from volplane_embedded.cli.development_cluster import (
    DevelopmentCluster,
    Directories,
    development_cluster,
    with_default_driver,
)
from volplane_embedded.cli.embedded_server import (
    DataDirectory,
    FeatureGates,
    Host,
    InMemory,
    KubeconfigOut,
    Port,
    ServerSettings,
    make_directory,
    server_settings,
)
from volplane_embedded.cli.failed_start import undone_unless_started
from volplane_embedded.cli.left_behind import say_what_is_left
from volplane_embedded.cli.node_labels import NodeLabels, parse_node_labels
from volplane_embedded.cli.served_twice import served_twice
from volplane_embedded.kubelet.local_exports import LocalExport
from volplane_embedded.kubelet.node_status import node_names

DRIVER_SECONDS = 10.0
"""How long the introduction waits for drivers that start."""


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
    feature_gates: FeatureGates = "",
    nodes: Annotated[
        int, typer.Option(metavar="N", min=1, max=100, help="How many nodes run pods; all are this machine.")
    ] = 1,
    node_label: NodeLabels = None,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="Each node has storage of its own, and a process as `volplane run --node-name`."
        ),
    ] = False,
    volumes: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Root of the default driver's volumes; else beneath --data, or temporary.",
            readable=False,
        ),
    ] = None,
    disks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where a storage for tests (volplane fake --disks) shows its disks, for pods with CSI volumes.",
            readable=False,
        ),
    ] = None,
    config: ConfigFile = None,
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
    settings = server_settings(
        data=data, memory=memory, host=host, port=port, kubeconfig_out=kubeconfig_out, feature_gates=feature_gates
    )
    configuration = read_configuration(config)
    if volumes is not None and configuration.drivers is not None:
        raise ConfigurationError(f"--volumes is of the default driver, and {config} names the drivers: leave one out")
    plan = _Plan(
        settings=settings,
        configuration=configuration,
        nodes=nodes,
        distributed=distributed,
        labels=parse_node_labels(node_label or (), node_names(nodes)),
        exports=tuple(LocalExport.parse(text) for text in nfs_export or ()),
        address=HttpAddress.parse("--http", http),
    )
    given = [each for each in (data, volumes, disks) if each is not None]
    with undone_unless_started([settings.kubeconfig], given) as started:
        for option, directory in (("--volumes", volumes), ("--disks", disks)):
            if directory is not None:
                make_directory(directory, option)
        with _directories(data, volumes) as made:
            directories = replace(made, disks=disks.resolve() if disks is not None else None)
            eventloop.run(lambda stop: _serve(plan, directories, started, stop))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the options say, checked."""

    settings: ServerSettings
    configuration: Configuration
    nodes: int
    distributed: bool
    labels: Mapping[str, Mapping[str, str]]
    exports: Sequence[LocalExport]
    address: HttpAddress


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


async def _serve(plan: _Plan, directories: Directories, started: Callable[[], None], stop: asyncio.Event) -> None:
    configured = with_default_driver(plan.configuration, directories, plan.nodes, distributed=plan.distributed)
    with served_twice(configured.drivers or ()) as taken:
        for name in taken:
            Console().warning(
                f"another volplane dev of this machine serves driver {name} on the same storage: each takes what the "
                "other has made for that of a foreign cluster"
            )
        await _serve_alone(plan, directories, started, stop)


async def _serve_alone(plan: _Plan, directories: Directories, started: Callable[[], None], stop: asyncio.Event) -> None:
    async with (
        development_cluster(
            plan.settings,
            plan.configuration,
            directories,
            nodes=plan.nodes,
            exports=plan.exports,
            labels=plan.labels,
            distributed=plan.distributed,
            address=plan.address,
            default_class=True,
        ) as cluster,
        serve_page(cluster.client, Answers(cluster.process).ask) as page,
    ):
        await _wait_for_drivers(cluster, stop)
        started()
        if not stop.is_set():
            _print_introduction(Console(), plan, cluster, page)
        await stop.wait()
        await say_what_is_left(Console(), cluster, kept=plan.settings.data is not None)


async def _wait_for_drivers(cluster: DevelopmentCluster, stop: asyncio.Event) -> None:
    """Wait until no driver is starting any more, at most DRIVER_SECONDS."""
    processes = (cluster.process, *cluster.instances)
    working = asyncio.gather(*(each.wait_working() for each in processes))
    tasks: set[asyncio.Future[Any]] = {working, asyncio.ensure_future(stop.wait())}
    try:
        await asyncio.wait(tasks, timeout=DRIVER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # else Python reports what was cancelled


def _print_introduction(console: Console, plan: _Plan, cluster: DevelopmentCluster, page: str) -> None:
    settings, embedded = plan.settings, cluster.embedded
    console.line(f"serving {embedded.url} with {plan.nodes} node{'s' if plan.nodes > 1 else ''}")
    console.line(f"objects in {settings.data}" if settings.data else "objects in memory only; --data DIR keeps them")
    drivers = [driver for each in (cluster.process, *cluster.instances) for driver in each.driver_status()]
    for number, driver in enumerate(drivers, 1):
        in_directory = plan.configuration.drivers is None
        place = cluster.directories.volumes / f"node-{number}" if plan.distributed else cluster.directories.volumes
        where = f" in {place}" if in_directory else f", of backend {driver.backend}"
        console.line(f"{'volumes of ' if in_directory else ''}driver {driver.name}{where}{_trouble(driver)}")
    if not drivers:
        console.warning(
            'no driver, so nothing provisions: pip install "volplane[hostpath]", or name drivers in --config'
        )
    if cluster.default_class:
        console.line(f"class {cluster.default_class} for claims that name none")
    console.line(f"kubeconfig {embedded.kubeconfig}")
    console.line(f"page {page}")
    console.line()
    console.note("Try:")
    console.line(f"  {embedded.kubectl('get nodes,storageclasses,persistentvolumes,persistentvolumeclaims -A')}")
    console.note("Ctrl-C stops it.")


def _trouble(driver: DriverStatus) -> str:
    return "" if driver.healthy else f": {driver.state}{f', {driver.error}' if driver.error else ''}"
