"""The backend that docs/how-to/attach-and-grow-in-a-backend.md builds keeps the promises of every backend."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from volplane_testing import Subject, run_rules
from volplane_testing.conformance.report import RuleStatus
from volplane_testing.conformance.rules import attaching

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs" / "how-to" / "attach-and-grow-in-a-backend.md"
EXAMPLES = REPOSITORY / "examples"
MODULES = ("volplane_folders", "volplane_shelf")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The module of the page, beside that of the tutorial."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("shelf", "folders"):
            patch.syspath_prepend(str(EXAMPLES / place))
        yield [importlib.import_module(name) for name in MODULES][-1]
    for name in MODULES:
        sys.modules.pop(name, None)


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_the_page_shows_parts_of_the_example_word_for_word() -> None:
    example = _lines((EXAMPLES / "shelf" / "volplane_shelf.py").read_text("utf-8"))
    assert len(BLOCKS) == 2
    shown = [_lines(part) for part in BLOCKS[0].split("\n\n\n")]
    assert [part for part in shown if part not in example] == []


def test_the_subject_of_the_page_keeps_every_rule_of_attaching_and_growing(example: ModuleType) -> None:
    page = ModuleType("subjects")
    exec(BLOCKS[1], vars(page))

    @contextmanager
    def subject() -> Iterator[Subject]:
        with page.subject() as shown:
            yield replace(shown, real_crashes=False, crash_points=4)

    report = run_rules(subject)
    assert report.passed, str(report)
    assert str(report).splitlines()[-1] in PAGE.read_text("utf-8")
    unjudged = {rule.name for rule in attaching.RULES} & set(report.named(RuleStatus.NOT_APPLICABLE))
    assert unjudged == {"the-limit-of-a-node-is-kept"}
