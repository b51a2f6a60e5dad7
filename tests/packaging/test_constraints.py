"""The constraints files install on every Python and processor: they hold the hashes of all files of each version."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from tools.constraints import SOURCES, hashes, problems

REPOSITORY = Path(__file__).resolve().parents[2]
LEAST_OF_COMPILED = 8
"""A package with C or Rust has wheels for two processors, glibc and musl, macOS and Windows, most for each Python."""


def pins(name: str) -> dict[str, int]:
    return hashes((REPOSITORY / name).read_text("utf-8"))


def is_compiled(distribution: importlib.metadata.Distribution) -> bool:
    """Tell whether the installed wheel is for one platform."""
    tags = [line for line in (distribution.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    return bool(tags) and not any(tag.endswith("-any") for tag in tags)


@pytest.mark.parametrize("name", SOURCES)
def test_every_pin_has_the_hashes_of_a_wheel_and_of_a_source_distribution(name: str) -> None:
    assert problems({}, pins(name)) == []


@pytest.mark.parametrize("name", SOURCES)
def test_a_compiled_package_has_the_hashes_of_its_wheels_for_every_python_and_processor(name: str) -> None:
    compiled = {
        canonicalize_name(each.metadata["Name"]) for each in importlib.metadata.distributions() if is_compiled(each)
    }
    assert {"cffi", "cryptography", "uvloop"} <= compiled
    few = {pin: count for pin, count in pins(name).items() if count < LEAST_OF_COMPILED}
    assert {pin: count for pin, count in few.items() if pin.split("==")[0] in compiled} == {}


def test_what_ci_runs_of_others_is_named_by_the_hash_of_a_commit() -> None:
    """A tag can be moved to another commit by whoever takes the repository."""
    lines = [
        line.strip()
        for file in (REPOSITORY / ".github").rglob("*.yml")
        for line in file.read_text("utf-8").splitlines()
        if "uses:" in line
    ]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"- uses: [-\w./]+@[0-9a-f]{40} # v[0-9.]+", line)] == []


def test_a_file_whose_packages_came_from_one_machine_is_refused() -> None:
    before = {"cffi==2.1.1": 100, "rich==15.0.0": 2, "responses==0.26.2": 2}
    assert problems(before, {"cffi==2.1.1": 1, "rich==15.0.0": 2, "responses==0.26.3": 1}) == [
        "cffi==2.1.1 has 1 hashes, and needs 2 or more",
        "responses==0.26.3 has 1 hashes, and needs 2 or more",
        "cffi==2.1.1 has 1 hashes and had 100",
    ]
    assert problems(before, {"cffi==2.1.2": 101, "rich==15.0.0": 2}) == []
