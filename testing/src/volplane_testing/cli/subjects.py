"""The backend to test and its storage: the options that `volplane check` and `volplane sim` share."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from volplane._messages import nearest, why_unusable
from volplane.cli.framework.options import duration_option
from volplane.drivers.discovery import IMPORT_DEADLINE, InstalledPlugins
from volplane.errors import ConfigurationError, PluginError, VolplaneError
from volplane.kube import quantity
from volplane.requests import NodeIdentity
from volplane_testing.conformance import Subject
from volplane_testing.conformance.crash_injection import call_in_thread
from volplane_testing.conformance.subject import MakeSubject, opened
from volplane_testing.conformance.violations import HungCall

GROUP: Final = "volplane.fakes"
"""Entry points: name of a backend -> the module that plays its storage, whose function `subject` gives a Subject."""

__all__ = [
    "Capacity",
    "Chosen",
    "Nodes",
    "Options",
    "Parameters",
    "Patience",
    "Segments",
    "Unreachable",
    "changes_of",
    "options_of",
]

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--options", "-o", metavar="FILE|K=V", help="Options of the driver: a YAML file, or one key. Repeatable."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameters", "-p", metavar="K=V", help="Class parameters to make assets with. Repeatable."),
]
Capacity = Annotated[
    str | None, typer.Option("--capacity", metavar="SIZE", help="Size of an asset, default 1Gi; a dozen must fit.")
]
Segments = Annotated[
    list[str] | None,
    typer.Option("--segment", metavar="K=V[,K=V]", help="A place in which assets can be made. Repeatable."),
]
Unreachable = Annotated[
    list[str] | None,
    typer.Option(
        "--unreachable",
        metavar="OPTION=VALUE",
        help="An option with which the storage cannot be reached, such as an endpoint at which nobody listens: no hook"
        " may answer then as if nothing were there. Repeatable.",
    ),
]
Patience = Annotated[
    float | None,
    duration_option(
        "--patience",
        says="How long one call of a hook may take, in real time; default that of the subject, 60s. One that takes"
        " longer is a violation, and the last.",
        minimum=0.01,
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME[=INSTANCE]", help="A node to attach to; name two. Repeatable."),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A backend by name. options: of the driver; changes: of other fields of its subject. Can be sent to other
    processes.

    Without options, an installed backend works on the fake storage that its distribution brings, if it brings one.
    """

    backend: str
    options: Mapping[str, object]
    changes: Mapping[str, Any]

    def subject(self) -> Subject | MakeSubject:
        """A subject, or what gives one with a storage of its own each time. Raises ConfigurationError or
        PluginError.
        """
        if ":" in self.backend:
            return self._of(_imported(self.backend))
        plugin = InstalledPlugins().load("backend", self.backend)
        fake = self.fake
        return self._of(_imported(fake)) if fake else self._changed(Subject(plugin.factory, real_crashes=True))

    @property
    def fake(self) -> str:
        """MODULE:NAME of what makes the fake storage that is used; empty if there is none, or it was not asked for."""
        if ":" in self.backend or self.options:
            return ""
        found = importlib.metadata.entry_points(group=GROUP, name=self.backend)
        return next((f"{point.value}:subject" for point in found), "")

    @property
    def remark(self) -> str:
        """What the storage is, where no option says it; "" where one does."""
        if self.fake:
            return f"{self.backend} is judged on its storage for tests, {self.fake}; --options name another"
        if self.options or ":" in self.backend:
            return ""
        return f"{self.backend} is judged without options; --options FILE or --options KEY=VALUE gives it some"

    def _of(self, found: Any) -> Subject | MakeSubject:
        if isinstance(found, type):
            return self._changed(Subject(found, real_crashes=True))
        if isinstance(found, Subject):
            return self._changed(found)
        if not callable(found):
            raise ConfigurationError(self._not_a_subject(found))

        @contextmanager
        def made() -> Iterator[Subject]:
            given = _within_the_deadline(found, f"{self.backend}: making the subject")
            if not isinstance(given, Subject | AbstractContextManager):
                raise ConfigurationError(self._not_a_subject(given))
            with opened(lambda: given) as subject:
                if not isinstance(subject, Subject):
                    raise ConfigurationError(self._not_a_subject(subject))
                yield self._changed(subject)

        return made

    def _changed(self, subject: Subject) -> Subject:
        return replace(subject, options={**subject.options, **self.options}, **self.changes)

    def _not_a_subject(self, found: object) -> str:
        return f"{self.backend} gives {type(found).__name__}, expected a backend class or a Subject"


def _imported(text: str) -> Any:
    """Return the object of MODULE:NAME, also from modules of the working directory."""
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = _within_the_deadline(lambda: importlib.import_module(module), f"{text}: importing {module}")
    except VolplaneError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{text}: importing {module} raised {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{text}: {module} has no {name}{nearest(part, _public(found))}")
        found = getattr(found, part)
    return found


def _within_the_deadline(make: Callable[[], object], what: str) -> object:
    """Call in a thread, which is left behind if it does not return. PluginError if it is late."""
    try:
        return call_in_thread(make, IMPORT_DEADLINE, what)
    except HungCall as hang:
        raise PluginError(str(hang)) from None


def _public(found: object) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


# --- options ----------------------------------------------------------------------------------------------------


def options_of(texts: Iterable[str] | None) -> dict[str, object]:
    """Return the values of the given `Options`. Raises ConfigurationError."""
    options: dict[str, object] = {}
    for text in texts or ():
        if "=" in text and not Path(text).is_file():
            key, value = _pair(text, "--options")
            options[key] = value
        else:
            options |= _option_file(Path(text))
    return options


def changes_of(
    *,
    parameters: list[str] | None = None,
    segment: list[str] | None = None,
    node: list[str] | None = None,
    capacity: str | None = None,
    unreachable: list[str] | None = None,
    patience: float | None = None,
) -> dict[str, Any]:
    """Fields of a `Subject` that were given. Raises ConfigurationError."""
    changes: dict[str, Any] = {}
    if unreachable:
        changes["unreachable"] = dict(_pair(text, "--unreachable") for text in unreachable)
    if patience is not None:
        changes["patience"] = patience
    if parameters:
        changes["parameters"] = dict(_pair(text, "--parameters") for text in parameters)
    if segment:
        changes["segments"] = tuple(dict(_pair(part, "--segment") for part in each.split(",")) for each in segment)
    if node:
        changes["nodes"] = tuple(_node(text) for text in node)
    if capacity is not None:
        changes["capacity_bytes"] = _bytes(capacity)
    return changes


def _option_file(path: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"--options: {path} cannot be read: {why_unusable(error)}; or is it meant as K=V?"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--options: {path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"--options: {path} holds {type(content).__name__}, expected options as key: value")
    return {str(key): value for key, value in content.items()}


def _pair(text: str, where: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"{where}: {text!r} must be K=V")
    return key.strip(), value


def _node(text: str) -> NodeIdentity:
    name, _, instance = text.partition("=")
    return NodeIdentity(name=name, instance_id=instance)


def _bytes(text: str) -> int:
    try:
        size = quantity.parse(text).as_bytes()
    except ValueError as error:
        raise ConfigurationError(f"--capacity: {text!r} must be a size such as 1Gi") from error
    if size < 1:
        raise ConfigurationError(f"--capacity: {text!r} must be at least 1 byte")
    return size
