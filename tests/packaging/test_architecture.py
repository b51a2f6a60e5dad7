"""The walk of a claim names functions that run and every file that runs; the table of layers is the checked one."""

import re
import tomllib
from pathlib import Path

import pytest
from tools.measure.walk import Walk, walk

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "explanation" / "architecture.md"
WALK = (REPOSITORY / "docs" / "explanation" / "claim-walk.md").read_text("utf-8")
STOPS = re.findall(r"^- `([\w/]+\.py)` ((?:`[\w.]+`(?:, )?)+):", WALK, re.MULTILINE)
"""(file, the functions as they are written) of every line of the walk."""


@pytest.fixture(scope="module")
def walked() -> Walk:
    return walk()


def test_every_function_that_the_page_names_runs_for_a_claim(walked: Walk) -> None:
    named = [(path, name) for path, functions in STOPS for name in re.findall(r"`([\w.]+)`", functions)]
    assert len(named) > 60
    assert [stop for stop in named if stop not in walked.functions] == []


def test_the_page_names_every_file_that_a_claim_goes_through_and_leaves_none_out(walked: Walk) -> None:
    assert sorted(set(walked.files) - {path for path, _ in STOPS}) == []


def test_a_claim_goes_through_no_more_files_than_the_page_says(walked: Walk) -> None:
    [most] = re.findall(r"at most (\d+) files", WALK)
    assert len(walked.files) <= int(most), walked.files


def test_the_page_is_read_in_ten_minutes() -> None:
    assert len(WALK.split()) <= 2_200


def test_control_goes_up_only_where_the_page_says(walked: Walk) -> None:
    listed = re.findall(r"`([\w.]+)`", WALK.partition("\n## Calls upward\n")[2])
    assert [f"{caller} -> {called}" for caller, called in walked.upward if caller[1] not in listed] == []


def test_the_table_of_layers_is_the_one_that_is_checked() -> None:
    linter = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    [contract] = [each for each in linter["contracts"] if each["name"] == "layers"]
    checked = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    table = PAGE.read_text("utf-8").partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == checked
