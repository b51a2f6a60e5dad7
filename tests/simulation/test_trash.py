"""Volumes of deleted claims in schedules of trouble: nobody gets one without a right, none goes before its time."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.planting import planted
from simulation.recorded import CAUGHT_TRASH
from simulation.trash_plants import TRASH_PLANTS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=3))
def test_what_is_in_the_trash_is_nobodys_and_stays_for_its_time(seed: int) -> None:
    report = run_seed(seed, scenario="trash")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", TRASH_PLANTS)
def test_a_planted_bug_of_the_trash_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_TRASH[bug]
    with planted(TRASH_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "trash"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_of_the_trash_has_a_recorded_seed_below_500() -> None:
    assert set(CAUGHT_TRASH) == set(TRASH_PLANTS)
    assert all(seed < 500 for seed, _ in CAUGHT_TRASH.values())
