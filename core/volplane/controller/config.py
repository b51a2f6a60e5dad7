"""The configuration file of `volplane run` and `volplane dev`.

The file is checked in full when it is read:

    clusterId: 6b1c…            # default: the uid of namespace kube-system
    drivers:                    # default: every installed backend that needs no options
      - name: fast.example.com
        backend: hostpath
        options: {root: /srv/volumes}
        concurrency: 10
        rate: 5
        timeout: 120
        distributed: true
        storageCapacity: true
    extensions:
      - name: call_log
        options: {path: /var/log/volplane-calls.jsonl}
    scrubber: {image: …, command: […], resources: {…}, tolerations: […], template: {…}, attempts: 3}

What stands in `options` is checked later, by the schema of the backend or extension.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from volplane._messages import nearest, why_unusable
from volplane.controller.scrub_template import template_flaws
from volplane.errors import ConfigurationError

__all__ = [
    "Configuration",
    "DriverSettings",
    "ExtensionSettings",
    "ScrubberSettings",
    "parse_configuration",
    "read_configuration",
]

_KEYS: Final = ("clusterId", "drivers", "extensions", "scrubber")
_DRIVER_KEYS: Final = ("name", "backend", "options", "concurrency", "rate", "timeout", "distributed", "storageCapacity")
_EXTENSION_KEYS: Final = ("name", "options")
_SCRUBBER_KEYS: Final = (
    "image",
    "command",
    "resources",
    "tolerations",
    "template",
    "attempts",
    "baseDeadline",
    "deadlinePerGiB",
    "allowUnsafe",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """One driver. None = the default."""

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As written. They may hold a secret, so they are not in `repr`."""
    concurrency: int | None = None
    rate: float | None = None
    """Operations started a second."""
    timeout: float | None = None
    """Seconds that a hook may take."""
    distributed: bool = False
    """Whether its assets live on nodes, and the process of each node (`--node-name`) calls its hooks there."""
    storage_capacity: bool = False
    """Whether its room is published for the scheduler; that of distributed drivers always is."""
    where: str = field(default="", compare=False)
    """Place in the file, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """One extension around the hooks of every driver; the first in the file is the outermost."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubberSettings:
    """The scrubber pod."""

    image: str | None = None
    """None = the default."""
    command: tuple[str, ...] = ()
    """Empties and verifies /scrub; empty = ours."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """As in a pod."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """As in a pod."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """A pod to lay over ours (`volplane.controller.scrub_template`)."""
    attempts: int = 3
    """Failed ones until the volume is Failed."""
    base_deadline: float = 300.0
    """Seconds a scrub may run."""
    deadline_per_gib: float = 30.0
    """Seconds a scrub may run for each GiB, beside `base_deadline`."""
    allow_unsafe: bool = False
    """The template may weaken the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The content of the file."""

    drivers: tuple[DriverSettings, ...] | None = None
    """None = the key is absent: every installed backend that needs no options."""
    extensions: tuple[ExtensionSettings, ...] = ()
    scrubber: ScrubberSettings = field(default_factory=ScrubberSettings)
    cluster_id: str | None = None


def read_configuration(path: Path) -> Configuration:
    """Read a file. Raises ConfigurationError naming file, place in it, value and what would be right."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {why_unusable(error)}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return parse_configuration(text, str(path))


def parse_configuration(text: str, file: str) -> Configuration:
    """Read the text of a file called `file`. Raises as `read_configuration`."""
    try:
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader that also refuses duplicate keys
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise ConfigurationError(f"{place}: is no valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: is no valid YAML: {' '.join(str(error).split())}") from None
    section = _Section({} if content is None else content, "", file, _KEYS)
    return Configuration(
        drivers=_drivers(section),
        extensions=tuple(
            ExtensionSettings(name=s.required_text("name"), options=s.mapping("options"), where=s.place)
            for s in section.sections("extensions", _EXTENSION_KEYS)
        ),
        scrubber=_scrubber(section.section("scrubber", _SCRUBBER_KEYS)),
        cluster_id=section.text("clusterId"),
    )


def _drivers(section: _Section) -> tuple[DriverSettings, ...] | None:
    if section.get("drivers") is None:
        return None
    drivers = tuple(_driver(s) for s in section.sections("drivers", _DRIVER_KEYS))
    first: dict[str, str] = {}
    for driver in drivers:
        if driver.name in first:
            raise ConfigurationError(
                f"{driver.where}.name: driver {driver.name!r} stands at {first[driver.name]} already"
            )
        first[driver.name] = driver.where
    return drivers


