"""`volplane apiserver`: a Kubernetes API on this machine, for kubectl, controllers under development, and tests."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import Verbose
from volplane.controller import logs
from volplane_embedded.cli.embedded_server import (
    DataDirectory,
    EmbeddedServer,
    FeatureGates,
    Host,
    InMemory,
    KubeconfigOut,
    Port,
    ServerSettings,
    embedded_server,
    is_loopback,
    server_settings,
)
from volplane_embedded.cli.failed_start import undone_unless_started


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
    feature_gates: FeatureGates = "",
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
    logs.log_stray_errors()
    settings = server_settings(
        data=data, memory=memory, host=host, port=port, kubeconfig_out=kubeconfig_out, feature_gates=feature_gates
    )
    disabled = frozenset(name for name in (part.strip() for part in disable_admission.split(",")) if name)
    eventloop.run(lambda stop: _serve(settings, disabled, stop))


async def _serve(settings: ServerSettings, disabled: frozenset[str], stop: asyncio.Event) -> None:
    console = Console()
    directories = [settings.data] if settings.data is not None else []
    with undone_unless_started([settings.kubeconfig], directories) as started:
        async with embedded_server(settings, disabled_admission=disabled) as embedded:
            started()
            _print_introduction(console, settings, embedded)
            await stop.wait()


def _print_introduction(console: Console, settings: ServerSettings, embedded: EmbeddedServer) -> None:
    if not is_loopback(settings.host):
        console.warning(f"{settings.host} can be reached from other machines; this server is for development only")
    console.line(f"serving {embedded.url}")
    console.line(f"objects in {settings.data}" if settings.data else "objects in memory only; --data DIR keeps them")
    console.line(f"kubeconfig {embedded.kubeconfig}")
    console.line()
    console.note("Try:")
    console.line(f"  {embedded.kubectl('get storageclasses,persistentvolumes,persistentvolumeclaims -A')}")
    console.line(f"  volplane run --kubeconfig {embedded.kubeconfig}")
    console.note("Ctrl-C stops it.")
