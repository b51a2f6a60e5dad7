"""Search for a seed that shows each planted bug: `python -m simulation.search [--seeds 0:3000] [BUG …]`, from tests/.

Prints lines for `recorded.py`. Exit code 1 if a bug is not found.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from simulation.attach_plants import ATTACH_PLANTS
from simulation.change_plants import CHANGE_PLANTS
from simulation.planting import Plant, planted
from simulation.plants import PLANTS
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate
from volplane_testing.simulation.trace import InvariantViolation

OF_ATTACHMENTS = {**ATTACH_PLANTS, **CHANGE_PLANTS}
ALL = {**PLANTS, **OF_ATTACHMENTS}


def first_seed(
    plant: Plant, seeds: range, scenario: str, only: frozenset[str]
) -> tuple[int, InvariantViolation] | None:
    """The first seed that breaks an invariant because of the bug, and which; None if there is none.

    scenario: as of `generate`. only: the scenarios whose seeds are tried; empty = all.
    """
    for seed in seeds:
        trial = Trial(generate(seed, scenario))
        if only and trial.schedule.scenario not in only:
            continue
        with planted(plant):
            violation = simulate(trial).violation
        if violation is not None and simulate(trial).violation is None:
            return seed, violation
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:3000", help="from, up to but without")
    parser.add_argument("--scenario", action="append", default=[], help="only seeds of this scenario; may be repeated")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="default: all")
    given = parser.parse_args(arguments)
    if unknown := set(given.bugs) - set(ALL):
        parser.error(f"no such bug: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    low, _, high = given.seeds.partition(":")
    logging.disable(logging.CRITICAL)
    missed = 0
    for name in given.bugs or ALL:
        begun = time.process_time()
        scenario = "attach" if name in OF_ATTACHMENTS else "any"
        found = first_seed(ALL[name], range(int(low), int(high)), scenario, frozenset(given.scenario))
        spent = time.process_time() - begun
        if found is None:
            missed += 1
            line = f"{name}: not found in {given.seeds}"
        else:
            seed, violation = found
            line = f'    "{name}": ({seed}, "{violation.invariant}"),  # {violation.text[:100]}'
        sys.stdout.write(f"{line} ({spent:.0f} s)\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
