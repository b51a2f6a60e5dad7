"""`volplane fake`: the mocked storage of a backend over HTTP, for drivers, command lines and other tests."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from volplane._messages import nearest, why_unusable
from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.errors import ConfigurationError
from volplane_testing.cli.subjects import GROUP
from volplane_testing.cloud import ServedFake

__all__ = ["register"]

FUNCTION: Final = "serve"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fake")(fake)


def fake(
    backend: Annotated[
        str, typer.Argument(metavar="BACKEND", help="Of which installed backend, such as aws_ebs.", show_default=False)
    ],
    *,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port on loopback; 0 takes a free one.")
    ] = 0,
    disks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to show attached disks, for pods of `volplane dev` with the same option.",
            readable=False,
        ),
    ] = None,
    instances: Annotated[
        int, typer.Option(metavar="N", min=0, max=100, help="How many machines there are to attach to.")
    ] = 1,
) -> None:
    """Serve the mocked storage of a backend over HTTP until Ctrl-C, and print how to use it.

    It begins empty, and keeps everything in memory. It listens on loopback and takes any credentials.
    """
    serve = _serve_function(backend)
    with _served(serve, port, disks, instances) as served:
        _print_introduction(Console(), backend, served, disks)
        eventloop.run(_until_stopped)


async def _until_stopped(stop: asyncio.Event) -> None:
    await stop.wait()


def _serve_function(backend: str) -> Any:
    """Return the function `serve` of the backend's fake. Raises ConfigurationError."""
    points = importlib.metadata.entry_points(group=GROUP)
    found = next(iter(points.select(name=backend)), None)
    if found is None:
        raise ConfigurationError(f"no mocked storage comes with a backend {backend!r}{nearest(backend, points.names)}")
    try:
        module = found.load()
    except ImportError as error:
        raise ConfigurationError(f"the mocked storage of {backend} cannot be imported: {error}") from error
    if (serve := getattr(module, FUNCTION, None)) is None:
        able = [point.name for point in points if point.name != backend]
        raise ConfigurationError(
            f"the mocked storage of {backend} cannot be served to other processes: {found.value} has no function "
            f"{FUNCTION}; others may ({', '.join(sorted(able))})"
        )
    return serve


@contextmanager
def _served(serve: Any, port: int, disks: Path | None, instances: int) -> Iterator[ServedFake]:
    with ExitStack() as stack:
        try:
            served = stack.enter_context(serve(port=port, disks=disks, instances=instances))
        except OSError as error:
            what = f"--disks {disks}" if error.filename else f"--port {port}"
            raise ConfigurationError(f"{what} cannot be used: {why_unusable(error)}") from error
        yield served


def _print_introduction(console: Console, backend: str, served: ServedFake, disks: Path | None) -> None:
    console.line(f"serving {served.url}")
    console.line()
    console.note("A driver, in the configuration file of `volplane dev` or `volplane run`:")
    driver = {"name": served.driver, "backend": backend, "options": dict(served.options)}
    for line in yaml.safe_dump({"drivers": [driver]}, sort_keys=False, width=120).splitlines():
        console.line(f"  {line}")
    if served.hints:
        console.note("Other programs:")
        for hint in served.hints:
            console.line(f"  {hint}")
    if served.instances:
        _print_machines(console, served, disks)
    console.note("Ctrl-C stops it.")


def _print_machines(console: Console, served: ServedFake, disks: Path | None) -> None:
    """Print the patches that make nodes machines. `volplane dev` writes the labels of its nodes at each start."""
    labels = "".join(f" --node-label {key}={value}" for key, value in served.labels.items())
    shown = f" --disks {shlex.quote(str(disks))}" if disks is not None else ""
    if labels or shown:
        console.note("Options of `volplane dev`, whose nodes are to be these machines:")
        console.line(f"  --nodes {len(served.instances)}{shown}{labels}")
    console.note("Machines, and what makes a node one of them:")
    for name, provider_id in served.instances.items():
        node = {"metadata": {"labels": dict(served.labels)}, "spec": {"providerID": provider_id}}
        patch = json.dumps(node, separators=(",", ":"))
        console.line(f"  {name}   kubectl patch node NODE -p '{patch}'")