def _driver(section: _Section) -> DriverSettings:
    return DriverSettings(
        name=section.required_text("name"),
        backend=section.required_text("backend"),
        options=section.mapping("options"),
        concurrency=section.integer("concurrency", minimum=1),
        rate=section.number("rate", above=0.0),
        timeout=section.number("timeout", above=0.0),
        distributed=section.boolean("distributed"),
        storage_capacity=section.boolean("storageCapacity"),
        where=section.place,
    )


def _scrubber(section: _Section) -> ScrubberSettings:
    defaults = ScrubberSettings()
    attempts = section.integer("attempts", minimum=1)
    base, per_gib = section.number("baseDeadline", above=0.0), section.number("deadlinePerGiB", above=0.0)
    template, allow_unsafe = section.mapping("template"), section.boolean("allowUnsafe")
    flaws = [f"{section.place}.template.{flaw}" for flaw in template_flaws(template, allow_unsafe=allow_unsafe)]
    if flaws:
        raise ConfigurationError("; ".join(flaws))
    return ScrubberSettings(
        image=section.text("image"),
        command=section.texts("command"),
        resources=section.mapping("resources"),
        tolerations=section.mappings("tolerations"),
        template=template,
        attempts=defaults.attempts if attempts is None else attempts,
        base_deadline=defaults.base_deadline if base is None else base,
        deadline_per_gib=defaults.deadline_per_gib if per_gib is None else per_gib,
        allow_unsafe=allow_unsafe,
    )


class _Section:
    """A mapping of the file that has no other keys than `known`."""

    def __init__(self, content: object, path: str, file: str, known: Iterable[str]) -> None:
        self._path = path
        self._file = file
        if not isinstance(content, Mapping):
            raise self._wrong("", content, "a mapping (key: value)")
        for key in content:
            if key not in known:
                raise ConfigurationError(f"{self._at(str(key))}: unknown key{nearest(str(key), known)}")
        self._content = content

    @property
    def place(self) -> str:
        return f"{self._file}: {self._path}" if self._path else self._file

    def get(self, key: str) -> Any:
        return self._content.get(key)

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self._wrong(key, value, "text" if value == "" else "text; quote it")

    def required_text(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise ConfigurationError(f"{self._at(key)}: is required")
        return value

    def integer(self, key: str, *, minimum: int) -> int | None:
        value = self.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= minimum):
            return value
        raise self._wrong(key, value, f"a whole number, at least {minimum}")

    def number(self, key: str, *, above: float) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > above:
            return float(value)
        raise self._wrong(key, value, f"a number above {above:g}")

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self._wrong(key, value, "true or false")

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.get(key)
        return {} if value is None else self._texts_as_keys(key, value)

    def mappings(self, key: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._texts_as_keys(f"{key}[{i}]", item) for i, item in enumerate(self._items(key)))

    def texts(self, key: str) -> tuple[str, ...]:
        items = tuple(self._items(key))
        for index, item in enumerate(items):
            if not isinstance(item, str):
                raise self._wrong(f"{key}[{index}]", item, "text; quote it")
        return items

    def section(self, key: str, known: Iterable[str]) -> _Section:
        value = self.get(key)
        return _Section({} if value is None else value, self._join(key), self._file, known)

    def sections(self, key: str, known: Iterable[str]) -> Iterator[_Section]:
        for index, item in enumerate(self._items(key)):
            yield _Section(item, self._join(f"{key}[{index}]"), self._file, known)

    def _items(self, key: str) -> Iterable[Any]:
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list (- item)")
        return value

    def _texts_as_keys(self, key: str, value: object) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a mapping (key: value)")
        for name in value:
            if not isinstance(name, str):
                raise self._wrong(f"{key}.{name}", name, "text as a key; quote it")
        return value

    def _join(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path and key else self._path or key

    def _at(self, key: str) -> str:
        path = self._join(key)
        return f"{self._file}: {path}" if path else self._file

    def _wrong(self, key: str, value: object, expected: str) -> ConfigurationError:
        # Options may hold a secret.
        shown = type(value).__name__ if key == "options" else repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
        return ConfigurationError(f"{self._at(key)}: is {shown}, expected {expected}")


class _Loader(yaml.SafeLoader):
    """YAML whose mappings may not name a key twice; plain PyYAML keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _value in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key != "<<" and key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
