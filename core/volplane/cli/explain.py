"""`volplane explain KIND NAME`: why an object is in its state, and what happens next.

`volplane status`: drivers, volumes, claims and operations, and why some of them wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from volplane._messages import nearest, size_text
from volplane.asking.leader import LeaderSilent
from volplane.asking.seen import explained_by_events
from volplane.cli.controller_client import Access, shown_again
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.controllers import Controllers
from volplane.cli.framework.options import (
    AllNamespaces,
    ConfigFile,
    Namespace,
    OutputFormat,
    Watching,
    completed,
    with_options,
)
from volplane.cli.trash import counted, expired
from volplane.controller.config import Configuration, read_configuration
from volplane.errors import ApiForbidden, ConfigurationError
from volplane.explain.explain import Explanation, explain_attachment
from volplane.explain.explain_pod import read_pod
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, PODS, STORAGE_CLASSES, VOLUMES, Kind
from volplane.kube.objects import Claim, Volume
from volplane.process.duties import DEFAULT_CONTROLLERS, parse_controllers
from volplane.process.process import Options, read_control_plane
from volplane.snapshots.groups_objects import GROUPS
from volplane.snapshots.objects import VOLUME_SNAPSHOTS
from volplane.ui.waiting import Reasons, waits_of_claim, waits_of_volume

KINDS: Final[Mapping[str, tuple[Kind[Any], tuple[str, ...]]]] = {
    "claim": (CLAIMS, ("pvc", "pvcs", "claims")),
    "volume": (VOLUMES, ("pv", "pvs", "volumes")),
    "class": (STORAGE_CLASSES, ("sc", "classes")),
    "pod": (PODS, ("po",)),
    "snapshot": (VOLUME_SNAPSHOTS, ("vs", "snapshots")),
    "group": (GROUPS, ("vgs", "groups")),
    "attachment": (ATTACHMENTS, ("va", "attachments")),
}
"""What is explained, and what it is called beside that, the name of its kind and the plural."""
SUBJECTS: Final = {
    word: subject
    for subject, (kind, words) in KINDS.items()
    for word in (subject, *words, kind.kind.lower(), kind.plural)
}
"""Name on the command line -> what is explained."""
WORDS: Final = ("class", "pod", "pv", "pvc", "volumeattachment", "volumegroupsnapshot", "volumesnapshot")
MOST_ROWS: Final = 50
Detailed = Annotated[bool, Option("--verbose", "-v", help="Also show by which names logs have it.", show_default=False)]
PARTS: Final = (("Where it stands", "situation"), ("What was tried", "tried"), ("What happens next", "next"))


@with_options
def explain(
    access: Access,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="pvc, pv, class, pod, volumesnapshot, volumegroupsnapshot or volumeattachment; or KIND/NAME.",
            autocompletion=completed("kind"),
        ),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Which, or NAMESPACE/NAME.", autocompletion=completed(""))
    ] = "",
    *,
    namespace: Namespace = "",
    output: OutputFormat = Output.TEXT,
    watch: Watching = False,
    config: ConfigFile = None,
    controllers: Controllers = DEFAULT_CONTROLLERS,
    verbose: Detailed = False,
) -> None:
    """Explain where a claim, volume, class, pod, snapshot or attachment stands, and what happens next and when.

    Asks the controller that leads. If none answers, reads the cluster and decides as a controller would that has just
    started with these options; nothing is written. A pod is explained by what the cluster shows now, then its claims
    are. Exit code 1 if there is no such object.
    """
    subject, key = _subject(kind, name, namespace, access)
    console = Console()
    explanations, _ = asyncio.run(
        shown_again(
            lambda: explained(access, subject, key, config, controllers),
            lambda found: _show(console, output, *found, verbose=verbose),
            part=lambda found: found[0],
            again=watch,
        )
    )
    if not all(each["found"] for each in explanations):
        raise typer.Exit(1)


def _show(
    console: Console,
    output: Output,
    explanations: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
    *,
    verbose: bool,
) -> None:
    if output is Output.TEXT:
        for each in explanations:
            if len(explanations) > 1:
                console.heading(f"{each['kind']} {each['name']}")
            for heading, part in (*PARTS, *([("In logs", "logs")] if verbose else ())):
                if each[part]:
                    console.heading(heading)
                for sentence in each[part]:
                    console.sentence(sentence)
        for note in notes:
            console.note(note)
    else:
        console.data(explanations[0] if len(explanations) == 1 else explanations, output)


def _subject(kind: str, name: str, of: str, access: Access) -> tuple[str, str]:
    """Return kind and key of the object. Raises ConfigurationError for an unknown kind, BadParameter for no name."""
    if not name:
        kind, _, name = kind.partition("/")
    if not name:
        raise typer.BadParameter("which one? as in `volplane explain pvc default/data` or `volplane explain pvc/data`")
    subject = SUBJECTS.get(kind.lower())
    if subject is None:
        text = f'"{kind}" cannot be explained{nearest(kind, WORDS)}; as in `volplane explain pvc default/data`'
        raise ConfigurationError(text)
    namespaced = KINDS[subject][0].namespaced
    if name.count("/") > namespaced or "" in name.split("/"):
        wanted = "NAMESPACE/NAME" if namespaced else "NAME"
        raise ConfigurationError(f'{kind} "{name}" must be {wanted}, as in `volplane explain pvc default/data`')
    if not namespaced:
        return subject, name
    within, slash, _ = name.partition("/")
    if slash and of and of != within:
        raise typer.BadParameter(f"-n {of} contradicts {name}")
    return subject, name if slash else f"{access.namespace(of)}/{name}"


async def explained(
    access: Access, subject: str, key: str, config: Path | None = None, controllers: str = DEFAULT_CONTROLLERS
) -> tuple[list[Mapping[str, Any]], Sequence[str]]:
    """Return explanations, of a pod also those of its claims, and notes on how far they can be trusted.

    The controller that leads is asked; where it does not answer, this process decides as one with this configuration
    file and these controllers would.
    """
    configuration = read_configuration(config)
    options = Options(controllers=parse_controllers(controllers), namespace=access.system_namespace)
    if subject not in ("attachment", "pod"):
        return await _decided(access, subject, [key], configuration, options)
    async with access.cluster() as (client, _):
        if subject == "attachment":
            attachment = await client.find(ATTACHMENTS, key)
            situation = (f"there is no attachment {key}",)
            missing = Explanation(kind="attachment", name=key, found=False, situation=situation)
            return [asdict(explain_attachment(attachment) if attachment is not None else missing)], ()
        pod, claims, doubts = await read_pod(client, key)
    explanations, notes = await _decided(access, "claim", claims, configuration, options) if claims else ([], ())
    itself = [] if pod is None else [asdict(pod)]
    return [*itself, *explanations], (*doubts, *notes)


async def _decided(
    access: Access, subject: str, keys: Sequence[str], configuration: Configuration, options: Options
) -> tuple[list[Mapping[str, Any]], Sequence[str]]:
    try:
        async with access.leader() as leader:
            answers = [await leader.ask("/explain", {subject: key}) for key in keys]
            return answers, leader.said()
    except LeaderSilent as silent:
        # Decide as one would that has just started, and say what that lacks.
        decided = "this is what a controller that starts now with these options would decide"
        why = str(silent)
    async with access.cluster() as (client, _):
        try:
            plane, doubts = await read_control_plane(client, configuration, options)
        except ApiForbidden as error:
            seen = [await explained_by_events(client, subject, KINDS[subject][0], key) for key in keys]
            doubts = f"{why}: this is what the cluster shows you", f"more takes more rights: {error}"
            return [asdict(each) for each in seen], doubts
        note = f"{why}: {decided}; what was tried is not known"
        return [asdict(plane.explain(subject, key)) for key in keys], (note, *doubts)


@with_options
def status(
    access: Access,
    *,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    output: OutputFormat = Output.TEXT,
    watch: Watching = False,
    verbose: Detailed = False,
) -> None:
    """Show drivers, volumes and claims by phase, running operations, and what waits for what.

    Objects are read from the cluster, claims from one namespace or all; drivers, operations and reasons come from the
    controller that leads. Exit code 1 if a driver cannot be used.
    """
    within = access.namespace(namespace, everywhere=all_namespaces)
    console = Console()
    seen = asyncio.run(
        shown_again(
            lambda: _read(access, within),
            lambda seen: _status(console, output, seen, within, verbose=verbose),
            part=lambda seen: (seen.claims, seen.volumes, {**seen.told, "now": 0}),
            again=watch,
        )
    )
    if not all(driver["healthy"] for driver in seen.told.get("drivers", [])):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    told: Mapping[str, Any]
    """By the leader; empty if it does not answer."""
    notes: Sequence[str]
    volumes: Sequence[Volume]
    claims: Sequence[Claim]


async def _read(access: Access, within: str) -> _Seen:
    async with access.cluster() as (client, leader):
        claims = (await client.list(CLAIMS, namespace=within)).items
        notes: list[str] = []
        volumes: Sequence[Volume] = ()
        try:
            volumes = (await client.list(VOLUMES)).items
        except ApiForbidden as error:
            notes.append(f"volumes are not shown: {error}")
        try:
            told = await leader.status(within)
            return _Seen(told=told, notes=(*leader.said(), *notes), volumes=volumes, claims=claims)
        except LeaderSilent as silent:
            return _Seen(told={}, notes=(str(silent), *notes), volumes=volumes, claims=claims)


def _status(console: Console, output: Output, seen: _Seen, within: str, *, verbose: bool) -> None:
    told, volumes, claims = seen.told, seen.volumes, seen.claims
    operations: list[Mapping[str, Any]] = told.get("operations", [])
    waiting = _waiting(claims, volumes, told.get("reasons", {}))
    counts = {"volumes": _counted(volumes), "claims": _counted(claims)}
    if output is Output.TEXT:
        console.heading("Drivers")
        drivers = [
            (each["name"], each["backend"], "hung" if each["hung"] else each["state"], each["error"] or "-")
            for each in told.get("drivers", [])
        ]
        if drivers:
            console.table(("NAME", "BACKEND", "STATE", "PROBLEM"), drivers)
        elif told and not told.get("namespace"):
            console.note("none is configured; `volplane plugins` shows what is installed")
        for note in seen.notes:
            console.note(note)
        console.heading(f"Objects{f', claims of namespace {within}' if within else ''}")
        found = {word: sorted(counted.items()) or [("-", 0)] for word, counted in counts.items()}
        rows = [(word, phase, str(count)) for word, phases in found.items() for phase, count in phases]
        console.table(("KIND", "PHASE", "COUNT"), rows)
        kept, size = counted(volumes)
        if kept:
            over = expired(volumes)
            ends = f", the time of {over} is over" if over else ""
            console.note(
                f"in the trash are {kept} volumes, {size_text(size)} together{ends}; `volplane trash -A` shows them"
            )
        if leaks := told.get("leaks"):
            verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(leaks.items()))
            console.note(f"the leak check has found: {verdicts}; `volplane leaks` shows them")
        for missing in told.get("missing", ()):
            console.note(missing)
        if waiting:
            console.heading("Waiting")
            console.table(("KIND", "NAME", "PHASE", "REASON"), waiting, most=MOST_ROWS)
        if operations:
            console.heading("Operations")
            shown = [
                (
                    each["name"] if verbose else f"{each['verb']} {each['key']}",
                    each["driver"],
                    each["phase"],
                    each["error"] or "-",
                )
                for each in operations
            ]
            console.table(("NAME", "DRIVER", "PHASE", "LAST ERROR"), shown, most=MOST_ROWS)
    else:
        names = ("kind", "name", "phase", "reason")
        content = {
            "controller": bool(told),
            "leads": bool(told),
            "notes": seen.notes,
            "missing": told.get("missing", []),
            "leaks": told.get("leaks", {}),
            "drivers": told.get("drivers", []),
            **counts,
            "trash": dict(zip(("volumes", "bytes"), counted(volumes), strict=True)),
            "waiting": [dict(zip(names, row, strict=True)) for row in waiting],
            "operations": operations,
        }
        console.data(content, output)


def _counted(items: Iterable[Volume | Claim]) -> Mapping[str, int]:
    return Counter("Terminating" if item.terminating else item.status.phase or "Pending" for item in items)


def _waiting(claims: Iterable[Claim], volumes: Iterable[Volume], reasons: Reasons) -> list[tuple[str, str, str, str]]:
    """List claims that are not bound or wait for a change, and failed or released volumes, with the reasons."""
    rows = [("claim", claim.key, *each) for claim in claims for each in waits_of_claim(claim, reasons)]
    return rows + [("volume", volume.key, *each) for volume in volumes for each in waits_of_volume(volume, reasons)]
