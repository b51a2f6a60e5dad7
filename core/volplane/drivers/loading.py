"""From the configuration to drivers: imports what it needs, makes what can be made, keeps the reason for the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from volplane.controller.config import Configuration, DriverSettings, ExtensionSettings
from volplane.drivers.building import build_driver, build_extension, options_schema
from volplane.drivers.contract import Plugin
from volplane.drivers.discovery import IMPORT_DEADLINE, PluginSource
from volplane.drivers.driver import Driver, Extension
from volplane.drivers.registry import BrokenDriver, LoadedDrivers
from volplane.errors import PluginError, VolplaneError
from volplane.operations import DriverLimits

__all__ = ["default_drivers", "load_drivers"]

BUILD_DEADLINE: Final = 30.0

K = TypeVar("K")
T = TypeVar("T")


def load_drivers(configuration: Configuration, plugins: PluginSource) -> LoadedDrivers:
    """Make every configured driver, or those of `default_drivers`. Never raises for one that cannot be made.

    A configured extension that cannot be loaded breaks all drivers: a wrapper may be what forbids a deletion.
    Blocks while plugins are imported; to be called in a thread where a loop runs.
    """
    settings, unusable = (configuration.drivers, ()) if configuration.drivers is not None else default_drivers(plugins)
    broken = list(unusable)
    extensions, failures = _extensions(configuration.extensions, plugins)
    if failures:
        error = "; ".join(failures)
        broken += [BrokenDriver(name=s.name, backend=s.backend, error=error) for s in settings]
        return LoadedDrivers(broken=tuple(broken))
    loaded = _load("backend", {s.backend for s in settings}, plugins)
    drivers: list[Driver] = []
    builds = {s.name: _build(s, loaded[s.backend], extensions) for s in settings}
    built = _all_within(builds, BUILD_DEADLINE, "making the backend")
    for setting in settings:
        result = built[setting.name]
        if isinstance(result, Driver):
            drivers.append(result)
        else:
            place = f"{setting.where}: " if setting.where else ""
            broken.append(BrokenDriver(name=setting.name, backend=setting.backend, error=f"{place}{result}"))
    limits = {s.name: _limits(s) for s in settings}
    return LoadedDrivers(drivers=tuple(drivers), broken=tuple(broken), limits=limits)


def default_drivers(plugins: PluginSource) -> tuple[tuple[DriverSettings, ...], tuple[BrokenDriver, ...]]:
    """Every backend that has a default driver name and needs no options; and those that cannot be imported."""
    loaded = _load("backend", plugins.names("backend"), plugins)
    claims: dict[str, list[str]] = {}
    broken: list[BrokenDriver] = []
    for backend, plugin in sorted(loaded.items()):
        try:
            if isinstance(plugin, VolplaneError):
                raise plugin
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


def _limits(settings: DriverSettings) -> DriverLimits:
    defaults = DriverLimits()
    return DriverLimits(
        concurrency=settings.concurrency or defaults.concurrency,
        rate=settings.rate,
        timeout=settings.timeout or defaults.timeout,
    )


def _extensions(
    settings: tuple[ExtensionSettings, ...], plugins: PluginSource
) -> tuple[tuple[Extension, ...], list[str]]:
    loaded = _load("extension", {s.name for s in settings}, plugins)
    extensions: list[Extension] = []
    failures: list[str] = []
    for setting in settings:
        plugin = loaded[setting.name]
        try:
            if isinstance(plugin, VolplaneError):
                raise plugin
            extensions.append(build_extension(plugin, setting.options))
        except VolplaneError as error:
            failures.append(f"{setting.where}: {error}" if setting.where else str(error))
    return tuple(extensions), failures


def _load(kind: str, names: Iterable[str], plugins: PluginSource) -> dict[str, Plugin | VolplaneError]:
    def load(name: str) -> Callable[[], Plugin]:
        return lambda: plugins.load(kind, name)

    return _all_within({name: load(name) for name in sorted(names)}, 2 * IMPORT_DEADLINE, f"importing the {kind}")


def _build(
    settings: DriverSettings, plugin: Plugin | VolplaneError, extensions: tuple[Extension, ...]
) -> Callable[[], Driver]:
    def build() -> Driver:
        if isinstance(plugin, VolplaneError):
            raise plugin
        return build_driver(settings.name, plugin, settings.options, extensions)

    return build


def _all_within(jobs: Mapping[K, Callable[[], T]], seconds: float, what: str) -> dict[K, T | VolplaneError]:
    """Do all at once, each in a daemon thread: foreign code that hangs is left behind and reported."""
    done: dict[K, T | VolplaneError] = {}

    def work(key: K, job: Callable[[], T]) -> None:
        try:
            done[key] = job()
        except VolplaneError as error:
            done[key] = error
        except Exception as error:  # noqa: BLE001 - the plugin's fault, to be reported beside the others
            done[key] = PluginError(f"{what} raised {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=item, daemon=True, name=f"{what} {item[0]}") for item in jobs.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = PluginError(f"{what} did not end within {seconds:g} s")
    return {key: done.get(key, late) for key in jobs}
