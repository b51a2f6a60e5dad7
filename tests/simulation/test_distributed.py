"""Storage on nodes in schedules of trouble."""

from __future__ import annotations

import pytest

import volplane_testing
from volplane_testing.simulation.distributed import DistributedRun


@pytest.mark.parametrize("seed", [3, 11, 12])
def test_no_claim_has_two_assets_or_loses_one_and_all_is_well_at_the_end(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed).run())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_the_same_in_longer_schedules(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed, steps=120).run())
