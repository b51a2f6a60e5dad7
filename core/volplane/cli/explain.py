"""`volplane explain KIND NAME`: why an object is in its state, and what happens next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from volplane._messages import nearest
from volplane.cli.controller_client import ControllerAddress, ask, cluster_client, lease_holder
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import (
    DEFAULT_NAMESPACE,
    ConfigFile,
    Controllers,
    Kubeconfig,
    OurNamespace,
    OutputFormat,
)
from volplane.controller.config import Configuration, read_configuration
from volplane.errors import ApiError, ConfigurationError
from volplane.explain.explain import Explanation, explain_attachment
from volplane.explain.explain_pod import read_pod
from volplane.kube.kinds import ATTACHMENTS
from volplane.process.duties import DEFAULT_CONTROLLERS, parse_controllers
from volplane.process.process import Options, read_control_plane

__all__ = ["explain"]

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "claim": ("pvc", "pvcs", "claim", "claims", "persistentvolumeclaim", "persistentvolumeclaims"),
    "volume": ("pv", "pvs", "volume", "volumes", "persistentvolume", "persistentvolumes"),
    "class": ("sc", "class", "classes", "storageclass", "storageclasses"),
    "pod": ("po", "pod", "pods"),
    "attachment": ("va", "attachment", "attachments", "volumeattachment", "volumeattachments"),
}
"""Kind to its names on the command line, as kubectl knows them."""
WORDS: Final = ("class", "pod", "pv", "pvc", "volumeattachment")
NAMESPACED: Final = frozenset({"claim", "pod"})
PARTS: Final = (("Where it stands", "situation"), ("What was tried", "tried"), ("What happens next", "next"))


def explain(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="pvc, pv, class, pod or volumeattachment; or KIND/NAME.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one; of pvc and pod also NAMESPACE/NAME.")] = "",
    *,
    of: Annotated[str, Option("-n", metavar="NAMESPACE", help="Namespace of the claim or pod; default: default.")] = "",
    output: OutputFormat = Output.TEXT,
    http: ControllerAddress = "127.0.0.1:9809",
    kubeconfig: Kubeconfig = None,
    config: ConfigFile = None,
    controllers: Controllers = DEFAULT_CONTROLLERS,
    namespace: OurNamespace = DEFAULT_NAMESPACE,
) -> None:
    """Explain where a claim, a volume, a class, a pod or an attachment stands, and what happens next and when.

    Asks the running controller. If none answers, reads the cluster and decides as a controller would that has just
    started with these options; nothing is written. A pod is explained by what the cluster shows now, then its claims
    are. Exit code 1 if there is no such object.
    """
    subject, key = _subject(kind, name, of)
    options = Options(controllers=parse_controllers(controllers), namespace=namespace)
    configuration = read_configuration(config) if config is not None else Configuration()
    asker = _Asker(http, kubeconfig, configuration, options)
    explanations, notes = asyncio.run(asker.explain(subject, key))
    console = Console()
    if output is Output.TEXT:
        for each in explanations:
            _show(console, each, titled=len(explanations) > 1)
        for note in notes:
            console.note(note)
    else:
        console.data(explanations[0] if len(explanations) == 1 else explanations, output)
    if not all(each["found"] for each in explanations):
        raise typer.Exit(1)


def _subject(kind: str, name: str, of: str) -> tuple[str, str]:
    """Return kind and key of the object. Raises ConfigurationError for an unknown kind, BadParameter for no name."""
    if not name:
        kind, _, name = kind.partition("/")
    if not name:
        raise typer.BadParameter("which one? as in `volplane explain pvc default/data` or `volplane explain pvc/data`")
    known = {word: subject for subject, words in KINDS.items() for word in words}
    subject = known.get(kind.lower())
    if subject is None:
        raise ConfigurationError(
            f'"{kind}" cannot be explained{nearest(kind, WORDS)}; as in `volplane explain pvc default/data`'
        )
    if name.count("/") > (subject in NAMESPACED) or "" in name.split("/"):
        wanted = "NAMESPACE/NAME" if subject in NAMESPACED else "NAME"
        raise ConfigurationError(f'{kind} "{name}" must be {wanted}, as in `volplane explain pvc default/data`')
    if subject not in NAMESPACED:
        return subject, name
    within, slash, _ = name.partition("/")
    if slash and of and of != within:
        raise typer.BadParameter(f"-n {of} contradicts {name}")
    return subject, name if slash else f"{of or 'default'}/{name}"


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks for explanations: the controller at `address`, or this process where none answers."""

    address: str
    kubeconfig: Path | None
    configuration: Configuration
    options: Options

    async def explain(self, subject: str, key: str) -> tuple[list[Mapping[str, Any]], Sequence[str]]:
        """Return explanations, and notes on how far they can be trusted. Of a pod also those of its claims."""
        if subject not in ("attachment", "pod"):
            return await self._decided(subject, [key])
        async with cluster_client(self.kubeconfig) as client:
            if subject == "attachment":
                attachment = await client.find(ATTACHMENTS, key)
                situation = (f"there is no attachment {key}",)
                missing = Explanation(kind="attachment", name=key, found=False, situation=situation)
                return [asdict(explain_attachment(attachment) if attachment is not None else missing)], ()
            pod = await read_pod(client, key)
        explanations, notes = await self._decided("claim", pod.claims) if pod.claims else ([], ())
        itself = [] if pod.explanation is None else [asdict(pod.explanation)]
        return [*itself, *explanations], (*pod.doubts, *notes)

    async def _decided(self, subject: str, keys: Sequence[str]) -> tuple[list[Mapping[str, Any]], Sequence[str]]:
        answers = [await ask(self.address, "/explain", {subject: key}) for key in keys]
        given: list[Mapping[str, Any]] = [answer for answer in answers if answer is not None]
        if len(given) == len(keys):
            return given, ()
        # No controller answers: decide as one would that has just started, and say what that lacks.
        silent = f"no controller answers at {self.address}"
        decided = "this is what one that starts now with these options would decide"
        note = f"{silent}: {decided}; what was tried is not known"
        async with cluster_client(self.kubeconfig) as client:
            plane, doubts = await read_control_plane(client, self.configuration, self.options)
            explanations: list[Mapping[str, Any]] = [asdict(plane.explain(subject, key)) for key in keys]
            try:
                if leader := await lease_holder(client, self.options.namespace):
                    note = f"{silent}, but {leader} works: ask it with --http for what it has tried"
            except ApiError as error:
                if error.status != HTTPStatus.FORBIDDEN:
                    raise
            return explanations, (note, *doubts)


def _show(console: Console, answer: Mapping[str, Any], *, titled: bool) -> None:
    if titled:
        console.heading(f"{answer['kind']} {answer['name']}")
    for heading, part in PARTS:
        if answer[part]:
            console.heading(heading)
            for sentence in answer[part]:
                console.sentence(sentence)
