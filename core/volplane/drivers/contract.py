"""What a plugin must look like before its hooks may be called, and what they must return.

The checks of hooks, schemas and `DriverInfo` read the plugin and run none of its code. pluggy by itself warns, ignores
the mistake or fails at the first call; volplane refuses the plugin at load, with a message that names the plugin, the
hook and what to change.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeGuard, get_args, get_type_hints

from volplane import assets, requests
from volplane._messages import nearest
from volplane.assets import Asset, AssetPage, GroupSnapshot, InProgress, ListedAsset, Snapshot, SnapshotPage
from volplane.drivers.parameters import default_text, read_value, secrets_of
from volplane.hookspecs import PROJECT, REQUIRED_HOOKS, BackendSpec
from volplane.requests import HookRequest
from volplane.schemas import HOOKSPEC_VERSION, DriverInfo, Parameter, ParameterKind, ParameterSchema

SPEC_MARK: Final = f"{PROJECT}_spec"
_IMPL_MARK: Final = f"{PROJECT}_impl"

HOOKS: Final = frozenset(name for name, value in vars(BackendSpec).items() if hasattr(value, SPEC_MARK))

LONGEST_HANDLE: Final = 1024
LONGEST_STATE: Final = 4096

RESULTS: Final[Mapping[str, tuple[type, ...]]] = {
    request.hook: get_args(result) or (result,)
    for request in vars(requests).values()
    if isinstance(request, type) and issubclass(request, HookRequest) and request is not HookRequest
    for result in get_args(vars(request)["__orig_bases__"][0])
}
"""Hook -> the types that it may return, as its request names them."""

_OF_GROUPS: Final = ("create_snapshot", "delete_group_snapshot", "find_group_snapshot")
_CLONES: Final = get_args(get_type_hints(DriverInfo)["clones"])
IN_TREE_PREFIX: Final = "kubernetes.io/"
SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_STARS: Final[Mapping[object, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A backend or an extension that can be made from options."""

    kind: str
    """"backend" or "extension"."""
    name: str
    factory: Callable[[Mapping[str, Any]], object]
    distribution: str = ""
    """Name and version of the distribution; "" if it comes from none."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.distribution})" if self.distribution else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An attribute marked with `@hookimpl`."""

    attribute: str
    hook: str
    """The hook that it implements or wraps."""
    function: Callable[..., object] | None
    """None if it is not a plain function."""
    bound: bool
    """Its first argument is self or cls."""
    options: Mapping[str, Any]
    """What `@hookimpl` was called with, and pluggy's defaults."""


def driver_name_flaw(name: str) -> str | None:
    """Explain why this cannot be the name of a driver: a DNS subdomain (RFC 1123), like a class's provisioner.

    `kubernetes.io/` may stand before it: such a driver takes over the classes and volumes of an in-tree plugin.
    """
    name = name.removeprefix(IN_TREE_PREFIX)
    if len(name) <= 253 and all(len(part) <= 63 for part in name.split(".")) and SUBDOMAIN.fullmatch(name):
        return None
    return f"driver name {name!r} is no DNS subdomain: lower-case letters, digits, '-' and '.', as in nfs.example.com"


# --- hooks ------------------------------------------------------------------------------------------------------------


def marks(plugin: object) -> tuple[Mark, ...]:
    """Return all marked attributes of `plugin` but special methods, without evaluating properties."""
    found = []
    kind = plugin if isinstance(plugin, type) else type(plugin)
    own = {} if kind is plugin else getattr(plugin, "__dict__", {})
    attributes = {name: value for each in reversed(kind.__mro__) for name, value in vars(each).items()} | own
    for attribute in sorted(name for name in attributes if not (name.startswith("__") and name.endswith("__"))):
        static = function = attributes[attribute]
        while isinstance(function, staticmethod | classmethod | types.MethodType):
            function = function.__func__
        if not isinstance(function, types.FunctionType):
            function = None
        options = None if isinstance(static, type | types.ModuleType) else getattr(static, _IMPL_MARK, None)
        if not isinstance(options, dict):
            options = getattr(function, _IMPL_MARK, None)
        if not isinstance(options, dict):
            continue
        # Nothing binds a function that is kept on the object itself: in a module, or as an attribute of an instance.
        bound = not isinstance(static, staticmethod) and attribute not in own
        hook = options.get("specname") or attribute
        found.append(Mark(attribute=attribute, hook=hook, function=function, bound=bound, options=options))
    return tuple(found)


