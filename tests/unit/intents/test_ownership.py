"""Which driver works on a volume."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import volume
from unit.deciding import Views, disk, state_with
from volplane.assets import VolumeSource
from volplane.controller.actions import Run, Wait
from volplane.drivers.owners import SourceOwner
from volplane.intents.ownership import (
    NO_PLUGIN,
    DriverLookup,
    driver_named,
    driver_of,
    finalizer_step,
    run_on_asset,
    shared_with,
)
from volplane.kube.names import EXTERNAL_PROVISIONER_FINALIZER as EXTERNAL
from volplane.kube.names import HANDLE, RECLAIM_FINALIZER
from volplane.kube.objects import Node, Volume
from volplane.schemas import Predecessor
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key

DISK = disk()


class Owners(Views):
    """Drivers that say about every source what the test says."""

    def __init__(self, owner: SourceOwner, starting: str = "") -> None:
        super().__init__((DISK,), {"broken.example.com": "its root is not mounted"})
        self._owner = owner
        self._starting = starting

    def starting(self, name: str) -> bool:
        return name == self._starting

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        return self._owner


def world(owner: SourceOwner | None = None, starting: str = "") -> ClusterState:
    made = state_with()
    made.drivers = Owners(owner or SourceOwner(), starting)
    return made


def by(provisioner: str) -> Volume:
    return volume(annotations={"pv.kubernetes.io/provisioned-by": provisioner})


STARTS = DriverLookup(next=Wait(reason='driver "slow.example.com" is starting'))
HERE: dict[str, Any] = {"key": "kubernetes.io/hostname", "operator": "In"}
CSI: dict[str, Any] = {"hostPath": None, "csi": {"driver": "x.example.com", "volumeHandle": "h"}}
IDENTIFY = Run(verb="identify", key="v", uid="uid-v", driver="", asset=asset_key(volume()))
IDENTIFY_CSI = Run(verb="identify", key="v", uid="uid-v", driver="", asset=asset_key(volume(**CSI)))


@pytest.mark.parametrize(
    ("provisioner", "owner"),
    [
        (DISK.name, DriverLookup(DISK)),
        ("slow.example.com", STARTS),
        ("broken.example.com", DriverLookup(reason='driver "broken.example.com" cannot work: its root is not mounted')),
        ("somebody.example.com", DriverLookup()),
        ("kubernetes.io/glusterfs", DriverLookup(reason=NO_PLUGIN)),
    ],
)
def test_a_volume_belongs_to_the_driver_that_made_it_whoever_owns_its_source(
    provisioner: str, owner: DriverLookup
) -> None:
    others = SourceOwner(driver=disk("other.example.com"))
    assert driver_of(by(provisioner), world(others, starting="slow.example.com")) == owner


def test_a_volume_of_another_node_belongs_to_nobody_on_this_one_whatever_its_label_says() -> None:
    there = {"required": {"nodeSelectorTerms": [{"matchExpressions": [HERE | {"values": ["there"]}]}]}}
    item = volume(annotations={"pv.kubernetes.io/provisioned-by": DISK.name}, nodeAffinity=there)
    node = msgspec.convert({"metadata": {"name": "here", "uid": "u", "labels": {HERE["key"]: "here"}}}, Node)
    owner = driver_of(item, state_with(node, drivers=(DISK,), node_name="here"))
    assert owner.driver is None
    assert owner.next is None
    assert "its node affinity does not put it on node here" in owner.reason


@pytest.mark.parametrize(
    ("finalizers", "annotations", "predecessor", "held"),
    [
        ([], {}, "disk.example.com", True),
        ([], {HANDLE: "h"}, "disk.example.com", False),
        ([RECLAIM_FINALIZER], {}, "disk.example.com", False),
        ([RECLAIM_FINALIZER, EXTERNAL], {HANDLE: "h"}, "disk.example.com", True),
        ([EXTERNAL], {}, "another.example.com", False),
        ([EXTERNAL], {}, "", False),
        ([], {}, "", False),
    ],
)
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_volume_is_the_predecessors_until_it_has_our_finalizer_or_its_handle(
    finalizers: list[str], annotations: dict[str, str], predecessor: str, held: bool, policy: str
) -> None:
    replaced = Predecessor(pods="app=controller") if predecessor else None
    driver = disk(csi_driver_name=predecessor or None, predecessor=replaced)
    made_by = {"pv.kubernetes.io/provisioned-by": driver.name, **annotations}
    item = volume(annotations=made_by, finalizers=finalizers, persistentVolumeReclaimPolicy=policy)
    assert (driver_of(item, state_with(drivers=(driver,))).driver is None) is held


def test_while_a_driver_starts_nothing_shows_that_a_volume_is_not_its_predecessors() -> None:
    starting = {DISK.name: "is starting"}
    item = volume(annotations={"pv.kubernetes.io/provisioned-by": DISK.name}, persistentVolumeReclaimPolicy="Delete")
    assert finalizer_step(item, state_with(drivers=(), broken=starting)) is None
    assert finalizer_step(item, state_with(drivers=(DISK,))) is not None


@pytest.mark.parametrize(
    ("fields", "said", "owner"),
    [
        ({}, SourceOwner(driver=DISK), DriverLookup(DISK)),
        (CSI, SourceOwner(driver=DISK), DriverLookup(DISK)),
        ({}, SourceOwner(), DriverLookup(reason=NO_PLUGIN)),
        ({}, SourceOwner(reason="two drivers own it"), DriverLookup(reason="two drivers own it")),
        ({}, SourceOwner(known=False), DriverLookup(next=IDENTIFY)),
        ({}, SourceOwner(known=False, reason="it hangs"), DriverLookup(reason="it hangs", next=IDENTIFY)),
        ({}, SourceOwner(known=False, starting="slow.example.com"), STARTS),
        (CSI, SourceOwner(), DriverLookup()),
        (CSI, SourceOwner(reason="two drivers own it"), DriverLookup()),
        (CSI, SourceOwner(known=False, reason="it hangs"), DriverLookup(next=IDENTIFY_CSI)),
        (CSI, SourceOwner(known=False, starting="slow.example.com"), STARTS),
    ],
)
def test_a_static_volume_belongs_to_whoever_owns_its_source_and_a_csi_volume_may_be_somebody_elses(
    fields: dict[str, Any], said: SourceOwner, owner: DriverLookup
) -> None:
    assert driver_of(volume(**fields), world(said)) == owner


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (DISK.name, DriverLookup(DISK)),
        ("slow.example.com", STARTS),
        ("broken.example.com", DriverLookup(reason="its root is not mounted")),
        ("somebody.example.com", DriverLookup()),
    ],
)
def test_a_driver_is_there_or_starts_or_is_broken_or_is_not_configured(name: str, found: DriverLookup) -> None:
    assert driver_named(name, world(starting="slow.example.com")) == found


def test_operations_of_a_volume_exclude_each_other_and_fail_by_class() -> None:
    item = volume(storageClassName="fast")
    assert run_on_asset("delete", item, DISK) == Run(
        verb="delete", key="v", uid="uid-v", driver=DISK.name, asset=asset_key(item), group="delete fast"
    )


def test_what_shares_the_storage_is_named_with_what_to_do() -> None:
    alone = state_with(volume())
    assert shared_with(volume(), alone) == ""
    both = state_with(volume(), volume("w", hostPath={"path": "/v/below"}))
    why = shared_with(volume(), both)
    assert 'volume "w"' in why
    assert why.endswith("set the policy of one of them to Retain and delete that object")
