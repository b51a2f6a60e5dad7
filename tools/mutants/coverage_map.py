"""Which tests run which lines of the judged modules.

Measured once for each test, and kept until its file or the core changes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

__all__ = ["CoverageMap"]


class CoverageMap:
    """Known of each test: its seconds and the lines that it runs."""

    def __init__(self, root: Path, kept: Path, modules: Sequence[str]) -> None:
        """kept: the file it is kept in. modules: files below root."""
        self._root = root
        self._kept = kept
        self._modules = modules
        core = hashlib.sha256()
        for path in sorted((root / "core").rglob("*.py")):
            core.update(path.read_bytes())
        self._core = core.hexdigest()
        self._digests: dict[Path, str] = {}
        self._known: dict[str, dict[str, Any]] = {}
        """By test: digest of its file, seconds, lines by module; no seconds if it fails."""
        self.load()

    def load(self) -> None:
        """Read what a child has measured."""
        if self._kept.exists():
            found = json.loads(self._kept.read_text("utf-8"))
            self._known = found["tests"] if found["core"] == self._core else {}

    def missing(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Tests that are to be measured."""
        return [item for item in items if self._known.get(item.nodeid, {}).get("digest") != self._digest(item)]

    def failing(self) -> list[str]:
        """Tests that fail though nothing is changed."""
        return [test for test, known in self._known.items() if known["seconds"] is None]

    def seconds(self, test: str) -> float:
        """How long it takes when nothing is wrong."""
        return float(self._known[test]["seconds"])

    def covering(self, path: str, lines: Iterable[int] = ()) -> Iterator[str]:
        """Tests that run one of the lines; without lines, any of the file."""
        wanted = set(lines)
        for test, known in self._known.items():
            run = known["lines"].get(path, ())
            if known["seconds"] is not None and (wanted.intersection(run) if wanted else run):
                yield test

    def measure(self, items: Sequence[pytest.Item]) -> int:
        """Run these tests, and keep which of the lines each of them runs; 0, as an exit code."""
        files = {str(self._root / path): path for path in self._modules}
        measured = coverage.Coverage(include=list(files), data_file=None, config_file=False)
        measured.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            measured.switch_context(item.nodeid)
            failed, begun = item.session.testsfailed, time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds = time.perf_counter() - begun if item.session.testsfailed == failed else None
            self._known[item.nodeid] = {"digest": self._digest(item), "seconds": seconds, "lines": {}}
        measured.stop()
        data = measured.get_data()
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in filter(None, tests):
                    self._known[test]["lines"].setdefault(files[file], []).append(line)
        self._kept.write_text(json.dumps({"core": self._core, "tests": self._known}), "utf-8")
        return 0

    def _digest(self, item: pytest.Item) -> str:
        if item.path not in self._digests:
            self._digests[item.path] = hashlib.sha256(item.path.read_bytes()).hexdigest()[:16]
        return self._digests[item.path]