def backend_flaws(backend: object) -> tuple[str, ...]:
    """Return the reasons to refuse this backend instance. Each names the hook and the argument."""
    flaws, hooks = _hook_flaws(backend, of_backend=True)
    missing = sorted(REQUIRED_HOOKS - hooks)
    return (*flaws, *(f"hook {h}: is required and missing; implement it and mark it with @hookimpl" for h in missing))


def extension_flaws(extension: object) -> tuple[str, ...]:
    """Return the reasons to refuse this extension instance."""
    flaws, hooks = _hook_flaws(extension, of_backend=False)
    if not hooks:
        flaws.append("wraps no hook; mark a generator function named after one with @hookimpl(wrapper=True)")
    return tuple(flaws)


def _hook_flaws(plugin: object, *, of_backend: bool) -> tuple[list[str], set[str]]:
    """Return what is wrong with the hooks of a plugin, and the hooks: marked, or of the name of a function."""
    found = marks(plugin)
    flaws = [flaw for mark in found for flaw in _mark_flaws(mark, of_backend=of_backend)]
    names: dict[str, list[str]] = {}
    for mark in found:
        names.setdefault(mark.hook, []).append(mark.attribute)
    flaws += [f"hook {h}: is implemented twice, by {' and '.join(a)}" for h, a in names.items() if len(a) > 1]
    unmarked = []
    for hook in sorted(HOOKS - {mark.attribute for mark in found}):
        static = inspect.getattr_static(plugin, hook, None)
        if static is not vars(BackendSpec)[hook] and (callable(static) or isinstance(static, classmethod)):
            unmarked.append(hook)
            flaws.append(f"hook {hook}: is not marked and would never be called; mark it with @hookimpl or rename it")
    return flaws, {*names, *unmarked}


def _mark_flaws(mark: Mark, *, of_backend: bool) -> list[str]:
    hook, function, wrapper = mark.hook, mark.function, mark.options.get("wrapper")
    generator = function is not None and inspect.isgeneratorfunction(function)
    if hook in HOOKS:
        if function is None:
            return [f"hook {hook}: {mark.attribute} is marked but is no plain function; pluggy would never call it"]
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return [f"hook {hook}: is async; hooks are plain functions, they may block and run in worker threads"]
        if flaws := _argument_flaws(hook, function, bound=mark.bound):
            return flaws
    elif not mark.options.get("optionalhook"):
        return [f"hook {hook}: is unknown{nearest(hook, HOOKS)}"]
    if of_backend:
        if wrapper or mark.options.get("hookwrapper"):
            return [f"hook {hook}: is a wrapper; only extensions wrap, a backend implements"]
        return [f"hook {hook}: is a generator; return one result instead of yielding"] if generator else []
    if wrapper and (generator or function is None):
        return []
    how = "a wrapper is a generator: 'result = yield', then 'return result'"
    return [f"hook {hook}: {how if wrapper else 'an extension may only wrap; mark it with @hookimpl(wrapper=True)'}"]


@cache
def _argument_flaws(hook: str, function: Callable[..., object], *, bound: bool) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    if bound:
        if not parameters or parameters[0].name == "request":
            return [f"hook {hook}: argument 'self' is missing before 'request'"]
        parameters = parameters[1:]
    flaws = []
    for parameter in parameters:
        optional = parameter.default is not inspect.Parameter.empty
        if stars := _STARS.get(parameter.kind):
            flaws.append(f"hook {hook}: argument '{stars}{parameter.name}' is never filled; hooks take 'request'")
        elif parameter.name == "request" and (optional or parameter.kind is inspect.Parameter.KEYWORD_ONLY):
            flaws.append(f"hook {hook}: argument 'request' must be positional and without a default, or it stays unset")
        elif parameter.name != "request" and not optional:
            flaws.append(f"hook {hook}: argument {parameter.name!r} is unknown; hooks take 'request'")
    return flaws


# --- schemas and DriverInfo -------------------------------------------------------------------------------------------


def schema_flaws(schema: object, *, of_class: bool = False) -> tuple[str, ...]:
    """Describe what is wrong with a schema. of_class: it is for class parameters, which cannot be secrets."""
    if not isinstance(schema, ParameterSchema):
        return (f"a schema of type {type(schema).__name__}, expected ParameterSchema",)
    flaws = []
    lowered: dict[str, str] = {}
    for parameter in schema.parameters:
        twin = lowered.setdefault(parameter.name.lower(), parameter.name)
        if twin is not parameter.name:
            flaws.append(f"parameter {parameter.name!r} is declared twice, also as {twin!r}; case does not matter")
        flaws += [f"parameter {parameter.name!r} {flaw}" for flaw in _parameter_flaws(schema, parameter)]
    if of_class:
        flaws += [f"parameter {p.name!r} is a secret; make it an option of the driver" for p in secrets_of(schema)]
    return tuple(flaws)


