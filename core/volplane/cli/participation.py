"""Options that say how a process takes part: what `run` does, and `explain` tells of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from volplane.assembly import ALL_CONTROLLERS, CONTROLLERS_BESIDE

__all__ = ["CONTROLLERS_DEFAULT", "DEFAULT_NAMESPACE", "ConfigFile", "Controllers", "OurNamespace"]

CONTROLLERS_DEFAULT: Final = ",".join(CONTROLLERS_BESIDE)
DEFAULT_NAMESPACE: Final = "volplane-system"

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Drivers and their options, YAML. Else every backend that needs none."
    ),
]
Controllers = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help=f"What to do: some of {', '.join(ALL_CONTROLLERS)}, or all where no kube-controller-manager does it.",
    ),
]
OurNamespace = Annotated[
    str, typer.Option(metavar="NAME", help="Namespace of the lease, the sealing key and scrubber pods.")
]
