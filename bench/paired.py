"""CPU of the controllers a claim, here and at another commit, in pairs that alternate.

    python -m bench.paired --base 3487d747 --pairs 15
    python -m bench.paired --base HEAD~1 --kind life --count 500

Each pair runs `bench.claims` once from a copy of the base commit and once from this checkout, each in fresh processes;
which comes first alternates, so that a machine that gets busier favours neither. The figure is the median of the pairs'
ratios, here over base, with the middle half of the ratios beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import processes

__all__ = ["spread", "summary"]

KINDS = ("static", "dynamic", "life")
HERE = Path(__file__).resolve().parent.parent
SOURCES = (".", "core", "embedded/src", "testing/src", "plugins/hostpath/src")
MEASURE = "import json, sys; from bench.claims import ours; print(json.dumps(ours(sys.argv[1], int(sys.argv[2]))))"


def checkout(commit: str, directory: Path) -> Path:
    """Write the files of a commit into `directory`. Raises SystemExit if there is no such commit."""
    archive = subprocess.run(["git", "-C", str(HERE), "archive", commit], capture_output=True, check=False)
    if archive.returncode != 0:
        raise SystemExit(f"git archive {commit}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)
    return directory


def cpu_ms(tree: Path, kind: str, count: int) -> float:
    """Return the CPU of the controllers of this tree a claim, in milliseconds, from one measurement."""
    paths = os.pathsep.join(str(tree / source) for source in SOURCES)
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", MEASURE, kind, str(count)]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{kind} with {count} claims failed in {tree}: {ran.stderr[-2000:]}")
    return float(json.loads(ran.stdout.splitlines()[-1])["cpu_ms"])


def pairs(base: Path, kind: str, count: int, many: int) -> list[tuple[float, float]]:
    """Measure (base, here) so many times; every second pair begins with this checkout."""
    measured = []
    for number in range(many):
        trees = (base, HERE) if number % 2 == 0 else (HERE, base)
        figures = {tree: cpu_ms(tree, kind, count) for tree in trees}
        measured.append((figures[base], figures[HERE]))
    return measured


def spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the middle half of the ratios; of fewer than four, the least and the largest."""
    if len(ratios) < 4:
        return min(ratios), max(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def summary(kind: str, measured: Sequence[tuple[float, float]]) -> str:
    """Return one line about the pairs of a kind."""
    ratios = [here / base for base, here in measured]
    low, high = spread(ratios)
    base, here = (statistics.median(side) for side in zip(*measured, strict=True))
    return (
        f"{kind:8} base {base:.3f} ms, here {here:.3f} ms a claim; ratio {statistics.median(ratios):.3f}"
        f" ({low:.3f} to {high:.3f}), {len(measured)} pairs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="what to compare with")
    parser.add_argument("--pairs", type=int, default=15, metavar="N")
    parser.add_argument("--count", type=int, default=1000, metavar="CLAIMS", help="claims a measurement")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these; may be repeated")
    parser.add_argument("--json", type=Path, help="keep the figures of every pair in this file")
    chosen = parser.parse_args()
    print(f"{processes.machine()}; {processes.load()}")
    kept = {}
    with tempfile.TemporaryDirectory(prefix="volplane-bench-") as name:
        base = checkout(chosen.base, Path(name))
        for kind in chosen.kind or KINDS:
            kept[kind] = pairs(base, kind, chosen.count, chosen.pairs)
            print(summary(kind, kept[kind]), flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
