"""The configuration file of `volplane run` and `volplane dev`, which is checked in full when it is read.

docs/reference/configuration.md shows it. What stands in `options` is checked later, by the schema of the backend or
extension.

The scrubber's template is what an operator may change of the scrubber pod. It has the shape of a pod:
`metadata.labels`, `metadata.annotations`, `spec` and in it at most one container. Each field is harmless, weakens the
sandbox, or is refused. A field that is not known here counts as weakening: what Kubernetes adds later is refused until
it is listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from volplane._messages import nearest, why_unusable
from volplane._templates import data_of
from volplane.errors import ConfigurationError

CSI_SUFFIX: Final = "/csi"
"""Ends the cluster ids of `volplane csi`, and of nothing else."""
_KEYS: Final = ("clusterId", "drivers", "extensions", "scrubber")
_DRIVER_KEYS: Final = ("name", "backend", "options", "concurrency", "rate", "timeout", "distributed", "storageCapacity")
_EXTENSION_KEYS: Final = ("name", "options")
_SCRUBBER_KEYS: Final = (
    *("image", "command", "resources", "tolerations", "template"),
    *("attempts", "baseDeadline", "deadlinePerGiB", "allowUnsafe"),
)

CONTAINER: Final = "scrub"
VOLUME: Final = "volume"
"""Name of the volume that is erased, in the pod."""
ADDED_CAPABILITIES: Final = ("DAC_OVERRIDE", "FOWNER")
"""Without these two, uid 0 in the pod cannot remove what belongs to other users."""


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
    image: str | None = None
    """None = the default."""
    command: tuple[str, ...] = ()
    """Empties and verifies /scrub; empty = ours."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """As in a pod."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """As in a pod."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """A pod to lay over ours (`volplane.reclaim.scrub_pod`), without flaws."""
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
    drivers: tuple[DriverSettings, ...] | None = None
    """None = the key is absent: every installed backend that needs no options."""
    extensions: tuple[ExtensionSettings, ...] = ()
    scrubber: ScrubberSettings = field(default_factory=ScrubberSettings)
    cluster_id: str | None = None


def read_configuration(path: Path | None) -> Configuration:
    """Read a file. Raises ConfigurationError naming file, place in it, value and what would be right. None: no file."""
    return Configuration() if path is None else parse_configuration(read_text(path, str(path)), str(path))


def read_text(path: Path, named: str) -> str:
    """Return the text of a file. Raises ConfigurationError that begins with `named` and says what is wrong with it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{named}: cannot be read: {why_unusable(error)}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{named}: is not UTF-8 text: {error.reason} at byte {error.start}") from None


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
    section = _Section({} if content is None else content, file, _KEYS, ends=": ")
    scrubber = section.content.get("scrubber")
    cluster_id = section.text("clusterId") or None
    if cluster_id is not None and cluster_id.endswith(CSI_SUFFIX):
        raise ConfigurationError(
            f'{section.at("clusterId")}: "{cluster_id}" ends with {CSI_SUFFIX}, as the marks of `volplane csi` do; its '
            "volumes would be orphans here: choose another id"
        )
    return Configuration(
        drivers=None if section.content.get("drivers") is None else _drivers(section),
        extensions=tuple(
            ExtensionSettings(name=each.text("name", required=True), options=each.mapping("options"), where=each.place)
            for each in section.sections("extensions", _EXTENSION_KEYS)
        ),
        scrubber=_scrubber(_Section({} if scrubber is None else scrubber, section.at("scrubber"), _SCRUBBER_KEYS)),
        cluster_id=cluster_id,
    )


def _drivers(section: _Section) -> tuple[DriverSettings, ...]:
    drivers = tuple(
        DriverSettings(
            name=each.text("name", required=True),
            backend=each.text("backend", required=True),
            options=each.mapping("options"),
            concurrency=each.value("concurrency", *_INTEGER),
            rate=each.value("rate", *_NUMBER),
            timeout=each.value("timeout", *_NUMBER),
            distributed=bool(each.value("distributed", *_BOOLEAN)),
            storage_capacity=bool(each.value("storageCapacity", *_BOOLEAN)),
            where=each.place,
        )
        for each in section.sections("drivers", _DRIVER_KEYS)
    )
    by_name: dict[str, DriverSettings] = {}
    for each in drivers:
        if (first := by_name.setdefault(each.name, each)) is not each:
            raise ConfigurationError(f"{each.where}.name: driver {each.name!r} stands at {first.where} already")
    return drivers