def _parameter_flaws(schema: ParameterSchema, parameter: Parameter) -> Iterator[str]:
    names = tuple(p.name for p in schema.parameters)
    if not 1 <= parameter.since <= schema.version:
        yield f"is since version {parameter.since}, but the schema's version is {schema.version}"
    if parameter.required and parameter.default is not None:
        yield f"is required and has the default {parameter.default!r}; it can only be one of them"
    if parameter.required and parameter.since > 1:
        yield f"is required since version {parameter.since}; older classes lack it, so it needs a default instead"
    for other in parameter.excludes:
        if other not in names:
            yield f"excludes {other!r}, which is unknown{nearest(other, names)}"
    low, high = parameter.minimum, parameter.maximum
    if parameter.kind is ParameterKind.SECRET and (
        parameter.default is not None or parameter.choices or parameter.pattern or low is not None or high is not None
    ):
        yield "is a secret and can have no default, choices, pattern or bounds"
        return
    if low is not None and high is not None and low > high:
        yield f"has a minimum {low:g} above its maximum {high:g}"
    try:
        re.compile(parameter.pattern)
    except re.error as error:
        yield f"has a pattern that is no regular expression: {error}"
        return
    if parameter.default is not None and (flaw := _default_flaw(parameter)):
        yield flaw


def _default_flaw(parameter: Parameter) -> str | None:
    """Explain why the default is no value of its kind: written as text and read again it must be the same."""
    if parameter.kind is ParameterKind.KEYS:
        return "stands for any number of keys and can have no default"
    try:
        value = read_value(parameter, default_text(parameter))
    except ValueError as error:
        return f"has the default {parameter.default!r}, {error}"
    default = tuple(parameter.default) if isinstance(parameter.default, list) else parameter.default
    if value != default or isinstance(value, bool) != isinstance(default, bool):
        return f"has the default {parameter.default!r}, expected the Python value {value!r}"
    return None


def version_flaw(info: object) -> str | None:
    """Explain why this `DriverInfo` is of a newer contract than this volplane knows; None: it is not."""
    version = getattr(info, "hookspec_version", HOOKSPEC_VERSION)
    if isinstance(version, int) and version <= HOOKSPEC_VERSION:
        return None
    return f"is built for hookspec version {version}, this volplane knows {HOOKSPEC_VERSION}; upgrade volplane"


def info_flaws(info: DriverInfo, hooks: AbstractSet[str]) -> list[str]:
    """Describe what is wrong with the `DriverInfo` that `describe` returned. hooks: those that the backend has."""
    if newer := version_flaw(info):
        return [newer]
    flaws = list(schema_flaws(info.parameters, of_class=True))
    if info.csi_driver_name is not None and driver_name_flaw(info.csi_driver_name):
        flaws.append(f"csi_driver_name {info.csi_driver_name!r} is no DNS subdomain")
    for asks, what, needed in (
        (info.attach_required, "attach_required is set", ("attach", "detach")),
        ("create_snapshot" in hooks, "create_snapshot is there", ("delete_snapshot", "find_snapshot")),
        ("create_group_snapshot" in hooks, "create_group_snapshot is there", _OF_GROUPS),
        (info.archives, "archives is set", ("list_assets",)),
    ):
        flaws += [f"{what}, but hook {hook} is missing" for hook in needed if asks and hook not in hooks]
    flaws += [f"snapshot_parameters: {flaw}" for flaw in schema_flaws(info.snapshot_parameters, of_class=True)]
    if info.clones not in _CLONES:
        flaws.append(f"clones is {info.clones!r}, expected one of {', '.join(map(repr, _CLONES))}")
    for field, kind in (("access_modes", assets.AccessMode), ("volume_modes", assets.VolumeMode)):
        given: AbstractSet[Any] = getattr(info, field)
        known = ", ".join(kind)
        if not given:
            flaws.append(f"{field} is empty, expected some of {known}")
        flaws += [f"{field} holds {mode!r}, expected some of {known}" for mode in given if mode not in list(kind)]
    if not math.isfinite(info.settle_seconds) or info.settle_seconds < 0:
        flaws.append(f"settle_seconds is {info.settle_seconds!r}, expected seconds")
    if info.maximum_bytes is not None and info.maximum_bytes < info.minimum_bytes:
        flaws.append(f"maximum_bytes {info.maximum_bytes} is below minimum_bytes {info.minimum_bytes}")
    return flaws


