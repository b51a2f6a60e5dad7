"""A cluster in this process: API server, nodes, all controllers. `volplane dev` and `volplane demo` run it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import MappingProxyType

from volplane.cli.framework.endpoints import serve_endpoints
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.http_access import HttpAddress
from volplane.controller.metrics import Metrics
from volplane.drivers.discovery import InstalledPlugins
from volplane.errors import ConfigurationError
from volplane.kube.client import Client
from volplane.kube.kinds import LEASES, STORAGE_CLASSES
from volplane.kube.names import DEFAULT_CLASS
from volplane.process.duties import NODE_CONTROLLERS
from volplane.process.process import ControllerProcess, Options
from volplane_embedded.cli.embedded_server import EmbeddedServer, ServerSettings, embedded_server, make_directory
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet.local_exports import LocalExport
from volplane_embedded.kubelet.node_plugins import NodePlugin
from volplane_embedded.local_nodes import LocalNodes

DEFAULT_BACKEND = "hostpath"
DEFAULT_DRIVER = "hostpath.volplane.dev"
FORMER = "volplane-dev_"
"""How the holder of the Lease begins, of this process and those before it on the same data."""
STANDARD = "standard"
"""The class that a cluster without any begins with, by the name that other local clusters give it."""
NEW_DRIVERS_SECONDS = 1.0
"""How often a node looks for drivers that have become usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directories:
    """Directories of a development cluster for what is not an API object.

    volumes: root of the default hostpath driver. pods: logs and state of the node agent. disks: where mocked clouds
    show their disks; None: nowhere.
    """

    volumes: Path
    pods: Path
    disks: Path | None = None

    @classmethod
    def beneath(cls, directory: Path) -> Directories:
        return cls(volumes=directory / "volumes", pods=directory / "pods")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentCluster:
    """A running development cluster.

    instances: the processes of nodes, where storage is distributed. client: that of its controllers, in process.
    """

    embedded: EmbeddedServer
    process: ControllerProcess
    instances: Sequence[ControllerProcess]
    client: Client
    directories: Directories
    default_class: str = ""
    """The class of claims that name none."""


def with_default_driver(
    configuration: Configuration, directories: Directories, nodes: int, *, distributed: bool = False
) -> Configuration:
    """Without `drivers` in the configuration, add one hostpath driver in `directories.volumes`, if installed.

    All nodes of a development cluster are this machine: with several, its volumes are shared by them, unless the driver
    is distributed. Raises ConfigurationError for distributed drivers of the file: they would share one root.
    """
    if configuration.drivers is not None and distributed:
        raise ConfigurationError(
            "--distributed is for the default driver, which gets a root for each node: leave `drivers` out of the file"
        )
    if configuration.drivers is not None:
        return configuration
    if DEFAULT_BACKEND not in InstalledPlugins().names("backend"):
        return replace(configuration, drivers=())
    where: dict[str, object] = {"node_name": "node-1"} if nodes == 1 or distributed else {"shared": True}
    options = {"root": str(directories.volumes), "create_root": True, **where}
    driver = DriverSettings(
        name=DEFAULT_DRIVER,
        backend=DEFAULT_BACKEND,
        options=options,
        distributed=distributed,
        where="the default driver",
    )
    return replace(configuration, drivers=(driver,))


def _of_node(configuration: Configuration, root: Path) -> Configuration:
    """Return the same, with the root of one node: on machines of their own all would have the same path."""
    drivers = tuple(
        replace(driver, options={**driver.options, "root": str(root)}) for driver in configuration.drivers or ()
    )
    return replace(configuration, drivers=drivers)


async def _default_class(client: Client, configured: Configuration, *, distributed: bool) -> str:
    """Return the class of claims that name none. A cluster without classes gets one, of the first driver."""
    classes = (await client.list(STORAGE_CLASSES)).items
    if classes or not configured.drivers:
        return next((each.name for each in classes if each.annotation(DEFAULT_CLASS) == "true"), "")
    body = STORAGE_CLASSES.body(
        metadata={"name": STANDARD, "annotations": {DEFAULT_CLASS: "true"}},
        provisioner=configured.drivers[0].name,
        allowVolumeExpansion=True,
        volumeBindingMode="WaitForFirstConsumer" if distributed else "Immediate",
    )
    return (await client.create(STORAGE_CLASSES, body)).name


