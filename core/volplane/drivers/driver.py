"""A driver: one configured backend behind a typed call, with a check of what its hooks return.

No other module uses pluggy or its untyped values.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_args

import pluggy

from volplane import requests
from volplane._messages import one_line
from volplane.assets import Asset, AssetPage, Done, InProgress, ListedAsset, Ownership, PodScrub, VolumeSource
from volplane.drivers.contract import HOOKS, Plugin, is_special
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, OutcomeUnknown, PluginError, Unavailable, Unsupported, VolplaneError
from volplane.hookspecs import PROJECT, BackendSpec
from volplane.requests import Context, DescribeRequest, HookRequest
from volplane.schemas import ParameterSchema
from volplane.secret import Secret, redacted

__all__ = ["LONGEST_HANDLE", "LONGEST_STATE", "RESULTS", "Driver", "Extension"]

log = logging.getLogger(__name__)

R = TypeVar("R")

LONGEST_HANDLE: Final = 1024
LONGEST_STATE: Final = 4096

RESULTS: Final[Mapping[str, tuple[type, ...]]] = {
    request.hook: get_args(result) or (result,)
    for request in map(vars(requests).get, requests.__all__)
    if isinstance(request, type) and issubclass(request, HookRequest) and request is not HookRequest
    for result in get_args(vars(request)["__orig_bases__"][0])
}
"""Hook -> the types that it may return, as its request names them."""
NOT_IMPLEMENTED: Final[Mapping[str, Any]] = {
    "owns": False,
    "validate": Done(),
    "start": Done(),
    "stop": Done(),
    "probe": Done(),
}
"""Results of the hooks that a backend need not implement: it owns no static volumes and has nothing to do."""
_HARMLESS: Final = frozenset({"describe", "owns"})
"""Hooks that touch no storage: their outcome is never unknown, and a wrong result is an error of the plugin."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extension:
    """A loaded extension: one instance that wraps the hooks of every driver, in several threads at once."""

    plugin: Plugin
    instance: object
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Option -> secret."""


class _PluginManager(pluggy.PluginManager):
    """Skips names that cannot be hooks, which makes a driver in two thirds of the time."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return None if is_special(name) else super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> pluggy.HookspecOpts | None:
        return super().parse_hookspec_opts(module_or_class, name) if name in HOOKS else None


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
        self._hooks = _PluginManager(PROJECT)
        self._hooks.add_hookspecs(BackendSpec)
        try:
            self._hooks.register(backend, name="backend")
            self._implemented = HOOKS.intersection(c.name for c in self._hooks.get_hookcallers(backend) or ())
            for index, extension in reversed(tuple(enumerate(extensions))):
                self._hooks.register(extension.instance, name=f"extension {index} {extension.plugin.name}")
            self._hooks.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{plugin}: {one_line(error)}") from None
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
        """Tell whether the backend implements this hook."""
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
            for option, secret in self.secrets.items():
                try:
                    secret.reveal()
                except Unavailable as error:
                    raise Unavailable(f"{option}: {error}") from None
        if self.supports(hook):
            result: R = self._call(hook, request)
        elif hook in NOT_IMPLEMENTED:
            result = NOT_IMPLEMENTED[hook]
        else:
            raise Unsupported(f"backend {self.plugin.name} does not implement {hook}", nothing_done=True)
        return result

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
            raise self._fault(hook, f"raised {type(error).__name__}: {one_line(error)}") from None
        flaw = _result_flaw(hook, result)
        if flaw is None and (secret := next((o for o, s in self.secrets.items() if s.is_in(result)), None)):
            flaw = f"returned {type(result).__name__} with the secret of {secret} in it; many may read volumes and logs"
        if flaw is not None:
            if inspect.iscoroutine(result):
                result.close()
            raise self._fault(hook, flaw)
        return result

    def _fault(self, hook: str, what: str) -> VolplaneError:
        around = f" (wrapped by {self._around})" if self._around else ""
        message = redacted(f"hook {hook} of backend {self.plugin.name}{around} {what}")
        return PluginError(message) if hook in _HARMLESS else OutcomeUnknown(message)


