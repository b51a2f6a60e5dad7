"""`volplane explain pvc NAMESPACE/NAME`: why a claim is where it is, and what happens next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from volplane.assembly import parse_controllers
from volplane.cli.controller_client import ControllerAddress, ask
from volplane.cli.drain_steps import lease_holder
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import Kubeconfig
from volplane.cli.framework.options import CONTROLLERS_DEFAULT, DEFAULT_NAMESPACE, ConfigFile, Controllers, OurNamespace
from volplane.controller.config import Configuration, read_configuration
from volplane.errors import ApiError, ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.process import Options
from volplane.read_only import read_control_plane
from volplane.reconcile.explain import Explanation

__all__ = ["register"]

KINDS = ("pvc", "claim", "persistentvolumeclaim", "persistentvolumeclaims")
PARTS = (("Where it stands", "situation"), ("What was tried", "tried"), ("What happens next", "next"))


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
    controllers: Controllers = CONTROLLERS_DEFAULT,
    namespace: OurNamespace = DEFAULT_NAMESPACE,
) -> None:
    """Tell in plain words where a claim stands, what was tried, and what happens next and when.

    Asks the running controller, whose decision it is. Where none answers, the cluster is read and the same decision
    made here, as a controller that has just started with these options would make it; nothing is written.
    """
    if kind not in KINDS:
        raise ConfigurationError(
            f'"{kind}" cannot be explained; only pvc can, as in `volplane explain pvc default/data`'
        )
    options = Options(controllers=parse_controllers(controllers), namespace=namespace)
    configuration = read_configuration(config) if config is not None else Configuration()
    key = name if "/" in name else f"default/{name}"
    asyncio.run(_explain(Console(), key, http, lambda: _look(kubeconfig, configuration, options, key)))


async def _explain(console: Console, key: str, address: str, look_here: Callable[[], Awaitable[_Look]]) -> None:
    answer = await ask(address, "/explain", {"claim": key})
    if answer is not None:
        _tell(console, answer)
        return
    seen = await look_here()
    _tell(console, asdict(seen.explanation))
    console.note(_who_works(seen.leader, address))
    for doubt in seen.doubts:
        console.note(doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """leader: who holds and renews the lease, "" if nobody does."""

    explanation: Explanation
    leader: str
    doubts: tuple[str, ...]


async def _look(kubeconfig: Path | None, configuration: Configuration, options: Options, key: str) -> _Look:
    transport = await HttpTransport.connect(kubeconfig)
    try:
        client = Client(transport)
        seen = await read_control_plane(client, configuration, options)
        leader = await _leader(client, options.namespace)
        return _Look(explanation=seen.explain(key), leader=leader, doubts=seen.doubts)
    finally:
        await transport.close()


async def _leader(client: Client, namespace: str) -> str:
    try:
        return await lease_holder(client, namespace)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return ""


def _who_works(leader: str, address: str) -> str:
    said = f"no controller answers at {address}"
    if leader:
        return f"{said}, but {leader} works: ask it with --http for what it has tried"
    return f"{said}: this is what one that starts now with these options would decide; what was tried is not known"


def _tell(console: Console, answer: Mapping[str, Any]) -> None:
    for heading, part in PARTS:
        if answer[part]:
            console.heading(heading)
            for sentence in answer[part]:
                console.line(f"  {sentence}")
