"""`volplane apiserver`: a Kubernetes API on this machine, for kubectl, controllers under development, and tests."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import DataDirectory, Host, InMemory, KubeconfigOut, Port, Verbose
from volplane.controller import logs
from volplane_embedded.cli.embedded_server import Embedded, Place, embedded_server, is_loopback, place_of

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("apiserver")(apiserver)


def apiserver(
    *,
    data: DataDirectory = None,
    memory: InMemory = False,
    host: Host = "127.0.0.1",
    port: Port = 6443,
    kubeconfig_out: KubeconfigOut = None,
    disable_admission: Annotated[
        str,
        typer.Option(
            "--disable-admission",
            metavar="LIST",
            help="Admission plugins to leave out, separated by commas, named as the stock server names them.",
        ),
    ] = "",
    verbose: Verbose = 0,
) -> None:
    """Serve a Kubernetes API from this machine, for development and tests.

    It has objects, watches, validation and admission of the kinds that storage needs, but runs no pods and binds no
    claims: `volplane dev` does. Everybody who can read the kubeconfig may do everything.
    """
    logs.configure(verbosity=verbose)
    place = place_of(data=data, memory=memory, host=host, port=port, kubeconfig_out=kubeconfig_out)
    disabled = frozenset(name for name in (part.strip() for part in disable_admission.split(",")) if name)
    eventloop.run(lambda stop: _serve(place, disabled, stop))


async def _serve(place: Place, disabled: frozenset[str], stop: asyncio.Event) -> None:
    console = Console()
    async with embedded_server(place, disabled_admission=disabled) as embedded:
        _introduce(console, place, embedded)
        await stop.wait()
    console.note("stopped")


def _introduce(console: Console, place: Place, embedded: Embedded) -> None:
    if not is_loopback(place.host):
        console.warning(f"{place.host} can be reached from other machines; this server is for development only")
    console.line(f"serving {embedded.url}")
    console.line(f"objects in {place.data}" if place.data else "objects in memory only; --data DIR keeps them")
    console.line(f"kubeconfig {embedded.kubeconfig}")
    console.line()
    console.note("Try:")
    console.line(f"  {embedded.kubectl('get storageclasses,persistentvolumes,persistentvolumeclaims -A')}")
    console.line(f"  volplane run --kubeconfig {embedded.kubeconfig}")
    console.note("Ctrl-C stops it.")
