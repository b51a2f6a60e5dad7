"""A driver: one configured backend behind a typed call. No other module uses pluggy, or sees its untyped values."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pluggy

from volplane.assets import Done
from volplane.drivers.contract import HOOKS, Plugin
from volplane.drivers.results import result_flaw
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, OutcomeUnknown, PluginError, Unavailable, Unsupported
from volplane.hookspecs import PROJECT, BackendSpec
from volplane.requests import Context, DescribeRequest, HookRequest
from volplane.schemas import ParameterSchema
from volplane.secret import Secret, redacted

__all__ = ["Driver", "Extension"]

log = logging.getLogger(__name__)

R = TypeVar("R")

NOT_IMPLEMENTED: Final[Mapping[str, Any]] = {
    "owns": False,
    "validate": Done(),
    "start": Done(),
    "stop": Done(),
    "probe": Done(),
}
"""What a hook gives that a backend need not implement: it owns no static volumes, and there is nothing to do."""
_HARMLESS: Final = frozenset({"describe", "owns"})
"""Hooks that touch no storage: their outcome is never unknown, and a wrong result is an error of the plugin."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extension:
    """A loaded extension: one instance that wraps the hooks of every driver, in several threads at once.

    secrets: option -> secret.
    """

    plugin: Plugin
    instance: object
    secrets: Mapping[str, Secret] = field(default_factory=dict)


class Driver:
    """One backend instance and the extensions around it, with one typed method that calls any hook.

    Checks of the plugin itself are made by `volplane.drivers.loading`, which makes drivers.
    """

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
        self._hooks = pluggy.PluginManager(PROJECT)
        self._hooks.add_hookspecs(BackendSpec)
        try:
            self._hooks.register(backend, name="backend")
            self._implemented = HOOKS.intersection(c.name for c in self._hooks.get_hookcallers(backend) or ())
            for index, extension in reversed(tuple(enumerate(extensions))):
                self._hooks.register(extension.instance, name=f"extension {index} {extension.plugin.name}")
            self._hooks.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{plugin}: {_one_line(error)}") from None
        self._around = ", ".join(e.plugin.name for e in extensions)
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
        """Whether the backend implements this hook."""
        return hook in self._implemented

    def call(self, request: HookRequest[R]) -> R:
        """Call the hook of this request in the caller's thread.

        A hook of `NOT_IMPLEMENTED` that the backend does not implement gives what stands there. Raises BackendError:
        what the hook raised of it, `OutcomeUnknown` for any other exception and for a result of a wrong type
        (`PluginError` for describe and owns), `Unsupported` for a hook that is not implemented, and `Unavailable`, at
        `start`, if a secret of the options cannot be read.
        """
        hook = request.hook
        if hook == "start":
            self._reveal_secrets()
        result: R
        if not self.supports(hook):
            if hook not in NOT_IMPLEMENTED:
                raise Unsupported(f"backend {self.plugin.name} does not implement {hook}", nothing_done=True)
            result = NOT_IMPLEMENTED[hook]
            return result
        result = self._call(hook, request)
        return result

    def _reveal_secrets(self) -> None:
        for option, secret in self.secrets.items():
            try:
                secret.reveal()
            except Unavailable as error:
                raise Unavailable(f"{option}: {error}") from None

    def _call(self, hook: str, request: object) -> Any:
        try:
            result = getattr(self._hooks.hook, hook)(request=request)
        except BackendError as error:
            # pluggy's frame keeps the error that keeps the frame: some 15 KB a failure until garbage is collected.
            traceback.clear_frames(error.__traceback__)
            if (clean := redacted(error.message)) != error.message:
                error.message, error.args = clean, (clean,)
            raise
        except (Exception, SystemExit) as error:
            log.debug("hook %s of driver %s failed", hook, self.name, exc_info=True)
            traceback.clear_frames(error.__traceback__)
            raise self._fault(hook, f"raised {type(error).__name__}: {_one_line(error)}") from None
        flaw = result_flaw(hook, result) or self._shown(result)
        if flaw is not None:
            if inspect.iscoroutine(result):
                result.close()
            raise self._fault(hook, flaw)
        return result

    def _shown(self, result: object) -> str | None:
        for option, secret in self.secrets.items():
            if secret.is_in(result):
                return (
                    f"returned {type(result).__name__} with the secret of {option} in it; many may read volumes "
                    "and logs"
                )
        return None

    def _fault(self, hook: str, what: str) -> PluginError | OutcomeUnknown:
        around = f" (wrapped by {self._around})" if self._around else ""
        message = redacted(f"hook {hook} of backend {self.plugin.name}{around} {what}")
        return PluginError(message) if hook in _HARMLESS else OutcomeUnknown(message)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no message"
