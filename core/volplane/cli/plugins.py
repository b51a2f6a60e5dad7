"""`volplane plugins`: installed backends and extensions, whether they can be used, and their options."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import OutputFormat, path_option
from volplane.controller.config import Configuration, DriverSettings, read_configuration
from volplane.drivers import loading
from volplane.drivers.contract import HOOKS, Plugin, backend_flaws, extension_flaws, marks
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.drivers.loading import build_driver, default_drivers, load_drivers, newer_flaw, options_schema, within
from volplane.drivers.parameters import check, entries, type_text
from volplane.errors import ConfigurationError, PluginError, VolplaneError
from volplane.schemas import ParameterSchema

_EXAMPLES: Final = (
    *("example", "/example", "example.com", "nfs://example.com/example", "192.0.2.1"),
    *("true", "1Gi", "1m", "key=value", "env:EXAMPLE"),
)

Config = Annotated[Path | None, path_option("--config", "FILE", "Configuration file whose drivers to show.")]


plugins = typer.Typer(invoke_without_command=True)


@plugins.callback()
def listing(context: typer.Context, config: Config = None, output: OutputFormat = Output.TEXT) -> None:
    """Show the backends and extensions that are installed, and the drivers they make.

    Each is imported, in a child process first. Exit code 1 if one cannot be used.
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    console = Console()
    configuration = read_configuration(config)
    installed = InstalledPlugins()
    with console.progress("importing plugins"):
        drivers = load_drivers(configuration, installed)
        loads = [
            loading.in_daemon_thread(name, _row, installed, kind, name, drivers)
            for kind in ("backend", "extension")
            for name in installed.names(kind)
        ]
        rows = [each.result() for each in loads]
    if output is not Output.TEXT:
        console.data(rows, output)
    elif rows:
        columns = ("kind", "name", "distribution", "state", "drivers", "hooks")
        cells = [
            [row[key] if isinstance(row[key], str) else ", ".join(row[key]) or "-" for key in columns] for row in rows
        ]
        console.table([key.upper() for key in columns], cells)
    else:
        console.note("no backend is installed; try: pip install volplane-hostpath")
    errors = dict.fromkeys(row["error"] for row in rows if row["error"])
    for broken in drivers.broken:
        # A driver repeats the error of its broken plugin.
        if not any(error in broken.error for error in errors):
            errors[broken.error if broken.name in broken.error else f"driver {broken.name}: {broken.error}"] = None
    for error in errors:
        console.error(error)
    if errors:
        raise typer.Exit(1)


@plugins.command("show", short_help="Show one plugin, its options and class parameters")
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Backend or extension.", show_default=False)],
) -> None:
    """Show what one plugin is, its options, and the parameters that classes may give it."""
    console = Console()
    installed = InstalledPlugins()
    kind = "backend" if name in installed.names("backend") or name not in installed.names("extension") else "extension"
    plugin = installed.load(kind, name)
    configuration = read_configuration(context.obj)
    console.line(f"{kind} {name}, from {plugin.distribution}")
    console.line(f"hooks: {', '.join(sorted(_hooks(plugin))) or 'known once it is made'}")
    _show_schema(console, "Options (in the configuration file)", options_schema(plugin))
    if kind == "backend":
        _show_backend(console, plugin, configuration, installed)


