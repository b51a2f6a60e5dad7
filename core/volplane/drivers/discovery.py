"""Finds the installed backends and extensions, and imports them.

Entry points are read from metadata; a module is imported only when a configured driver needs it. It is imported in a
child process with a deadline first, so that a module that hangs, exits or crashes does not affect this process.
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib
import importlib.metadata
import json
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from volplane._messages import nearest, one_line
from volplane.drivers.contract import Plugin
from volplane.errors import PluginError

log = logging.getLogger(__name__)

GROUPS: Final[Mapping[str, str]] = {"backend": "volplane.backends", "extension": "volplane.extensions"}
"""Kind of a plugin -> its entry point group."""
IMPORT_DEADLINE: Final = 30.0

_VALUE: Final = re.compile(r"(?P<module>[\w.]+)\s*:\s*(?P<attribute>[\w.]+)\s*(?:\[.*\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An entry point of an installed distribution."""

    kind: str
    name: str
    value: str
    """Its object, as "module:Class"."""
    distribution: str
    """Name and version."""
    error: str = ""
    """Why it cannot be used, or ""."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.distribution})"


class InstalledPlugins:
    """The plugins whose distributions are installed, each imported at most once."""

    deadline: float = IMPORT_DEADLINE
    """Seconds that an import may take in the child process."""

    def __init__(self) -> None:
        self.entries = {(entry.kind, entry.name): entry for kind in GROUPS for entry in installed(kind)}
        """(kind, name) -> the entry point, as the metadata has it."""
        self._locks = {key: threading.Lock() for key in self.entries}
        self._loaded: dict[tuple[str, str], Plugin | PluginError] = {}

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the sorted names of all plugins of a kind: "backend" or "extension"."""
        return tuple(sorted(name for k, name in self.entries if k == kind))

    def load(self, kind: str, name: str) -> Plugin:
        """Import one plugin. May block for `deadline` seconds, in any thread. Raises PluginError."""
        key = (kind, name)
        if key not in self.entries:
            raise PluginError(f"{kind} {name!r} is not installed{nearest(name, self.names(kind))}")
        with self._locks[key]:
            if key not in self._loaded:
                try:
                    self._loaded[key] = _import(self.entries[key], self.deadline)
                except PluginError as error:
                    self._loaded[key] = error
            loaded = self._loaded[key]
        if isinstance(loaded, PluginError):
            raise PluginError(str(loaded))
        return loaded


def installed(kind: str) -> tuple[Installed, ...]:
    """Return all entry points of a kind, by name. A name that is claimed twice has an error that names both."""
    claims: dict[str, list[Installed]] = {}
    for entry in _entries(kind):
        claims.setdefault(entry.name, []).append(entry)
    for name, (first, *others) in claims.items():
        if others:
            who = " and ".join(f"{each.distribution} ({each.value})" for each in claims[name])
            sources = ", ".join(dict.fromkeys(each.distribution for each in claims[name]))
            error = f"{kind} {name} is claimed by {who}; uninstall all but one"
            claims[name] = [dataclasses.replace(first, distribution=sources, error=error)]
    return tuple(entries[0] for _, entries in sorted(claims.items()))


def _entries(kind: str) -> Iterator[Installed]:
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            points = distribution.entry_points.select(group=GROUPS[kind])
        except (OSError, TypeError, ValueError) as error:
            log.warning("entry points of %s cannot be read: %s", " ".join(_name_and_version(distribution)), error)
            continue
        if not points:
            continue
        name, version = _name_and_version(distribution)
        known = re.sub(r"[-_.]+", "-", name).lower()
        if known in seen:
            continue  # the same distribution stands earlier on sys.path and shadows this one, as for imports
        seen.add(known)
        for point in points:
            yield Installed(kind=kind, name=point.name, value=point.value, distribution=f"{name} {version}")


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    metadata: Any = distribution.metadata or {}  # Ten times the cost of the entry points: asked of few.
    return metadata.get("Name") or "a distribution without a name", metadata.get("Version") or "of unknown version"


# --- importing --------------------------------------------------------------------------------------------------


def _import(entry: Installed, deadline: float) -> Plugin:
    if entry.error:
        raise PluginError(entry.error)
    if (match := _VALUE.fullmatch(entry.value)) is None:
        raise PluginError(f"{entry}: its entry point is {entry.value!r}, expected 'module:Class'")
    module, attribute = match["module"], match["attribute"]
    if module not in sys.modules:
        _try_import(entry, module, deadline)
    try:
        factory: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        log.debug("%s cannot be imported", entry, exc_info=True)
        name = getattr(error, "name", None)
        raise PluginError(_import_failed(entry, module, type(error).__name__, str(error), str(name))) from None
    for part in attribute.split("."):
        factory = getattr(factory, part, None)
    if factory is None:
        raise PluginError(f"{entry}: module {module} has no {attribute}, which its entry point names")
    if isinstance(factory, types.ModuleType) or not callable(factory):
        raise PluginError(f"{entry}: {entry.value} is no class and cannot be called with options")
    return Plugin(kind=entry.kind, name=entry.name, factory=factory, distribution=entry.distribution)


def _import_failed(entry: Installed, module: str, error: str, text: str, missing: str) -> str:
    newer = missing == "volplane" or missing.startswith("volplane.")
    hint = "; it seems to need another version of volplane" if newer else ""
    return f"{entry}: importing {module} raised {error}: {one_line(text)}{hint}"


_CHILD: Final = """
import importlib, json, os, sys
report = os.fdopen(os.dup(1), "w")
nothing = os.open(os.devnull, os.O_RDWR)
os.dup2(nothing, 1)
os.dup2(nothing, 2)
sys.path[:], module, token = json.loads(sys.argv.pop())
try:
    importlib.import_module(module)
    answer = {}
except BaseException as error:
    answer = {"error": type(error).__name__, "text": str(error)[:2000], "missing": str(getattr(error, "name", None))}
report.write(chr(10) + json.dumps({**answer, "token": token}))
report.flush()
os._exit(0)
"""


def _try_import(entry: Installed, module: str, deadline: float) -> None:
    """Import in a child process. Do nothing where there is no interpreter to start (embedded Python)."""
    if not sys.executable:
        return
    token = secrets.token_hex(8)
    argument = json.dumps([sys.path, module, token])
    with tempfile.TemporaryFile() as report:
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", _CHILD, argument],
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = partial(_end, child)
        atexit.register(end)  # This process may end meanwhile, and with it this thread.
        try:
            status = child.wait(deadline)
        except subprocess.TimeoutExpired:
            raise PluginError(f"{entry}: importing {module} did not end within {deadline:g} s") from None
        finally:
            end()
            atexit.unregister(end)
        report.seek(0)
        last_line = report.read().rpartition(b"\n")[2]
    # A module may write to any open descriptor: only a line with our token is the child's report.
    try:
        answer = msgspec.json.decode(last_line, type=_Answer)
    except (msgspec.MsgspecError, UnicodeError):
        answer = _Answer("")
    if answer.token != token:
        how = f"killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
        raise PluginError(f"{entry}: importing {module} crashes: the process was {how}")
    if answer.error:
        raise PluginError(_import_failed(entry, module, answer.error, answer.text, answer.missing))


class _Answer(msgspec.Struct):
    token: str
    """The token that we gave it. Text that the module itself has written lacks it."""
    error: str = ""
    text: str = ""
    missing: str = ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's whole process group: an import may have started processes."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        log.debug("import check %d has ended", child.pid)
    child.wait()
