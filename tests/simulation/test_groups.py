"""Groups of snapshots in schedules of trouble: whole or not ready, kept with their group, and nothing is left."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.group_plants import GROUP_PLANTS
from simulation.planting import planted
from simulation.recorded import CAUGHT_GROUPS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=2))
def test_a_group_is_of_one_cut_or_none_and_its_members_stay_with_it(seed: int) -> None:
    report = run_seed(seed, scenario="groups")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", GROUP_PLANTS)
def test_a_planted_bug_of_groups_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_GROUPS[bug]
    with planted(GROUP_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "groups"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_of_groups_has_a_recorded_seed() -> None:
    assert set(CAUGHT_GROUPS) == set(GROUP_PLANTS)
