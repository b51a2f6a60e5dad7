"""Judge many seeds of every scenario, and every planted bug by its recorded seed: `make seeds SEEDS=0:1000`.

Prints a line a scenario and one for the bugs; exit code 1 if an invariant breaks, or a bug is not caught.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from simulation import recorded
from simulation.planting import planted
from simulation.search import ALL, SCENARIO, broken_on_nodes
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.scenarios import SCENARIOS
from volplane_testing.simulation.schedule import generate

__all__ = ["NODES", "PLANTED", "judge", "summary"]

NODES = "nodes"
"""Name of the schedules of distributed drivers, which have a run of their own."""
ON_NODES: Mapping[str, tuple[int, str]] = recorded.CAUGHT_ON_NODES
PLANTED: Mapping[str, tuple[int, str]] = {
    **recorded.CAUGHT,
    **recorded.CAUGHT_ATTACHING,
    **recorded.CAUGHT_CHANGING,
    **recorded.CAUGHT_REUSED,
    **recorded.CAUGHT_PARTED,
    **recorded.CAUGHT_TWICE,
    **recorded.CAUGHT_INTERRUPTED,
    **recorded.CAUGHT_TWINS,
    **recorded.CAUGHT_DAMAGED,
    **recorded.CAUGHT_HOSTILE,
    **recorded.CAUGHT_TRASH,
    **recorded.CAUGHT_SNAPSHOTS,
    **recorded.CAUGHT_GROUPS,
    **recorded.CAUGHT_FOLLOWED,
    **ON_NODES,
}
"""Planted bug -> its seed, and the invariant that breaks."""


class Verdict(NamedTuple):
    """How one run ended. what: a scenario, or "bugs". problem: "" if all is as it should be."""

    what: str
    problem: str


def _broken(seed: int, scenario: str) -> tuple[str, str] | None:
    """Return the invariant that breaks in this seed, and how; None if none does."""
    if scenario == NODES:
        broken = broken_on_nodes(seed)
        return (broken.invariant, str(broken)) if broken is not None else None
    violation = simulate(Trial(generate(seed, scenario))).violation
    return (violation.invariant, violation.text) if violation is not None else None


def prepare() -> None:
    """Let a process judge many seeds: what it has loaded is no garbage, and what a run leaves is collected after it."""
    logging.disable()
    gc.disable()
    gc.freeze()


def judge_and_tidy(seed: int, scenario: str, bug: str) -> Verdict:
    """Judge a seed in a process that is prepared."""
    verdict = judge(seed, scenario, bug)
    gc.collect()
    return verdict


def judge(seed: int, scenario: str, bug: str = "") -> Verdict:
    """Run a seed, with a planted bug if one is named."""
    if not bug:
        broken = _broken(seed, scenario)
        return Verdict(scenario, f"seed {seed} of {scenario}: {': '.join(broken)}" if broken is not None else "")
    with planted(ALL[bug]):
        broken = _broken(seed, scenario)
    expected, shown = PLANTED[bug][1], broken[0] if broken is not None else "nothing"
    return Verdict("bugs", "" if shown == expected else f"{bug}: seed {seed} shows {shown} instead of {expected}")


def runs(seeds: range, scenarios: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield seed, scenario and bug of every run; the bugs come first."""
    for bug, (seed, _) in PLANTED.items():
        yield seed, NODES if bug in ON_NODES else SCENARIO.get(bug, "any"), bug
    for scenario in scenarios:
        yield from ((seed, scenario, "") for seed in seeds)


def summary(verdicts: list[Verdict]) -> list[str]:
    """Return a line for each kind of run, then the problems."""
    many = Counter(verdict.what for verdict in verdicts)
    bad = Counter(verdict.what for verdict in verdicts if verdict.problem)
    lines = [f"{what:12} {many[what] - bad[what]:6} of {many[what]} as they should be" for what in many]
    return [*lines, *(verdict.problem for verdict in verdicts if verdict.problem)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:1000", help="from, up to but without")
    parser.add_argument("--scenario", action="append", choices=[*SCENARIOS, NODES], help="only this; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args(arguments)
    low, _, high = given.seeds.partition(":")
    begun = time.monotonic()
    todo = list(runs(range(int(low), int(high)), given.scenario or [*SCENARIOS, NODES]))
    with ProcessPoolExecutor(given.jobs, initializer=prepare) as pool:
        verdicts = list(pool.map(judge_and_tidy, *zip(*todo, strict=True), chunksize=10))
    lines = [*summary(verdicts), f"{len(todo)} runs in {time.monotonic() - begun:.0f} s"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if any(verdict.problem for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
