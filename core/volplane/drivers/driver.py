"""A driver: one configured backend behind a typed call, the plain values that decisions see of it, and its state.

No other module uses pluggy or its untyped values.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Final, TypeVar

import pluggy

from volplane._messages import one_line, shortened
from volplane.assets import Done
from volplane.drivers.contract import HOOKS, SPEC_MARK, Plugin, marks, result_flaw
from volplane.drivers.parameters import class_parameters
from volplane.errors import BackendError, InvalidArgument, OutcomeUnknown, PluginError, Unavailable, Unsupported
from volplane.hookspecs import PROJECT, BackendSpec
from volplane.operations.operation import DriverLimits
from volplane.requests import Context, DescribeRequest, HookRequest
from volplane.schemas import DriverInfo, ParameterSchema
from volplane.secret import Secret, redacted

log = logging.getLogger(__name__)

R = TypeVar("R")

NOT_IMPLEMENTED: Final[Mapping[str, Any]] = {
    "owns": False,
    **dict.fromkeys(("validate", "start", "stop", "probe"), Done()),
}
"""Results of the hooks that a backend need not implement: it owns no static volumes and has nothing to do."""
_HARMLESS: Final = frozenset({"describe", "owns"})
"""Hooks that touch no storage: their outcome is never unknown, and a wrong result is an error of the plugin."""
_CLASSES_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverView:
    """The values of a driver, which never change while the process lives. Hooks are called by `HookCalls.call`."""

    name: str
    backend: str
    """Name of the backend's entry point."""
    info: DriverInfo
    """The result of `describe` at load."""
    hooks: frozenset[str]
    """Names of the hooks that the backend implements."""
    options: ParameterSchema = field(default_factory=ParameterSchema)
    _flaws: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def supports(self, hook: str) -> bool:
        return hook in self.hooks

    def typed_parameters(self, parameters: Mapping[str, str], *, of_snapshot: bool = False) -> dict[str, Any]:
        """Return the typed values of parameters of a class, or a VolumeSnapshotClass. Raises InvalidArgument."""
        schema = self.info.snapshot_parameters if of_snapshot else self.info.parameters
        return class_parameters(schema, parameters, f"driver {self.name}", self.options)

    def parameters_flaw(self, parameters: Mapping[str, str]) -> str:
        """Explain why `typed_parameters` refuses these; "": it does not. Caches the answers for 256 classes."""
        key = tuple(parameters.items())
        if (flaw := self._flaws.get(key)) is None:
            if len(self._flaws) >= _CLASSES_REMEMBERED:
                self._flaws.clear()
            try:
                self.typed_parameters(parameters)
                flaw = ""
            except InvalidArgument as error:
                flaw = str(error)
            self._flaws[key] = flaw
        return flaw


