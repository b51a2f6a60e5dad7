"""Makes drivers from the configuration: imports their plugins, checks them, and reports each one that fails.

Each driver is made in a thread of its own, with deadlines of its own: code of plugins may hang, and a slow driver must
not delay the others.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, ParamSpec, TypeVar

from volplane._messages import one_line
from volplane.controller.config import Configuration, DriverSettings, ExtensionSettings
from volplane.drivers import contract
from volplane.drivers.contract import Plugin
from volplane.drivers.discovery import IMPORT_DEADLINE, InstalledPlugins
from volplane.drivers.driver import BrokenDriver, Driver, Extension, LoadedDrivers, PendingDriver
from volplane.drivers.parameters import driver_options
from volplane.errors import ConfigurationError, PluginError, VolplaneError
from volplane.operations.operation import DriverLimits
from volplane.requests import Context, DescribeRequest
from volplane.schemas import ParameterSchema
from volplane.secret import Secret, redacted

log = logging.getLogger(__name__)

BUILD_DEADLINE: Final = 30.0
"""Seconds for the constructor of a backend and its `describe` together, and for the constructor of an extension."""

P = ParamSpec("P")
T = TypeVar("T")


def load_drivers(
    configuration: Configuration, plugins: InstalledPlugins, *, node_name: str | None = None, grace: float | None = None
) -> LoadedDrivers:
    """Make every configured driver, or those of `default_drivers`. Never raises for one that cannot be made.

    node_name: of a process that serves one node: it gets the distributed drivers, and no others. Raises
    ConfigurationError if there are none. grace: seconds after which drivers that take longer are left `pending`; None:
    wait for each until its deadlines.

    A configured extension that cannot be loaded breaks all drivers: an extension may be what forbids a deletion. So
    extensions are waited for, and without `drivers` in the configuration all imports: the names stand in the classes.
    Blocks while plugins are imported; to be called in a thread where a loop runs.
    """
    settings = configuration.drivers
    unusable: tuple[BrokenDriver, ...] = ()
    if settings is None:
        settings, unusable = default_drivers(plugins, grace)
    if node_name is not None:
        settings, unusable = tuple(each for each in settings if each.distributed), ()
        if not settings:
            raise ConfigurationError(
                f"--node-name {node_name}: no driver of the configuration file has `distributed: true`, so that there "
                "is nothing to do for one node; give it to the drivers whose assets live on nodes"
            )
    extensions, failures = _extensions(configuration.extensions, plugins, grace)
    if failures:
        error = "; ".join(failures)
        unloaded = [BrokenDriver(name=s.name, backend=s.backend, error=error) for s in settings]
        return LoadedDrivers(broken=(*unusable, *unloaded))
    pending = tuple(
        _begin(each, extensions, plugins, on_nodes=each.distributed and node_name is None) for each in settings
    )
    wait([each.made for each in pending], timeout=grace)
    usual = DriverLimits()
    limits = {}
    for s in settings:
        concurrency, timeout = s.concurrency or usual.concurrency, s.timeout or usual.timeout
        limits[s.name] = DriverLimits(concurrency=concurrency, rate=s.rate, timeout=timeout)
    publishing = frozenset(s.name for s in settings if s.distributed or s.storage_capacity)
    return LoadedDrivers(broken=unusable, limits=limits, publishing=publishing, pending=pending).settled()


def _begin(
    settings: DriverSettings, extensions: tuple[Extension, ...], plugins: InstalledPlugins, *, on_nodes: bool
) -> PendingDriver:
    pending = PendingDriver(name=settings.name, backend=settings.backend, on_nodes=on_nodes)

    def make() -> None:
        made: Driver | BrokenDriver
        try:
            pending.doing = "importing the backend"
            plugin = _load("backend", settings.backend, plugins)
            pending.doing = "making the backend"
            made = within(BUILD_DEADLINE, pending.doing, _build, settings, plugin, extensions)
        except VolplaneError as error:
            place = f"{settings.where}: " if settings.where else ""
            made = BrokenDriver(name=settings.name, backend=settings.backend, error=f"{place}{error}")
        pending.made.set_result(made)

    in_daemon_thread(f"driver {settings.name}", make)
    return pending


def default_drivers(
    plugins: InstalledPlugins, grace: float | None = None
) -> tuple[tuple[DriverSettings, ...], tuple[BrokenDriver, ...]]:
    """Return every backend with a default driver name that needs no options, and those that cannot be imported.

    grace: seconds after which slow imports are logged; None: never.
    """
    names = plugins.names("backend")
    loaded = {name: in_daemon_thread(f"backend {name}", _load, "backend", name, plugins) for name in names}
    why = "their drivers have no names before; name the drivers in the configuration, and none waits for another one"
    _say_what_takes_long(loaded, grace, why)
    claims: dict[str, list[str]] = {}
    broken: list[BrokenDriver] = []
    for backend, loading in sorted(loaded.items()):
        try:
            plugin = loading.result()
            needs_options = any(p.required for p in options_schema(plugin).parameters)
            name = getattr(plugin.factory, "default_driver_name", "")
            if name and not needs_options:
                claims.setdefault(name, []).append(backend)
        except VolplaneError as error:
            broken.append(BrokenDriver(name=backend, backend=backend, error=str(error)))
    settings = []
    for name, backends in sorted(claims.items()):
        if len(backends) == 1:
            settings.append(DriverSettings(name=name, backend=backends[0]))
            continue
        clash = f"backends {' and '.join(backends)} have the same default driver name {name!r}; configure drivers"
        broken.append(BrokenDriver(name=name, backend=", ".join(backends), error=clash))
    return tuple(settings), tuple(broken)


def _extensions(
    settings: tuple[ExtensionSettings, ...], plugins: InstalledPlugins, grace: float | None
) -> tuple[tuple[Extension, ...], list[str]]:
    def load(each: ExtensionSettings) -> Extension:
        plugin = _load("extension", each.name, plugins)
        return within(BUILD_DEADLINE, f"making {plugin}", build_extension, plugin, each.options)

    making = [(each, in_daemon_thread(f"extension {each.name}", load, each)) for each in settings]
    _say_what_takes_long({each.name: made for each, made in making}, grace, "an extension is around every driver")
    extensions: list[Extension] = []
    failures: list[str] = []
    for setting, made in making:
        try:
            extensions.append(made.result())
        except VolplaneError as error:
            failures.append(f"{setting.where}: {error}" if setting.where else str(error))
    return tuple(extensions), failures


def _say_what_takes_long(loading: Mapping[str, Future[Any]], grace: float | None, why: str) -> None:
    """Log the plugins that delay all drivers for longer than the grace."""
    slow = wait(loading.values(), timeout=grace).not_done if grace is not None else ()
    if names := sorted(name for name, each in loading.items() if each in slow):
        log.warning("all drivers wait until these plugins are loaded: %s; %s", ", ".join(names), why)


def _load(kind: str, name: str, plugins: InstalledPlugins) -> Plugin:
    return within(2 * IMPORT_DEADLINE, f"importing the {kind}", plugins.load, kind, name)


def _build(settings: DriverSettings, plugin: Plugin, extensions: tuple[Extension, ...]) -> Driver:
    driver = build_driver(settings.name, plugin, settings.options, extensions)
    if settings.distributed and not driver.view.info.topology_keys:
        raise ConfigurationError(
            "distributed: true, but what this driver makes is reachable from everywhere (`describe` names no "
            "topology_keys): leave the key out"
        )
    if settings.storage_capacity and not (driver.view.info.topology_keys and driver.view.supports("get_capacity")):
        raise ConfigurationError(
            "storageCapacity: true, but this driver has no hook get_capacity, or places nothing (`describe` names no "
            "topology_keys): leave the key out"
        )
    return driver


def within(seconds: float, what: str, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the job does. Raises its VolplaneError; PluginError for any other, and if it does not end in time."""
    ended = in_daemon_thread(what, job, *args, **kwargs)
    wait([ended], timeout=seconds)
    if not ended.done():
        raise PluginError(f"{what} did not end within {seconds:g} s")
    error = ended.exception()
    if error is not None and not isinstance(error, VolplaneError):
        raise PluginError(f"{what} raised {type(error).__name__}: {error}")
    return ended.result()


