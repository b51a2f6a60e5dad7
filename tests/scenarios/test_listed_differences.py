"""What differs is written down, and every weakness that is said to be absent has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenarios.differences import ATTACH_DIFFERENCES, PROTECTION_DIFFERENCES, VOLUME_DIFFERENCES

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "explanation" / "differences.md"
SCENARIOS = REPOSITORY / "docs" / "design" / "requirements.md"
WEAKNESSES = {"20": 10, "21": 20, "22": 7}
ELSEWHERE = {
    "bound-rebind-unchecked",
    "recycle-6-4",
    "provision-11-3",
    "provision-11-10",
    "provision-11-11",
    "provision-11-12",
}
"""Scenarios of the stock controllers that are no rows of ours; other tests show their subjects."""
NAMED = re.compile(r"Items? (\d\d\.\d+(?:(?:, | and |, and )\d\d\.\d+)*)")


def _listed() -> dict[str, str]:
    """Item by scenario, as the page says."""
    text = SCENARIOS.read_text("utf-8").partition("\n## Scenarios that differ\n")[2]
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \| ([\w.]+) \|", text, re.MULTILINE)
    return {name: item for names, item in rows for name in re.findall(r"`([\w-]+)`", names)}


def test_the_page_lists_exactly_the_scenarios_that_differ() -> None:
    differences = VOLUME_DIFFERENCES | PROTECTION_DIFFERENCES | ATTACH_DIFFERENCES
    listed = {name: item for name, item in _listed().items() if name not in ELSEWHERE}
    assert listed == {name: difference.item for name, difference in differences.items()}


def _named() -> set[str]:
    named: set[str] = set()
    for file in (REPOSITORY / "tests").glob("**/test_*.py"):
        for items in NAMED.findall(file.read_text("utf-8")):
            named.update(re.findall(r"\d\d\.\d+", items))
    return named


@pytest.mark.parametrize("item", [f"{part}.{n}" for part, count in WEAKNESSES.items() for n in range(1, count + 1)])
def test_every_weakness_of_the_stock_controller_is_named_by_a_test(item: str) -> None:
    assert item in _named()


@pytest.mark.parametrize("item", [f"{part}.{n}" for part, count in WEAKNESSES.items() for n in range(1, count + 1)])
def test_every_weakness_of_the_stock_controller_is_named_on_the_page(item: str) -> None:
    assert re.search(rf"\b{re.escape(item)}\b", PAGE.read_text("utf-8"))