def serves_attachments(driver: DriverView) -> bool:
    """Tell whether the driver serves the attachments of its CSI driver name: by hooks, or because none is needed."""
    return driver.info.attach_required or driver.info.csi_driver_name == driver.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extension:
    """A loaded extension: one instance that wraps the hooks of every driver, in several threads at once."""

    plugin: Plugin
    instance: object
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Option -> secret."""


class _Hooks(pluggy.PluginManager):
    """Takes marks as the contract reads them. pluggy by itself looks up each attribute of each plugin three times."""

    def register(self, plugin: object, name: str | None = None) -> str | None:
        self._marked = {mark.attribute: mark.options for mark in marks(plugin) if mark.function is not None}
        return super().register(plugin, name)

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return self._marked.get(name)

    def parse_hookspec_opts(self, module_or_class: object, name: str) -> Any:
        return getattr(vars(module_or_class).get(name), SPEC_MARK, None)


class Driver:
    """One backend instance and the extensions around it, with one typed method that calls any hook."""

    def __init__(
        self,
        name: str,
        plugin: Plugin,
        backend: object,
        extensions: Sequence[Extension] = (),
        *,
        options: ParameterSchema | None = None,
        secrets: Mapping[str, Secret] | None = None,
    ) -> None:
        """Register the hooks with pluggy and call `describe`. extensions: the first is the outermost.

        options: schema of the driver's; secrets: option -> secret, of those that are given. Raises PluginError where
        pluggy refuses, or describe fails.
        """
        self.name = name
        self.plugin = plugin
        self.secrets = {f"option {option}": secret for option, secret in (secrets or {}).items()}
        """The secrets of the driver and of its extensions, by their names in messages."""
        for extension in extensions:
            self.secrets |= {f"option {o} of {extension.plugin}": secret for o, secret in extension.secrets.items()}
        self._hooks = _Hooks(PROJECT)
        self._hooks.add_hookspecs(BackendSpec)
        try:
            self._hooks.register(backend, name="backend")
            self._implemented = HOOKS.intersection(c.name for c in self._hooks.get_hookcallers(backend) or ())
            for index, extension in reversed(tuple(enumerate(extensions))):
                self._hooks.register(extension.instance, name=f"extension {index} {extension.plugin.name}")
            self._hooks.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{plugin}: {one_line(error)}") from None
        self._around = f" (wrapped by {', '.join(e.plugin.name for e in extensions)})" if extensions else ""
        self.view = DriverView(
            name=name,
            backend=plugin.name,
            info=self.call(DescribeRequest(context=Context(driver=name, cluster_id=""))),
            hooks=self._implemented,
            options=options or ParameterSchema(),
        )

    def __repr__(self) -> str:
        return f"<Driver {self.name} ({self.plugin})>"

    def supports(self, hook: str) -> bool:
        return hook in self._implemented

    def call(self, request: HookRequest[R]) -> R:
        """Call the hook of this request in the caller's thread.

        A hook of `NOT_IMPLEMENTED` that the backend does not implement gives what stands there. Raises BackendError:
        what the hook raised of it, `OutcomeUnknown` for any other exception and for a result of a wrong type
        (`PluginError` for describe and owns), `Unsupported` for a hook that is not implemented, and `Unavailable`, at
        `start`, if a secret that the options need cannot be read.
        """
        hook = request.hook
        if hook == "start":
            for option, secret in self.secrets.items():
                try:
                    _ = secret.needed and secret.reveal()
                except Unavailable as error:
                    raise Unavailable(f"{option}: {error}") from None
        if not self.supports(hook) and hook not in NOT_IMPLEMENTED:
            raise Unsupported(f"backend {self.plugin.name} does not implement {hook}", nothing_done=True)
        result: R = self._call(hook, request) if self.supports(hook) else NOT_IMPLEMENTED[hook]
        return result

    def _call(self, hook: str, request: object) -> Any:
        """Call the hook through its extensions, and check and redact what it returns or raises."""
        try:
            result = getattr(self._hooks.hook, hook)(request=request)
        except BackendError as error:
            # pluggy's frame keeps the error that keeps the frame: some 15 KB a failure until garbage is collected.
            traceback.clear_frames(error.__traceback__)
            # It is written to status and events. A secret that was cut would not be recognised.
            error.message = shortened(redacted(error.message))
            error.args, error.code = (error.message,), error.code and shortened(str(error.code))
            raise
        except KeyboardInterrupt:
            raise  # A person ends the command. Hooks run in the main thread only in simulations.
        except BaseException as error:
            log.debug("hook %s of driver %s failed", hook, self.name, exc_info=True)
            flaw: str | None = f"raised {type(error).__name__}{self._place(error)}: {one_line(error)}"
            traceback.clear_frames(error.__traceback__)
        else:
            flaw = result_flaw(hook, result)
            # A secret in a result would be written to the volume, where many may read it.
            if flaw is None and (secret := next((o for o, s in self.secrets.items() if s.is_in(result)), None)):
                what = type(result).__name__
                flaw = f"returned {what} with the secret of {secret} in it; many may read volumes and logs"
            if flaw is None:
                return result
            if inspect.iscoroutine(result):
                result.close()
        message = shortened(redacted(f"hook {hook} of backend {self.plugin.name}{self._around} {flaw}"))
        # The hook was called, so it may have made or destroyed something, whatever it returned.
        raise PluginError(message) if hook in _HARMLESS else OutcomeUnknown(message)

    def _place(self, error: BaseException) -> str:
        """Return the last line of the backend's own code that led to an error; "" if none did."""
        tops = {type(each).__module__.partition(".")[0] for each in self._hooks.get_plugins()}
        frames = [
            (frame, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] in tops
        ]
        frame, line = frames[-1] if frames else (None, 0)
        return f" (line {line} of {PurePath(frame.f_code.co_filename).name})" if frame is not None else ""


