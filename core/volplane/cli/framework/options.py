"""Options that several commands share, so that they are spelled and explained alike everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "DataDirectory",
    "Host",
    "InMemory",
    "Kubeconfig",
    "KubeconfigOut",
    "Output",
    "OutputFormat",
    "Port",
    "Verbose",
]


class Output(StrEnum):
    """How results are written."""

    TEXT = "text"
    JSON = "json"


DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Keep everything in this directory, safe against a crash.", file_okay=False
    ),
]
InMemory = Annotated[bool, typer.Option("--memory", help="Keep everything in memory only. This is the default.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
KubeconfigOut = Annotated[
    Path | None,
    typer.Option("--kubeconfig-out", metavar="FILE", help="Where to write the kubeconfig with the token (mode 0600)."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Which cluster; else KUBECONFIG, ~/.kube/config or in-cluster."),
]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="How the result is written.")]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more; twice: everything.")]
