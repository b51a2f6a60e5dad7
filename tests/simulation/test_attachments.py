"""Attachments in schedules of trouble: nodes that are lost and return, crashes, two leaders, slow and failing hooks."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.attach_plants import ATTACH_PLANTS
from simulation.change_plants import CHANGE_PLANTS
from simulation.planting import planted
from simulation.recorded import CAUGHT_ATTACHING, CAUGHT_CHANGING
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=8))
def test_nothing_in_use_is_taken_away_and_every_pod_gets_its_volume(seed: int) -> None:
    report = run_seed(seed, scenario="attach")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", ATTACH_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_ATTACHING[bug]
    with planted(ATTACH_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "attach"))).violation
    assert violation is not None
    assert violation.invariant == invariant


@pytest.mark.parametrize("bug", CHANGE_PLANTS)
def test_a_planted_bug_of_changes_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_CHANGING[bug]
    with planted(CHANGE_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "attach"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_claims_grow_shrink_their_demands_and_change_in_these_seeds() -> None:
    happened = set()
    for seed in (6, 16, 26):
        happened |= {what for what, times in simulate(Trial(generate(seed, "attach"))).trace.happened.items() if times}
    grown = {"user: grows a claim", "user: asks for more than there is", "user: asks for less again"}
    assert grown <= happened
    assert {f"user: names attributes {each}" for each in ("gold", "silver", "broken")} <= happened


def test_nodes_are_lost_and_come_back_in_these_seeds() -> None:
    happened = set()
    for seed in (9, 10, 16):
        happened |= {what for what, times in simulate(Trial(generate(seed, "attach"))).trace.happened.items() if times}
    assert {"node: is lost", "node: is made anew", "node: out of service"} <= happened
