"""`volplane adopt`: after a restore, mark the assets of the former cluster as this cluster's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from volplane.cli.controller_client import ControllerAddress, get_answer, post_action, require_answer, require_driver
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import OutputFormat

__all__ = ["register"]

POLL_SECONDS = 0.5

Rows = list[Mapping[str, Any]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("adopt")(adopt)


def adopt(
    *,
    former: Annotated[
        str,
        typer.Option(
            "--from", metavar="CLUSTER_ID", help="Whose marks the assets carry now; `volplane leaks` shows it."
        ),
    ],
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="Of this driver only.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only show what would be done.")] = False,
    output: OutputFormat = Output.TEXT,
    http: ControllerAddress = "127.0.0.1:9809",
) -> None:
    """After a restore into a new cluster: put this cluster's marks on the assets that its volumes point at.

    The running controller does it. Assets that no volume of this cluster refers to stay as they are. Make sure that the
    former cluster is gone: two clusters with the same assets would delete each other's.
    """
    console = Console()
    plan, outcomes = asyncio.run(_adopt(console, http, former, driver, yes=yes))
    if output is Output.TEXT:
        _show(console, former, plan, outcomes)
    else:
        console.data({"plan": plan, "outcomes": outcomes}, output)
    if not all(each["state"] == "done" for each in outcomes or ()):
        raise typer.Exit(1)


async def _adopt(console: Console, address: str, former: str, driver: str, *, yes: bool) -> tuple[Rows, Rows | None]:
    """Return the plan and the outcome of each entry; None = nothing was done."""
    if driver:
        status = require_answer(await get_answer(address, "/status"), address)
        require_driver(driver, (each["name"] for each in status["drivers"]))
    query = {"from": former, **({"driver": driver} if driver else {})}
    plan: Rows = require_answer(await post_action(address, "/adopt" if yes else "/adopt/plan", query), address)
    return plan, await _finished(console, address) if plan and yes else None


def _show(console: Console, former: str, plan: Rows, outcomes: Rows | None) -> None:
    if not plan:
        console.line(f"no asset carries the marks of cluster {former}")
        return
    if outcomes is None:
        _table(console, plan)
        console.note("nothing was changed; --yes takes over what has no problem")
        return
    for each in outcomes:
        what = f"{each['handle']} of volume {each['volume']}"
        if each["state"] == "done":
            console.done(f"{what} {each['detail']}")
        else:
            console.failed(f"{what}: {each['detail']}")
    _table(console, [each for each in plan if each["obstacle"]])


async def _finished(console: Console, address: str) -> Rows:
    """Wait until nothing runs; adopting only writes marks, so it is short."""
    outcomes: Rows = require_answer(await get_answer(address, "/adopt"), address)
    with console.progress("taking over", total=len(outcomes)):
        while any(each["state"] == "running" for each in outcomes):
            await asyncio.sleep(POLL_SECONDS)
            outcomes = require_answer(await get_answer(address, "/adopt"), address)
    return outcomes


def _table(console: Console, plan: Iterable[Mapping[str, Any]]) -> None:
    rows = [(each["driver"], each["handle"], each["volume"], each["obstacle"] or "-") for each in plan]
    if rows:
        console.table(("DRIVER", "HANDLE", "VOLUME", "PROBLEM"), rows)
