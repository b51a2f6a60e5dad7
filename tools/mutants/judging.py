"""Judges variants: each in a child of a process that has collected the tests, by those that run the changed lines.

A child that finds a test which fails has noticed the variant. What is computed at the import cannot be changed in such
a child: that is judged in a process of its own, which takes seconds longer.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

import pytest
from tools.mutants.coverage_map import CoverageMap
from tools.mutants.simulating import broken_seed
from tools.mutants.swapping import Swapper
from tools.mutants.variant import Variant
from tools.mutants.verdicts import Verdict, Verdicts

__all__ = ["Judge", "Limits"]

MEASURED_AT_ONCE: Final = 200
"""Tests after which what they run is written down."""
GRACE: Final = 5.0
"""Seconds that a test may take beside ten times what it took before; then it hangs, which is noticed too."""
BUSY_GRACE: Final = 1.0
"""The same in seconds of the processor's time, beside four times what it took: most of what hangs turns in a loop."""
SIMULATING: Final = 120.0
"""Seconds that the simulation may take."""
UNTOLD_OF_ROOM, UNTOLD, BESIDE, OVERHEAD = 0.2, 0.05, 0.1, 0.005
"""Changes that a test may notice beside those that it noticed: one of the module's own room, any other. What one counts
for another function of the module. Seconds that pytest adds to a test."""
OF_DUTIES: Final = ("tests/integration/test_permissions", "tests/unit/cli/test_manifests.py::test_every_controller")
"""Tests of what the packages of all duties declare."""
MEMORY: Final = 4 * 2**30
"""Bytes that a child may have."""

NOTICED, UNNOTICED, UNCHANGED = 1, 0, 3
"""Exit codes of children; the last one: the running code cannot be changed so."""

