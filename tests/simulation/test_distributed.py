"""Storage on nodes in schedules of trouble, and faults that are planted there."""

from __future__ import annotations

import pytest

import volplane_testing
from schedules import soaked
from simulation.distributed_plants import DISTRIBUTED_PLANTS
from simulation.planting import planted
from simulation.recorded import CAUGHT_ON_NODES
from volplane_testing.simulation.distributed import DistributedRun
from volplane_testing.simulation.distributed_state import Broken


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
def test_the_same_in_longer_schedules(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed, steps=120).run())


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(CAUGHT_ON_NODES) == set(DISTRIBUTED_PLANTS)


@pytest.mark.parametrize("bug", DISTRIBUTED_PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT_ON_NODES[bug]
    with planted(DISTRIBUTED_PLANTS[bug]), pytest.raises(Broken) as caught:
        volplane_testing.run(DistributedRun(seed).run())
    assert caught.value.invariant == invariant


@pytest.mark.parametrize("seed", soaked(sorted({seed for seed, _ in CAUGHT_ON_NODES.values()}), few=5))
def test_no_claim_has_two_assets_or_loses_one_and_all_is_well_at_the_end(seed: int) -> None:
    """So it is the bug that is caught, and nothing else."""
    volplane_testing.run(DistributedRun(seed).run())
