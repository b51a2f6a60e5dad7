"""Two installations of volplane that serve drivers of the same names; one is stopped in the end."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.installation_plants import INSTALLATION_PLANTS
from simulation.planting import planted
from simulation.recorded import CAUGHT_TWICE
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=4))
def test_two_installations_lose_nothing_and_write_without_end_nothing(seed: int) -> None:
    report = run_seed(seed, scenario="twice")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", INSTALLATION_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_TWICE[bug]
    with planted(INSTALLATION_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "twice"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(CAUGHT_TWICE) == set(INSTALLATION_PLANTS)


def test_records_pass_from_one_installation_to_the_other() -> None:
    happened = simulate(Trial(generate(3, "twice"))).trace.happened
    assert happened["installation: takes the record of the other"] > 0
