"""What kubectl completes after `kubectl volplane`: commands and options, names of objects, namespaces and contexts.

kubectl calls `kubectl_complete-volplane WORD… LAST`. It takes a completion a line, and at the end what cobra calls a
directive: `:4` = no names of files.
"""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout, suppress
from typing import Any, Final

import typer
from typer._completion_classes import completion_init

from volplane.cli.controller_client import Access
from volplane.cli.explain import KINDS, SUBJECTS, WORDS
from volplane.cli.framework.options import COMPLETING
from volplane.cli.main import application
from volplane.errors import VolplaneError
from volplane.kube.kinds import NAMESPACES
from volplane.kube.kubeconfig import context_namespaces

_SECONDS: Final = 3.0


def main() -> None:
    *given, last = sys.argv[1:] or [""]
    line = {"COMP_WORDS": shlex.join(["volplane", *given, last]), "COMP_CWORD": str(len(given) + 1)}
    os.environ.update({**line, "_VOLPLANE_COMPLETE": "complete_bash"})
    COMPLETING.append(words)
    completion_init()
    found = io.StringIO()
    with suppress(SystemExit), redirect_stdout(found):
        application(given)(prog_name="volplane")
    typer.echo("\n".join((*found.getvalue().split(), ":4")))


def words(what: str, given: Mapping[str, Any]) -> Iterable[str]:
    """Return what completes a parameter. what: the kind of an object; "kind", or "" for the kind that is given; or
    "context". given: the parameters that stand before it. Nothing if the cluster does not say.
    """
    access = Access(kubeconfig=given.get("kubeconfig"), context=given.get("context") or "")
    if what == "kind":
        return WORDS
    if what == "context":
        return filter(None, context_namespaces(access.kubeconfig))
    word = str(given.get("kind") or "").lower()
    known = KINDS.get(what or SUBJECTS.get(word, ""))
    kind = NAMESPACES if what == "namespace" else known and known[0]
    if kind is None:
        return ()
    within = access.namespace(given.get("namespace") or "") if kind.namespaced else ""

    async def names() -> list[str]:
        async with asyncio.timeout(_SECONDS), access.cluster() as (client, _):
            return [each.name for each in (await client.list(kind, namespace=within)).items]

    try:
        return asyncio.run(names())
    except (VolplaneError, TimeoutError):
        return ()
