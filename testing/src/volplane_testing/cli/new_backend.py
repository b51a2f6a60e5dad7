"""`volplane new-backend`: a complete distribution with a backend that works, to be made one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Final

import typer

from volplane._messages import why_unusable
from volplane.cli.framework.console import Console
from volplane.drivers.discovery import InstalledPlugins
from volplane.errors import ConfigurationError

__all__ = ["Kind", "distribution_files", "register"]


class Kind(StrEnum):
    """What the storage is like, of which a backend is written."""

    DIRECTORY = "directory"
    HTTP = "http"
    CLOUD = "cloud"


_STORAGE: Final[Mapping[Kind, str]] = {
    Kind.DIRECTORY: "volumes as folders",
    Kind.HTTP: "volumes of an array that is driven over HTTP",
    Kind.CLOUD: "disks of a cloud",
}

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST: Final = 40
_PLACES: Final[Mapping[str, str]] = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "%%kind%%/README.md.tmpl",
    "volplane.yaml": "%%kind%%/volplane.yaml.tmpl",
    "dev.yaml": "dev.yaml.tmpl",
    ".gitignore": "gitignore.tmpl",
    ".github/workflows/test.yml": "workflow.yml.tmpl",
    "src/%%module%%/__init__.py": "init.py.tmpl",
    "src/%%module%%/backend.py": "%%kind%%/backend.py.tmpl",
    "src/%%module%%/fake.py": "%%kind%%/fake.py.tmpl",
    "src/%%module%%/testing.py": "%%kind%%/testing.py.tmpl",
    "src/%%module%%/py.typed": "",
    "tests/test_conformance.py": "test_conformance.py.tmpl",
    "tests/test_cluster.py": "%%kind%%/test_cluster.py.tmpl",
    "tests/test_simulation.py": "test_simulation.py.tmpl",
}
"""Path in the distribution -> template; "" = an empty file. A kind without the template has no such file."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new-backend")(new_backend)


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What configuration files call it.", show_default=False)],
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind",
            help="directory: volumes are directories; http: an array with a REST API; cloud: the same,"
            " slow and with limits, by the kit for clouds. The last two attach to nodes.",
        ),
    ] = Kind.DIRECTORY,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="Where to write it; default: ./volplane-NAME.", readable=False),
    ] = None,
) -> None:
    """Write a new backend: pyproject, entry point, code, a storage for tests, conformance tests, CI, and what
    `volplane dev` needs. It passes its tests at once.

    The directory must be absent or empty.
    """
    console = Console()
    files = distribution_files(name, kind)
    installed = InstalledPlugins()
    for taken in installed.names("backend"):
        # The distribution and the module of my-disks and my_disks are the same.
        if taken.replace("-", "_") == name.replace("-", "_"):
            found = installed.entries.get(("backend", taken))
            whose = f" by {found.distribution}" if found is not None else ""
            raise ConfigurationError(f"a backend {taken!r} is installed already{whose}; take another name")
    place = directory if directory is not None else Path(f"volplane-{name.replace('_', '-')}")
    try:
        _write(place, files)
    except OSError as error:
        raise ConfigurationError(f"--directory {place} cannot be written: {why_unusable(error)}") from error
    for path in files:
        console.line(str(place / path))
    console.note("next:")
    console.line(f"  cd {place}")
    console.line('  pip install -e ".[dev]"')
    console.line(f"  volplane check {name}")
    console.line("  pytest")
    console.note("README.md says how a pod of `volplane dev` gets a volume of it.")


def _write(place: Path, files: Mapping[str, str]) -> None:
    """Write the files. Raises OSError, and ConfigurationError for a directory that holds something."""
    if place.is_dir() and any(place.iterdir()):
        raise ConfigurationError(f"{place} is not empty; name another --directory, or remove what is in it")
    for path, text in files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")


def distribution_files(name: str, kind: Kind = Kind.DIRECTORY) -> dict[str, str]:
    """Return the files of a new distribution, by path. Raises ConfigurationError for a name that cannot be one."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigurationError(
            f"backend name {name!r} must be lower-case letters, digits and single '_' or '-', from a letter on, "
            f"at most {_LONGEST} characters, as in my_disks"
        )
    words = {**_words(name), "kind": kind.value, "storage": _STORAGE[kind]}
    places = {path: _filled(file, words) for path, file in _PLACES.items()}
    texts = {path: _template(file) for path, file in places.items()}
    return {_filled(path, words): _filled(text, words) for path, text in texts.items() if text is not None}


def _words(name: str) -> dict[str, str]:
    title = "".join(part.capitalize() for part in re.split("[-_]", name))
    major, minor = (int(part) for part in metadata.version("volplane").split(".")[:2])
    following = f"{major}.{minor + 1}" if major == 0 else f"{major + 1}"
    return {
        "name": name,
        "distribution": f"volplane-{name.replace('_', '-')}",
        "module": f"volplane_{name.replace('-', '_')}",
        "class": f"{title}Backend",
        "title": title,
        "host": name.replace("_", "-"),
        "version": f"{major}.{minor}",
        "next_version": following,
    }


def _template(file: str) -> str | None:
    """Return the text; None if there is no such template."""
    if not file:
        return ""
    found = resources.files("volplane_testing.cli") / "templates" / file
    return found.read_text("utf-8") if found.is_file() else None


def _filled(text: str, words: Mapping[str, str]) -> str:
    """`%%word%%` is replaced; braces and dollars belong to what is written."""
    return re.sub(r"%%(\w+)%%", lambda match: words[match[1]], text)
