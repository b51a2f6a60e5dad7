"""The entry point of the command line: the list of commands, and their exit codes.

A command is a module and an entry in `COMMANDS`. A command of the core is the function of its name in a module of
`volplane.cli`, or a `typer.Typer` if it has subcommands. Those of `volplane-embedded` and `volplane-testing` are entry
points of the group `volplane.commands`: functions `register(app: typer.Typer) -> None` that add the command. A module
is imported only when its command is called; `volplane --help` imports none.

Exit codes:
- 0: the command returns or raises `typer.Exit(0)`. 1: it has reported a problem and raises `typer.Exit(1)`.
- 1 for any `VolplaneError`, alone or inside an `ExceptionGroup`, with one line `error: …` on stderr.
- 2 for wrong usage (from typer itself, or `raise typer.BadParameter(…)`).
- 130 after Ctrl-C, at any moment of any command, without a word. A command that serves ends in order first.
- SIGTERM before the command handles it (`volplane.cli.framework.eventloop`): 0 for services, else 143.
- 1 without a word if the reader of the output is gone; 1 with one line if a file cannot be read or written.
- 1 for any other exception, which is a bug, with one line on stderr; `volplane --debug …` adds the traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

import typer
from typer import Option

from volplane._messages import why_unusable
from volplane.cli.framework.console import Console
from volplane.errors import ConfigurationError, VolplaneError

GROUP: Final = "volplane.commands"
"""Entry points by which other distributions bring commands."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, by its module or entry point."""

    summary: str
    extra: str = ""
    """The extra of `volplane` that installs the command; "" = it is in the core."""
    module: str = ""
    """The module of `volplane.cli` that has it; "" = that of its name."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "run": Command("Run the controllers for a cluster"),
        "dev": Command("Run a whole small cluster on this machine, for kubectl", "dev"),
        "explain": Command("Tell why a claim is where it is, and what happens next"),
        "status": Command("Show drivers, volumes and claims, and what waits for what", module="explain"),
        "ui": Command("Serve a live page about volumes to a browser on this machine"),
        "leaks": Command("Show what is left on the backends, or missing there, and delete orphans"),
        "snapshot": Command("Have a snapshot cut of a claim", module="snapshots"),
        "restore": Command("Make a claim with the data of a snapshot", module="snapshots"),
        "trash": Command("Show the volumes of deleted claims that are kept, and purge one"),
        "undelete": Command("Give a volume in the trash to a claim", module="trash"),
        "drain": Command("Show what volplane holds, and release it before leaving a cluster"),
        "adopt": Command("After a restore: take over the former cluster's assets", module="leaks"),
        "support-bundle": Command("Write an archive for support, without secrets"),
        "manifests": Command("Print what a cluster needs to run the controllers"),
        "demo": Command("Watch volumes live through their whole life, in half a minute", "dev"),
        "apiserver": Command("Serve a Kubernetes API for development and tests", "dev"),
        "csi": Command("Serve a backend as a CSI driver"),
        "plugins": Command("Show installed backends and extensions"),
        "check": Command("Judge a backend by the rules that every backend keeps", "testing"),
        "sim": Command("Run the controllers through schedules of trouble", "testing"),
        "fake": Command("Serve the mocked storage of a backend over HTTP", "testing"),
        "new-backend": Command("Write a new backend that passes its tests at once", "testing"),
    }
)
"""By name, in the order of the help. Summaries are here because the help imports no command."""

SERVICES = frozenset({"run", "ui", "csi", "dev", "apiserver", "fake"})
"""Commands that run until SIGTERM; for them SIGTERM is success."""

OF_FILES: Final = (
    {errno.EACCES, errno.EPERM, errno.EROFS}
    | {errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOSPC}
    | {errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR}
)
"""Errors that the user can mend: rights, space or names on this machine."""

log = logging.getLogger("volplane.cli")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. argv: without the program's name; None = the process's own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The caller closed it: no output is wanted.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the process ends
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread:
        # Until the command installs a handler of its own.
        code = 0 if SERVICES.intersection(arguments) else 128 + signal.SIGTERM
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(code))
    try:
        app = application(arguments)
        if not gc.isenabled():  # `volplane.__main__` has disabled it; what is imported stays.
            gc.freeze()
            gc.enable()
        if main_thread:
            # Until now SIGINT ended the process (see `volplane.__main__`).
            signal.signal(signal.SIGINT, signal.default_int_handler)
        plugin = Path(sys.argv[0]).name == "kubectl-volplane"
        app(args=arguments, prog_name="kubectl volplane" if plugin else "volplane")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as failure:
        log.debug("the command failed", exc_info=failure)
        return _report(Console(), list(_leaves(failure)))
    return 0


def application(arguments: Sequence[str]) -> typer.Typer:
    """Build the commands. Only those named in `arguments` are imported; the others only appear in the help."""
    app = typer.Typer(
        help="A storage control plane for Kubernetes.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, command in COMMANDS.items():
        if name in arguments:
            _register(app, name, command)
        else:
            # A place in the help of a command whose module is not imported.
            app.command(name, short_help=command.summary)(lambda: None)
    return app


def _register(app: typer.Typer, name: str, command: Command) -> None:
    if not command.extra:
        function = name.replace("-", "_")
        found = getattr(importlib.import_module(f"volplane.cli.{command.module or function}"), function)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
        return
    from importlib.metadata import entry_points  # noqa: PLC0415 - a fifth of the start-up time

    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry is not None:
        entry.load()(app)
        return

    def absent() -> None:
        text = f'`volplane {name}` is not installed; it comes with: pip install "volplane[{command.extra}]"'
        raise ConfigurationError(text)

    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, short_help=command.summary, context_settings=any_arguments, add_help_option=False)(absent)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - a fifth of the start-up time

        typer.echo(f"volplane {version('volplane')}")
        raise typer.Exit


def _root(
    version: Annotated[  # noqa: ARG001 - the callback answers it
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Log everything, and show where a failure came from.")] = False,
) -> None:
    if debug:
        from volplane.controller import logs  # noqa: PLC0415 - a part of the start-up time that few need

        logs.configure(verbosity=2)


def _report(console: Console, failures: Sequence[BaseException]) -> int:
    """Say why the command fails: VolplaneErrors if there are any, else files that cannot be used, else bugs."""
    messages = [str(failure) for failure in failures if isinstance(failure, VolplaneError)]
    if not messages and any(isinstance(failure, BrokenPipeError) for failure in failures):
        # The interpreter writes what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    for each in failures if not messages else ():
        if isinstance(each, OSError) and each.errno in OF_FILES:
            where = each.filename2 or each.filename
            what = os.fsdecode(where) if isinstance(where, str | bytes) else "a file or the output"
            messages.append(f"{what} cannot be used: {why_unusable(each)}")
    messages = messages or [
        f"unexpected {type(each).__name__}: {each} (this is a bug; `volplane --debug` shows where it happened)"
        for each in failures
    ]
    for message in dict.fromkeys(messages):
        console.error(message)
    return 1


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:
            yield from _leaves(inner)
    else:
        yield failure
