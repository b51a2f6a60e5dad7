"""`volplane check --cluster`: volplane at work on a cluster that exists, section by section."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from volplane._messages import nearest
from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import duration_option
from volplane.errors import ConfigurationError
from volplane.reclaim.scrub_pod import DEFAULT_IMAGE
from volplane_testing.qualification import SECTIONS, Plan, SectionResult, SectionStatus, SuiteReport, run_suite
from volplane_testing.qualification.rbac import manifest

__all__ = [
    "DEFAULT_IMAGE",
    "Churn",
    "Format",
    "Image",
    "Kills",
    "OnCluster",
    "PrintRbac",
    "ReportFormat",
    "Sections",
    "Work",
    "check_cluster",
    "chosen_sections",
]

OnCluster = Annotated[
    bool, typer.Option("--cluster", help="Judge volplane on the cluster of the kubeconfig. The options below are its.")
]
Sections = Annotated[
    list[str] | None, typer.Option("--section", metavar="NAME", help="Run only this section. Repeatable.")
]
Work = Annotated[
    Path | None,
    typer.Option(
        "--work",
        metavar="DIR",
        help="For logs and the volumes of hostpath; all nodes must see it under this path. Default: a temporary one.",
        readable=False,
    ),
]
Image = Annotated[str, typer.Option("--image", metavar="IMAGE", help="Image of pods; it needs a POSIX shell.")]
Churn = Annotated[
    float,
    duration_option("--churn", says="How long claims come and go in section kills.", default="2m", minimum=1.0),
]
Kills = Annotated[
    int, typer.Option("--kills", metavar="N", min=1, max=10_000, help="How often controllers are killed meanwhile.")
]


class ReportFormat(StrEnum):
    """Format of a report."""

    TEXT = "text"
    JSON = "json"


Format = Annotated[ReportFormat, typer.Option("--output", help="How the report is written.")]
PrintRbac = Annotated[
    bool, typer.Option("--print-rbac", help="Print an account with the rights that --cluster needs, and do nothing.")
]


def chosen_sections(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names. Raises ConfigurationError for one that is no section."""
    known = [section.name for section in SECTIONS]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"--section: {name!r} is no section{nearest(name, known)}")
    return tuple(names)


def check_cluster(console: Console, plan: Plan, *, list_only: bool, print_rbac: bool, output: ReportFormat) -> None:
    """Run, and report on stdout; progress goes to stderr. Raises typer.Exit(1) if not all is well."""
    if print_rbac:
        typer.echo(manifest(plan.controllers), nl=False)
        return
    if list_only:
        for section in plan.chosen():
            console.line(section.name)
            console.note(f"    {section.says}{' (needs pods)' if section.pods else ''}")
        return
    report = _run(console, plan)
    if output is ReportFormat.JSON:
        console.data(report.document(), Output.JSON)
    else:
        _show(console, report)
    if not report.passed:
        raise typer.Exit(1)


def _run(console: Console, plan: Plan) -> SuiteReport:
    reports: list[SuiteReport] = []
    with console.progress("checking", len(plan.chosen())) as bar:

        def observe(name: str, result: SectionResult | None) -> None:
            if result is None:
                bar.show(name)
            else:
                bar.advance(detail=name)

        async def main(stop: asyncio.Event) -> None:
            reports.append(await run_suite(plan, stop, observe=observe))

        try:
            eventloop.run(main)
        except KeyboardInterrupt:
            # A silent end would hide what somebody has to remove.
            for each in reports[0].left if reports else ():
                console.warning(f"left behind: {each}")
            raise
    return reports[0]


def _show(console: Console, report: SuiteReport) -> None:
    facts = report.facts
    nodes = f"{len(facts.nodes)} node{'' if len(facts.nodes) == 1 else 's'} ready"
    beside = "beside its binder" if facts.binder else "as its binder"
    console.line(f"cluster   {facts.server}, Kubernetes {facts.kubernetes}, {nodes}")
    console.line(f"volplane  {report.volplane} {beside}: {report.controllers}; backend {report.backend}")
    if facts.no_pods:
        console.note(f"pods      {facts.no_pods}")
    console.line()
    width = max(len(result.name) for result in report.results) if report.results else 0
    for result in report.results:
        text = f"{result.name:<{width}}  {result.seconds:6.1f} s  {result.line()}"
        match result.status:
            case SectionStatus.PASSED:
                console.done(text)
            case SectionStatus.FAILED:
                console.failed(text)
            case SectionStatus.NOT_POSSIBLE:
                console.note(f"-     {text}")
    for each in report.left:
        console.warning(f"left behind: {each}")
    console.line()
    console.line(report.summary())
    if report.logs:
        console.note(f"logs of the controllers: {report.logs}")
