"""`volplane run`: the controllers, for a cluster that exists."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from volplane.cli.framework import eventloop
from volplane.cli.framework.controllers import Controllers
from volplane.cli.framework.endpoints import serve_endpoints
from volplane.cli.framework.options import (
    DEFAULT_NAMESPACE,
    ConfigFile,
    Kubeconfig,
    LogFormat,
    OurNamespace,
    Verbose,
    duration_option,
)
from volplane.controller import logs
from volplane.controller.config import Configuration, read_configuration
from volplane.controller.controller import FORCE_DETACH_AFTER
from volplane.controller.http_access import HttpAddress
from volplane.controller.metrics import Metrics
from volplane.drivers.contract import SUBDOMAIN
from volplane.errors import ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.process.duties import DEFAULT_CONTROLLERS, PLACER, controllers_of_node, parse_controllers
from volplane.process.process import ControllerProcess, Options


class Placement(StrEnum):
    ASSIGNER = PLACER
    RACE = "race"


class Immediate(StrEnum):
    ASSIGNER = PLACER
    EXTERNAL = "external"


def run(
    *,
    kubeconfig: Kubeconfig = None,
    config: ConfigFile = None,
    controllers: Controllers = DEFAULT_CONTROLLERS,
    namespace: OurNamespace = DEFAULT_NAMESPACE,
    leader_elect: Annotated[bool, Option(help="Wait for the lease, so that only one replica works.")] = True,
    node_name: Annotated[
        str | None,
        Option(
            "--node-name",
            metavar="NAME",
            help="Serve the storage of this node: distributed drivers, and of all objects only those of the node.",
        ),
    ] = None,
    placement: Annotated[
        Placement,
        Option(
            help="How claims of distributed drivers get their node: the controller assigner chooses, or the processes"
            " of the nodes compete for them, each after a random delay (give it to all processes)."
        ),
    ] = Placement.ASSIGNER,
    race_base_delay: Annotated[
        float, duration_option("--race-base-delay", says="Of --placement race: the longest first delay.", default="20s")
    ] = 20.0,
    race_max_delay: Annotated[
        float, duration_option("--race-max-delay", says="Of --placement race: the longest delay of all.", default="60s")
    ] = 60.0,
    immediate: Annotated[
        Immediate,
        Option(
            help="Who selects the node for claims of distributed drivers that bind immediately: the assigner, or"
            " somebody else who sets the annotation volume.kubernetes.io/selected-node."
        ),
    ] = Immediate.ASSIGNER,
    http: Annotated[
        str, Option("--http", metavar="ADDRESS:PORT", help="Where health, metrics and answers for commands are served.")
    ] = "127.0.0.1:9809",
    scrubber_image: Annotated[
        str | None, Option("--scrubber-image", metavar="IMAGE", help="Image of scrubber pods; wins over the file.")
    ] = None,
    resync: Annotated[
        float,
        duration_option("--resync", says="Pause between safety passes over all objects; 0s = never.", default="10m"),
    ] = 600.0,
    disable_force_detach: Annotated[
        bool,
        Option(
            "--disable-force-detach-on-timeout",
            help="Never detach by the 6 minute timer what an unhealthy node has not unmounted; only the taint"
            " node.kubernetes.io/out-of-service allows it then.",
        ),
    ] = False,
    unused_condition: Annotated[
        bool, Option("--unused-condition", help="Keep the condition Unused of claims.")
    ] = False,
    log_format: LogFormat = "text",
    verbose: Verbose = 0,
) -> None:
    """Run the controllers until SIGTERM or Ctrl-C.

    Beside a stock kube-controller-manager the default controllers provision, reclaim and attach the volumes of our
    drivers; with `--controllers all` nothing else may bind and protect claims or decide what is attached.
    """
    logs.configure(log_format, verbosity=verbose)
    logs.log_stray_errors()
    if node_name is not None and (len(node_name) > 253 or not SUBDOMAIN.fullmatch(node_name)):
        raise ConfigurationError(
            f'--node-name is "{node_name}"; it must be the name of a Node, a DNS subdomain (RFC 1123), such as worker-1'
        )
    race = (race_base_delay, race_max_delay) if placement is Placement.RACE else None
    if race is not None and not 0 < race_base_delay <= race_max_delay:
        raise ConfigurationError(
            f"--race-base-delay is {race_base_delay:g}s and --race-max-delay {race_max_delay:g}s; "
            "the first must be more than nothing, and at most the second"
        )
    options = Options(
        controllers=controllers_of_node(controllers) if node_name is not None else parse_controllers(controllers),
        namespace=namespace,
        leader_elect=leader_elect,
        node_name=node_name or "",
        race=race,
        external_choice=immediate is Immediate.EXTERNAL,
        resync=resync,
        force_detach_after=None if disable_force_detach else FORCE_DETACH_AFTER,
        unused_condition=unused_condition,
    )
    configuration = read_configuration(config)
    if scrubber_image is not None:
        configuration = replace(configuration, scrubber=replace(configuration.scrubber, image=scrubber_image))
    address = HttpAddress.parse("--http", http)
    eventloop.run(lambda stop: _run(kubeconfig, configuration, options, address, stop))


async def _run(
    kubeconfig: Path | None, configuration: Configuration, options: Options, address: HttpAddress, stop: asyncio.Event
) -> None:
    transport = await HttpTransport.connect(kubeconfig)
    metrics = Metrics()
    client = Client(transport, metrics=metrics)
    try:
        process = ControllerProcess(client, configuration, options, metrics=metrics)
        async with serve_endpoints(address, process):
            await process.run(stop)
    finally:
        await transport.close()
