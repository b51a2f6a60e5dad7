"""A clean virtual environment without a network: wheels are built here, what they need is borrowed from this one."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["CleanEnvironment", "borrow", "build_wheels", "wheels_of"]

_wheels = TemporaryDirectory()
_built: dict[Path, Path] = {}
_BUILD = """
import os, sys
from hatchling.build import build_wheel
for directory in sys.argv[2:]:
    os.chdir(directory)
    print(build_wheel(sys.argv[1]))
"""


def needed(*names: str) -> Iterator[importlib.metadata.Distribution]:
    """These distributions and all that they need, as they are installed here; without our own."""
    seen: set[str] = set()
    queue = list(names)
    while queue:
        name = canonicalize_name(queue.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
        if not name.startswith("volplane"):
            yield distribution


def borrow(site: Path, *names: str) -> None:
    """Link what these distributions consist of into `site`, so that no network is needed."""
    for distribution in needed(*names):
        tops = {Path(str(file)).parts[0] for file in distribution.files or ()}
        for top in sorted(tops - {"..", "bin", "__pycache__"}):
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source, target_is_directory=source.is_dir())


def environment() -> dict[str, str]:
    """That of this process, without what leads back to its packages."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}


class CleanEnvironment:
    """A virtual environment that has nothing but what is put into it."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        self._directory = directory
        [self._site] = directory.glob("lib/python*/site-packages")

    @property
    def site(self) -> Path:
        return self._site

    def program(self, name: str) -> str:
        """Path of a program in it."""
        return str(self._directory / "bin" / name)

    def install(self, *wheels: Path, compiled: bool = False) -> None:
        """With pip, and with nothing else than these wheels. compiled: now, and not each module once it is used."""
        pip = [sys.executable, "-m", "pip", "--python", str(self._directory / "bin" / "python"), "install", "--quiet"]
        quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        options = ("--no-index", "--no-deps", "--compile" if compiled else "--no-compile")
        subprocess.run([*pip, *options, *map(str, wheels)], check=True, env=quiet)

    def run(self, program: str, *arguments: str, cwd: Path) -> str:
        """What a command prints; it must succeed."""
        ran = self.tried(program, *arguments, cwd=cwd)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def tried(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """How a command ends."""
        return subprocess.run(
            [self.program(program), *arguments],
            cwd=cwd,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def build_wheels(out: Path, *directories: Path) -> list[Path]:
    """Build wheels into `out` as build front ends do."""
    command = [sys.executable, "-c", _BUILD, str(out), *map(str, directories)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    return [out / line for line in built.stdout.splitlines() if line.endswith(".whl")]


def wheels_of(*directories: Path) -> list[Path]:
    """Return the wheels of our distributions, each built once while the tests run."""
    missing = [directory for directory in directories if directory not in _built]
    if missing:
        _built.update(zip(missing, build_wheels(Path(_wheels.name), *missing), strict=True))
    return [_built[directory] for directory in directories]
