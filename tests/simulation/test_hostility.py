"""Tenants who write all that may be written to a claim, at any moment, and hooks that raise no Exception."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.planting import planted
from simulation.recorded import CAUGHT_HOSTILE
from simulation.tenant_plants import TENANT_PLANTS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=4))
def test_nothing_is_left_that_no_claim_and_no_volume_accounts_for(seed: int) -> None:
    report = run_seed(seed, scenario="hostile")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", TENANT_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_HOSTILE[bug]
    with planted(TENANT_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "hostile"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(CAUGHT_HOSTILE) == set(TENANT_PLANTS)


@pytest.mark.parametrize("seed", [135, 276])
def test_what_the_discard_of_a_claim_asked_for_first_is_deleted_though_the_claim_is_stripped(seed: int) -> None:
    report = run_seed(seed, scenario="hostile")
    assert report.passed, str(report)