def _scrubber(section: _Section) -> ScrubberSettings:
    defaults = ScrubberSettings()
    template, allow_unsafe = section.mapping("template"), bool(section.value("allowUnsafe", *_BOOLEAN))
    flaws = [f"{section.at('template')}.{flaw}" for flaw in template_flaws(template, allow_unsafe=allow_unsafe)]
    if flaws:
        raise ConfigurationError("; ".join(flaws))
    return ScrubberSettings(
        image=section.text("image") or None,
        command=section.texts("command"),
        resources=section.mapping("resources"),
        tolerations=section.mappings("tolerations"),
        template=template,
        attempts=section.value("attempts", *_INTEGER) or defaults.attempts,
        base_deadline=section.value("baseDeadline", *_NUMBER) or defaults.base_deadline,
        deadline_per_gib=section.value("deadlinePerGiB", *_NUMBER) or defaults.deadline_per_gib,
        allow_unsafe=allow_unsafe,
    )


def template_flaws(template: Mapping[str, Any], *, allow_unsafe: bool) -> Iterator[str]:
    """Yield the reasons for which the template cannot be used, each as `path: reason`."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield f"{key}: unknown key{nearest(key, ('metadata', 'spec'))}"
    yield from _metadata_flaws(_mapping(template, "metadata"))
    spec = _mapping(template, "spec")
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or len(containers) > 1 or not all(isinstance(c, Mapping) for c in containers):
        yield "spec.containers: expected a list with at most one container, which is laid over ours"
        return
    yield from _shape_flaws(template, spec)
    for where, path, part in _parts(spec):
        for key in part:
            if other := _rules()["elsewhere"].get(f"{where}.{key}"):
                yield f"{path}.{key}: has a key of its own, {other}"
            elif key in _rules()["ours"].get(where, ()) and not (where == "container" and part[key] == CONTAINER):
                yield f"{path}.{key}: is volplane's own; a scrub could not be trusted with another"
    yield from _list_flaws(spec)
    if not allow_unsafe:
        yield from (f"{weak}; refused unless scrubber.allowUnsafe is true" for weak in _weakenings(spec))


def _rules() -> Mapping[str, Any]:
    return data_of("volplane.controller", "scrubber_template.yaml")


def _shape_flaws(template: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    """Report what is no mapping where one is needed: null or anything else would replace all of ours."""
    places: list[tuple[str, Mapping[str, Any], str]] = [("", template, "metadata"), ("", template, "spec")]
    for where, path, part in _parts(spec):
        places.append((f"{path}.", part, "capabilities" if where == "securityContext" else "securityContext"))
    for path, parent, key in places:
        if key in parent and not isinstance(parent[key], Mapping):
            yield f"{path}{key}: is {parent[key]!r}, expected a mapping"


def _metadata_flaws(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield f"metadata.{key}: only labels and annotations can be added"
        elif not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
            yield f"metadata.{key}: expected a mapping of texts; quote them"
        else:
            yield from (f"metadata.{key}.{name}: is volplane's own" for name in value if "volplane" in str(name))


def _list_flaws(spec: Mapping[str, Any]) -> Iterator[str]:
    mounts = next((container.get("volumeMounts") for container in spec.get("containers", [])), None)
    for path, items in (("spec.volumes", spec.get("volumes")), ("spec.containers[0].volumeMounts", mounts)):
        if items is None:
            continue
        if not isinstance(items, list) or not all(isinstance(item, Mapping) and item.get("name") for item in items):
            yield f"{path}: expected a list of mappings, each with a name"
        elif any(item["name"] == VOLUME for item in items):
            yield f"{path}: {VOLUME!r} is the volume that is erased; choose another name"


def _weakenings(spec: Mapping[str, Any]) -> Iterator[str]:
    """Report every field that gives the scrubber more than it has without the template."""
    rules = _rules()
    for where, path, part in _parts(spec):
        for key, value in part.items():
            full = f"{where}.{key}"
            ours = key in rules["ours"].get(where, ()) or full in rules["elsewhere"]
            if ours or key in rules["harmless"][where] or key in ("containers", "securityContext"):
                continue
            if full not in rules["safe"]:
                yield from _risks(full, f"{path}.{key}", value)
            elif value != rules["safe"][full]:
                yield f"{path}.{key}: is {value!r}, which weakens the sandbox"


def _risks(field: str, path: str, value: Any) -> Iterator[str]:
    """Report what a field of many values, or one that is not known here, gives the scrubber."""
    given = value if isinstance(value, Mapping) else {}
    if field == "securityContext.capabilities":
        if extra := sorted({*map(str, given.get("add") or ())} - {*ADDED_CAPABILITIES}):
            yield f"{path}.add: {', '.join(extra)} weakens the sandbox"
        if "drop" in given and given["drop"] != ["ALL"]:
            yield f"{path}.drop: is {given['drop']!r}, which weakens the sandbox; ALL are dropped"
    elif field == "securityContext.seccompProfile":
        if given.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{path}: is {value!r}, which weakens the sandbox"
    elif field == "container.env":
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if not isinstance(item, Mapping) or "valueFrom" in item:
                yield f"{path}[{index}]: takes its value from elsewhere, which may be a secret"
    else:
        yield f"{path}: reaches beyond the sandbox"


def _parts(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (kind, path, fields) of the spec, its container and the security contexts of both."""
    yield "spec", "spec", spec
    yield "securityContext", "spec.securityContext", _mapping(spec, "securityContext")
    for container in spec.get("containers") or ():
        yield "container", "spec.containers[0]", container
        yield "securityContext", "spec.containers[0].securityContext", _mapping(container, "securityContext")


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


