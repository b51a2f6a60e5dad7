"""What a plugin must look like before its hooks may be called: its hooks, its schemas and its `DriverInfo`.

The checks read the plugin and run none of its code. pluggy by itself warns, ignores the mistake or fails at the first
call; volplane refuses the plugin at load, with a message that names the plugin, the hook and what to change.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from volplane._messages import nearest
from volplane.assets import AccessMode, VolumeMode
from volplane.drivers.parameters import default_text, read_value, secrets_of
from volplane.drivers.view import DriverView
from volplane.hookspecs import PROJECT, REQUIRED_HOOKS, BackendSpec
from volplane.schemas import HOOKSPEC_VERSION, Parameter, ParameterKind, ParameterSchema

__all__ = [
    "HOOKS",
    "Mark",
    "Plugin",
    "backend_flaws",
    "driver_name_flaw",
    "extension_flaws",
    "info_flaws",
    "is_special",
    "marks",
    "schema_flaws",
    "version_flaw",
]

_SPEC_MARK: Final = f"{PROJECT}_spec"
_IMPL_MARK: Final = f"{PROJECT}_impl"

HOOKS: Final = frozenset(name for name, value in vars(BackendSpec).items() if hasattr(value, _SPEC_MARK))
"""Names of all hooks of the contract."""

IN_TREE_PREFIX: Final = "kubernetes.io/"
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_STARS: Final[Mapping[object, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_UNMARKED: Final = "is not marked and would never be called; mark it with @hookimpl or rename it"


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
    wrapper: bool
    old_wrapper: bool
    optional: bool


def driver_name_flaw(name: str) -> str | None:
    """Explain why this cannot be the name of a driver: a DNS subdomain (RFC 1123), like a class's provisioner.

    `kubernetes.io/` may stand before it: such a driver takes over the classes and volumes of an in-tree plugin.
    """
    name = name.removeprefix(IN_TREE_PREFIX)
    if len(name) <= 253 and all(len(part) <= 63 for part in name.split(".")) and _SUBDOMAIN.fullmatch(name):
        return None
    return f"driver name {name!r} is no DNS subdomain: lower-case letters, digits, '-' and '.', as in nfs.example.com"


def marks(plugin: object) -> tuple[Mark, ...]:
    """Return all marked attributes of `plugin` but special methods, without evaluating properties."""
    named = (attribute for attribute in sorted(dir(plugin)) if not is_special(attribute))
    return tuple(filter(None, (_mark(plugin, attribute) for attribute in named)))


def is_special(attribute: str) -> bool:
    """Tell whether Python reserves this name, such as `__init__`."""
    return attribute.startswith("__") and attribute.endswith("__")


def _mark(plugin: object, attribute: str) -> Mark | None:
    static = inspect.getattr_static(plugin, attribute, None)
    function = _function(static)
    options = _options(static) or _options(function)
    if options is None:
        return None
    # Nothing binds a function that is kept on the object itself: in a module, or as an attribute of an instance.
    own = not isinstance(plugin, type) and attribute in getattr(plugin, "__dict__", {})
    return Mark(
        attribute=attribute,
        hook=options.get("specname") or attribute,
        function=function,
        bound=not isinstance(static, staticmethod) and not own,
        wrapper=bool(options.get("wrapper")),
        old_wrapper=bool(options.get("hookwrapper")),
        optional=bool(options.get("optionalhook")),
    )


def _function(static: object) -> Callable[..., object] | None:
    if isinstance(static, staticmethod | classmethod):
        static = static.__func__
    if isinstance(static, types.MethodType):
        static = static.__func__
    return static if isinstance(static, types.FunctionType) else None


def _options(marked: object) -> Mapping[str, Any] | None:
    if isinstance(marked, type | types.ModuleType):
        return None
    options = getattr(marked, _IMPL_MARK, None)
    return options if isinstance(options, dict) else None


def backend_flaws(backend: object) -> tuple[str, ...]:
    """Return the reasons to refuse this backend instance. Each names the hook and the argument."""
    found = marks(backend)
    unmarked = _unmarked(backend, found)
    missing = sorted(REQUIRED_HOOKS - {m.hook for m in found} - set(unmarked))
    flaws = _hook_flaws(found, unmarked, of_backend=True)
    flaws += [f"hook {hook}: is required and missing; implement it and mark it with @hookimpl" for hook in missing]
    return tuple(flaws)


def extension_flaws(extension: object) -> tuple[str, ...]:
    """Return the reasons to refuse this extension instance."""
    found = marks(extension)
    flaws = _hook_flaws(found, _unmarked(extension, found), of_backend=False)
    if not found and not flaws:
        flaws.append("wraps no hook; mark a generator function named after one with @hookimpl(wrapper=True)")
    return tuple(flaws)


def _hook_flaws(found: tuple[Mark, ...], unmarked: list[str], *, of_backend: bool) -> list[str]:
    flaws = [flaw for mark in found for flaw in _mark_flaws(mark) or _kind_flaws(mark, of_backend=of_backend)]
    names: dict[str, list[str]] = {}
    for mark in found:
        names.setdefault(mark.hook, []).append(mark.attribute)
    flaws += [f"hook {h}: is implemented twice, by {' and '.join(a)}" for h, a in names.items() if len(a) > 1]
    return [*flaws, *(f"hook {hook}: {_UNMARKED}" for hook in unmarked)]


def _mark_flaws(mark: Mark) -> list[str]:
    if mark.hook not in HOOKS:
        if mark.optional:
            return []
        return [f"hook {mark.hook}: is unknown{nearest(mark.hook, HOOKS)}"]
    if mark.function is None:
        return [f"hook {mark.hook}: {mark.attribute} is marked but is no plain function; pluggy would never call it"]
    if inspect.iscoroutinefunction(mark.function) or inspect.isasyncgenfunction(mark.function):
        return [f"hook {mark.hook}: is async; hooks are plain functions, they may block and run in worker threads"]
    return _argument_flaws(mark.hook, mark.function, bound=mark.bound)


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


def _kind_flaws(mark: Mark, *, of_backend: bool) -> list[str]:
    generator = mark.function is not None and inspect.isgeneratorfunction(mark.function)
    if of_backend:
        if mark.wrapper or mark.old_wrapper:
            return [f"hook {mark.hook}: is a wrapper; only extensions wrap, a backend implements"]
        return [f"hook {mark.hook}: is a generator; return one result instead of yielding"] if generator else []
    if not mark.wrapper:
        return [f"hook {mark.hook}: an extension may only wrap; mark it with @hookimpl(wrapper=True)"]
    if mark.function is not None and not generator:
        return [f"hook {mark.hook}: a wrapper is a generator: 'result = yield', then 'return result'"]
    return []


def _unmarked(plugin: object, found: tuple[Mark, ...]) -> list[str]:
    """Return the hooks whose name a function without the mark has."""
    hooks = []
    for hook in sorted(HOOKS - {m.attribute for m in found}):
        static = inspect.getattr_static(plugin, hook, None)
        if static is not vars(BackendSpec)[hook] and (_function(static) is not None or callable(static)):
            hooks.append(hook)
    return hooks


# --- schemas and DriverInfo -----------------------------------------------------------------------------------------


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


def info_flaws(driver: DriverView) -> list[str]:
    """Describe what is wrong with the `DriverInfo` that `describe` returned."""
    info = driver.info
    version = version_flaw(info)
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
