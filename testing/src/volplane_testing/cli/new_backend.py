"""`volplane new-backend`: a complete distribution with a backend that works, to be made one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Final

import typer

from volplane._messages import why_unusable
from volplane.cli.framework.console import Console
from volplane.drivers.discovery import InstalledPlugins
from volplane.errors import ConfigurationError

__all__ = ["distribution_files", "register"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST: Final = 40
_PLACES: Final[Mapping[str, str]] = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    ".gitignore": "gitignore.tmpl",
    ".github/workflows/test.yml": "workflow.yml.tmpl",
    "src/%%module%%/__init__.py": "init.py.tmpl",
    "src/%%module%%/backend.py": "backend.py.tmpl",
    "src/%%module%%/py.typed": "",
    "tests/test_conformance.py": "test_conformance.py.tmpl",
    "tests/test_cluster.py": "test_cluster.py.tmpl",
    "tests/test_simulation.py": "test_simulation.py.tmpl",
}
"""Path in the distribution -> template; "" = an empty file."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new-backend")(new_backend)


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What configuration files call it.", show_default=False)],
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="Where to write it; default: ./volplane-NAME.", readable=False),
    ] = None,
) -> None:
    """Write a new backend: pyproject, entry point, code, conformance tests, CI. It passes its tests at once.

    The directory must be absent or empty.
    """
    console = Console()
    files = distribution_files(name)
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
    console.line("  pytest")


def _write(place: Path, files: Mapping[str, str]) -> None:
    """Write the files. Raises OSError, and ConfigurationError for a directory that holds something."""
    if place.is_dir() and any(place.iterdir()):
        raise ConfigurationError(f"{place} is not empty; name another --directory, or remove what is in it")
    for path, text in files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")


def distribution_files(name: str) -> dict[str, str]:
    """Return the files of a new distribution, by path. Raises ConfigurationError for a name that cannot be one."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigurationError(
            f"backend name {name!r} must be lower-case letters, digits and single '_' or '-', from a letter on, "
            f"at most {_LONGEST} characters, as in my_disks"
        )
    words = _words(name)
    return {_filled(path, words): _filled(_template(file), words) for path, file in _PLACES.items()}


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


def _template(file: str) -> str:
    if not file:
        return ""
    return (resources.files("volplane_testing.cli") / "templates" / file).read_text("utf-8")


def _filled(text: str, words: Mapping[str, str]) -> str:
    """`%%word%%` is replaced; braces and dollars belong to what is written."""
    return re.sub(r"%%(\w+)%%", lambda match: words[match[1]], text)
