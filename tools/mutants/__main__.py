"""The command: `python -m tools.mutants [--base main] [--sample N] [--minutes M] [--anew] [MODULE ...]`.

Exit code 0: every change was noticed or is excused. 1: some were not, or the time was over. 2: usage.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import pytest
from tools.mutants.changed_lines import changed_lines
from tools.mutants.coverage_map import CoverageMap
from tools.mutants.judging import Judge, Limits
from tools.mutants.variant import Name, Variant
from tools.mutants.variants import variants_of
from tools.mutants.verdicts import Verdict, Verdicts, excused_variants

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "build" / "mutants"
EXCUSED: Final = Path(__file__).with_name("excused.toml")
SAVED_EVERY: Final = 5.0
"""Seconds."""
PACKAGES: Final = (
    *("attach", "binding", "drivers", "expand", "intents", "leaks", "operations"),
    *("placement", "protection", "provision", "reclaim", "roles", "state"),
)
"""Packages of the core in which changes are judged: what decides and what destroys."""
MODULES: Final = (
    *("controller/actions.py", "controller/leader.py", "controller/runner.py", "controller/workqueue.py"),
    *("kube/answers.py", "kube/cache.py", "kube/client.py", "kube/reflector.py", "kube/http/"),
    *("process/control_plane.py", "process/process.py", "requests.py"),
)
"""And what keeps a process from deciding on the wrong state, or from acting at the wrong time."""
JUDGED: Final = tuple(f"core/volplane/{name}" for name in (*(f"{package}/" for package in PACKAGES), *MODULES))
ROOMS: Final = (*PACKAGES, "kube", "process")
TESTS: Final = (
    "tests/scenarios",
    "tests/unit/controller",
    "tests/unit/test_fence.py",
    "tests/integration/test_distributed.py",
    "tests/integration/test_http_connections.py",
    "tests/integration/test_permissions.py",
    "tests/integration/test_permissions_of_nodes.py",
    "tests/security/test_scrub_pods.py",
    "tests/security/test_shared_storage.py",
    *(f"tests/unit/{room}" for room in ROOMS),
)
"""What may notice them within seconds."""


class Tally:
    """What has become of the changes."""

    def __init__(self, verdicts: Verdicts, excused: set[Name]) -> None:
        self.counted: Counter[str] = Counter()
        self._saved = time.monotonic()
        self._verdicts = verdicts
        self._excused = excused

    def is_open(self, variant: Variant) -> bool:
        """Whether it is still to be judged; else it is counted."""
        if variant.name in self._excused:
            self.counted["excused"] += 1
        elif self._verdicts.noticed_by(variant):
            self.counted["noticed"] += 1
        else:
            return True
        return False

    def report(self, variant: Variant, verdict: Verdict) -> None:
        """Count a verdict and keep it; print a bad one."""
        self.counted["noticed" if verdict.noticed else "unnoticed"] += 1
        self._verdicts.keep(variant, verdict)
        if time.monotonic() > self._saved + SAVED_EVERY:
            self._verdicts.save()
            self._saved = time.monotonic()
        if not verdict.noticed:
            print(f"nobody notices {variant}", flush=True)


def main(arguments: list[str]) -> int:
    given = _options(arguments)
    until = time.monotonic() + given.minutes * 60
    KEPT.mkdir(parents=True, exist_ok=True)
    verdicts = Verdicts(ROOT, KEPT)
    try:
        tally = Tally(verdicts, excused_variants(EXCUSED))
        variants = list(_chosen(given.modules, given.base))
        if given.sample is not None and given.sample < len(variants):
            variants = random.Random(given.seed).sample(variants, given.sample)
    except (OSError, ValueError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    for path in {variant.path for variant in variants} if given.anew else ():
        verdicts.forget(path)
    waiting = sorted((variant for variant in variants if tally.is_open(variant)), key=lambda each: each.at_import)
    if waiting:
        limits = Limits(until=until, seconds=given.seconds, simulating=not given.without_simulation)
        why = _judge(waiting, tally, verdicts, limits, given.tests or TESTS)
        verdicts.save()
        if why:
            print(f"mutants: {why}", file=sys.stderr)
            return 2
    counted, left = tally.counted, len(variants) - tally.counted.total()
    late = f", {left} not judged: the time was over" if left else ""
    print(
        f"{len(variants)} changes: {counted['noticed']} noticed, {counted['excused']} excused, "
        f"{counted['unnoticed']} noticed by nobody{late}"
    )
    return 1 if counted["unnoticed"] or left else 0


def _judge(variants: list[Variant], tally: Tally, verdicts: Verdicts, limits: Limits, tests: Collection[str]) -> str:
    """Why they could not be judged; "" if they were, as far as there was time."""
    covered = CoverageMap(ROOT, KEPT / "coverage.json", list(_judged_modules()))
    judge = Judge(ROOT, covered, variants, tally.report, verdicts, limits=limits)
    code = pytest.main(["-qqq", "-s", "--no-header", "--no-summary", *tests], plugins=[judge])
    return "" if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else "the tests cannot be collected"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants MUTANTS_ARGS=...", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="files or packages to judge whole; default: the changed lines"
    )
    parser.add_argument("--base", default="main", help="changed since this commit, default main")
    parser.add_argument("--sample", type=int, metavar="N", help="judge so many of the changes, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="of that chance, default 0")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many; the next run goes on")
    parser.add_argument("--seconds", type=float, default=10.0, help="that tests may take for one change, default 10")
    parser.add_argument("--tests", action="append", metavar="PATH", help="let only these judge; may be repeated")
    parser.add_argument("--without-simulation", action="store_true", help="let tests alone judge: a first look")
    parser.add_argument("--anew", action="store_true", help="judge again, by all tests, what was judged before")
    return parser.parse_args(arguments)


def _judged_modules() -> Iterator[str]:
    for path in sorted((ROOT / "core" / "volplane").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(JUDGED):
            yield name


def _chosen(modules: list[str], base: str) -> Iterator[Variant]:
    """Raises ValueError for what is no judged module, and no package that has one."""
    judged = list(_judged_modules())
    if not modules:
        for path, lines in sorted(changed_lines(ROOT, base).items()):
            if path in judged:
                yield from variants_of(ROOT, path, lines)
    for module in modules:
        within = Path(module).resolve().relative_to(ROOT)
        inside = [each for each in judged if Path(each).is_relative_to(within)]
        if not inside:
            raise ValueError(f"{module} is not judged; it would have to be a module of {', '.join(JUDGED)}")
        for path in inside:
            yield from variants_of(ROOT, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
