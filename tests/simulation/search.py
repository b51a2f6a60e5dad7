"""Search for a seed that shows each planted bug: `python -m simulation.search [--seeds 0:3000] [BUG …]`, from tests/.

Prints lines for `recorded.py`. Exit code 1 if a bug is not found.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from simulation.plants import PLANTS, planted
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate
from volplane_testing.simulation.trace import InvariantViolation


def first_seed(name: str, seeds: range) -> tuple[int, InvariantViolation] | None:
    """The first seed that breaks an invariant because of the bug, and which; None if there is none."""
    for seed in seeds:
        trial = Trial(generate(seed))
        with planted(name):
            violation = simulate(trial).violation
        if violation is not None and simulate(trial).violation is None:
            return seed, violation
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:3000", help="from, up to but without")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="default: all")
    given = parser.parse_args(arguments)
    if unknown := set(given.bugs) - set(PLANTS):
        parser.error(f"no such bug: {', '.join(sorted(unknown))}; there are {', '.join(PLANTS)}")
    low, _, high = given.seeds.partition(":")
    logging.disable(logging.CRITICAL)
    missed = 0
    for name in given.bugs or PLANTS:
        begun = time.process_time()
        found = first_seed(name, range(int(low), int(high)))
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
