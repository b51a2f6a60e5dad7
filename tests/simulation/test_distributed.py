"""Storage on nodes in schedules of trouble, and faults that are planted there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import volplane_testing
from volplane.controller.actions import Settled
from volplane.external import provisioner
from volplane.intents import operation, owner, record
from volplane.placement import assign, recognise, volumes
from volplane_testing.simulation.distributed import Broken, DistributedRun

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", [3, 11, 12])
def test_no_claim_has_two_assets_or_loses_one_and_all_is_well_at_the_end(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed).run())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_the_same_in_longer_schedules(seed: int) -> None:
    volplane_testing.run(DistributedRun(seed, steps=120).run())


def by_the_label_alone(patch: pytest.MonkeyPatch) -> None:
    """An instance believes the label of a volume."""
    for module in (provisioner, operation, owner):
        patch.setattr(module, "volume_elsewhere", lambda _volume, _cluster: "")


def forgets_what_was_given_up_and_deleted(patch: pytest.MonkeyPatch) -> None:
    """Nobody ends the intent of a claim that is deleted between two nodes."""
    patch.setattr(assign, "_ended", lambda *_: Settled())


def ends_the_intent_of_another_asset(patch: pytest.MonkeyPatch) -> None:
    """The second node takes the volume of the first for what it has made itself."""
    patch.setattr(record, "has_newer_intent", lambda *_: False)


def believes_the_name_of_a_node(patch: pytest.MonkeyPatch) -> None:
    """A node that was made again gets the volumes of the former without a look at its storage."""
    real = recognise.decide_recognition

    def decide(volume: Any, cluster: Any) -> Any:
        node = cluster.nodes.get(cluster.settings.node_name)
        if node is not None:
            cluster.progress.track_volume(volume.uid).found_on = node.uid
        return real(volume, cluster)

    patch.setattr(provisioner, "decide_recognition", decide)


def leaves_labels_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """The assigner does not put labels of volumes right."""
    patch.setattr(volumes, "_node_of", lambda *_: None)


PLANTS: Final[dict[Plant, int]] = {
    by_the_label_alone: 0,
    forgets_what_was_given_up_and_deleted: 3,
    ends_the_intent_of_another_asset: 0,
    believes_the_name_of_a_node: 0,
    leaves_labels_as_they_are: 0,
}
"""With a seed that finds each."""


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken):
        volplane_testing.run(DistributedRun(PLANTS[plant]).run())
