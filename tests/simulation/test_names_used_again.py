"""Names that are used again in schedules of trouble: nodes registered again, volumes restored, second attachments."""

from __future__ import annotations

import pytest

from schedules import soaked
from simulation.planting import planted
from simulation.recorded import CAUGHT_REUSED
from simulation.reused_plants import REUSED_PLANTS
from volplane_testing import run_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


@pytest.mark.parametrize("seed", soaked(range(100), few=6))
def test_no_disk_of_a_pod_is_detached_and_every_pod_gets_its_volume(seed: int) -> None:
    report = run_seed(seed, scenario="reused")
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", REUSED_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_REUSED[bug]
    assert seed < 500
    with planted(REUSED_PLANTS[bug]):
        violation = simulate(Trial(generate(seed, "reused"))).violation
    assert violation is not None
    assert violation.invariant == invariant


def test_names_are_used_again_in_these_seeds() -> None:
    wanted = {
        "node: is registered again",
        "user: restores a volume with another disk",
        "user: attaches where it is attached",
        "user: attaches by hand",
    }
    for seed in range(20):
        happened = simulate(Trial(generate(seed, "reused"))).trace.happened
        wanted -= {what for what, times in happened.items() if times}
        if not wanted:
            break
    assert wanted == set()
