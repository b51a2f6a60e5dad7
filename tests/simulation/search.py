"""Search for a seed that shows each planted bug: `python -m simulation.search [--seeds 0:3000] [BUG …]`, from tests/.

Prints lines for `recorded.py`. Exit code 1 if a bug is not found.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

import volplane_testing
from simulation.attach_plants import ATTACH_PLANTS
from simulation.change_plants import CHANGE_PLANTS
from simulation.damage_plants import DAMAGE_PLANTS, TWIN_PLANTS
from simulation.distributed_plants import DISTRIBUTED_PLANTS
from simulation.follower_plants import FOLLOWER_PLANTS
from simulation.group_plants import GROUP_PLANTS
from simulation.installation_plants import INSTALLATION_PLANTS
from simulation.partition_plants import PARTITION_PLANTS
from simulation.planting import Plant, planted
from simulation.plants import PLANTS
from simulation.reused_plants import REUSED_PLANTS
from simulation.scrub_plants import SCRUB_PLANTS
from simulation.snapshot_plants import SNAPSHOT_PLANTS
from simulation.tenant_plants import TENANT_PLANTS
from simulation.trash_plants import TRASH_PLANTS
from volplane_testing.simulation.distributed import DistributedRun
from volplane_testing.simulation.distributed_state import Broken
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate

OF_ATTACHMENTS = {**ATTACH_PLANTS, **CHANGE_PLANTS}
ALONE = {
    **REUSED_PLANTS,
    **PARTITION_PLANTS,
    **SCRUB_PLANTS,
    **INSTALLATION_PLANTS,
    **TWIN_PLANTS,
    **DAMAGE_PLANTS,
    **TENANT_PLANTS,
    **TRASH_PLANTS,
    **SNAPSHOT_PLANTS,
    **GROUP_PLANTS,
    **FOLLOWER_PLANTS,
}
ALL = {**PLANTS, **OF_ATTACHMENTS, **ALONE, **DISTRIBUTED_PLANTS}
SCENARIO = {
    **dict.fromkeys(OF_ATTACHMENTS, "attach"),
    **dict.fromkeys(REUSED_PLANTS, "reused"),
    **dict.fromkeys(PARTITION_PLANTS, "parted"),
    **dict.fromkeys(SCRUB_PLANTS, "interrupted"),
    **dict.fromkeys(INSTALLATION_PLANTS, "twice"),
    **dict.fromkeys(TWIN_PLANTS, "twins"),
    **dict.fromkeys(DAMAGE_PLANTS, "damaged"),
    **dict.fromkeys(TENANT_PLANTS, "hostile"),
    **dict.fromkeys(TRASH_PLANTS, "trash"),
    **dict.fromkeys(SNAPSHOT_PLANTS, "snapshots"),
    **dict.fromkeys(GROUP_PLANTS, "groups"),
    **dict.fromkeys(FOLLOWER_PLANTS, "followed"),
}
"""Of a plant for which the seed does not choose the scenario."""


def broken_on_nodes(seed: int) -> Broken | None:
    """How the schedule of nodes of this seed ends."""
    try:
        volplane_testing.run(DistributedRun(seed).run())
    except Broken as error:
        return error
    return None


def first_seed_on_nodes(plant: Plant, seeds: range) -> tuple[int, str, str] | None:
    """As `first_seed`, with schedules of nodes."""
    for seed in seeds:
        with planted(plant):
            broken = broken_on_nodes(seed)
        if broken is not None and broken_on_nodes(seed) is None:
            return seed, broken.invariant, str(broken)
    return None


def first_seed(plant: Plant, seeds: range, scenario: str, only: frozenset[str]) -> tuple[int, str, str] | None:
    """The first seed that breaks an invariant because of the bug, which, and how; None if there is none.

    scenario: as of `generate`. only: the scenarios whose seeds are tried; empty = all.
    """
    for seed in seeds:
        trial = Trial(generate(seed, scenario))
        if only and trial.schedule.scenario not in only:
            continue
        with planted(plant):
            violation = simulate(trial).violation
        if violation is not None and simulate(trial).violation is None:
            return seed, violation.invariant, violation.text
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
        seeds = range(int(low), int(high))
        if name in DISTRIBUTED_PLANTS:
            found = first_seed_on_nodes(ALL[name], seeds)
        else:
            found = first_seed(ALL[name], seeds, SCENARIO.get(name, "any"), frozenset(given.scenario))
        spent = time.process_time() - begun
        if found is None:
            missed += 1
            line = f"{name}: not found in {given.seeds}"
        else:
            seed, invariant, text = found
            line = f'    "{name}": ({seed}, "{invariant}"),  # {text[:100]}'
        sys.stdout.write(f"{line} ({spent:.0f} s)\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
