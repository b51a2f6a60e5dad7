"""`volplane explain pvc NAMESPACE/NAME`: why a claim is in its state, and what happens next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from volplane.cli.controller_client import ControllerAddress, get_answer, lease_holder
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import DEFAULT_NAMESPACE, ConfigFile, Controllers, Kubeconfig, OurNamespace
from volplane.controller.config import DEFAULT_CONTROLLERS, Configuration, parse_controllers, read_configuration
from volplane.errors import ApiError, ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.process import Options
from volplane.read_only import read_control_plane
from volplane.reconcile.explain import Explanation

__all__ = ["register"]

KINDS = ("pvc", "claim", "persistentvolumeclaim", "persistentvolumeclaims")
PARTS = (("Where it stands", "situation"), ("What was tried", "tried"), ("What happens next", "next"))

_Decided = tuple[Explanation, str, tuple[str, ...]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="pvc.")],
    name: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="Which claim; without a namespace: default.")],
    *,
    http: ControllerAddress = "127.0.0.1:9809",
    kubeconfig: Kubeconfig = None,
    config: ConfigFile = None,
    controllers: Controllers = DEFAULT_CONTROLLERS,
    namespace: OurNamespace = DEFAULT_NAMESPACE,
) -> None:
    """Explain where a claim stands, what was tried, and what happens next and when.

    Asks the running controller. If none answers, reads the cluster and decides as a controller would that has just
    started with these options; nothing is written.
    """
    if kind not in KINDS:
        raise ConfigurationError(
            f'"{kind}" cannot be explained; only pvc can, as in `volplane explain pvc default/data`'
        )
    options = Options(controllers=parse_controllers(controllers), namespace=namespace)
    configuration = read_configuration(config) if config is not None else Configuration()
    key = name if "/" in name else f"default/{name}"
    asyncio.run(_explain(Console(), key, http, lambda: _read(kubeconfig, configuration, options, key)))


async def _explain(console: Console, key: str, address: str, read: Callable[[], Awaitable[_Decided]]) -> None:
    answer = await get_answer(address, "/explain", {"claim": key})
    if answer is not None:
        _show(console, answer)
        return
    explanation, leader, doubts = await read()
    _show(console, asdict(explanation))
    console.note(_leader_note(leader, address))
    for doubt in doubts:
        console.note(doubt)


async def _read(kubeconfig: Path | None, configuration: Configuration, options: Options, key: str) -> _Decided:
    """What this process decides itself, who holds the lease ("": nobody), and what could not be read."""
    transport = await HttpTransport.connect(kubeconfig)
    try:
        client = Client(transport)
        seen = await read_control_plane(client, configuration, options)
        return seen.explain(key), await _leader(client, options.namespace), seen.doubts
    finally:
        await transport.close()


async def _leader(client: Client, namespace: str) -> str:
    try:
        return await lease_holder(client, namespace)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return ""


def _leader_note(leader: str, address: str) -> str:
    silent = f"no controller answers at {address}"
    if leader:
        return f"{silent}, but {leader} works: ask it with --http for what it has tried"
    return f"{silent}: this is what one that starts now with these options would decide; what was tried is not known"


def _show(console: Console, answer: Mapping[str, Any]) -> None:
    for heading, part in PARTS:
        if answer[part]:
            console.heading(heading)
            for sentence in answer[part]:
                console.line(f"  {sentence}")
