"""Backends that were built for commit 3487d747 pass `volplane check` with today's core, as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.packaging.clean_environment import CleanEnvironment, borrow, build_wheels, wheels_of

from volplane_testing.conformance import RULES

REPOSITORY = Path(__file__).resolve().parents[2]
FORMER = "3487d747"
SOURCES = ("core", "embedded/src", "testing/src")
CHECKS = {
    "loopfiles": ("-o", "node_name=node-a", "-o", "devices=false", "--capacity", "4Mi"),
    "folders": (),
    "my_disks": (),
}
"""Backend -> options of its driver besides `root`."""

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return wheels of the examples and of what `volplane new-backend` wrote, as that commit has them."""
    tree = tmp_path_factory.mktemp("former")
    archive = subprocess.run(["git", "-C", str(REPOSITORY), "archive", FORMER], capture_output=True, check=False)
    assert archive.returncode == 0, f"this checkout has no commit {FORMER}; make it whole: git fetch --unshallow"
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / source) for source in SOURCES)}
    command = [sys.executable, "-m", "volplane", "new-backend", "my_disks"]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    directories = (tree / "examples" / "loopfiles", tree / "examples" / "folders", tree / "volplane-my-disks")
    return build_wheels(tree, *directories)


LATER = {"a-size-out-of-range-is-said-to-be"}
"""Rules that no wheel of that release can keep: the error that they ask for came after it."""


@pytest.fixture(scope="module")
def clean(former: list[Path], tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Install today's core beside them."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean") / "venv")
    borrow(environment.site, "volplane", "pytest")
    environment.install(*wheels_of(REPOSITORY, REPOSITORY / "embedded", REPOSITORY / "testing"), *former)
    return environment


@pytest.mark.parametrize("backend", CHECKS)
def test_a_wheel_of_the_release_before_passes_the_check(backend: str, clean: CleanEnvironment, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    known = [part for rule in RULES if rule.name not in LATER for part in ("--rule", rule.name)]
    judged = clean.run("volplane", "check", backend, "-o", f"root={root}", *CHECKS[backend], *known, cwd=tmp_path)
    assert re.fullmatch(r"\d+ kept(, \d+ (not applicable|waived))*\n", judged)
