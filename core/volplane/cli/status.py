"""`volplane status`: drivers, volumes, claims and operations, and why some of them wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from volplane.cli.controller_client import ControllerAddress, get_answer
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import Kubeconfig
from volplane.kube.client import Client
from volplane.kube.http_transport import HttpTransport
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume

__all__ = ["register"]

MOST_ROWS = 50


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(*, kubeconfig: Kubeconfig = None, http: ControllerAddress = "127.0.0.1:9809") -> None:
    """Show drivers, volumes and claims by phase, running operations, and what waits for what.

    Objects are read from the cluster; drivers, operations and reasons from the controller process, where one answers.
    Exit code 1 if a driver cannot be used.
    """
    healthy = asyncio.run(_show(Console(), kubeconfig, http))
    if not healthy:
        raise typer.Exit(1)


async def _show(console: Console, kubeconfig: Path | None, address: str) -> bool:
    answer = await get_answer(address, "/status")
    transport = await HttpTransport.connect(kubeconfig)
    try:
        client = Client(transport)
        claims = (await client.list(CLAIMS)).items
        volumes = (await client.list(VOLUMES)).items
    finally:
        await transport.close()
    _drivers(console, answer, address)
    _phases(console, volumes, claims)
    _waiting(console, claims, volumes, (answer or {}).get("reasons", {}))
    _operations(console, (answer or {}).get("operations", []))
    return all(driver["healthy"] for driver in (answer or {}).get("drivers", []))


def _drivers(console: Console, answer: Mapping[str, Any] | None, address: str) -> None:
    console.heading("Drivers")
    if answer is None:
        console.note(f"no controller answers at {address}; --http names another address")
        return
    if not answer["leads"]:
        console.note("this process waits for the lease; another one works")
    rows = [
        (each["name"], each["backend"], "hung" if each["hung"] else each["state"], each["error"] or "-")
        for each in answer["drivers"]
    ]
    if rows:
        console.table(("NAME", "BACKEND", "STATE", "PROBLEM"), rows)
    elif answer["leads"]:
        console.note("none is configured; `volplane plugins` shows what is installed")


def _phases(console: Console, volumes: Iterable[Volume], claims: Iterable[Claim]) -> None:
    console.heading("Objects")
    rows = []
    for word, items in (("volumes", volumes), ("claims", claims)):
        counted = Counter("Terminating" if item.terminating else item.status.phase or "Pending" for item in items)
        rows += [(word, phase, str(count)) for phase, count in sorted(counted.items())] or [(word, "-", "0")]
    console.table(("KIND", "PHASE", "COUNT"), rows)


def _waiting(
    console: Console,
    claims: Iterable[Claim],
    volumes: Iterable[Volume],
    reasons: Mapping[str, Mapping[str, str]],
) -> None:
    """Claims that are not bound, volumes that are failed or released, with the controller's reason if it has one."""
    rows = []
    for claim in claims:
        if claim.terminating or claim.status.phase != "Bound":
            phase = "Terminating" if claim.terminating else claim.status.phase
            rows.append(("claim", claim.key, phase, reasons.get("claims", {}).get(claim.key, "-")))
    for volume in volumes:
        if volume.terminating or volume.status.phase in ("Failed", "Released"):
            phase = "Terminating" if volume.terminating else volume.status.phase
            why = reasons.get("volumes", {}).get(volume.key, volume.status.message or "-")
            rows.append(("volume", volume.key, phase, why))
    if not rows:
        return
    console.heading("Waiting")
    console.table(("KIND", "NAME", "PHASE", "REASON"), rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        console.note(f"and {len(rows) - MOST_ROWS} more")


def _operations(console: Console, operations: list[Mapping[str, Any]]) -> None:
    if not operations:
        return
    console.heading("Operations")
    rows = [(item["name"], item["driver"], item["phase"], item["error"] or "-") for item in operations[:MOST_ROWS]]
    console.table(("NAME", "DRIVER", "PHASE", "LAST ERROR"), rows)