def in_daemon_thread(name: str, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call the job in a thread of its own, which does not keep the process alive: code of plugins may hang in it."""
    called: Future[T] = Future()
    called.set_running_or_notify_cancel()

    def work() -> None:
        try:
            called.set_result(job(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            called.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return called


# --- one plugin ------------------------------------------------------------------------------------------------------


def options_schema(plugin: Plugin) -> ParameterSchema:
    """Return the options that the plugin declares; empty if it declares none. Raises PluginError for a wrong schema."""
    schema = getattr(plugin.factory, "options_schema", ParameterSchema())
    flaws = contract.schema_flaws(schema)
    if flaws or not isinstance(schema, ParameterSchema):
        raise PluginError(f"{plugin}: options_schema: {'; '.join(flaws)}")
    return schema


def build_driver(
    name: str, plugin: Plugin, options: Mapping[str, object], extensions: Sequence[Extension] = ()
) -> Driver:
    """Make one driver. Raises ConfigurationError for a bad name or options, PluginError for a broken contract."""
    if flaw := contract.driver_name_flaw(name):
        raise ConfigurationError(flaw)
    backend, secrets = _make(plugin, options, f"driver {name}")
    # First, because every other message about a newer plugin would mislead.
    if newer := _newer(backend, name):
        raise PluginError(f"{plugin}: {newer}")
    if flaws := contract.backend_flaws(backend):
        raise PluginError(f"{plugin}: {'; '.join(flaws)}")
    driver = Driver(name, plugin, backend, extensions, options=options_schema(plugin), secrets=secrets)
    if wrong := contract.info_flaws(driver.view.info, driver.view.hooks):
        raise PluginError(f"{plugin}: hook describe: {'; '.join(wrong)}")
    return driver


def build_extension(plugin: Plugin, options: Mapping[str, object]) -> Extension:
    """Make one extension. Raises ConfigurationError for bad options, PluginError for what breaks the contract."""
    instance, secrets = _make(plugin, options, str(plugin))
    if flaws := contract.extension_flaws(instance):
        raise PluginError(f"{plugin}: {'; '.join(flaws)}")
    return Extension(plugin=plugin, instance=instance, secrets=secrets)


def _make(plugin: Plugin, options: Mapping[str, object], where: str) -> tuple[object, dict[str, Secret]]:
    """Return the instance that the plugin makes of these options, and the secrets among them, by option."""
    values = driver_options(options_schema(plugin), options, where)
    try:
        instance = plugin.factory(values)
    except VolplaneError as error:
        if redacted(str(error)) != str(error):
            raise PluginError(f"{plugin}: cannot be made: {redacted(str(error))}") from None
        raise
    except BaseException as error:
        log.debug("%s could not be made", plugin, exc_info=True)
        what = redacted(f"{type(error).__name__}: {one_line(error)}")
        raise PluginError(f"{plugin}: cannot be made: {what}") from None
    if instance is None or isinstance(instance, type):
        raise PluginError(f"{plugin}: its entry point gave {instance!r}, expected an instance with hooks")
    secrets = {option: value for option, value in values.items() if isinstance(value, Secret)}
    for option, value in values.items():
        given = value if isinstance(value, tuple) else ()
        secrets |= {f"{option} ({each.reference})": each for each in given if isinstance(each, Secret)}
    return instance, secrets


def newer_flaw(plugin: Plugin, options: Mapping[str, object]) -> str | None:
    """Explain why a backend is too new for this volplane; None: it is not, or it could not be asked."""
    what = f"making {plugin}"
    try:
        return within(BUILD_DEADLINE, what, lambda: _newer(_make(plugin, options, str(plugin))[0], "example"))
    except VolplaneError as error:
        log.debug("%s cannot be asked: %s", plugin, error)
        return None


def _newer(backend: object, driver: str) -> str | None:
    describe: Any = getattr(backend, "describe", None)
    try:
        info = describe(DescribeRequest(context=Context(driver=driver, cluster_id="")))
    except BaseException as error:  # noqa: BLE001 - called again by the driver, which reports it
        log.debug("describe failed: %s", error)
        return None
    if inspect.iscoroutine(info):
        info.close()
    return contract.version_flaw(info)
