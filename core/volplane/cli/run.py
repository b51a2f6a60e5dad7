"""`volplane run`: the controllers, for a cluster that exists."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from volplane.cli.framework import eventloop
from volplane.cli.framework.endpoints import HttpAddress, serve_endpoints
from volplane.cli.framework.options import DEFAULT_NAMESPACE, ConfigFile, Controllers, Kubeconfig, OurNamespace, Verbose
from volplane.controller import logs
from volplane.controller.config import (
    DEFAULT_CONTROLLERS,
    Configuration,
    controllers_of_node,
    parse_controllers,
    read_configuration,
)
from volplane.controller.metrics import Metrics
from volplane.errors import ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.process import ControllerProcess, Options

__all__ = ["register"]


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class Placement(StrEnum):
    ASSIGNER = "assigner"
    RACE = "race"


class Immediate(StrEnum):
    ASSIGNER = "assigner"
    EXTERNAL = "external"


_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    *,
    kubeconfig: Kubeconfig = None,
    config: ConfigFile = None,
    controllers: Controllers = DEFAULT_CONTROLLERS,
    namespace: OurNamespace = DEFAULT_NAMESPACE,
    leader_elect: Annotated[bool, typer.Option(help="Wait for the lease, so that only one replica works.")] = True,
    node_name: Annotated[
        str | None,
        typer.Option(
            "--node-name",
            metavar="NAME",
            help="Serve the storage of this node: distributed drivers, and of all objects only those of the node.",
        ),
    ] = None,
    placement: Annotated[
        Placement,
        typer.Option(
            help="How claims of distributed drivers get their node: the controller assigner chooses, or the processes"
            " of the nodes compete for them, each after a random delay (give it to all processes).",
        ),
    ] = Placement.ASSIGNER,
    race_base_delay: Annotated[
        str, typer.Option("--race-base-delay", metavar="TIME", help="Of --placement race: the longest first delay.")
    ] = "20s",
    race_max_delay: Annotated[
        str, typer.Option("--race-max-delay", metavar="TIME", help="Of --placement race: the longest delay of all.")
    ] = "60s",
    immediate: Annotated[
        Immediate,
        typer.Option(
            help="Who selects the node for claims of distributed drivers that bind immediately: the assigner, or"
            " somebody else who sets the annotation volume.kubernetes.io/selected-node."
        ),
    ] = Immediate.ASSIGNER,
    http: Annotated[
        str,
        typer.Option(
            "--http", metavar="ADDRESS:PORT", help="Where health, metrics and answers for commands are served."
        ),
    ] = "127.0.0.1:9809",
    scrubber_image: Annotated[
        str | None,
        typer.Option("--scrubber-image", metavar="IMAGE", help="Image of scrubber pods; wins over the file."),
    ] = None,
    resync: Annotated[
        str, typer.Option(metavar="TIME", help="Pause between safety passes over all objects; 0s = never.")
    ] = "10m",
    disable_force_detach: Annotated[
        bool,
        typer.Option(
            "--disable-force-detach-on-timeout",
            help="Never detach by the 6 minute timer what an unhealthy node has not unmounted; only the taint"
            " node.kubernetes.io/out-of-service allows it then.",
        ),
    ] = False,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How logs are written.")] = LogFormat.TEXT,
    verbose: Verbose = 0,
) -> None:
    """Run the controllers until SIGTERM or Ctrl-C.

    Beside a stock kube-controller-manager the default controllers provision, reclaim and attach the volumes of our
    drivers; with `--controllers all` nothing else may bind and protect claims or decide what is attached.
    """
    logs.configure(log_format.value, verbosity=verbose)
    logs.log_stray_errors()
    options = Options(
        controllers=controllers_of_node(controllers) if node_name is not None else parse_controllers(controllers),
        namespace=namespace,
        leader_elect=leader_elect,
        node_name=_name_of_node(node_name),
        race=_race(race_base_delay, race_max_delay) if placement is Placement.RACE else None,
        external_choice=immediate is Immediate.EXTERNAL,
        resync=duration("--resync", resync),
        force_detach=not disable_force_detach,
    )
    configuration = _configuration(config, scrubber_image)
    address = HttpAddress.parse("--http", http)
    eventloop.run(lambda stop: _run(kubeconfig, configuration, options, address, stop))


def _name_of_node(name: str | None) -> str | None:
    """Checked as the API server checks names of nodes. Raises ConfigurationError."""
    if name is not None and (len(name) > 253 or not re.fullmatch(_SUBDOMAIN, name)):
        raise ConfigurationError(
            f'--node-name is "{name}"; it must be the name of a Node, a DNS subdomain (RFC 1123), such as worker-1'
        )
    return name


def _race(base: str, longest: str) -> tuple[float, float]:
    delays = duration("--race-base-delay", base), duration("--race-max-delay", longest)
    if not 0 < delays[0] <= delays[1]:
        raise ConfigurationError(
            f'--race-base-delay is "{base}" and --race-max-delay "{longest}"; the first must be more than nothing, and '
            "at most the second"
        )
    return delays


def duration(option: str, text: str) -> float:
    """Seconds of a text such as "30s", "10m" or "1h". Raises ConfigurationError naming the option."""
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.replace(".", "", 1).isdecimal():
        raise ConfigurationError(f'{option} is "{text}"; it must be a number with a unit, such as 30s, 10m or 1h')
    return float(number) * UNITS[unit]


def _configuration(path: Path | None, scrubber_image: str | None) -> Configuration:
    configuration = read_configuration(path) if path is not None else Configuration()
    if scrubber_image is None:
        return configuration
    return replace(configuration, scrubber=replace(configuration.scrubber, image=scrubber_image))


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
