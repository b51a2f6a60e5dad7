"""The backend that docs/how-to/write-a-cloud-backend.md builds works, and keeps the promises of every backend."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from volplane_testing import run_rules
from volplane_testing.conformance.report import RuleStatus

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs" / "how-to" / "write-a-cloud-backend.md"
EXAMPLE = REPOSITORY / "examples" / "cumulus"
MODULES = (
    "fake_cumulus",
    "volplane_cumulus",
    "fake_cumulus_snapshots",
    "volplane_cumulus_snapshots",
    "test_cumulus",
)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The tests of the example, as its author runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield [importlib.import_module(name) for name in MODULES][-1]
    for name in MODULES:
        sys.modules.pop(name, None)


def parts(code: str) -> Iterator[ast.stmt]:
    """The statements of a block; those of a class, of which a page shows some."""
    for statement in ast.parse(code).body:
        yield from statement.body if isinstance(statement, ast.ClassDef) else (statement,)


def test_every_block_of_the_page_stands_in_the_example() -> None:
    files = [ast.parse(path.read_text("utf-8")) for path in sorted(EXAMPLE.glob("*.py"))]
    there = {ast.dump(node) for file in files for node in ast.walk(file) if isinstance(node, ast.stmt)}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) > 10
    for block in blocks:
        shown = list(parts(block))
        assert shown
        assert [ast.unparse(part) for part in shown if ast.dump(part) not in there] == []


def test_the_example_keeps_every_rule(example: ModuleType) -> None:
    report = run_rules(example.subject)
    assert report.passed, report
    assert "find-snapshot-answers-with-the-snapshot" not in report.named(RuleStatus.KEPT)


def test_the_example_with_snapshots_keeps_every_rule(example: ModuleType) -> None:
    report = run_rules(lambda: example.subject(example.CumulusWithSnapshots, example.FakeCumulusWithSnapshots))
    assert report.passed, report
    assert "find-snapshot-answers-with-the-snapshot" in report.named(RuleStatus.KEPT)


def test_the_example_passes_its_own_tests(example: ModuleType) -> None:
    example.test_a_lost_answer_makes_no_second_disk()
    example.test_it_works_over_http()
