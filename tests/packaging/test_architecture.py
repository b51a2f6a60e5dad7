"""The walk of a claim names functions that run and every file that runs; the table of layers is the checked one."""

import importlib
import operator
import re
import tomllib
from pathlib import Path

import pytest
from tools.trace_claim import LEFT_OUT, Trace, trace_claim

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "explanation" / "architecture.md"
WALK = (REPOSITORY / "docs" / "explanation" / "claim-walk.md").read_text("utf-8")
STOPS = re.findall(r"^- `([\w/]+\.py)` ((?:`[\w.]+`(?:, )?)+):", WALK, re.MULTILINE)
"""(file, the functions as they are written) of every line of the walk."""


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_claim()


def test_every_function_that_the_page_names_runs_for_a_claim(trace: Trace) -> None:
    named = [(path, name) for path, functions in STOPS for name in re.findall(r"`([\w.]+)`", functions)]
    assert len(named) > 30
    assert [stop for stop in named if stop not in trace.functions] == []


def test_the_page_names_every_file_that_a_claim_goes_through(trace: Trace) -> None:
    assert sorted(set(trace.files) - {path for path, _ in STOPS}) == []


def test_a_claim_goes_through_no_more_files_than_the_page_says(trace: Trace) -> None:
    [most] = re.findall(r"at most (\d+) files", WALK)
    assert len(trace.files) <= int(most), trace.files


def test_control_goes_up_only_where_the_page_says(trace: Trace) -> None:
    listed = re.findall(r"`([\w.]+)`", WALK.partition("\n## Calls upward\n")[2])
    assert [f"{caller} -> {called}" for caller, called in trace.upward if caller[1] not in listed] == []


def test_what_the_walk_leaves_out_is_there() -> None:
    for part in (part for parts in LEFT_OUT.values() for part in parts):
        module, *names = re.split(r"\.(?=_?[A-Z])", part, maxsplit=1)
        operator.attrgetter(".".join(names) or "__name__")(importlib.import_module(f"volplane.{module}"))


def test_the_table_of_layers_is_the_one_that_is_checked() -> None:
    linter = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    [contract] = [each for each in linter["contracts"] if each["name"] == "layers"]
    checked = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    table = PAGE.read_text("utf-8").partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == checked