# --- results: third-party code is checked at run time -----------------------------------------------------------------


def result_flaw(hook: str, result: object) -> str | None:
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
    if isinstance(result, Snapshot):
        return f"returned a Snapshot with {flaw}" if (flaw := _snapshot_flaw(result)) else None
    if isinstance(result, GroupSnapshot):
        return _group_flaw(result)
    if isinstance(result, ListedAsset):
        return _listed_flaw(result)
    if isinstance(result, AssetPage | SnapshotPage):
        return _page_flaw(result)
    if isinstance(result, InProgress):
        return _in_progress_flaw(result)
    return _scrub_flaw(result) if isinstance(result, assets.PodScrub) else None


def _scrub_flaw(result: assets.PodScrub) -> str | None:
    path: object = result.sub_path
    if path == "":
        return None
    # The pod empties this path, so it must not lead out of the asset.
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
        return f"returned PodScrub with sub_path {path!r}, expected a relative path without '..'"
    return None if result.volume is not None else f"returned PodScrub with sub_path {path!r} and no volume that has it"


def _asset_flaw(asset: Asset) -> str | None:
    if flaw := _handle_flaw(asset.handle) or _size_flaw("capacity_bytes", asset.capacity_bytes):
        return f"returned an Asset with {flaw}"
    if flaw := _not_a_tuple(asset, "mount_options", "node_affinity"):
        return flaw
    source: object = asset.source
    if not isinstance(source, assets.VolumeSource):
        return f"returned an Asset with a source of type {type(source).__name__}, expected VolumeSource"
    try:
        parts: list[object] = [asset.handle, asset.source.kind, dict(asset.source.fields), dict(asset.attributes)]
        parts.append(dict(asset.annotations))
        _require_json([*parts, list(asset.mount_options), [dict(segment) for segment in asset.node_affinity]])
    except (TypeError, ValueError) as error:
        return f"returned an Asset that cannot be written as JSON: {error}"
    return None


def _snapshot_flaw(snapshot: Snapshot) -> str | None:
    """Describe the first flaw, as the end of "a snapshot with"."""
    if flaw := _handle_flaw(snapshot.handle) or _size_flaw("size_bytes", snapshot.size_bytes):
        return flaw
    made: object = snapshot.created_at
    # The API keeps nanoseconds in 64 bits. Milliseconds by mistake do not fit.
    if made is not None and not (_is_seconds(made) and made < 2**63 / 1e9):
        return f"created_at {made!r}, expected a Unix time in seconds, or None"
    if not _is_seconds(snapshot.retry_after):
        return f"retry_after {snapshot.retry_after!r}, expected seconds"
    ready, owner, affinity = snapshot.ready, snapshot.owner, snapshot.node_affinity
    for field, value, kinds in (
        ("ready", ready, (bool,)),
        ("owner", owner, (assets.SnapshotOwnership, type(None))),
        ("node_affinity", affinity, (tuple, list)),
        *((field, getattr(snapshot, field), (str,)) for field in ("source", "name", "state", "failed")),
    ):
        if not isinstance(value, kinds):
            return f"{field} of type {type(value).__name__}, expected {kinds[0].__name__}"
        if isinstance(value, str) and len(value) > LONGEST_STATE:
            return f"{field} of {len(value)} characters, at most {LONGEST_STATE} are kept"
    if ready and snapshot.failed:
        return f"failed {snapshot.failed[:60]!r}, although it is ready"
    try:
        marks = [owner.cluster_id, owner.snapshot_uid, owner.content_name] if owner is not None else []
        texts = [snapshot.handle, snapshot.source, snapshot.name, snapshot.state, snapshot.failed, *marks]
        _require_json([*texts, *(dict(segment) for segment in affinity)])
    except (TypeError, ValueError) as error:
        return f"fields that cannot be written as JSON: {error}"
    return None


