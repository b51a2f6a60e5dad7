"""What a plugin must look like before it may be called. Everything here reads the plugin and runs none of its code.

pluggy by itself warns, ignores or fails at the first call; volplane refuses at load, and says what to change.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from volplane.hookspecs import PROJECT, REQUIRED_HOOKS, BackendSpec
from volplane.messages import nearest

__all__ = ["HOOKS", "Mark", "Plugin", "backend_flaws", "driver_name_flaw", "extension_flaws", "marks"]

_SPEC_MARK: Final = f"{PROJECT}_spec"
_IMPL_MARK: Final = f"{PROJECT}_impl"

HOOKS: Final = frozenset(name for name, value in vars(BackendSpec).items() if hasattr(value, _SPEC_MARK))
"""Names of all hooks of the contract."""

IN_TREE_PREFIX: Final = "kubernetes.io/"
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_STARS: Final[Mapping[object, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_UNMARKED: Final = "hook {}: is not marked and would never be called; mark it with @hookimpl or rename it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What an entry point gave. distribution: name and version, empty when it did not come from one."""

    kind: str
    """"backend" or "extension"."""
    name: str
    factory: Callable[[Mapping[str, Any]], object]
    distribution: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.distribution})" if self.distribution else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An attribute marked with `@hookimpl`.

    hook: which hook it is for. function: None if it is no plain function. bound: its first argument is self or cls.
    """

    attribute: str
    hook: str
    function: Callable[..., object] | None
    bound: bool
    wrapper: bool
    old_wrapper: bool
    optional: bool


def driver_name_flaw(name: str) -> str | None:
    """Why this cannot be the name of a driver: it must be a DNS subdomain (RFC 1123), as a class's provisioner is.

    `kubernetes.io/` may stand before it: such a driver takes over the classes and volumes of an in-tree plugin.
    """
    name = name.removeprefix(IN_TREE_PREFIX)
    if len(name) <= 253 and all(len(part) <= 63 for part in name.split(".")) and _SUBDOMAIN.fullmatch(name):
        return None
    return f"driver name {name!r} is no DNS subdomain: lower-case letters, digits, '-' and '.', as in nfs.example.com"


def marks(plugin: object) -> tuple[Mark, ...]:
    """Everything in `plugin` that carries the mark, found without evaluating properties."""
    return tuple(_marks(plugin))


def _marks(plugin: object) -> Iterator[Mark]:
    for attribute in sorted(dir(plugin)):
        static = inspect.getattr_static(plugin, attribute, None)
        function = _function(static)
        options = _options(static) or _options(function)
        if options is not None:
            yield Mark(
                attribute=attribute,
                hook=options.get("specname") or attribute,
                function=function,
                bound=not isinstance(static, staticmethod) and not _own(plugin, attribute),
                wrapper=bool(options.get("wrapper")),
                old_wrapper=bool(options.get("hookwrapper")),
                optional=bool(options.get("optionalhook")),
            )


def _own(plugin: object, attribute: str) -> bool:
    """Whether a function is kept on the object itself (a module, an instance attribute), so that nothing binds it."""
    return not isinstance(plugin, type) and attribute in getattr(plugin, "__dict__", {})


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
    """Everything for which this backend instance is refused; each names hook and argument."""
    found = marks(backend)
    unmarked = _unmarked(backend, found)
    flaws = [flaw for mark in found for flaw in _mark_flaws(mark) or _backend_mark_flaws(mark)]
    flaws += _duplicates(found)
    flaws += [_UNMARKED.format(hook) for hook in unmarked]
    missing = sorted(REQUIRED_HOOKS - {m.hook for m in found} - set(unmarked))
    flaws += [f"hook {hook}: is required and missing; implement it and mark it with @hookimpl" for hook in missing]
    return tuple(flaws)


def extension_flaws(extension: object) -> tuple[str, ...]:
    """Everything for which this extension instance is refused."""
    found = marks(extension)
    flaws = [flaw for mark in found for flaw in _mark_flaws(mark) or _extension_mark_flaws(mark)]
    flaws += _duplicates(found)
    flaws += [_UNMARKED.format(hook) for hook in _unmarked(extension, found)]
    if not found and not flaws:
        flaws.append("wraps no hook; mark a generator function named after one with @hookimpl(wrapper=True)")
    return tuple(flaws)


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


def _backend_mark_flaws(mark: Mark) -> list[str]:
    if mark.wrapper or mark.old_wrapper:
        return [f"hook {mark.hook}: is a wrapper; only extensions wrap, a backend implements"]
    if mark.function is not None and inspect.isgeneratorfunction(mark.function):
        return [f"hook {mark.hook}: is a generator; return one result instead of yielding"]
    return []


def _extension_mark_flaws(mark: Mark) -> list[str]:
    if not mark.wrapper:
        return [f"hook {mark.hook}: an extension may only wrap; mark it with @hookimpl(wrapper=True)"]
    if mark.function is not None and not inspect.isgeneratorfunction(mark.function):
        return [f"hook {mark.hook}: a wrapper is a generator: 'result = yield', then 'return result'"]
    return []


def _duplicates(found: tuple[Mark, ...]) -> list[str]:
    names: dict[str, list[str]] = {}
    for mark in found:
        names.setdefault(mark.hook, []).append(mark.attribute)
    return [f"hook {h}: is implemented twice, by {' and '.join(a)}" for h, a in names.items() if len(a) > 1]


def _unmarked(plugin: object, found: tuple[Mark, ...]) -> list[str]:
    """Hooks of whose name there is a function without the mark."""
    hooks = []
    for hook in sorted(HOOKS - {m.attribute for m in found}):
        static = inspect.getattr_static(plugin, hook, None)
        if static is not vars(BackendSpec)[hook] and (_function(static) is not None or callable(static)):
            hooks.append(hook)
    return hooks
