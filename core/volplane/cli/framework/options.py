"""Options that several commands share, with one spelling and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from volplane.cli.framework.output import Output
from volplane.process.duties import ALL_CONTROLLERS

__all__ = [
    "DEFAULT_NAMESPACE",
    "ConfigFile",
    "Controllers",
    "DataDirectory",
    "Host",
    "InMemory",
    "Kubeconfig",
    "KubeconfigOut",
    "OurNamespace",
    "Output",
    "OutputFormat",
    "Port",
    "Verbose",
]

DEFAULT_NAMESPACE: Final = "volplane-system"


# `readable=False` everywhere: what is wrong with a path is said where it is used, in one line with what to do.
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Keep everything in this directory, safe against a crash.", readable=False
    ),
]
InMemory = Annotated[bool, typer.Option("--memory", help="Keep everything in memory only. This is the default.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
]
KubeconfigOut = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig-out",
        metavar="FILE",
        help="Where to write the kubeconfig with the token (mode 0600).",
        readable=False,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Which cluster; else KUBECONFIG, ~/.kube/config or in-cluster.",
        readable=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Drivers and their options, YAML. Else every backend that needs none.",
        readable=False,
    ),
]
Controllers = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help=f"What to do: some of {', '.join(ALL_CONTROLLERS)}, or all where no kube-controller-manager does it.",
        show_default="all but binder, protection and attach-detach",
    ),
]
OurNamespace = Annotated[
    str, typer.Option(metavar="NAME", help="Namespace of the lease, the sealing key and scrubber pods.")
]
OutputFormat = Annotated[Output, typer.Option("--output", "-o", help="How the result is written.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Log more; twice: everything.", show_default=False)
]
