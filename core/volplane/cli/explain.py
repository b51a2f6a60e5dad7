"""`volplane explain pvc NAMESPACE/NAME`: why a claim is where it is, and what happens next."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from volplane.cli.asking import ControllerAddress, ask, require_answer
from volplane.cli.console import Console
from volplane.errors import ConfigurationError

__all__ = ["register"]

KINDS = ("pvc", "claim", "persistentvolumeclaim", "persistentvolumeclaims")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="pvc.")],
    name: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="Which claim; without a namespace: default.")],
    *,
    http: ControllerAddress = "127.0.0.1:9809",
) -> None:
    """Tell in plain words where a claim stands, what was tried, and what happens next and when.

    Asks the running controller, whose decision it is.
    """
    if kind not in KINDS:
        raise ConfigurationError(
            f'"{kind}" cannot be explained; only pvc can, as in `volplane explain pvc default/data`'
        )
    asyncio.run(_explain(Console(), name if "/" in name else f"default/{name}", http))


async def _explain(console: Console, key: str, address: str) -> None:
    answer = require_answer(await ask(address, "/explain", {"claim": key}), address)
    for heading, part in (("Where it stands", "situation"), ("What was tried", "tried"), ("What happens next", "next")):
        if answer[part]:
            console.heading(heading)
            for sentence in answer[part]:
                console.line(f"  {sentence}")
