"""The backend that docs/how-to/offer-snapshots.md builds keeps the promises of every backend."""

from __future__ import annotations

import importlib
import re
import shutil
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
TUTORIAL = REPOSITORY / "examples" / "folders" / "volplane_folders.py"
MODULES = ("volplane_folders", "volplane_snapshots")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[ModuleType]:
    """The module as a reader writes it, beside that of the tutorial."""
    shutil.copy(TUTORIAL, tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "volplane_snapshots.py").write_text(code, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        yield [importlib.import_module(name) for name in MODULES][-1]
    for name in MODULES:
        sys.modules.pop(name, None)


def test_folders_with_snapshots_keep_every_rule(written: ModuleType, tmp_path: Path) -> None:
    roots = iter(tmp_path / f"root-{number}" for number in range(1000))

    def subject() -> Subject:
        root = next(roots)
        root.mkdir()

        def fill(asset: object) -> None:
            (root / "volumes" / asset.handle / "file").write_text("data")  # type: ignore[attr-defined]

        def is_empty(asset: object) -> bool:
            return not any((root / "volumes" / asset.handle).iterdir())  # type: ignore[attr-defined]

        return Subject(
            written.SnapshotsBackend,
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
    assert unjudged == {"a-copy-is-made-in-the-place-asked-for"}
