"""`volplane check`: judge a backend by the rules that every backend promises to keep, or volplane on a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Final

import typer

from volplane._messages import nearest
from volplane.cli.framework.console import Console
from volplane.cli.framework.controllers import Controllers
from volplane.cli.framework.options import Kubeconfig, duration_option
from volplane.errors import ConfigurationError
from volplane.process.duties import DEFAULT_CONTROLLERS, parse_controllers
from volplane_testing.cli.check_cluster import (
    DEFAULT_IMAGE,
    Churn,
    Format,
    Image,
    Kills,
    OnCluster,
    PrintRbac,
    ReportFormat,
    Sections,
    Work,
    check_cluster,
    chosen_sections,
)
from volplane_testing.cli.subjects import (
    Capacity,
    Chosen,
    Nodes,
    Options,
    Parameters,
    Patience,
    Segments,
    Unreachable,
    changes_of,
    options_of,
)
from volplane_testing.conformance import RULES, Report, Rule, RuleResult, RuleStatus
from volplane_testing.conformance.judging_apart import run_rules_apart
from volplane_testing.conformance.violations import Interrupted
from volplane_testing.qualification import Plan

__all__ = ["register"]

Backend = Annotated[
    str | None,
    typer.Argument(
        metavar="BACKEND",
        help="An installed backend, or MODULE:NAME of a class, a Subject, or a function that returns one.",
        show_default=False,
    ),
]
Rules = Annotated[list[str] | None, typer.Option("--rule", metavar="NAME", help="Judge only this rule. Repeatable.")]
ListRules = Annotated[
    bool, typer.Option("--list", help="List the rules (with --cluster: the sections), and judge nothing.")
]
InProcess = Annotated[
    bool, typer.Option("--in-process", help="The storage is in memory: crash by exceptions, not by killing a process.")
]
ProgressPatience = Annotated[
    float | None,
    duration_option(
        "--progress-patience",
        says="How long work may be in progress, or ask to be called later; default that of the subject, 10m.",
    ),
]
SLOW_CALL: Final = 10.0
"""Real seconds that a call of a hook takes before its author is told, unless --patience names a time: rules make
thousands of calls.
"""
MOST_NAMED = 3
"""Rules that are named where they are not judged for one reason; of more it is told how many."""
Everything = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show the rules that are kept, not applicable or not judged.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    backend: Backend = None,
    *,
    options: Options = None,
    parameters: Parameters = None,
    capacity: Capacity = None,
    segment: Segments = None,
    node: Nodes = None,
    unreachable: Unreachable = None,
    rule: Rules = None,
    in_process: InProcess = False,
    patience: Patience = None,
    progress_patience: ProgressPatience = None,
    verbose: Everything = False,
    list_rules: ListRules = False,
    cluster: OnCluster = False,
    kubeconfig: Kubeconfig = None,
    controllers: Controllers = DEFAULT_CONTROLLERS,
    section: Sections = None,
    work: Work = None,
    image: Image = DEFAULT_IMAGE,
    churn: Churn = 120.0,
    kills: Kills = 30,
    output: Format = ReportFormat.TEXT,
    print_rbac: PrintRbac = False,
) -> None:
    """Judge a backend by the rules that every backend keeps; exit code 1 if one is violated.

    This makes and deletes assets on the storage that the options name, dozens of them, and kills processes in the
    middle of that: use a storage for tests. Without options, a backend that brings a fake of its storage works on that.

    With --cluster: run volplane on the cluster of the kubeconfig, with a driver, classes and namespaces of its own,
    go through the life of volumes section by section, and remove everything. Exit code 1 if a section fails. The
    driver is of BACKEND, or of hostpath in a directory of this machine, which pods must see to be part of it.
    """
    console = Console()
    if cluster or print_rbac:
        given = (rule, in_process, segment, node, unreachable)
        if any(given) or patience is not None or progress_patience is not None:
            raise typer.BadParameter(
                "--rule, --in-process, --patience, --progress-patience, --segment, --node and --unreachable judge a "
                "backend: leave --cluster out"
            )
        plan = Plan(
            kubeconfig=kubeconfig,
            sections=chosen_sections(section or []),
            controllers=",".join(sorted(parse_controllers(controllers))),
            backend=backend or "hostpath",
            options=options_of(options),
            parameters=changes_of(parameters=parameters).get("parameters", {}),
            capacity=capacity or "1Mi",
            work=work,
            image=image,
            churn_seconds=churn,
            kills=kills,
        )
        check_cluster(console, plan, list_only=list_rules, print_rbac=print_rbac, output=output)
        return
    rules = _chosen(rule or [])
    if list_rules:
        for each in rules:
            console.line(f"{each.name}{'' if each.waivable else ' (cannot be waived)'}")
            console.note(f"    {each.says}")
        return
    if backend is None:
        raise typer.BadParameter("name the backend to judge, or --list", param_hint="BACKEND")
    changes = changes_of(
        parameters=parameters,
        segment=segment,
        node=node,
        capacity=capacity,
        unreachable=unreachable,
        patience=patience,
    )
    if in_process:
        changes["real_crashes"] = False
    if progress_patience is not None:
        changes["progress_patience"] = progress_patience
    chosen = Chosen(backend, options_of(options), changes)
    if chosen.remark:
        console.note(chosen.remark)
    report = _judged(console, chosen, rules, SLOW_CALL if patience is None else math.inf)
    _show(console, report, verbose=verbose)
    if not report.passed:
        raise typer.Exit(1)


# --- what to judge ----------------------------------------------------------------------------------------------


def _chosen(names: Iterable[str]) -> tuple[Rule, ...]:
    known = {rule.name: rule for rule in RULES}
    for name in names:
        if name not in known:
            raise ConfigurationError(f"--rule: {name!r} is no rule{nearest(name, known)}")
    return tuple(rule for rule in RULES if rule.name in set(names)) or RULES


# --- judging and reporting ----------------------------------------------------------------------------------------


def _judged(console: Console, chosen: Chosen, rules: tuple[Rule, ...], slow_after: float) -> Report:
    with console.progress("judging", len(rules)) as bar:

        def advance(_result: RuleResult) -> None:
            bar.advance()

        def slow(what: str) -> None:
            console.warning(
                f"{what} has not returned for {slow_after:g} s. A hook that waits for its storage should answer "
                "InProgress: rules call each dozens of times. No further rule is judged after a call as slow as this, "
                "unless --patience says how long one may take. Ctrl-C ends this and tells what is left."
            )

        try:
            return run_rules_apart(
                chosen.subject,
                rules,
                begin=lambda rule: bar.show(rule.name),
                observe=advance,
                slow_after=slow_after,
                slow=slow,
            )
        except Interrupted as end:
            for each in end.left:
                console.warning(f"left on the storage: {each}")
            if not end.left:
                console.warning("interrupted; nothing that was made here is left on the storage")
            raise


def _show(console: Console, report: Report, *, verbose: bool) -> None:
    """Print what is kept, if asked for; then each violation; then what was not judged, and the count."""
    for result in report.results:
        if verbose and result.status is RuleStatus.KEPT:
            console.done(result.rule.name)
    for result in report.results:
        if result.bad:
            console.failed(f"{result.rule.name}: {result.reason}")
            for line in result.details():
                console.note(f"      {line}")
            console.line()
    _show_others(console, report, verbose=verbose)
    for each in sorted({each for result in report.results for each in result.left}):
        console.warning(f"left on the storage: {each}")
    console.line(report.summary())


def _show_others(console: Console, report: Report, *, verbose: bool) -> None:
    """Print the rules that were neither kept nor violated, in one line for each reason."""
    statuses = (RuleStatus.WAIVED, RuleStatus.NOT_JUDGED, *((RuleStatus.NOT_APPLICABLE,) if verbose else ()))
    names: dict[tuple[RuleStatus, str], list[str]] = {}
    for result in sorted(report.results, key=lambda each: list(RuleStatus).index(each.status)):
        if result.status in statuses:
            names.setdefault((result.status, result.reason), []).append(result.rule.name)
    for (status, reason), rules in names.items():
        few = verbose or status is RuleStatus.WAIVED or len(rules) <= MOST_NAMED
        for what in rules if few else [f"{len(rules)} rules"]:
            console.line(f"{status}: {what} ({reason})")
