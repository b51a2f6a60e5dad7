"""The option that says which controllers run. Its help imports each of them, which other commands need not wait for."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from volplane.process.duties import ALL_CONTROLLERS

Controllers = Annotated[
    str,
    Option(
        metavar="LIST",
        help=f"What to do: some of {', '.join(ALL_CONTROLLERS)}, or all where no kube-controller-manager does it.",
        show_default="all but binder, protection and attach-detach",
    ),
]
