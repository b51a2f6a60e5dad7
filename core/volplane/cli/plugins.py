"""`volplane plugins`: installed backends and extensions, whether they can be used, and their options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import OutputFormat
from volplane.controller.config import Configuration, DriverSettings, read_configuration
from volplane.drivers import loading
from volplane.drivers.contract import HOOKS, Plugin, backend_flaws, extension_flaws, marks
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.driver import Driver, LoadedDrivers
from volplane.drivers.loading import build_driver, default_drivers, load_drivers, newer_flaw, options_schema, within
from volplane.drivers.parameters import check, entries, type_text
from volplane.errors import ConfigurationError, PluginError, VolplaneError
from volplane.schemas import DriverInfo, Parameter, ParameterSchema

__all__ = ["register"]

_EXAMPLES: Final = (
    "example",
    "/example",
    "example.com",
    "nfs://example.com/example",
    "192.0.2.1",
    "true",
    "1Gi",
    "1m",
    "key=value",
    "env:EXAMPLE",
)

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration file whose drivers to show.", readable=False),
]


def register(app: typer.Typer) -> None:
    """Add the command and its subcommand."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(plugins)
    group.command("show", short_help="Show one plugin, its options and class parameters")(show)
    app.add_typer(group, name="plugins")


def plugins(context: typer.Context, config: Config = None, output: OutputFormat = Output.TEXT) -> None:
    """Show the backends and extensions that are installed, and the drivers they make.

    Each is imported, in a child process first. Exit code 1 if one cannot be used.
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    console = Console()
    configuration = Configuration() if config is None else read_configuration(config)
    installed = InstalledPlugins()
    with console.progress("importing plugins"):
        drivers = load_drivers(configuration, installed)
        loads = [
            loading.in_daemon_thread(name, _row, installed, kind, name, drivers)
            for kind in ("backend", "extension")
            for name in installed.names(kind)
        ]
        rows = [each.result() for each in loads]
    errors = _errors(rows, drivers)
    if output is not Output.TEXT:
        console.data([row.data() for row in rows], output)
    elif rows:
        console.table(
            ("KIND", "NAME", "DISTRIBUTION", "STATE", "DRIVERS", "HOOKS"),
            [(r.kind, r.name, r.distribution, r.state, r.drivers, r.hooks) for r in rows],
        )
    else:
        console.note("no backend is installed; try: pip install volplane-hostpath")
    for error in errors:
        console.error(error)
    if errors:
        raise typer.Exit(1)


def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Backend or extension.", show_default=False)],
) -> None:
    """Show what one plugin is, its options, and the parameters that classes may give it."""
    console = Console()
    installed = InstalledPlugins()
    kind = "backend" if name in installed.names("backend") or name not in installed.names("extension") else "extension"
    plugin = installed.load(kind, name)
    config: Path | None = context.obj
    configuration = Configuration() if config is None else read_configuration(config)
    console.line(f"{kind} {name}, from {plugin.distribution}")
    console.line(f"hooks: {', '.join(sorted(_hooks(plugin))) or 'known once it is made'}")
    _show_schema(console, "Options (in the configuration file)", options_schema(plugin))
    if kind == "backend":
        _show_backend(console, plugin, configuration, installed)


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    name: str
    distribution: str
    drivers: str
    hooks: str
    error: str

    @property
    def state(self) -> str:
        return "broken" if self.error else "ok"

    def data(self) -> dict[str, object]:
        """Return the row for programs: lists are lists, and a missing value is empty."""
        lists = {
            key: [] if text == "-" else text.split(", ")
            for key, text in (("drivers", self.drivers), ("hooks", self.hooks))
        }
        return {**asdict(self), "state": self.state, **lists}


def _row(installed: InstalledPlugins, kind: str, name: str, drivers: LoadedDrivers) -> _Row:
    found = installed.found(kind, name)
    distribution = found.distribution if found is not None else ""
    mine: list[str] = []
    hooks: frozenset[str] = frozenset()
    error = ""
    try:
        plugin = installed.load(kind, name)
        hooks = _hooks(plugin)
        flaws: tuple[str, ...] = ()
        if inspect.isclass(plugin.factory):
            flaws = backend_flaws(plugin.factory) if kind == "backend" else extension_flaws(plugin.factory)
        options_schema(plugin)
        if flaws:
            error = f"{plugin}: {'; '.join(flaws)}"
    except PluginError as refused:
        error = str(refused)
    if kind == "backend":
        made = [d for d in drivers.drivers if d.view.backend == name]
        if not made and not error:
            error = _newer(installed, name)
        mine = [d.name for d in made] + [f"{b.name} (broken)" for b in drivers.broken if name == b.backend != b.name]
        hooks = made[0].view.hooks if made else hooks
    return _Row(kind, name, distribution, ", ".join(mine) or "-", ", ".join(sorted(hooks)) or "-", error)


def _newer(installed: InstalledPlugins, name: str) -> str:
    """Return why a backend that no driver uses could not be used, as far as can be known; "" = it could."""
    plugin = installed.load("backend", name)
    try:
        flaw = newer_flaw(plugin, _example_options(plugin))
    except ConfigurationError:
        return ""
    return f"{plugin}: {flaw}" if flaw else ""


def _hooks(plugin: Plugin) -> frozenset[str]:
    """Return the hooks of the plugin's class; empty for another callable, whose instance is not made here."""
    if not inspect.isclass(plugin.factory):
        return frozenset()
    return HOOKS.intersection(mark.hook for mark in marks(plugin.factory))