@asynccontextmanager
async def development_cluster(
    settings: ServerSettings,
    configuration: Configuration,
    directories: Directories,
    *,
    nodes: int,
    exports: Sequence[LocalExport] = (),
    labels: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    distributed: bool = False,
    address: HttpAddress | None = None,
    default_class: bool = False,
) -> AsyncIterator[DevelopmentCluster]:
    """Run the cluster until the block ends, then stop pods, controllers and server in this order.

    exports: NFS exports of this machine, whose volumes pods get by a bind. labels: node -> more labels.
    distributed: a process of its own serves the volumes of each node, as `volplane run --node-name` does. address:
    where the controllers serve health, metrics and answers for commands; None = nowhere.
    default_class: begin with a class for claims that name none, unless there are classes.
    Raises ConfigurationError for settings that cannot be used, ExceptionGroup if a part fails.
    """
    async with embedded_server(settings) as embedded:
        # The server has made the data directory, or refused it: nothing may lie in it before.
        make_directory(directories.pods, "the directory of the pods")
        client = Client(InProcessTransport(embedded.server))
        # No pod may read the token, the kubeconfig or the database.
        hidden = [settings.kubeconfig.absolute(), *([] if settings.data is None else [settings.data.absolute()])]
        local = LocalNodes(
            client,
            count=nodes,
            state_dir=directories.pods,
            now=lambda: datetime.now(UTC),
            random=Random(),  # noqa: S311 - jitter
            hidden=hidden,
            disks=directories.disks,
            exports=exports,
            labels=labels,
        )
        embedded.server.log_source, embedded.server.exec_source = local.log_source, local.exec_source
        options = Options(identity=f"{FORMER}{secrets.token_hex(4)}")
        await _end_former_term(client, options)
        configured = with_default_driver(configuration, directories, nodes, distributed=distributed)
        chosen = await _default_class(client, configured, distributed=distributed) if default_class else ""
        process = ControllerProcess(client, configured, options, metrics=Metrics())
        instances = [
            ControllerProcess(
                client,
                _of_node(configured, directories.volumes / name),
                Options(leader_elect=False, controllers=frozenset(NODE_CONTROLLERS), node_name=name),
                metrics=Metrics(),
            )
            for name in (local.names if distributed else ())
        ]
        stop = asyncio.Event()
        serving = serve_endpoints(address, process) if address is not None else nullcontext()
        async with serving, asyncio.TaskGroup() as group:
            agents = group.create_task(local.run(), name="nodes")
            registering = (
                [group.create_task(_register_plugins(local, process), name="node-plugins")] if directories.disks else []
            )
            controllers = [group.create_task(each.run(stop), name="controllers") for each in (process, *instances)]
            try:
                yield DevelopmentCluster(
                    embedded=embedded,
                    process=process,
                    instances=instances,
                    client=client,
                    directories=directories,
                    default_class=chosen,
                )
            finally:
                stop.set()
                for task in (agents, *registering):
                    task.cancel()
                await asyncio.wait({agents, *controllers, *registering})


async def _end_former_term(client: Client, options: Options) -> None:
    """Release the Lease of a process like this one that was killed: nobody else has this server's directory now."""
    lease = await client.find(LEASES, f"{options.home}/{options.lease_name}")
    if lease is not None and (lease.spec.holder_identity or "").startswith(FORMER):
        await client.patch(LEASES, lease.key, {"spec": {"holderIdentity": None, "leaseDurationSeconds": 1}})


async def _register_plugins(local: LocalNodes, process: ControllerProcess) -> None:
    """Register the node plugin of each attaching driver on the nodes, once the driver works."""
    registered: list[NodePlugin] = []
    while True:
        drivers = process.plane.drivers.ready() if process.plane is not None else ()
        plugins = [
            NodePlugin(info.csi_driver_name, info.topology_keys, info.max_attached_per_node)
            for info in (driver.info for driver in drivers)
            if info.csi_driver_name and info.attach_required
        ]
        if new := [each for each in plugins if each not in registered]:
            registered += new
            local.plugins.register(registered)
        await asyncio.sleep(NEW_DRIVERS_SECONDS)