Report = Callable[[Variant, Verdict], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and by what is judged.

    until: by the clock `time.monotonic`; what is left then is not judged. seconds: that the tests of one variant may
    take together when nothing is wrong; the most telling come first. simulating: whether the simulation judges what no
    test notices.
    """

    until: float
    seconds: float
    simulating: bool


class Judge:
    """A plugin of pytest that judges variants instead of running the tests that were collected."""

    def __init__(
        self,
        root: Path,
        covered: CoverageMap,
        variants: Sequence[Variant],
        report: Report,
        verdicts: Verdicts,
        *,
        limits: Limits,
    ) -> None:
        """verdicts: of earlier runs."""
        self._root = root
        self._map = covered
        self._variants = variants
        self._report = report
        self._verdicts = verdicts
        self._limits = limits
        self._items: dict[str, pytest.Item] = {}
        self._telling = {variant.path: verdicts.telling(variant.path) for variant in variants}
        self._swapper = Swapper(root, frozenset())

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's own loop."""
        if missing := self._map.missing(session.items):
            print(f"measuring what {len(missing)} tests run", file=sys.stderr)
        for first in range(0, len(missing), MEASURED_AT_ONCE):
            some = missing[first : first + MEASURED_AT_ONCE]
            _in_child(partial(self._map.measure, some), 3600.0)
            self._map.load()
            if self._map.unknown(some):
                raise pytest.UsageError("the tests ended the process that ran them")
        for failing in self._map.failing(item.nodeid for item in session.items):
            print(f"{failing} fails without any change, and judges nothing", file=sys.stderr)
        self._items = {item.nodeid: item for item in session.items}
        self._swapper = Swapper(self._root, frozenset(variant.path for variant in self._variants))
        gc.collect()
        gc.freeze()  # Children share what their collector does not walk through.
        for variant in self._variants:
            if time.monotonic() > self._limits.until:
                break
            self._report(variant, self._judged(variant))
        return True

    def _judged(self, variant: Variant) -> Verdict:
        tests = self._tests_of(variant)
        limit = sum(_longest(self._map.seconds(test)) for test in tests) + GRACE
        code, by = self._in_child(variant, tests, limit) if tests else (UNNOTICED, "")
        if code == UNCHANGED:
            code, by = self._fresh(variant, tests, limit)
        if code != UNNOTICED:
            self._telling[variant.path][variant.function][by] += 1
            return Verdict(noticed=True, by=by)
        missed = frozenset(self._map.mark(test) for test in tests)
        if not self._limits.simulating:
            return Verdict(noticed=False, missed_by=missed)
        code, by = self._in_child(variant, None, SIMULATING)
        if code == UNCHANGED:
            code, by = self._fresh(variant, [], SIMULATING)
        return Verdict(
            noticed=code != UNNOTICED, by=by or "the simulation" if code != UNNOTICED else "", missed_by=missed
        )

    def _tests_of(self, variant: Variant) -> list[str]:
        """Tests that run the changed lines, while there is time; none that missed it.

        Those come first that notice most in a second, by what they noticed so far of the function, and of the module.
        """
        lines = () if variant.at_import else range(variant.line, variant.last + 1)
        missed = self._verdicts.missed_by(variant)
        of_function = self._telling[variant.path][variant.function]
        of_module = sum(self._telling[variant.path].values(), Counter[str]())
        room = f"tests/unit/{variant.path.split('/')[-2]}/"

        def expected(test: str) -> float:
            untold = UNTOLD_OF_ROOM if test.startswith(room) else UNTOLD
            told = of_function[test] + of_module[test] * BESIDE
            return (told + untold) / (self._map.seconds(test) + OVERHEAD)

        running = set(self._map.covering(variant.path, lines))
        if (
            variant.at_import
        ):  # What a class says of its fields is no line that a test runs, nor is what a duty declares.
            declared = (room, *OF_DUTIES) if variant.path.endswith("/__init__.py") else (room,)
            running |= {test for test in self._map.passing() if test.startswith(declared)}
        covering = sorted(self._items.keys() & running, key=expected, reverse=True)
        asked = [test for test in covering if self._map.mark(test) not in missed]
        spent = accumulate(self._map.seconds(test) for test in asked)
        chosen = [test for test, seconds in zip(asked, spent, strict=True) if seconds <= self._limits.seconds]
        return chosen or (asked[:1] if len(asked) == len(covering) else [])

    def _in_child(self, variant: Variant, tests: Sequence[str] | None, limit: float) -> tuple[int, str]:
        """Exit code, and what noticed. tests: None = the simulation instead."""
        with tempfile.NamedTemporaryFile("r+", encoding="utf-8") as told:

            def judge() -> int:
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                if not (self._swapper.recompute if variant.at_import else self._swapper.swap)(variant):
                    return UNCHANGED
                if tests is None:
                    by = broken_seed(variant.path)
                else:
                    by = _first_failure({self._items[test]: self._map.seconds(test) for test in tests}, Path(told.name))
                Path(told.name).write_text(by, "utf-8")
                return NOTICED if by else UNNOTICED

            code = _in_child(judge, limit)
            return code, told.read() or ("it hangs or ends the process" if code not in (UNNOTICED, UNCHANGED) else "")

    def _fresh(self, variant: Variant, tests: Sequence[str], limit: float) -> tuple[int, str]:
        """The same in a process that imports the variant."""
        with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
            file.write(variant.source)
            file.flush()
            command = [sys.executable, "-m", "tools.mutants.fresh", str(self._root / variant.path), file.name, *tests]
            try:
                done = subprocess.run(command, cwd=self._root, capture_output=True, timeout=limit, check=False)
            except subprocess.TimeoutExpired:
                return NOTICED, "it hangs"
        return (UNNOTICED, "") if done.returncode == 0 else (NOTICED, "a process that imports it")


def _longest(seconds: float) -> float:
    """Seconds after which a test hangs that took so many before."""
    return seconds * 10 + GRACE


def _first_failure(items: Mapping[pytest.Item, float], told: Path) -> str:
    """The name of the first test that fails; "" if none does. items: the seconds that each took before.

    One that hangs ends the process, after its name is written to `told`.
    """
    for item, following in zip(items, [*list(items)[1:], None], strict=True):

        def hangs(_signal: int, _frame: object, name: str = item.nodeid) -> None:
            told.write_text(name, "utf-8")
            os._exit(NOTICED)

        signal.signal(signal.SIGALRM, hangs)
        signal.signal(signal.SIGVTALRM, hangs)
        signal.setitimer(signal.ITIMER_REAL, _longest(items[item]))
        signal.setitimer(signal.ITIMER_VIRTUAL, items[item] * 4 + BUSY_GRACE)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if item.session.testsfailed:
            return item.nodeid
    return ""


def _in_child(work: Callable[[], int], limit: float) -> int:
    """Exit code of a child that does this and prints nothing; NOTICED if it takes longer than `limit` seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = NOTICED
        try:
            os.setsid()
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            code = work()
        finally:
            os._exit(code)
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], limit)
        if not ended:
            _stop(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if code in (UNNOTICED, UNCHANGED) else NOTICED
    finally:
        os.close(handle)
        _stop(child)


def _stop(child: int) -> None:
    """End the child and what it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return
