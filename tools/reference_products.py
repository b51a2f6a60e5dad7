"""Pages of docs/reference about what is installed: backends, extensions, metrics, commands."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Sequence

import typer.main
import typer.testing
from tools.reference_docstrings import MARK, contract, parameter_table

from volplane.cli import main as frame
from volplane.controller.metrics import Metrics
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.loading import build_driver, options_schema

WIDTH = 100


def backend_page(name: str) -> Iterator[str]:
    """The options and the class parameters of one of our backends."""
    plugin = InstalledPlugins().load("backend", name)
    options = options_schema(plugin)
    examples = {"root": "/example", "shares": "nfs://example.com/example", "socket": "/csi.sock"}
    required = {option.name: examples.get(option.name, "example") for option in options.parameters if option.required}
    driver = build_driver(f"{name.replace('_', '-')}.example.com", plugin, required)
    yield f"# Backend {name}\n"
    yield MARK + "\n"
    yield contract(plugin.factory) + "\n"
    yield "## Options of a driver\n"
    yield "In the configuration file, by the operator.\n"
    yield parameter_table(options)
    yield "## Parameters of a class\n"
    yield "In `parameters` of a StorageClass. Names are compared without regard to case.\n"
    yield parameter_table(driver.view.info.parameters)


def metrics_page() -> Iterator[str]:
    """Every metric of a controller process."""
    yield "# Metrics\n"
    yield MARK + "\n"
    yield """\
`volplane run` and `volplane dev` serve them at `/metrics` of `--http`, in the text format of Prometheus. What a stock
controller, client-go or the external provisioner measures too has their name and labels here; the rest is `volplane_…`.
"""
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    for metric in sorted(Metrics().descriptions):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.type} | {labels} | {metric.documentation} |"


def extensions_page() -> Iterator[str]:
    """The options of the extensions that come with the core."""
    yield "# Extensions\n"
    yield MARK + "\n"
    yield """\
They come with volplane and are around every driver once the configuration names them
([how](../how-to/wrap-every-backend.md)).
"""
    for name in ("call_log", "dry_run", "quota"):
        plugin = InstalledPlugins().load("extension", name)
        yield f"\n## {name}\n\n{contract(inspect.getmodule(plugin.factory))}\n\n{contract(plugin.factory)}\n"
        yield parameter_table(options_schema(plugin))


def commands_page() -> Iterator[str]:
    """The help of every command."""
    yield "# Commands\n"
    yield MARK + "\n"
    yield """\
Exit codes: 0 ok; 1 failed, the reason on stderr as one line `error: …`; 2 wrong usage; 130 Ctrl-C. Results go to
stdout, progress and warnings to stderr; colour only on a terminal, never with `NO_COLOR`. SIGTERM finishes what runs,
saves what must be known later, and exits 0 within 10 seconds. `python -m volplane` is the same as `volplane`.
"""
    yield from help_of([])
    for name in frame.COMMANDS:
        yield f"\n## volplane {name}\n"
        yield from help_of([name])
        for below in subcommands(name):
            yield f"\n### volplane {name} {below}\n"
            yield from help_of([name, below])


def subcommands(name: str) -> tuple[str, ...]:
    """Names of the commands below a command that is a group."""
    commands: typing.Any = typer.main.get_command(frame.application([name]))
    return tuple(getattr(commands.commands[name], "commands", ()))


def help_of(arguments: Sequence[str]) -> Iterator[str]:
    """What `--help` prints, as a block."""
    app = frame.application(arguments)
    fixed = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1"}
    runner = typer.testing.CliRunner(env=fixed)
    result = runner.invoke(app, [*arguments, "--help"], prog_name="volplane", color=False)
    if result.exit_code != 0:
        raise SystemExit(f"volplane {' '.join(arguments)} --help failed: {result.output}")
    yield "```text"
    yield "\n".join(line.rstrip() for line in result.output.rstrip().splitlines())
    yield "```"
