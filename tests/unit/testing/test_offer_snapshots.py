"""The backend that docs/how-to/offer-snapshots.md builds keeps the promises of every backend."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from volplane_testing import Subject, run_rules
from volplane_testing.conformance.report import RuleStatus
from volplane_testing.conformance.rules import snapshots

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs" / "how-to" / "offer-snapshots.md"
TUTORIAL = REPOSITORY / "examples" / "folders"
EXAMPLE = REPOSITORY / "examples" / "snapshots"
MODULES = ("volplane_folders", "volplane_snapshots")


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The module of the page, beside that of the tutorial."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (EXAMPLE, TUTORIAL):
            patch.syspath_prepend(str(place))
        yield [importlib.import_module(name) for name in MODULES][-1]
    for name in MODULES:
        sys.modules.pop(name, None)


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_the_page_shows_parts_of_the_example_word_for_word() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    example = _lines((EXAMPLE / "volplane_snapshots.py").read_text("utf-8"))
    assert len(blocks) == 2
    assert [block for block in blocks if _lines(block) not in example] == []


def test_folders_with_snapshots_keep_every_rule(example: ModuleType, tmp_path: Path) -> None:
    roots = iter(tmp_path / f"root-{number}" for number in range(1000))

    def subject() -> Subject:
        root = next(roots)
        root.mkdir()

        def fill(asset: object) -> None:
            (root / "volumes" / asset.handle / "file").write_text("data")  # type: ignore[attr-defined]

        def is_empty(asset: object) -> bool:
            return not any((root / "volumes" / asset.handle).iterdir())  # type: ignore[attr-defined]

        return Subject(
            example.SnapshotsBackend,
            {"root": str(root)},
            other_parameters={"colour": "red"},
            inspect=lambda: sorted(str(path.relative_to(root)) for path in root.rglob("*")),
            fill=fill,
            is_empty=is_empty,
            now=time.time,
            advance=lambda _seconds: None,
            crash_points=16,
            patience=None,
        )

    report = run_rules(subject)
    assert report.passed, str(report)
    about_snapshots = {rule.name for rule in snapshots.RULES}
    unjudged = about_snapshots & set(report.named(RuleStatus.NOT_APPLICABLE))
    assert unjudged == {"a-copy-is-made-in-the-place-asked-for", "a-snapshot-stays-under-assets-that-show-it"}