def _row(installed: InstalledPlugins, kind: str, name: str, drivers: LoadedDrivers) -> dict[str, Any]:
    mine: list[str] = []
    hooks: frozenset[str] = frozenset()
    error = ""
    try:
        plugin = installed.load(kind, name)
        hooks = _hooks(plugin)
        judge = backend_flaws if kind == "backend" else extension_flaws
        flaws = judge(plugin.factory) if inspect.isclass(plugin.factory) else ()
        options_schema(plugin)
        error = f"{plugin}: {'; '.join(flaws)}" if flaws else ""
    except PluginError as refused:
        error = str(refused)
    if kind == "backend":
        made = [d for d in (*drivers.drivers, *drivers.distributed) if d.view.backend == name]
        mine = [d.name for d in made] + [f"{b.name} (broken)" for b in drivers.broken if name == b.backend != b.name]
        hooks = made[0].view.hooks if made else hooks
        if not made and not error:
            # No driver uses it: say why none could, as far as examples of its required options show.
            with suppress(ConfigurationError):
                flaw = newer_flaw(plugin, _example_options(plugin))
                error = f"{plugin}: {flaw}" if flaw else ""
    return {
        "kind": kind,
        "name": name,
        "distribution": installed.entries[kind, name].distribution,
        "drivers": mine,
        "hooks": sorted(hooks),
        "error": error,
        "state": "broken" if error else "ok",
    }


def _hooks(plugin: Plugin) -> frozenset[str]:
    """Return the hooks of the plugin's class; empty for another callable, whose instance is not made here."""
    if not inspect.isclass(plugin.factory):
        return frozenset()
    return HOOKS.intersection(mark.hook for mark in marks(plugin.factory))


def _show_backend(console: Console, plugin: Plugin, configuration: Configuration, installed: InstalledPlugins) -> None:
    settings = configuration.drivers
    if settings is None:
        settings, _ = default_drivers(installed)
    mine = [s for s in settings if s.backend == plugin.name]
    try:
        driver = within(loading.BUILD_DEADLINE, f"making {plugin}", _made, plugin, mine)
    except VolplaneError as error:
        console.heading("Class parameters")
        console.note(f"  not known: {error}")
        return
    info = driver.view.info
    _show_schema(console, f"Class parameters (schema version {info.parameters.version})", info.parameters)
    console.heading("Driver")
    facts = [
        ("version", info.version),
        ("hookspec version", str(info.hookspec_version)),
        ("access modes", ", ".join(sorted(info.access_modes))),
        ("volume modes", ", ".join(sorted(info.volume_modes))),
        ("topology keys", ", ".join(info.topology_keys) or "none: reachable from everywhere"),
        ("CSI driver name", info.csi_driver_name or "none"),
        ("attach", "served" if info.attach_required else "not needed"),
        ("mount options", "taken" if info.supports_mount_options else "refused"),
        *((f"waives {rule}", reason) for rule, reason in sorted(info.waived_rules.items())),
    ]
    for label, value in facts:
        console.line(f"  {label:<18} {value}")


def _made(plugin: Plugin, settings: list[DriverSettings]) -> Driver:
    """Return the driver to describe: the first configured one, else one with example values of required options."""
    if settings:
        return build_driver(settings[0].name, plugin, settings[0].options)
    name = getattr(plugin.factory, "default_driver_name", "") or "example"
    return build_driver(name, plugin, _example_options(plugin))


def _example_options(plugin: Plugin) -> dict[str, object]:
    """Return values of required options that the schema allows. Raises ConfigurationError if no example fits one."""
    options: dict[str, object] = {}
    for parameter in options_schema(plugin).parameters:
        if not parameter.required:
            continue
        schema = ParameterSchema(parameters=(parameter,))
        low = "1" if parameter.minimum is None else f"{parameter.minimum:.0f}"
        texts = (*parameter.choices, *_EXAMPLES, low, f"{low}s")
        fitting = [text for text in texts if not check(schema, {parameter.name: text}, "option")[1]]
        if not fitting:
            raise ConfigurationError(f"option {parameter.name!r} must be configured: {type_text(parameter)}")
        options[parameter.name] = fitting[0]
    return options


def _show_schema(console: Console, title: str, schema: ParameterSchema) -> None:
    console.heading(title)
    if not schema.parameters:
        console.line("  none")
    for name, value, default, doc in entries(schema):
        shown = f" [{default}]" if default == "required" else f" [default {default}]"
        console.sentence(f"{name}: {value}{shown if default else ''}")
        console.note(f"      {doc}")