# --- the check of results: third-party code is checked at run time ----------------------------------------------------


def _result_flaw(hook: str, result: object) -> str | None:
    """Describe what is wrong with a result of `hook`, as the end of a sentence about it; None: nothing."""
    expected = RESULTS[hook]
    names = " or ".join(t.__name__ for t in expected)
    if result is None:
        return f"returned None, expected {names}: a return is missing"
    if any(result is t for t in expected):
        return f"returned the class {names} itself, expected an instance of it"
    if not any(isinstance(result, t) for t in expected):
        return f"returned {type(result).__name__}, expected {names}"
    if isinstance(result, Asset):
        return _asset_flaw(result)
    if isinstance(result, AssetPage):
        return _page_flaw(result)
    if isinstance(result, PodScrub):
        return _scrub_flaw(result)
    return _in_progress_flaw(result) if isinstance(result, InProgress) else None


def _asset_flaw(asset: Asset) -> str | None:
    if not isinstance(asset.handle, str) or not 0 < len(asset.handle) <= LONGEST_HANDLE:
        return f"returned an Asset with handle {str(asset.handle)[:60]!r}, expected 1 to {LONGEST_HANDLE} characters"
    if isinstance(asset.capacity_bytes, bool) or not isinstance(asset.capacity_bytes, int) or asset.capacity_bytes < 0:
        return f"returned an Asset with capacity_bytes {asset.capacity_bytes!r}, expected whole bytes"
    source: object = asset.source
    if not isinstance(source, VolumeSource):
        return f"returned an Asset with a source of type {type(source).__name__}, expected VolumeSource"
    try:
        parts = [asset.handle, asset.source.kind, dict(asset.source.fields), dict(asset.attributes)]
        json.dumps([*parts, list(asset.mount_options), [dict(segment) for segment in asset.node_affinity]]).encode()
        # With escapes, bytes of file names that are not UTF-8 would pass.
        json.dumps(parts, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        return f"returned an Asset that cannot be written as JSON: {error}"
    return None


def _page_flaw(page: AssetPage) -> str | None:
    following: object = page.next_page
    if following is not None and not (isinstance(following, str) and following):
        return f"returned an AssetPage with next_page {following!r}, expected text, or None on the last page"
    for asset in page.assets:
        listed: object = asset
        if not isinstance(listed, ListedAsset):
            return f"returned an AssetPage with an entry of type {type(listed).__name__}, expected ListedAsset"
        if not isinstance(asset.handle, str) or not 0 < len(asset.handle) <= LONGEST_HANDLE:
            return f"listed an asset with handle {str(asset.handle)[:60]!r}, expected 1 to {LONGEST_HANDLE} characters"
        owner: object = asset.owner
        if owner is not None and not isinstance(owner, Ownership):
            return f"listed {asset.handle} with an owner of type {type(owner).__name__}, expected Ownership or None"
    return None


def _scrub_flaw(scrub: PodScrub) -> str | None:
    path: object = scrub.sub_path
    if path == "":
        return None
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
        return f"returned PodScrub with sub_path {path!r}, expected a relative path without '..'"
    return None if scrub.volume is not None else f"returned PodScrub with sub_path {path!r} and no volume that has it"


def _in_progress_flaw(result: InProgress) -> str | None:
    after = result.retry_after
    if isinstance(after, bool) or not isinstance(after, int | float) or not math.isfinite(after) or after < 0:
        return f"returned InProgress with retry_after {after!r}, expected seconds"
    try:
        size = len(json.dumps(dict(result.state), allow_nan=False))
    except (TypeError, ValueError) as error:
        return f"returned InProgress with a state that is not JSON: {error}"
    if size > LONGEST_STATE:
        return f"returned InProgress with a state of {size} bytes, at most {LONGEST_STATE} are kept"
    return None
