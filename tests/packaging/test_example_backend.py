"""A backend of a third party: built as a wheel, installed beside the core's wheel in a clean environment, tested
there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.packaging.clean_environment import CleanEnvironment, borrow, wheels_of

pytestmark = pytest.mark.more
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "loopfiles"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """The wheels of the core, the testing kit and the example, and what they need."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean") / "venv")
    borrow(environment.site, "volplane", "pytest")
    directories = (REPOSITORY, REPOSITORY / "embedded", REPOSITORY / "testing", EXAMPLE)
    environment.install(*wheels_of(*directories))
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
