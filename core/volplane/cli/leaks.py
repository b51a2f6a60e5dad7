"""`volplane leaks`: shows assets and snapshots that no object needs, and volumes whose asset is gone.

`volplane adopt`: after a restore, marks the assets of the former cluster as this cluster's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from typing import Annotated, Any

import typer
from typer import Option

from volplane._messages import age_text, size_text
from volplane.asking.leader import Leader
from volplane.cli.controller_client import Access, require_driver
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import OutputFormat, with_options
from volplane.leaks.repair import digest_of
from volplane.state.naming import nodes_namespace

ORDER = ("orphan", "ghost", "drifted", "foreign")
BAD = frozenset({"orphan", "ghost"})
MOST_ROWS = 50
POLL_SECONDS = 0.5
FIX_SECONDS = 120.0
CHECK_SECONDS = 120.0

Report = Mapping[str, Any]
Rows = list[Mapping[str, Any]]


@with_options
def leaks(
    access: Access,
    *,
    check: Annotated[
        bool, Option("--check", help="Check now, and wait for the result, instead of showing the last one.")
    ] = False,
    fix: Annotated[
        bool,
        Option("--fix", help="Check now, ask, and delete the orphans. Without a terminal: only what two checks found."),
    ] = False,
    yes: Annotated[bool, Option("--yes", help="With --fix: delete what the check finds, without a question.")] = False,
    driver: Annotated[str, Option("--driver", metavar="NAME", help="Of this driver only.")] = "",
    handle: Annotated[str, Option("--handle", metavar="HANDLE", help="Only the asset with this handle.")] = "",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Show orphans, ghosts, drifted and foreign assets, as the running controller last found them, or finds them now.

    An orphan is an asset or a snapshot with our marks to which no object refers. A ghost is a volume whose asset is
    gone. A drifted asset differs from its volume. Foreign assets belong to others and are never touched. The controller
    checks every ten minutes, and when --check asks it to. Exit code 1 if there are orphans or ghosts.
    """
    console = Console()
    agreed = (
        (lambda _: True) if yes else partial(_agreed, console) if sys.stdin.isatty() and output is Output.TEXT else None
    )
    only = {"driver": driver, "handle": handle}
    report = asyncio.run(_report(console, access, only, check=check, fix=fix, agreed=agreed))
    if output is Output.TEXT:
        _show(console, report, access.system_namespace, fixed=fix)
    else:
        console.data(report, output)
    if any(finding["verdict"] in BAD for finding in report["findings"]):
        raise typer.Exit(1)


async def _report(
    console: Console,
    access: Access,
    only: Mapping[str, str],
    *,
    check: bool,
    fix: bool,
    agreed: Callable[[Rows], bool] | None,
) -> Report:
    """agreed: asks whether these orphans may be deleted; None = nobody can be asked."""
    chosen = {name: value for name, value in only.items() if value}
    async with access.leader() as leader:
        report: Report = await leader.ask("/leaks")
        drivers = [each["driver"] for each in report["drivers"]]
        require_driver(only["driver"], [*drivers, *(each["driver"] for each in report["findings"])])
        if check or (fix and agreed):
            report = await _check(console, leader, only["driver"])
        found = _of(report["findings"], chosen)
        orphans = [each for each in found if each["verdict"] == "orphan"]
        if fix and (agreed is None or (orphans and agreed(orphans))):
            shown = digest_of((each["driver"], each["handle"]) for each in orphans) if agreed else ""
            query = {**chosen, **({"agreed": shown} if shown else {})}
            report = await leader.ask("/leaks/fix", query, method="POST")

            def running(now: Report) -> Rows:
                return [each for each in now["repairs"] if each["state"] == "running"]

            report = await _poll(console, leader, report, "deleting orphans", running=running, seconds=FIX_SECONDS)
        else:
            report = {**report, "repairs": []}
        report = {**report, "notes": leader.said()}
    return {**report, **{part: _of(report[part], chosen) for part in ("drivers", "findings", "repairs")}}


def _of(rows: Rows, chosen: Mapping[str, str]) -> Rows:
    return [each for each in rows if all(each.get(name, value) == value for name, value in chosen.items())]


def _agreed(console: Console, orphans: Rows) -> bool:
    """Show all that a fix would delete, and ask."""
    _findings(console, orphans, most=None)
    console.note("an asset that a restore of the cluster has not reached yet looks the same")
    return typer.confirm(f"Delete what stands above, {len(orphans)} in all, with its data?")


async def _check(console: Console, leader: Leader, driver: str) -> Report:
    """Start a check of all drivers, or of one, and wait for it; return what is known then."""
    query = {"driver": driver} if driver else {}
    targets: Mapping[str, int] = await leader.ask("/leaks/check", query, method="POST")
    report: Report = await leader.ask("/leaks")
    if not targets:
        console.warning("no driver can be checked now; the reasons stand below")
        return report

    def unchecked(now: Report) -> list[str]:
        attempts = {each["driver"]: each["attempts"] for each in now["drivers"]}
        return sorted(name for name, target in targets.items() if attempts.get(name, target) < target)

    report = await _poll(console, leader, report, "checking", running=unchecked, seconds=CHECK_SECONDS)
    if left := unchecked(report):
        late = f"still being checked after {CHECK_SECONDS:.0f} s: {', '.join(left)}"
        console.warning(f"{late}; what follows is from before")
    return report


async def _poll(
    console: Console, leader: Leader, report: Report, what: str, *, running: Callable[[Report], Sized], seconds: float
) -> Report:
    """Ask until nothing runs, for so many seconds at most; the controller goes on with what takes longer."""
    left = len(running(report))
    if not left:
        return report
    with console.progress(what, total=left) as bar:
        until = asyncio.get_running_loop().time() + seconds
        while left and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
            report = await leader.ask("/leaks")
            before, left = left, len(running(report))
            bar.advance(before - left)
    return report


