"""Storage on nodes in schedules of trouble, and faults that are planted there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

import volplane_testing
from volplane.controller.actions import Settled
from volplane.placement import assign, volumes
from volplane_testing.simulation.distributed import DistributedRun
from volplane_testing.simulation.distributed_state import Broken

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", [3, 11, 12])
def test_no_claim_has_two_assets_or_loses_one_and_all_is_well_at_the_end(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed).run())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_the_same_in_longer_schedules(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed, steps=120).run())


def forgets_what_was_given_up_and_deleted(patch: pytest.MonkeyPatch) -> None:
    """Nobody ends the intent of a claim that is deleted between two nodes."""
    patch.setattr(assign, "_ended", lambda *_: Settled())


def leaves_labels_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """The assigner does not put labels of volumes right."""
    patch.setattr(volumes, "_node_of", lambda *_: None)


PLANTS: Final[dict[Plant, int]] = {
    forgets_what_was_given_up_and_deleted: 3,
    leaves_labels_as_they_are: 1,
}
"""With a seed that finds each."""


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken):
        volplane_testing.run(DistributedRun(PLANTS[plant]).run())
