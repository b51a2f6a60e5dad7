"""Which tests run which lines of the judged modules.

Measured once for each test, and kept until the test changes, or a module that it runs gets a new function. The lines of
other modules that have changed since are followed to where they are now: a test that is missed so can only make a
change look unnoticed that is noticed.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import inspect
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CoverageMap", "moved"]


class CoverageMap:
    """Known of each test: its seconds and the lines that it runs."""

    def __init__(self, root: Path, kept: Path, modules: Sequence[str]) -> None:
        """kept: the file it is kept in. modules: files below root."""
        self._root = root
        self._kept = kept
        self._sources = {path: (root / path).read_text("utf-8") for path in modules}
        self._known: dict[str, dict[str, Any]] = {}
        """By test: digest of it, seconds, lines by module; no seconds if it fails."""
        self.load()

    def load(self) -> None:
        """Read what a child has measured."""
        if not self._kept.exists():
            return
        found = json.loads(self._kept.read_text("utf-8"))
        self._known = found["tests"]
        for path, source in found["sources"].items():
            now = self._sources.get(path, "")
            if now == source:
                continue
            if _functions(now) - _functions(source):
                # Its lines may have stood elsewhere: only a measurement tells who runs them.
                for test in [test for test, known in self._known.items() if path in known["lines"]]:
                    del self._known[test]
                continue
            to = moved(source, now)
            for known in self._known.values():
                if lines := known["lines"].pop(path, None):
                    known["lines"][path] = sorted({new for old in lines for new in to.get(old, ())})

    def missing(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Tests that are to be measured: new ones, changed ones, and those that failed."""
        found = ((item, self._known.get(item.nodeid)) for item in items)
        return [
            item
            for item, known in found
            if known is None or known["seconds"] is None or known["digest"] != _digest(item)
        ]

    def unknown(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Tests of which nothing was measured."""
        return [item for item in items if item.nodeid not in self._known]

    def failing(self, tests: Iterable[str]) -> list[str]:
        """Those that fail though nothing is changed."""
        return [test for test in tests if self._known[test]["seconds"] is None]

    def passing(self) -> Iterator[str]:
        """Those that pass."""
        return (test for test, known in self._known.items() if known["seconds"] is not None)

    def seconds(self, test: str) -> float:
        """How long it takes when nothing is wrong."""
        return float(self._known[test]["seconds"])

    def mark(self, test: str) -> str:
        """Short name of the test as it is now."""
        return hashlib.sha256(f"{test} {self._known[test]['digest']}".encode()).hexdigest()[:12]

    def covering(self, path: str, lines: Iterable[int] = ()) -> Iterator[str]:
        """Tests that run one of the lines; without lines, any of the file."""
        wanted = set(lines)
        for test in self.passing():
            run = self._known[test]["lines"].get(path, ())
            if wanted.intersection(run) if wanted else run:
                yield test

    def measure(self, items: Sequence[pytest.Item]) -> int:
        """Run these tests, and keep which of the lines each of them runs; 0, as an exit code."""
        files = {str(self._root / path): path for path in self._sources}
        import coverage  # noqa: PLC0415 -- installed for `make mutants` alone

        measured = coverage.Coverage(include=list(files), data_file=None, config_file=False)
        measured.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            measured.switch_context(item.nodeid)
            failed, begun = item.session.testsfailed, time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds = time.perf_counter() - begun if item.session.testsfailed == failed else None
            self._known[item.nodeid] = {"digest": _digest(item), "seconds": seconds, "lines": {}}
        measured.stop()
        data = measured.get_data()
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in filter(None, tests):
                    self._known[test]["lines"].setdefault(files[file], []).append(line)
        self._kept.write_text(json.dumps({"sources": self._sources, "tests": self._known}), "utf-8")
        return 0


def moved(old: str, new: str) -> dict[int, list[int]]:
    """Where the lines of a text are in a later one. Changed and added ones belong to those that they stand between."""
    found: dict[int, list[int]] = {}
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for tag, old_first, old_end, new_first, new_end in matcher.get_opcodes():
        if tag == "equal":
            for line in range(old_first + 1, old_end + 1):
                found.setdefault(line, []).append(line + new_first - old_first)
        else:
            for line in range(old_first, old_end + 2):
                found.setdefault(line, []).extend(range(new_first + 1, new_end + 1))
    return found


def _functions(source: str) -> set[str]:
    """Names of what is defined in a text."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def _digest(item: pytest.Item) -> str:
    """Of the test's own source."""
    assert isinstance(item, pytest.Function), item
    return hashlib.sha256(inspect.getsource(item.function).encode()).hexdigest()[:16]
