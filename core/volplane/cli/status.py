"""`volplane status`: drivers, volumes, claims and operations, and why some of them wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from volplane.cli.controller_client import ControllerAddress, ask, cluster_client
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import Kubeconfig, OutputFormat
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.process.duties import CHANGES

__all__ = ["status"]

MOST_ROWS = 50


def status(
    *, kubeconfig: Kubeconfig = None, http: ControllerAddress = "127.0.0.1:9809", output: OutputFormat = Output.TEXT
) -> None:
    """Show drivers, volumes and claims by phase, running operations, and what waits for what.

    Objects are read from the cluster; drivers, operations and reasons from the controller process, where one answers.
    Exit code 1 if a driver cannot be used.
    """
    answer, volumes, claims = asyncio.run(_read(kubeconfig, http))
    console = Console()
    told = answer or {}
    operations: list[Mapping[str, Any]] = told.get("operations", [])
    waiting = _waiting(claims, volumes, told.get("reasons", {}))
    counts = {"volumes": _counted(volumes), "claims": _counted(claims)}
    if output is Output.TEXT:
        _drivers(console, answer, http)
        console.heading("Objects")
        found = {word: sorted(counted.items()) or [("-", 0)] for word, counted in counts.items()}
        rows = [(word, phase, str(count)) for word, phases in found.items() for phase, count in phases]
        console.table(("KIND", "PHASE", "COUNT"), rows)
        if waiting:
            console.heading("Waiting")
            console.table(("KIND", "NAME", "PHASE", "REASON"), waiting[:MOST_ROWS])
        if len(waiting) > MOST_ROWS:
            console.note(f"and {len(waiting) - MOST_ROWS} more; -o json shows all")
        if operations:
            console.heading("Operations")
            shown = [(each["name"], each["driver"], each["phase"], each["error"] or "-") for each in operations]
            console.table(("NAME", "DRIVER", "PHASE", "LAST ERROR"), shown[:MOST_ROWS])
    else:
        names = ("kind", "name", "phase", "reason")
        content = {
            "controller": answer is not None,
            "leads": told.get("leads", False),
            "drivers": told.get("drivers", []),
            **counts,
            "waiting": [dict(zip(names, row, strict=True)) for row in waiting],
            "operations": operations,
        }
        console.data(content, output)
    if not all(driver["healthy"] for driver in told.get("drivers", [])):
        raise typer.Exit(1)


async def _read(kubeconfig: Path | None, address: str) -> tuple[Mapping[str, Any] | None, list[Volume], list[Claim]]:
    """Return the answer of the controller, if there is one, and the cluster's volumes and claims."""
    answer = await ask(address, "/status")
    async with cluster_client(kubeconfig) as client:
        claims = (await client.list(CLAIMS)).items
        return answer, list((await client.list(VOLUMES)).items), list(claims)


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


def _counted(items: Iterable[Volume | Claim]) -> Mapping[str, int]:
    """Count the objects by phase."""
    return Counter("Terminating" if item.terminating else item.status.phase or "Pending" for item in items)


def _waiting(
    claims: Iterable[Claim], volumes: Iterable[Volume], reasons: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str, str, str]]:
    """List claims that are not bound or wait for a change, and failed or released volumes, with the reasons."""
    rows = []
    for claim in claims:
        if claim.terminating or claim.status.phase != "Bound":
            phase = "Terminating" if claim.terminating else claim.status.phase
            rows.append(("claim", claim.key, phase, reasons.get("claims", {}).get(claim.key, "-")))
            continue
        rows += [
            ("claim", claim.key, claim.status.phase, reasons[changes][claim.key])
            for changes in CHANGES
            if claim.key in reasons.get(changes, {})
        ]
    for volume in volumes:
        if volume.terminating or volume.status.phase in ("Failed", "Released"):
            phase = "Terminating" if volume.terminating else volume.status.phase
            why = reasons.get("volumes", {}).get(volume.key, volume.status.message or "-")
            rows.append(("volume", volume.key, phase, why))
    return rows
