"""`volplane leaks`: shows assets that no volume needs, and volumes whose asset is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from volplane._messages import age_text, size_text
from volplane.cli.controller_client import ControllerAddress, get_answer, post_action, require_answer, require_driver
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import OutputFormat

__all__ = ["register"]

ORDER = ("orphan", "ghost", "drifted", "foreign")
BAD = frozenset({"orphan", "ghost"})
MOST_ROWS = 50
POLL_SECONDS = 0.5
FIX_SECONDS = 120.0
CHECK_SECONDS = 120.0

Report = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("leaks")(leaks)


def leaks(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Check now, and wait for the result, instead of showing the last one.")
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Delete orphans that two checks, five minutes apart or more, have found.")
    ] = False,
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="Of this driver only.")] = "",
    handle: Annotated[str, typer.Option("--handle", metavar="HANDLE", help="Only the asset with this handle.")] = "",
    output: OutputFormat = Output.TEXT,
    http: ControllerAddress = "127.0.0.1:9809",
) -> None:
    """Show orphans, ghosts, drifted and foreign assets, as the running controller last found them, or finds them now.

    An orphan carries our marks, but no volume and no claim refers to it. A ghost is a volume whose asset is gone. A
    drifted asset differs from its volume. Foreign assets belong to others and are never touched. The controller checks
    every ten minutes, and when --check asks it to. Exit code 1 if there are orphans or ghosts.
    """
    console = Console()
    report = asyncio.run(_report(console, http, {"driver": driver, "handle": handle}, check=check, fix=fix))
    if output is Output.TEXT:
        _show(console, report, fixed=fix)
    else:
        console.data(report, output)
    if any(finding["verdict"] in BAD for finding in report["findings"]):
        raise typer.Exit(1)


async def _report(console: Console, address: str, only: Mapping[str, str], *, check: bool, fix: bool) -> Report:
    chosen = {name: value for name, value in only.items() if value}
    report = require_answer(await get_answer(address, "/leaks"), address)
    drivers = [each["driver"] for each in report["drivers"]]
    require_driver(only["driver"], [*drivers, *(each["driver"] for each in report["findings"])])
    if check:
        await _check(console, address, only["driver"])
        report = require_answer(await get_answer(address, "/leaks"), address)
    if fix:
        report = require_answer(await post_action(address, "/leaks/fix", chosen), address)
        report = await _finished(console, address, report)
    else:
        report = {**report, "repairs": []}

    def wanted(each: Mapping[str, Any]) -> bool:
        return all(each.get(name, value) == value for name, value in chosen.items())

    return {**report, **{part: list(filter(wanted, report[part])) for part in ("drivers", "findings", "repairs")}}


async def _check(console: Console, address: str, driver: str) -> None:
    """Start a check of all drivers, or of one, and wait at most CHECK_SECONDS for it."""
    query = {"driver": driver} if driver else {}
    targets: Mapping[str, int] = require_answer(await post_action(address, "/leaks/check", query), address)
    if not targets:
        console.warning("no driver can be checked now; the reasons stand below")
        return
    left = set(targets)
    with console.progress("checking", total=len(targets)) as bar:
        until = asyncio.get_running_loop().time() + CHECK_SECONDS
        while left and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
            report = require_answer(await get_answer(address, "/leaks"), address)
            attempts = {each["driver"]: each["attempts"] for each in report["drivers"]}
            running = {name for name in left if attempts.get(name, targets[name]) < targets[name]}
            bar.advance(len(left) - len(running))
            left = running
    if left:
        console.warning(
            f"still being checked after {CHECK_SECONDS:.0f} s: {', '.join(sorted(left))}; what follows is from before"
        )


async def _finished(console: Console, address: str, report: Report) -> Report:
    """Wait at most FIX_SECONDS for the repairs; the controller goes on with those that take longer."""
    running = _running(report)
    if not running:
        return report
    with console.progress("deleting orphans", total=running) as bar:
        until = asyncio.get_running_loop().time() + FIX_SECONDS
        while (left := _running(report)) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
            report = require_answer(await get_answer(address, "/leaks"), address)
            bar.advance(left - _running(report))
    return report


def _running(report: Report) -> int:
    return sum(repair["state"] == "running" for repair in report["repairs"])


def _show(console: Console, report: Report, *, fixed: bool) -> None:
    for repair in report["repairs"]:
        match repair["state"]:
            case "done":
                console.done(f"deleted {repair['handle']} of driver {repair['driver']}")
            case "running":
                console.note(f"{repair['handle']} of driver {repair['driver']} is still being deleted")
            case _:
                console.failed(f"{repair['handle']} of driver {repair['driver']}: {repair['detail']}")
    _findings(console, report["findings"])
    waiting = [each for each in report["findings"] if each["verdict"] == "orphan" and not each["confirmed"]]
    if waiting:
        minutes = report["grace_seconds"] / 60
        orphans = "1 orphan is" if len(waiting) == 1 else f"{len(waiting)} orphans are"
        console.note(
            f"{orphans} not confirmed yet: a check at least {minutes:.0f} min after the first must find the same"
        )
    elif not fixed and any(each["verdict"] == "orphan" for each in report["findings"]):
        console.note("`volplane leaks --fix` deletes them")
    _checks(console, report["drivers"])


def _findings(console: Console, findings: Iterable[Mapping[str, Any]]) -> None:
    ordered = sorted(findings, key=lambda each: ORDER.index(each["verdict"]))
    if not ordered:
        console.line("nothing found")
        return
    rows = [
        (
            each["verdict"],
            each["driver"],
            each["handle"] or "-",
            each["volume"] or "-",
            size_text(each["capacity_bytes"]),
            age_text(each["age_seconds"]),
            each["first_seen"],
            "yes" if each["confirmed"] else "no",
            each["detail"],
        )
        for each in ordered[:MOST_ROWS]
    ]
    console.table(("VERDICT", "DRIVER", "HANDLE", "VOLUME", "SIZE", "AGE", "FIRST SEEN", "CONFIRMED", "DETAIL"), rows)
    if len(ordered) > MOST_ROWS:
        console.note(f"and {len(ordered) - MOST_ROWS} more; -o json shows all")


def _checks(console: Console, drivers: Iterable[Mapping[str, Any]]) -> None:
    for each in drivers:
        name = each["driver"]
        if each["can_list"] is False:
            console.note(f"driver {name} cannot list its assets: nothing is known of them")
        elif each["error"] and each["checked_at"] is None:
            console.note(f"driver {name} could not be checked yet: {each['error']}")
        elif each["error"]:
            console.note(
                f"driver {name}: the last check failed: {each['error']}; the last complete one was at "
                f"{each['checked_at']}"
            )
        elif each["checked_at"] is None:
            console.note(f"driver {name} has not been checked yet")
        else:
            console.note(f"driver {name} was checked at {each['checked_at']}")
