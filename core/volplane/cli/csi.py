"""`volplane csi`: one backend as a CSI driver, for sidecars, kubelets and Nomad."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from typer import BadParameter, Option

from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import LogFormat, Verbose, duration_option
from volplane.controller import logs
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.driver import Driver
from volplane.drivers.loading import BUILD_DEADLINE, build_driver, within
from volplane.errors import ConfigurationError
from volplane.operations.operation import DriverLimits

log = logging.getLogger(__name__)


def csi(
    *,
    backend: Annotated[str, Option(metavar="NAME", help="Backend to serve, as `volplane plugins` lists it.")],
    option: Annotated[
        list[str] | None, Option("-o", "--option", metavar="KEY=VALUE", help="Option of the driver; may be repeated.")
    ] = None,
    endpoint: Annotated[
        str, Option(envvar="CSI_ENDPOINT", metavar="unix:///PATH", help="Socket to serve on; a directory of its own.")
    ],
    cluster: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Name of the cluster that is served, part of the marks of its volumes. Another one for every cluster"
            " that uses the storage, and the same for ever.",
        ),
    ],
    driver_name: Annotated[
        str, Option("--driver-name", metavar="NAME", help="Name of the CSI driver; else the backend's own.")
    ] = "",
    topology: Annotated[
        bool, Option(help="Announce places; not where no node plugin of this name is registered on the nodes.")
    ] = True,
    services: Annotated[
        str, Option(metavar="NAMES", help="Services: controller, node, or both with a comma.")
    ] = "controller",
    node_id: Annotated[str, Option(metavar="NAME", help="Name of this node in the cluster, for service node.")] = "",
    node_label: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="Label of this node that is a topology key; may be repeated."),
    ] = None,
    kubelet_dir: Annotated[
        Path, Option(metavar="PATH", help="Directory below which service node mounts: the kubelet's, or Nomad's.")
    ] = Path("/var/lib/kubelet"),
    register: Annotated[bool, Option(help="Make service node known to the kubelet; not under Nomad.")] = True,
    concurrency: Annotated[int, Option(metavar="N", min=1, help="Hooks that change something and run at once.")] = 10,
    timeout: Annotated[float, duration_option("--timeout", says="Time of one hook.", default="2m", minimum=1)] = 120.0,
    log_format: LogFormat = "text",
    verbose: Verbose = 0,
) -> None:
    """Serve a backend as a CSI driver, until SIGTERM or Ctrl-C."""
    try:
        from volplane.csi import node, server, service  # noqa: PLC0415 - gRPC is an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise ConfigurationError('volplane csi needs gRPC: pip install "volplane[csi]"') from None
    logs.configure(log_format, verbosity=verbose)
    logs.log_stray_errors()
    chosen = set(services.split(","))
    if not chosen <= {"controller", "node"}:
        raise BadParameter(f"--services is {services!r}, expected controller, node, or controller,node")
    if ("node" in chosen) != bool(node_id):
        raise BadParameter("--services node and --node-id go together")
    labels = _pairs("--node-label", node_label or [])
    options = service.ServiceOptions(
        path=server.socket_path(endpoint),
        cluster=cluster_name(cluster),
        topology=topology,
        limits=DriverLimits(concurrency=concurrency, timeout=timeout),
        controls="controller" in chosen,
        node=node.NodeOptions(node_id=node_id, kubelet_dir=kubelet_dir, labels=labels) if node_id else None,
        registers=register,
    )
    driver = within(BUILD_DEADLINE * 2, f"making backend {backend}", _driver, backend, driver_name, option or [])
    console = Console()

    async def main(stop: object) -> None:
        await service.serve(driver, options, stop, lambda: console.note(f"serving {driver.name} on {options.path}"))  # type: ignore[arg-type]

    eventloop.run(main)


def cluster_name(given: str) -> str:
    """Return the name of a cluster. Raises BadParameter."""
    name = given.strip()
    if not 1 <= len(name) <= 59 or not name.isascii() or not name.isprintable() or " " in name:
        raise BadParameter(f"--cluster is {given!r}, expected 1 to 59 printable ASCII characters without spaces")
    return name


def _driver(backend: str, name: str, given: list[str]) -> Driver:
    plugin = InstalledPlugins().load("backend", backend)
    values = _pairs("-o", given)
    own = getattr(plugin.factory, "default_driver_name", "")
    if not (name or own):
        raise ConfigurationError(f"backend {backend} has no name of its own for a driver; give --driver-name")
    return build_driver(name or own, plugin, values)


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            # The rest may be a secret that stands where its name should.
            raise ConfigurationError(f"{option} {key[:40]}: expected KEY=VALUE")
        if key in values:
            raise ConfigurationError(f"{option} {key} is given twice")
        values[key] = value
    return values
