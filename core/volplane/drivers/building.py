"""Makes drivers and extensions out of plugins, or refuses them with everything that is wrong."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from volplane.assets import AccessMode, VolumeMode
from volplane.drivers.contract import Plugin, backend_flaws, driver_name_flaw, extension_flaws
from volplane.drivers.driver import Driver, Extension
from volplane.drivers.parameters import driver_options, schema_flaws
from volplane.drivers.view import DriverView
from volplane.errors import ConfigurationError, PluginError, VolplaneError
from volplane.requests import Context, DescribeRequest
from volplane.schemas import HOOKSPEC_VERSION, ParameterSchema
from volplane.secret import Secret, redacted

__all__ = ["build_driver", "build_extension", "newer_flaw", "options_schema"]

log = logging.getLogger(__name__)


def options_schema(plugin: Plugin) -> ParameterSchema:
    """The options that the plugin declares; empty if it declares none. Raises PluginError for a wrong schema."""
    schema = getattr(plugin.factory, "options_schema", ParameterSchema())
    flaws = schema_flaws(schema)
    if flaws or not isinstance(schema, ParameterSchema):
        raise PluginError(f"{plugin}: options_schema: {'; '.join(flaws)}")
    return schema


def build_driver(
    name: str, plugin: Plugin, options: Mapping[str, object], extensions: Sequence[Extension] = ()
) -> Driver:
    """Make one driver. extensions: the first is the outermost.

    Raises ConfigurationError for a bad name or bad options, PluginError for what breaks the contract.
    """
    flaw = driver_name_flaw(name)
    if flaw is not None:
        raise ConfigurationError(flaw)
    schema = options_schema(plugin)
    values = driver_options(schema, options, f"driver {name}")
    backend = _instance(plugin, values)
    flaws = backend_flaws(backend)
    # Before anything else, because every other complaint about a newer plugin would mislead.
    if newer := _newer(backend, name):
        raise PluginError(f"{plugin}: {newer}")
    if flaws:
        raise PluginError(f"{plugin}: {'; '.join(flaws)}")
    driver = Driver(name, plugin, backend, extensions, options=schema, secrets=_secrets(values))
    wrong = _info_flaws(driver.view)
    if wrong:
        raise PluginError(f"{plugin}: hook describe: {'; '.join(wrong)}")
    return driver


def build_extension(plugin: Plugin, options: Mapping[str, object]) -> Extension:
    """Make one extension. Raises ConfigurationError for bad options, PluginError for what breaks the contract."""
    values = driver_options(options_schema(plugin), options, str(plugin))
    instance = _instance(plugin, values)
    flaws = extension_flaws(instance)
    if flaws:
        raise PluginError(f"{plugin}: {'; '.join(flaws)}")
    return Extension(plugin=plugin, instance=instance, secrets=_secrets(values))


def _secrets(values: Mapping[str, object]) -> dict[str, Secret]:
    return {option: value for option, value in values.items() if isinstance(value, Secret)}


def _instance(plugin: Plugin, values: Mapping[str, Any]) -> object:
    try:
        instance = plugin.factory(values)
    except VolplaneError as error:
        if redacted(str(error)) != str(error):
            raise PluginError(f"{plugin}: cannot be made: {redacted(str(error))}") from None
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s could not be made", plugin, exc_info=True)
        what = redacted(f"{type(error).__name__}: {_one_line(error)}")
        raise PluginError(f"{plugin}: cannot be made: {what}") from None
    if instance is None or isinstance(instance, type):
        raise PluginError(f"{plugin}: its entry point gave {instance!r}, expected an instance with hooks")
    return instance


def newer_flaw(plugin: Plugin, options: Mapping[str, object]) -> str | None:
    """Why a backend that no driver uses could not be used anyway: it is built for a newer volplane. None: it is not, or
    cannot be asked with these options.
    """
    try:
        backend = _instance(plugin, driver_options(options_schema(plugin), options, str(plugin)))
    except VolplaneError as error:
        log.debug("%s cannot be asked: %s", plugin, error)
        return None
    return _newer(backend, "example")


def _newer(backend: object, driver: str) -> str | None:
    describe: Any = getattr(backend, "describe", None)
    try:
        info = describe(DescribeRequest(context=Context(driver=driver, cluster_id="")))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - called again by the driver, which reports it
        log.debug("describe failed: %s", error)
        return None
    if inspect.iscoroutine(info):
        info.close()
    return _version_flaw(info)


def _version_flaw(info: object) -> str | None:
    version = getattr(info, "hookspec_version", HOOKSPEC_VERSION)
    if isinstance(version, int) and version <= HOOKSPEC_VERSION:
        return None
    return f"is built for hookspec version {version}, this volplane knows {HOOKSPEC_VERSION}; upgrade volplane"


def _info_flaws(driver: DriverView) -> list[str]:
    info = driver.info
    version = _version_flaw(info)
    if version is not None:
        return [version]
    flaws = list(schema_flaws(info.parameters, of_class=True))
    if info.csi_driver_name is not None and driver_name_flaw(info.csi_driver_name):
        flaws.append(f"csi_driver_name {info.csi_driver_name!r} is no DNS subdomain")
    missing = [hook for hook in ("attach", "detach") if info.attach_required and not driver.supports(hook)]
    flaws += [f"attach_required is set, but hook {hook} is missing" for hook in missing]
    flaws += _mode_flaws("access_modes", info.access_modes, AccessMode)
    flaws += _mode_flaws("volume_modes", info.volume_modes, VolumeMode)
    if not math.isfinite(info.settle_seconds) or info.settle_seconds < 0:
        flaws.append(f"settle_seconds is {info.settle_seconds!r}, expected seconds")
    if info.maximum_bytes is not None and info.maximum_bytes < info.minimum_bytes:
        flaws.append(f"maximum_bytes {info.maximum_bytes} is below minimum_bytes {info.minimum_bytes}")
    return flaws


def _mode_flaws(field: str, modes: frozenset[Any], kind: type[AccessMode | VolumeMode]) -> list[str]:
    known = ", ".join(kind)
    if not modes:
        return [f"{field} is empty, expected some of {known}"]
    return [f"{field} holds {mode!r}, expected some of {known}" for mode in modes if mode not in list(kind)]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no message"
