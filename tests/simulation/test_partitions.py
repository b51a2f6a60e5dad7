"""Leaders that are cut off from the API server, and Leases that are edited by hand."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.partition_plants import PARTITION_PLANTS
from simulation.planting import planted
from simulation.recorded import CAUGHT_PARTED
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=6))
def test_nothing_is_lost_whoever_is_cut_off_and_whatever_the_lease_says(seed: int) -> None:
    report = run_seed(seed, scenario="parted")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", PARTITION_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_PARTED[bug]
    with planted(PARTITION_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "parted"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(CAUGHT_PARTED) == set(PARTITION_PLANTS)
