"""Storage on nodes in schedules of trouble, and faults that are planted into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import volplane_testing
from volplane.intents import operation as operations
from volplane.intents import record
from volplane.intents import node as nodes
from volplane.external import provisioner as external
from volplane.placement import assign, volumes
from volplane.placement.state import PlacementState
from volplane.provision import decide as provision
from volplane_testing.simulation.distributed import Broken, DistributedRun

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_claim_has_two_assets_or_loses_one_and_all_is_well_at_the_end(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed).run())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_the_same_in_longer_schedules(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed, steps=120).run())