def _show(console: Console, report: Report, namespace: str, *, fixed: bool) -> None:
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
            f"{orphans} not confirmed yet: a check at least {minutes:.0f} min after the first must find the same; "
            "`volplane leaks --fix` asks you instead"
        )
    elif not fixed and any(each["verdict"] == "orphan" for each in report["findings"]):
        console.note("`volplane leaks --fix` deletes them")
    _checks(console, report["drivers"], namespace)
    for note in report["notes"]:
        console.note(note)


def _findings(console: Console, findings: Iterable[Mapping[str, Any]], *, most: int | None = MOST_ROWS) -> None:
    ordered = sorted(findings, key=lambda each: ORDER.index(each["verdict"]))
    if not ordered:
        console.line("nothing found")
        return
    rows = []
    for each in ordered:
        names = (each["verdict"], each["driver"], each["handle"] or "-", each["volume"] or "-")
        seen = (each["first_seen"], "yes" if each["confirmed"] else "no", each["detail"])
        size = f"{size_text(each['capacity_bytes'])} {each['type']}".rstrip()
        rows.append((*names, size, age_text(each["age_seconds"]), *seen))
    headers = ("VERDICT", "DRIVER", "HANDLE", "VOLUME", "SIZE", "AGE", "FIRST SEEN", "CONFIRMED", "DETAIL")
    console.table(headers, rows, most=most)


def _checks(console: Console, drivers: Rows, namespace: str) -> None:
    if not drivers:
        ask = f"kubectl -n {nodes_namespace(namespace)} exec POD -- volplane leaks --http 127.0.0.1:9809"
        console.note(f"this controller checks no driver; those of nodes are checked there: `{ask}`")
    for each in drivers:
        name, error, checked_at = each["driver"], each["error"], each["checked_at"]
        if each["can_list"] is False:
            console.note(f"driver {name} cannot list its assets: nothing is known of them")
        elif error and checked_at is None:
            console.note(f"driver {name} could not be checked yet: {error}")
        elif error:
            console.note(f"driver {name}: the last check failed: {error}; the last complete one was at {checked_at}")
        elif checked_at is None:
            console.note(f"driver {name} has not been checked yet")
        else:
            console.note(f"driver {name} was checked at {checked_at}")


@with_options
def adopt(
    access: Access,
    *,
    former: Annotated[
        str, Option("--from", metavar="CLUSTER_ID", help="Whose marks the assets carry now; `volplane leaks` shows it.")
    ],
    driver: Annotated[str, Option("--driver", metavar="NAME", help="Of this driver only.")] = "",
    back: Annotated[bool, Option("--back", help="Give volumes back to the controller of the driver --from.")] = False,
    stopped: Annotated[
        bool, Option("--stopped", help="The controller of the driver --from is stopped, where its pods cannot be seen.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Do it; otherwise only show what would be done.")] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """After a restore into a new cluster: put this cluster's marks on the assets that its volumes point at.

    The running controller does it. Assets that no volume of this cluster refers to stay as they are. Make sure that the
    former cluster is gone: two clusters with the same assets would delete each other's.

    With the name of a driver instead of an id, such as ebs.csi.aws.com: take over what another controller of that name
    has made, or give it back.
    """
    console = Console()
    flags = {name: "yes" for name, given in (("back", back), ("stopped", stopped)) if given}
    plan, outcomes = asyncio.run(_adopt(console, access, {"from": former, **flags}, driver, yes=yes))
    if output is Output.TEXT:
        _show_adoption(console, "this cluster" if back else f"cluster {former}", plan, outcomes)
    else:
        console.data({"plan": plan, "outcomes": outcomes}, output)
    if not all(each["state"] == "done" for each in outcomes or ()):
        raise typer.Exit(1)


async def _adopt(
    console: Console, access: Access, what: Mapping[str, str], driver: str, *, yes: bool
) -> tuple[Rows, Rows | None]:
    """Return the plan and the outcome of each entry; None = nothing was done."""
    async with access.leader() as leader:
        if driver:
            require_driver(driver, (each["name"] for each in (await leader.ask("/status"))["drivers"]))
        query = {**what, **({"driver": driver} if driver else {})}
        plan: Rows = await leader.ask("/adopt" if yes else "/adopt/plan", query, method="POST")
        if not plan or not yes:
            return plan, None
        outcomes: Rows = await leader.ask("/adopt")
        with console.progress("taking over", total=len(outcomes)):
            # Adopting only writes marks, so it is short.
            while any(each["state"] == "running" for each in outcomes):
                await asyncio.sleep(POLL_SECONDS)
                outcomes = await leader.ask("/adopt")
        return plan, outcomes


def _show_adoption(console: Console, giver: str, plan: Rows, outcomes: Rows | None) -> None:
    if not plan:
        console.line(f"no asset carries the marks of {giver}")
        return
    for each in outcomes or ():
        what = f"{each['handle']} of volume {each['volume']}"
        if each["state"] == "done":
            console.done(f"{what} {each['detail']}")
        else:
            console.failed(f"{what}: {each['detail']}")
    shown = [each for each in plan if outcomes is None or each["obstacle"]]
    if shown:
        rows = [(each["driver"], each["handle"], each["volume"], each["obstacle"] or "-") for each in shown]
        console.table(("DRIVER", "HANDLE", "VOLUME", "PROBLEM"), rows)
    if outcomes is None:
        console.note("nothing was changed; --yes takes over what has no problem")