# --- what became of the configured drivers ----------------------------------------------------------------------------


class DriverState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
    """`start` failed and is tried again."""
    BROKEN = "broken"
    """It could not be made. Only a restart of the process can change that."""
    STOPPED = "stopped"
    ON_NODES = "on nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """The state of a driver, for /readyz, metrics and `volplane status`."""

    name: str
    backend: str
    state: DriverState
    distribution: str = ""
    healthy: bool = False
    """It is ready, its last probe succeeded, and not all its threads hang."""
    hung: bool = False
    """All threads hang."""
    error: str = ""
    """Why it is not healthy."""
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDriver(DriverStatus):
    """A driver that could not be made: its status never changes."""

    state: DriverState = DriverState.BROKEN


@dataclass(slots=True, kw_only=True, eq=False)
class PendingDriver:
    """A driver that is being made. Only its configuration is known."""

    name: str
    backend: str
    on_nodes: bool = False
    """The processes of the nodes will call its hooks, and this one will not."""
    doing: str = ""
    """The part of its making that runs now."""
    made: Future[Driver | BrokenDriver] = field(default_factory=Future)
    """Ends within the deadlines of `volplane.drivers.loading`; set in another thread."""

    def __post_init__(self) -> None:
        self.made.set_running_or_notify_cancel()  # Who waits for it cannot cancel it.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrivers:
    """The drivers that `volplane.drivers.loading` made from a configuration."""

    drivers: tuple[Driver, ...] = ()
    """Those whose hooks this process calls."""
    broken: tuple[BrokenDriver, ...] = ()
    limits: Mapping[str, DriverLimits] = field(default_factory=dict)
    distributed: tuple[Driver, ...] = ()
    """Those whose hooks the processes of the nodes call, and not this one."""
    publishing: frozenset[str] = frozenset()
    """Names of the drivers whose capacity is published, if they measure it."""
    pending: tuple[PendingDriver, ...] = ()

    def settled(self) -> LoadedDrivers:
        """Return a copy in which the pending drivers that are made, or broken, are in their places."""
        ended = {each: each.made.result() for each in self.pending if each.made.done()}
        made = [(each.on_nodes, driver) for each, driver in ended.items() if isinstance(driver, Driver)]
        return replace(
            self,
            drivers=(*self.drivers, *(driver for on_nodes, driver in made if not on_nodes)),
            distributed=(*self.distributed, *(driver for on_nodes, driver in made if on_nodes)),
            broken=(*self.broken, *(driver for driver in ended.values() if isinstance(driver, BrokenDriver))),
            pending=tuple(each for each in self.pending if each not in ended),
        )

    @property
    def on_nodes(self) -> tuple[str, ...]:
        """Names of the drivers whose hooks the processes of the nodes call, made or not."""
        return (*(each.name for each in self.distributed), *(each.name for each in self.pending if each.on_nodes))

    @property
    def attaches(self) -> bool:
        """Whether a driver of this process serves attachments, or may once it is made."""
        served = any(serves_attachments(each.view) for each in self.drivers)
        return served or any(not each.on_nodes for each in self.pending)

    @property
    def publishes(self) -> bool:
        """Whether the capacity of a driver is published, or will be once it is made."""
        able = [each.name for each in (*self.drivers, *self.distributed) if each.supports("get_capacity")]
        return not self.publishing.isdisjoint([*able, *(each.name for each in self.pending)])

    @property
    def names(self) -> frozenset[str]:
        """Names of all configured drivers, working or not, made or not."""
        usable = {each.name for each in (*self.drivers, *self.distributed)}
        return frozenset(usable | {each.name for each in self.broken} | {each.name for each in self.pending})


def problem(status: DriverStatus) -> str:
    what = f"driver {status.name} is {'hung' if status.hung else status.state}"
    return f"{what}: {status.error}" if status.error else what