_Fits = Callable[[Any], bool]
_INTEGER: Final[tuple[str, _Fits]] = "a whole number, 1 to 1000", lambda it: type(it) is int and 1 <= it <= 1000
_NUMBER: Final[tuple[str, _Fits]] = (
    "a number above 0, at most 1e9",
    lambda it: type(it) in (int, float) and 0 < it <= 1e9,
)
_BOOLEAN: Final[tuple[str, _Fits]] = "true or false", lambda it: isinstance(it, bool)
"""What a value must be, for messages, and whether one is that."""


class _Section:
    """A mapping of the file that has no other keys than `known`."""

    def __init__(self, content: object, place: str, known: Iterable[str], *, ends: str = ".") -> None:
        """place: where it is in the file, for messages. ends: what stands between place and key."""
        self.place = place
        self._ends = ends
        self.content: Mapping[str, Any] = content if isinstance(content, Mapping) else {}
        if not isinstance(content, Mapping):
            raise _wrong(place, content, "a mapping (key: value)")
        for key in content:
            if key not in known:
                raise ConfigurationError(f"{self.at(str(key))}: unknown key{nearest(str(key), known)}")

    def at(self, key: str) -> str:
        return f"{self.place}{self._ends}{key}"

    def text(self, key: str, *, required: bool = False) -> str:
        """Return the text; "" for none."""
        expected = "text" if self.content.get(key) == "" else "text; quote it"
        value: str | None = self.value(key, expected, lambda it: isinstance(it, str) and 0 < len(it) <= 1024)
        if value is None and required:
            raise ConfigurationError(f"{self.at(key)}: is required")
        return value or ""

    def value(self, key: str, expected: str, fits: _Fits) -> Any:
        """Return what stands there if it fits; None for nothing."""
        value = self.content.get(key)
        if value is not None and not fits(value):
            raise _wrong(self.at(key), value, expected)
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.content.get(key)
        return {} if value is None else _texts_as_keys(self.at(key), value)

    def mappings(self, key: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(_texts_as_keys(place, item) for place, item in self._items(key))

    def texts(self, key: str) -> tuple[str, ...]:
        for place, item in self._items(key):
            if not isinstance(item, str):
                raise _wrong(place, item, "text; quote it")
        return tuple(item for _, item in self._items(key))

    def sections(self, key: str, known: Iterable[str]) -> Iterator[_Section]:
        return (_Section(item, place, known) for place, item in self._items(key))

    def _items(self, key: str) -> list[tuple[str, Any]]:
        items = self.value(key, "a list (- item)", lambda it: isinstance(it, list)) or ()
        return [(self.at(f"{key}[{index}]"), item) for index, item in enumerate(items)]


def _texts_as_keys(place: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(place, value, "a mapping (key: value)")
    for name in value:
        if not isinstance(name, str):
            raise _wrong(f"{place}.{name}", name, "text as a key; quote it")
    return value


def _wrong(place: str, value: object, expected: str) -> ConfigurationError:
    # Options may hold a secret.
    shown = type(value).__name__ if place.endswith(".options") else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return ConfigurationError(f"{place}: is {shown}, expected {expected}")


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

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        # Longer than any number that is asked for: whoever wants one says so, with the key. Python cannot show it.
        return node.value if len(node.value) > 64 else super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
