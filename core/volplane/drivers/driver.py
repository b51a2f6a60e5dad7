"""A driver: one configured backend behind typed methods. No other module uses pluggy, or sees its untyped values."""

# mypy: disable-error-code="no-any-return"
# pluggy returns Any; `_call` checks its type at run time.

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pluggy

from volplane.assets import (
    Absent,
    Asset,
    AssetPage,
    Attachment,
    Capacity,
    Done,
    Erased,
    InProgress,
    PodScrub,
    Snapshot,
)
from volplane.drivers.contract import HOOKS, Plugin
from volplane.drivers.results import result_flaw
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, OutcomeUnknown, PluginError, Unavailable, Unsupported
from volplane.hookspecs import PROJECT, BackendSpec
from volplane.requests import (
    AdoptRequest,
    AttachRequest,
    CapacityRequest,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    ExpandRequest,
    FindRequest,
    ListRequest,
    ModifyRequest,
    OwnsRequest,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
)
from volplane.schemas import DriverInfo, ParameterSchema
from volplane.secret import Secret, redacted

__all__ = ["Driver", "Extension"]

log = logging.getLogger(__name__)

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
    """The typed methods of one backend instance and the extensions around it.

    Every method calls the hook of its name in the caller's thread. It returns a result that was checked, or raises
    BackendError: that of the hook, `OutcomeUnknown` for any other exception and for a result of a wrong type
    (`PluginError` for describe and owns), `Unsupported` for an optional hook that the backend does not implement.
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
            info=self.describe(DescribeRequest(context=Context(driver=name, cluster_id=""))),
            hooks=self._implemented,
            options=options or ParameterSchema(),
        )

    def __repr__(self) -> str:
        return f"<Driver {self.name} ({self.plugin})>"

    def supports(self, hook: str) -> bool:
        """Whether the backend implements this hook."""
        return hook in self._implemented

    def describe(self, request: DescribeRequest) -> DriverInfo:
        return self._call("describe", request)

    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        return self._call("provision", request)

    def delete(self, request: DeleteRequest) -> Done | InProgress:
        return self._call("delete", request)

    def find(self, request: FindRequest) -> Asset | Absent:
        return self._call("find", request)

    def owns(self, request: OwnsRequest) -> bool:
        """False if the backend does not implement it: no static volume is its own."""
        return self.supports("owns") and self._call("owns", request)

    def recycle(self, request: RecycleRequest) -> PodScrub | Erased | InProgress:
        return self._call("recycle", request)

    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        return self._call("attach", request)

    def detach(self, request: DetachRequest) -> Done | InProgress:
        return self._call("detach", request)

    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        return self._call("expand", request)

    def modify(self, request: ModifyRequest) -> Done | InProgress:
        return self._call("modify", request)

    def list_assets(self, request: ListRequest) -> AssetPage:
        return self._call("list_assets", request)

    def adopt(self, request: AdoptRequest) -> Done:
        return self._call("adopt", request)

    def get_capacity(self, request: CapacityRequest) -> Capacity:
        return self._call("get_capacity", request)

    def validate(self, request: ValidateRequest) -> Done:
        """Done if the backend does not implement it."""
        return self._optional("validate", request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        return self._call("create_snapshot", request)

    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        return self._call("delete_snapshot", request)

    def start(self, request: StartRequest) -> Done:
        """Done if the backend does not implement it. Unavailable, too, if a secret of the options cannot be read."""
        for option, secret in self.secrets.items():
            try:
                secret.reveal()
            except Unavailable as error:
                raise Unavailable(f"{option}: {error}") from None
        return self._optional("start", request)

    def stop(self, request: StopRequest) -> Done:
        """Done if the backend does not implement it."""
        return self._optional("stop", request)

    def probe(self, request: ProbeRequest) -> Done:
        """Done if the backend does not implement it."""
        return self._optional("probe", request)

    def _optional(self, hook: str, request: object) -> Done:
        return self._call(hook, request) if self.supports(hook) else Done()

    def _call(self, hook: str, request: object) -> Any:
        if not self.supports(hook):
            raise Unsupported(f"backend {self.plugin.name} does not implement {hook}", nothing_done=True)
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
