"""A backend of a third party: built as a wheel, installed beside the core's wheel in a clean environment, tested there."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "loopfiles"


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


class CleanEnvironment:
    """A virtual environment that has nothing but what is put into it."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        self._directory = directory
        [self._site] = directory.glob("lib/python*/site-packages")

    @property
    def site(self) -> Path:
        return self._site

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self._directory / "bin" / "python"), "install", "--quiet"]
        environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True, env=environment)

    def run(self, program: str, *arguments: str, cwd: Path) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
        ran = subprocess.run(
            [str(self._directory / "bin" / program), *arguments],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


def wheel_of(directory: Path, into: Path) -> Path:
    script = "import sys; from hatchling.build import build_wheel as build; print(build(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", script, str(into)], cwd=directory, check=True, capture_output=True, text=True
    )
    return into / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """The core's wheel and the example's, and what they need."""
    wheels = tmp_path_factory.mktemp("wheels")
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean") / "venv")
    borrow(environment.site, "volplane", "pytest")
    for directory in (REPOSITORY, EXAMPLE):
        environment.install(wheel_of(directory, wheels))
    return environment


def test_the_environment_has_wheels_and_no_checkout(clean: CleanEnvironment, tmp_path: Path) -> None:
    code = "import volplane, volplane_loopfiles; print(volplane.__file__); print(volplane_loopfiles.__file__)"
    core, example = clean.run("python", "-c", code, cwd=tmp_path).split()
    assert Path(core) == clean.site / "volplane" / "__init__.py"
    assert Path(example) == clean.site / "volplane_loopfiles" / "__init__.py"
    assert str(REPOSITORY) not in clean.run("python", "-c", "import sys; print(sys.path)", cwd=tmp_path)


def test_it_is_found_and_described(clean: CleanEnvironment, tmp_path: Path) -> None:
    (tmp_path / "volplane.yaml").write_text(
        "drivers: [{name: loopfiles.example.com, backend: loopfiles, options: {root: /srv/images}}]"
    )
    shown = clean.run("volplane", "plugins", "--config", "volplane.yaml", cwd=tmp_path)
    assert re.search(r"backend +loopfiles +volplane-loopfiles 0\.1\.0 +ok +loopfiles\.example\.com", shown)
    assert "fsType: one of ext4, xfs [default ext4]" in clean.run(
        "volplane", "plugins", "show", "loopfiles", cwd=tmp_path
    )


def test_it_passes_its_own_tests_there(clean: CleanEnvironment, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for file in (EXAMPLE / "tests").glob("*.py"):
        (tests / file.name).write_text(file.read_text("utf-8"))
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--import-mode=importlib"]
    told = clean.run("python", "-m", "pytest", *options, "tests", cwd=tmp_path)
    assert re.search(r"\d{2,} passed", told)


def test_it_is_judged_from_the_command_line(clean: CleanEnvironment, tmp_path: Path) -> None:
    where = ["-o", f"root={tmp_path}", "-o", "node_name=node-a", "-o", "devices=false", "--capacity", "4Mi"]
    rules = ["delete-of-what-is-gone-is-done", "a-crash-in-the-middle-of-provision-is-made-whole"]
    chosen = [part for rule in rules for part in ("--rule", rule)]
    assert clean.run("volplane", "check", "loopfiles", *where, *chosen, cwd=tmp_path) == "2 kept\n"


def test_the_wheel_can_write_a_new_backend(clean: CleanEnvironment, tmp_path: Path) -> None:
    clean.run("volplane", "new-backend", "my_disks", cwd=tmp_path)
    made = tmp_path / "volplane-my-disks"
    assert (made / "src" / "volplane_my_disks" / "py.typed").is_file()
    (tmp_path / "root").mkdir()
    judged = clean.run(
        "volplane", "check", "volplane_my_disks:MyDisksBackend", "-o", f"root={tmp_path}/root", cwd=made / "src"
    )
    assert re.fullmatch(r"\d{2} kept, \d+ not applicable\n", judged)