def _errors(rows: Iterable[_Row], drivers: LoadedDrivers) -> list[str]:
    """List every reason once: a driver repeats the error of its broken plugin."""
    errors = [row.error for row in rows if row.error]
    for broken in drivers.broken:
        if not any(error in broken.error for error in errors):
            errors.append(broken.error if broken.name in broken.error else f"driver {broken.name}: {broken.error}")
    return list(dict.fromkeys(errors))


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
    _show_schema(
        console, f"Class parameters (schema version {driver.view.info.parameters.version})", driver.view.info.parameters
    )
    console.heading("Driver")
    for label, value in _facts(driver.view.info):
        console.line(f"  {label:<18} {value}")


def _made(plugin: Plugin, settings: list[DriverSettings]) -> Driver:
    """Return the driver to describe: the first configured one, else one with example values of required options."""
    if settings:
        return build_driver(settings[0].name, plugin, settings[0].options)
    name = getattr(plugin.factory, "default_driver_name", "") or "example"
    return build_driver(name, plugin, _example_options(plugin))


def _example_options(plugin: Plugin) -> dict[str, object]:
    """Return example values of required options. Raises ConfigurationError if no example fits an option."""
    return {p.name: _example(p) for p in options_schema(plugin).parameters if p.required}


def _example(parameter: Parameter) -> str:
    """Return a value that the schema allows. It is safe: creating a backend and `describe` touch no storage."""
    low = "1" if parameter.minimum is None else f"{parameter.minimum:.0f}"
    for text in (*parameter.choices, *_EXAMPLES, low, f"{low}s"):
        _, flaws = check(ParameterSchema(parameters=(parameter,)), {parameter.name: text}, "option")
        if not flaws:
            return text
    raise ConfigurationError(f"option {parameter.name!r} must be configured: {type_text(parameter)}")


def _facts(info: DriverInfo) -> list[tuple[str, str]]:
    return [
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


def _show_schema(console: Console, title: str, schema: ParameterSchema) -> None:
    console.heading(title)
    if not schema.parameters:
        console.line("  none")
    for entry in entries(schema):
        default = f" [{entry.default}]" if entry.default == "required" else f" [default {entry.default}]"
        console.sentence(f"{entry.name}: {entry.value}{default if entry.default else ''}")
        console.note(f"      {entry.doc}")
