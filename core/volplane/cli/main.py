"""The frame of the command line: which commands there are, and how each of them ends.

A command is one module in `volplane.cli` with a function `register(app: typer.Typer) -> None` that adds it under its
name (`@app.command("status")`). Its line in `COMMANDS` makes it known. The module is imported only when the command is
asked for, so it may import what it likes; `volplane --help` imports none. After a change to options: `make docs`.

How commands end:
- return, or `raise typer.Exit(0)`: exit code 0. What was asked for and found wrong: `raise typer.Exit(1)` after saying so.
- any `VolplaneError`, alone or inside an `ExceptionGroup`: one line `error: …` on stderr, exit code 1.
- wrong usage (typer says so itself, or `raise typer.BadParameter(…)`): exit code 2. Ctrl-C: 130.
- SIGTERM before the command handles it itself (`volplane.cli.running`): 0 for those that run until then, else 143.
- anything else is a bug of ours: one line that says so, exit code 1. A traceback only with `volplane --debug …`.

Text for people goes through `volplane.cli.console.Console`; options that several commands share stand in
`volplane.cli.options`.
"""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import typer

from volplane.cli.console import Console
from volplane.errors import VolplaneError

__all__ = ["COMMANDS", "application", "main"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "run": "Run the controllers for a cluster",
        "dev": "Run a whole small cluster on this machine, for kubectl",
        "explain": "Tell why a claim is where it is, and what happens next",
        "status": "Show drivers, volumes and claims, and what waits for what",
        "leaks": "Show what is left on the backends, or missing there, and delete orphans",
        "drain": "Show what volplane holds, and let it go before leaving a cluster",
        "adopt": "After a restore: take over the former cluster's assets",
        "manifests": "Print what a cluster needs to run the controllers",
        "demo": "Watch volumes live through their whole life, in half a minute",
        "apiserver": "Serve a Kubernetes API for development and tests",
        "plugins": "Show installed backends and extensions",
        "check": "Judge a backend by the rules that every backend keeps",
        "sim": "Run the controllers through schedules of trouble",
        "new-backend": "Write a new backend that passes its tests at once",
    }
)
"""Name -> summary, in the order of the help. The module is the name with "_" for "-"."""

SERVICES = frozenset({"run", "dev", "apiserver"})
"""Commands that run until SIGTERM, for which being stopped is success."""

log = logging.getLogger("volplane.cli")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. argv: without the program's name; None = the process's own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    console = Console()
    _end_in_order(0 if SERVICES.intersection(arguments) else 128 + signal.SIGTERM)
    try:
        application(arguments)(args=arguments, prog_name="volplane")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as failure:  # the last place where a failure can become a sentence
        log.debug("how it came to this", exc_info=failure)
        for message in _messages(failure):
            console.error(message)
        return 1
    return 0


def _end_in_order(code: int) -> None:
    """Until a command handles SIGTERM itself: nothing has begun, so there is nothing to finish."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(code)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def application(arguments: Sequence[str]) -> typer.Typer:
    """Build the commands. Only those that `arguments` name are imported; the others are there for the help."""
    app = typer.Typer(
        help="A storage control plane for Kubernetes.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, summary in COMMANDS.items():
        if name in arguments:
            importlib.import_module(f"volplane.cli.{name.replace('-', '_')}").register(app)
        else:
            app.command(name, short_help=summary)(_named_only)
    return app


def _named_only() -> None:
    """Stand in the help for a command whose module this call does not need."""


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - a fifth of the start-up time, for this line only

        typer.echo(f"volplane {version('volplane')}")
        raise typer.Exit


def _root(
    version: Annotated[  # noqa: ARG001 - the callback answers it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log everything, and show where a failure came from.")] = False,
) -> None:
    if debug:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def _messages(failure: BaseException) -> Iterator[str]:
    """One sentence a cause; those that are ours first, and then only those."""
    leaves = list(_leaves(failure))
    expected = [leaf for leaf in leaves if isinstance(leaf, VolplaneError)]
    if expected:
        yield from dict.fromkeys(str(leaf) for leaf in expected)
        return
    for leaf in leaves:
        yield f"unexpected {type(leaf).__name__}: {leaf} (this is a bug; `volplane --debug` shows where it happened)"


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:
            yield from _leaves(inner)
    else:
        yield failure
