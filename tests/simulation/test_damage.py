"""Disks that have two volumes in two notations; Leases and marks of terms whose numbers are damaged."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.damage_plants import DAMAGE_PLANTS, TWIN_PLANTS
from simulation.planting import planted
from simulation.recorded import CAUGHT_DAMAGED, CAUGHT_TWINS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=3))
def test_no_disk_is_destroyed_under_a_volume_that_names_it_in_another_notation(seed: int) -> None:
    report = run_seed(seed, scenario="twins")
    assert report.passed, str(report)


@pytest.mark.parametrize("seed", soaked(range(100), few=3))
def test_damaged_numbers_of_terms_stop_nobody(seed: int) -> None:
    report = run_seed(seed, scenario="damaged")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", TWIN_PLANTS)
def test_a_planted_bug_of_twins_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_TWINS[bug]
    with planted(TWIN_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "twins"))).violation
    assert violation is not None
    assert violation.invariant == invariant


@pytest.mark.parametrize("bug", DAMAGE_PLANTS)
def test_a_planted_bug_of_terms_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_DAMAGED[bug]
    with planted(DAMAGE_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "damaged"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_has_a_recorded_seed_below_500() -> None:
    assert set(CAUGHT_TWINS) == set(TWIN_PLANTS)
    assert set(CAUGHT_DAMAGED) == set(DAMAGE_PLANTS)
    assert all(seed < 500 for seed, _ in (*CAUGHT_TWINS.values(), *CAUGHT_DAMAGED.values()))