def _group_flaw(group: GroupSnapshot) -> str | None:
    if flaw := _handle_flaw(group.handle):
        return f"returned a GroupSnapshot with {flaw}"
    if flaw := _not_a_tuple(group, "snapshots"):
        return flaw
    entries: tuple[object, ...] = group.snapshots
    for each in entries:
        if not isinstance(each, Snapshot):
            return f"returned GroupSnapshot with an entry of type {type(each).__name__}, expected Snapshot"
        if flaw := _snapshot_flaw(each):
            return f"returned a GroupSnapshot with snapshot {str(each.handle)[:60]!r} with {flaw}"
    sources = [each.source for each in group.snapshots]
    if not all(sources) or len(set(sources)) < len(sources) or not sources:
        return f"returned a GroupSnapshot whose snapshots are of {sources}, expected one of each asset"
    return None


def _page_flaw(page: AssetPage | SnapshotPage) -> str | None:
    kind, following = type(page).__name__, page.next_page
    if following is not None and not (isinstance(following, str) and following):
        return f"returned {kind} with next_page {following!r}, expected text, or None on the last page"
    field, entry = ("assets", assets.ListedAsset) if isinstance(page, AssetPage) else ("snapshots", Snapshot)
    if flaw := _not_a_tuple(page, field):
        return flaw
    for listed in getattr(page, field):
        if not isinstance(listed, entry):
            return f"returned {kind} with an entry of type {type(listed).__name__}, expected {entry.__name__}"
        if isinstance(listed, Snapshot):
            if flaw := _snapshot_flaw(listed):
                return f"listed snapshot {str(listed.handle)[:60]!r} with {flaw}"
            continue
        if flaw := _listed_flaw(listed):
            return flaw
    return _archives_flaw(page) if isinstance(page, AssetPage) else None


def _listed_flaw(listed: ListedAsset) -> str | None:
    if flaw := _handle_flaw(listed.handle):
        return f"listed an asset with {flaw}"
    owner: object = listed.owner
    if owner is not None and not isinstance(owner, assets.Ownership):
        return f"listed {listed.handle} with an owner of type {type(owner).__name__}, expected Ownership or None"
    return _not_a_tuple(listed, "attached_to")


def _archives_flaw(page: AssetPage) -> str | None:
    if flaw := _not_a_tuple(page, "archives"):
        return flaw
    entries: tuple[object, ...] = page.archives
    for each in entries:
        if not isinstance(each, assets.ListedArchive):
            return f"returned AssetPage with an archive of type {type(each).__name__}, expected ListedArchive"
        texts = (each.place, each.volume, each.claim)
        if not all(isinstance(text, str) and len(text) <= LONGEST_HANDLE for text in texts):
            return f"listed an archive of volume {str(each.volume)[:60]!r} with texts that are none, or too long"
        if not all(moment is None or _is_seconds(moment) for moment in (each.archived_at, each.until)):
            return f"listed archive {each.place!r} with times {each.archived_at!r} and {each.until!r}, expected seconds"
        if each.capacity_bytes is not None and (flaw := _size_flaw("capacity_bytes", each.capacity_bytes)):
            return f"listed archive {each.place!r} with {flaw}"
    return None


def _handle_flaw(handle: object) -> str | None:
    if isinstance(handle, str) and 0 < len(handle) <= LONGEST_HANDLE:
        return None
    return f"handle {str(handle)[:60]!r}, expected 1 to {LONGEST_HANDLE} characters"


def _size_flaw(field: str, size: object) -> str | None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        return f"{field} {size!r}, expected whole bytes"
    return f"{field} of 2**63 or more, which no volume can have" if size >= 2**63 else None


def _is_seconds(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _require_json(value: object) -> None:
    """Raise TypeError or ValueError if it cannot be written. With escapes, bytes that are not UTF-8 would pass."""
    json.dumps(value, ensure_ascii=False).encode()


def _not_a_tuple(result: object, *fields: str) -> str | None:
    """Describe a field that is no tuple, nor a list. Checks would use a generator up, and all in it would be lost."""
    for field in fields:
        if not isinstance(value := getattr(result, field), tuple | list):
            kind = type(result).__name__
            return f"returned {kind} with {field} of type {type(value).__name__}, expected a tuple"
    return None


def _in_progress_flaw(result: InProgress) -> str | None:
    if not _is_seconds(result.retry_after):
        return f"returned InProgress with retry_after {result.retry_after!r}, expected seconds"
    try:
        size = len(json.dumps(dict(result.state), allow_nan=False))
    except (TypeError, ValueError) as error:
        return f"returned InProgress with a state that is not JSON: {error}"
    if size > LONGEST_STATE:
        return f"returned InProgress with a state of {size} bytes, at most {LONGEST_STATE} are kept"
    return None
