"""Snapshots in schedules of trouble: none is lost or cut twice, and what is made of one is as it was at its moment."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.planting import planted
from simulation.recorded import CAUGHT_SNAPSHOTS
from simulation.snapshot_plants import SNAPSHOT_PLANTS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=3))
def test_no_snapshot_is_lost_or_cut_twice_and_what_is_made_of_it_is_as_it_was(seed: int) -> None:
    report = run_seed(seed, scenario="snapshots")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", SNAPSHOT_PLANTS)
def test_a_planted_bug_of_snapshots_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_SNAPSHOTS[bug]
    with planted(SNAPSHOT_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "snapshots"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_of_snapshots_has_a_recorded_seed_below_500() -> None:
    assert set(CAUGHT_SNAPSHOTS) == set(SNAPSHOT_PLANTS)
    assert all(seed < 500 for seed, _ in CAUGHT_SNAPSHOTS.values())
