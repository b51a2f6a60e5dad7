"""A process that has kept its caches warm leads, though they do not show the last writes of the former leader."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.follower_plants import FOLLOWER_PLANTS
from simulation.planting import planted, replace
from simulation.recorded import CAUGHT_FOLLOWED
from volplane.intents.operation import OperationDeps
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=4))
@pytest.mark.parametrize("scenario", ["followed", "followed-attach"])
def test_nothing_is_lost_when_a_follower_whose_caches_lag_leads(scenario: str, seed: int) -> None:
    report = run_seed(seed, scenario=scenario)
    assert report.passed, str(report)


def test_followers_lead_in_nearly_every_schedule() -> None:
    led = [
        simulate(Trial(generate(seed, "followed"))).trace.happened["process: a warm follower leads"]
        for seed in range(4)
    ]
    assert sum(led) >= 4


@pytest.mark.parametrize("bug", FOLLOWER_PLANTS)
def test_a_planted_bug_of_followers_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_FOLLOWED[bug]
    with planted(FOLLOWER_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "followed"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_every_planted_bug_of_followers_has_a_recorded_seed() -> None:
    assert set(CAUGHT_FOLLOWED) == set(FOLLOWER_PLANTS)


async def _believe_the_watch(deps: OperationDeps) -> None:
    """Stand in for `know_attachments`: what was not seen while it followed is not there."""


def test_what_the_former_leader_attached_last_is_known_before_anything_is_deleted() -> None:
    seed = generate(1333, "followed-attach")
    with planted(lambda stack: replace(stack, OperationDeps, "know_attachments", _believe_the_watch)):
        violation = simulate(Trial(seed)).violation
    assert violation is not None
    assert violation.invariant == "nothing-attached-is-deleted"
    assert simulate(Trial(seed)).violation is None
