"""`volplane drain`: release or delete everything that our finalizers hold, before volplane leaves a cluster."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from volplane.cli.controller_client import ControllerAddress, get_answer, lease_holder, require_driver
from volplane.cli.drain_steps import Drain, Leftover
from volplane.cli.framework.cluster import cluster_client
from volplane.cli.framework.console import Console
from volplane.cli.framework.durations import duration_option
from volplane.cli.framework.options import DEFAULT_NAMESPACE, Kubeconfig, OurNamespace, OutputFormat
from volplane.cli.framework.output import Output
from volplane.errors import VolplaneError
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.reclaim.drain import Held

__all__ = ["register"]

MOST_ROWS = 200
EVENT_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("drain")(drain)


def drain(
    *,
    kubeconfig: Kubeconfig = None,
    driver: Annotated[
        str, typer.Option("--driver", metavar="NAME", help="Only what this driver made or is making.")
    ] = "",
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NAME", help="Only what is on this node, of distributed drivers; also one that is gone."
        ),
    ] = "",
    release: Annotated[
        bool, typer.Option("--release", help="Keep every asset; take our finalizers off. Stop the controllers first.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the claims, their volumes and assets. The controllers must run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only show what is held.")] = False,
    namespace: OurNamespace = DEFAULT_NAMESPACE,
    timeout: Annotated[
        float, duration_option("--timeout", says="How long --delete waits for everything to be gone.", default="5m")
    ] = 300.0,
    output: OutputFormat = Output.TEXT,
    http: ControllerAddress = "127.0.0.1:9809",
) -> None:
    """Show what volplane's finalizers hold, and release or delete it.

    Without --yes nothing is changed. --release keeps the data: volumes turn to policy Retain and lose our finalizer,
    claims lose their intent, and pods go on using bound ones. --delete deletes the users' claims with all data; of a
    node that is gone nobody can delete the assets, so that they are left on its disks.
    Exit code 1 if something is still held at the end.
    """
    if release and delete:
        raise typer.BadParameter("--release and --delete exclude each other: give one of them")
    if yes and not (release or delete):
        raise typer.BadParameter("--yes needs --release or --delete: say what shall become of the assets")
    mode = "release" if release else "delete" if delete else ""
    # What is told meanwhile is no part of a result for programs.
    console = Console() if output is Output.TEXT else Console(out=sys.stderr)
    work = Drain(driver, namespace, timeout, node)
    held, left = asyncio.run(_drain(console, kubeconfig, work, http, mode=mode, yes=yes))
    if output is not Output.TEXT:
        Console().data({"held": held, "left": left}, output)
    if left:
        raise typer.Exit(1)


async def _drain(
    console: Console, kubeconfig: Path | None, work: Drain, address: str, *, mode: str, yes: bool
) -> tuple[Sequence[Held], Sequence[Leftover]]:
    """What was held, and what is held still after it was to be released or deleted."""
    async with cluster_client(kubeconfig) as client:
        held = await work.find(client)
        _table(console, held)
        if not held:
            await _check_driver(work.driver, address)
            return (), ()
        if not yes:
            _advise(console, mode)
            return held, ()
        gone = await work.node_is_gone(client)
        if not gone:
            await _check_controllers(client, work.namespace, address, mode)
        async with _recorder(client) as recorder:
            if mode == "release":
                await work.release(console, client, recorder)
                left: Sequence[Leftover] = [Leftover(held=each, by=(each.why,)) for each in await work.find(client)]
            else:
                left = await work.delete(console, client, recorder, address, gone=gone)
        if gone:
            console.note(f"what they were is left on the disks of {work.node}: erase these before they are used again")
        _report(console, left)
        return held, left


async def _check_driver(name: str, address: str) -> None:
    """Raise ConfigurationError if a controller answers that has no such driver: nothing is held by a slip."""
    status = await get_answer(address, "/status") if name else None
    if status is not None:
        require_driver(name, (each["name"] for each in status["drivers"]))


def _table(console: Console, held: Sequence[Held]) -> None:
    if not held:
        console.line("nothing is held")
        return
    console.heading("Held by volplane")
    rows = [(each.kind, each.key, each.phase, each.driver or "?", each.asset or "-", each.why) for each in held]
    console.table(("KIND", "NAME", "PHASE", "DRIVER", "ASSET", "BY"), rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        console.note(f"and {len(rows) - MOST_ROWS} more")


def _advise(console: Console, mode: str) -> None:
    match mode:
        case "release":
            console.note("nothing was changed; with --yes these lose our finalizers, and their assets stay")
        case "delete":
            console.note("nothing was changed; with --yes these are deleted with their claims and all data in them")
        case _:
            console.note("nothing was changed; --release releases them and keeps the assets, --delete deletes them")


async def _check_controllers(client: Client, namespace: str, address: str, mode: str) -> None:
    """Raise VolplaneError if a running controller would undo a release, or none runs that could delete."""
    holder = await lease_holder(client, namespace)
    if not holder:
        answer = await get_answer(address, "/status")
        holder = address if answer is not None and answer.get("leads") else ""
    if mode == "release" and holder:
        raise VolplaneError(
            f"a controller is at work ({holder}) and would take its finalizers back: stop it first, as with "
            f"`kubectl -n {namespace} scale deployment volplane --replicas=0`"
        )
    if mode == "delete" and not holder:
        raise VolplaneError(
            f"no controller is at work (by the lease in namespace {namespace}, and at {address}): nobody would "
            "delete the assets. Start it, or use --release"
        )


@asynccontextmanager
async def _recorder(client: Client) -> AsyncIterator[EventRecorder]:
    """A recorder that writes events until the block ends."""
    recorder = EventRecorder(client, instance=f"drain@{socket.gethostname()}", now=lambda: datetime.now(UTC))
    writing = asyncio.ensure_future(recorder.run())
    try:
        yield recorder
    finally:
        await recorder.close(EVENT_SECONDS)
        await writing


def _report(console: Console, left: Sequence[Leftover]) -> None:
    console.line()
    if not left:
        console.done("nothing is held any more")
        return
    console.failed(f"{len(left)} still held")
    rows = [(each.held.kind, each.held.key, each.held.driver or "?", "; ".join(each.by)) for each in left[:MOST_ROWS]]
    console.table(("KIND", "NAME", "DRIVER", "HELD BY"), rows)
