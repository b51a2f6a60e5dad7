"""Volumes that are given to others in the middle of their scrub."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.planting import planted
from simulation.recorded import CAUGHT_INTERRUPTED
from simulation.scrub_plants import SCRUB_PLANTS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=4))
def test_what_the_next_one_writes_is_not_erased(seed: int) -> None:
    report = run_seed(seed, scenario="interrupted")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", SCRUB_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_INTERRUPTED[bug]
    with planted(SCRUB_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "interrupted"))).violation
    assert violation is not None
    assert violation.invariant == invariant
