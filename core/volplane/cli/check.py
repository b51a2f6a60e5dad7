"""`volplane check`: judge a backend by the rules that every backend promises to keep."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from volplane.cli.console import Console
from volplane.controller.spelling import nearest
from volplane.errors import ConfigurationError, VolplaneError
from volplane.kube import quantity
from volplane.loading.discovery import InstalledPlugins
from volplane.requests import NodeIdentity
from volplane.testing.conformance import RULES, Outcome, Report, Rule, Subject, Verdict, run_rules

__all__ = ["register"]

Backend = Annotated[
    str | None,
    typer.Argument(
        metavar="BACKEND",
        help="An installed backend, or MODULE:NAME of a class, a Subject, or a function that returns one.",
        show_default=False,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--options", "-o", metavar="FILE|K=V", help="Options of the driver: a YAML file, or one key. Repeatable."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameters", "-p", metavar="K=V", help="Class parameters to make assets with. Repeatable."),
]
Capacity = Annotated[
    str | None, typer.Option("--capacity", metavar="SIZE", help="Size of an asset, default 1Gi; a dozen must fit.")
]
Segments = Annotated[
    list[str] | None,
    typer.Option("--segment", metavar="K=V[,K=V]", help="A place in which assets can be made. Repeatable."),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME[=INSTANCE]", help="A node to attach to; name two. Repeatable."),
]
Rules = Annotated[list[str] | None, typer.Option("--rule", metavar="NAME", help="Judge only this rule. Repeatable.")]
ListRules = Annotated[bool, typer.Option("--list", help="List the rules, and judge nothing.")]
InProcess = Annotated[
    bool, typer.Option("--in-process", help="The storage is in memory: crash by exceptions, not by killing a process.")
]
Everything = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show the rules that are kept or not applicable.")
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
    rule: Rules = None,
    in_process: InProcess = False,
    verbose: Everything = False,
    list_rules: ListRules = False,
) -> None:
    """Judge a backend by the rules that every backend keeps; exit code 1 if one is violated.

    This makes and deletes assets on the storage that the options name, dozens of them, and kills processes in the middle
    of that: use a storage for tests.
    """
    console = Console()
    rules = _chosen(rule or [])
    if list_rules:
        for each in rules:
            console.line(f"{each.name}{'' if each.waivable else ' (cannot be waived)'}")
            console.note(f"    {each.says}")
        return
    if backend is None:
        raise typer.BadParameter("name the backend to judge, or --list", param_hint="BACKEND")
    subject = _subject(backend, _options(options or []))
    changes: dict[str, Any] = {}
    if parameters:
        changes["parameters"] = dict(_pair(text, "--parameters") for text in parameters)
    if segment:
        changes["segments"] = tuple(dict(_pair(part, "--segment") for part in each.split(",")) for each in segment)
    if node:
        changes["nodes"] = tuple(_node(text) for text in node)
    if capacity is not None:
        changes["capacity_bytes"] = _bytes(capacity)
    if in_process:
        changes["real_crashes"] = False
    report = _judged(console, replace(subject, **changes), rules)
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


def _subject(backend: str, options: Mapping[str, object]) -> Subject:
    if ":" not in backend:
        plugin = InstalledPlugins().load("backend", backend)
        return Subject(plugin.factory, options, real_crashes=True)
    found = _imported(backend)
    if isinstance(found, type):
        return Subject(found, options, real_crashes=True)
    subject = found() if callable(found) and not isinstance(found, Subject) else found
    if not isinstance(subject, Subject):
        raise ConfigurationError(f"{backend} gives {type(subject).__name__}, expected a backend class or a Subject")
    return replace(subject, options={**subject.options, **options})


def _imported(text: str) -> object:
    """What MODULE:NAME names; modules of the working directory are found too."""
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module)
    except VolplaneError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{text}: importing {module} raised {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{text}: {module} has no {name}{nearest(part, _public(found))}")
        found = getattr(found, part)
    return found


def _public(found: object) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


def _options(texts: Iterable[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    for text in texts:
        if "=" in text and not Path(text).is_file():
            key, value = _pair(text, "--options")
            options[key] = value
        else:
            options |= _option_file(Path(text))
    return options


def _option_file(path: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"--options: {path} cannot be read: {error.strerror}; or is it meant as K=V?"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--options: {path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"--options: {path} holds {type(content).__name__}, expected options as key: value")
    return {str(key): value for key, value in content.items()}


def _pair(text: str, where: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"{where}: {text!r} must be K=V")
    return key.strip(), value


def _node(text: str) -> NodeIdentity:
    name, _, instance = text.partition("=")
    return NodeIdentity(name=name, instance_id=instance)


def _bytes(text: str) -> int:
    try:
        size = quantity.parse(text).as_bytes()
    except ValueError as error:
        raise ConfigurationError(f"--capacity: {text!r} must be a size such as 1Gi") from error
    if size < 1:
        raise ConfigurationError(f"--capacity: {text!r} must be at least 1 byte")
    return size


# --- judging and telling ----------------------------------------------------------------------------------------


def _judged(console: Console, subject: Subject, rules: tuple[Rule, ...]) -> Report:
    with console.progress("judging", len(rules)) as bar:

        def told(outcome: Outcome) -> None:
            bar.advance(detail=outcome.rule.name)

        return run_rules(subject, rules, told=told)


def _show(console: Console, report: Report, *, verbose: bool) -> None:
    """What is kept, if asked for; then each violation; then what was not judged, and the count."""
    for outcome in report.outcomes:
        if verbose and outcome.verdict is Verdict.KEPT:
            console.done(outcome.rule.name)
    for outcome in report.outcomes:
        if outcome.bad:
            console.failed(f"{outcome.rule.name}: {outcome.reason}")
            for line in outcome.details():
                console.note(f"      {line}")
            console.line()
    quiet = () if verbose else (Verdict.NOT_APPLICABLE,)
    for verdict in (Verdict.WAIVED, Verdict.NOT_JUDGED, Verdict.NOT_APPLICABLE):
        for outcome in report.outcomes:
            if outcome.verdict is verdict and verdict not in quiet:
                console.line(f"{verdict}: {outcome.rule.name} ({outcome.reason})")
    for each in sorted({each for outcome in report.outcomes for each in outcome.left}):
        console.warning(f"left on the storage: {each}")
    console.line(report.summary())
