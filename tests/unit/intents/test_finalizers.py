"""Finalizers on volumes and the mark of migrated plugins (`pv.kubernetes.io/migrated-to`)."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, volume
from unit.deciding import disk, state_with
from volplane.binding.decide import migration_step
from volplane.intents.ownership import finalizer_step, held_for_reclaim
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.names import EXTERNAL_PROVISIONER_FINALIZER as EXTERNAL
from volplane.kube.names import IN_TREE_FINALIZER as IN_TREE
from volplane.kube.names import MIGRATED_PLUGINS
from volplane.kube.names import RECLAIM_FINALIZER as OURS
from volplane.state.naming import reclaim_finalizer

FOREIGN = "example.com/hold"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"


def after(maker: str, policy: str, held: list[str], *, ours: bool = False, dying: bool = False) -> list[str]:
    """The finalizers once the step, if there is one, is taken."""
    meta: dict[str, Any] = {"finalizers": held, "annotations": {PROVISIONED_BY: maker} if maker else {}}
    if dying:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster = state_with(drivers=(disk(maker),) if ours else ())
    step = finalizer_step(volume(persistentVolumeReclaimPolicy=policy, **meta), cluster)
    if step is None:
        return held
    left = step.body["metadata"]["finalizers"]
    assert left != held, "a step that changes nothing"
    return left or []


TABLE = [
    ("made by nobody", "", "Delete", [EXTERNAL], [EXTERNAL]),
    ("made by nobody", "", "Delete", [IN_TREE], [IN_TREE]),
    ("migrated", "kubernetes.io/gce-pd", "Delete", [EXTERNAL, IN_TREE], [EXTERNAL]),
    ("migrated", "kubernetes.io/gce-pd", "Delete", [FOREIGN], [FOREIGN]),
    ("external", "rbd.csi.ceph.com", "Delete", [EXTERNAL], [EXTERNAL]),
    ("external", "rbd.csi.ceph.com", "Delete", [], []),
    ("external", "rbd.csi.ceph.com", "Retain", [EXTERNAL], [EXTERNAL]),
    ("in-tree", "kubernetes.io/disk", "Delete", [], [IN_TREE]),
    ("in-tree", "kubernetes.io/disk", "Delete", [FOREIGN], [FOREIGN, IN_TREE]),
    ("in-tree", "kubernetes.io/disk", "Delete", [EXTERNAL, FOREIGN], [FOREIGN, IN_TREE]),
    ("in-tree", "kubernetes.io/disk", "Delete", [IN_TREE, EXTERNAL], [IN_TREE]),
    ("in-tree", "kubernetes.io/disk", "Retain", [IN_TREE, FOREIGN], [FOREIGN]),
    ("in-tree", "kubernetes.io/disk", "Recycle", [IN_TREE, EXTERNAL], []),
    ("in-tree", "kubernetes.io/disk", "Retain", [], []),
]


@pytest.mark.parametrize(("who", "maker", "policy", "held", "expected"), TABLE)
def test_maker_and_policy_say_which_finalizers_stand(
    who: str, maker: str, policy: str, held: list[str], expected: list[str]
) -> None:
    assert after(maker, policy, held) == expected, who


@pytest.mark.parametrize(
    ("policy", "held", "expected"),
    [
        ("Delete", [], [OURS]),
        ("Delete", [FOREIGN], [FOREIGN, OURS]),
        ("Delete", [OURS], [OURS]),
        ("Retain", [OURS, FOREIGN], [FOREIGN]),
        ("Recycle", [OURS], []),
        ("Retain", [], []),
    ],
)
def test_volumes_of_our_drivers_are_held_under_policy_delete_only(
    policy: str, held: list[str], expected: list[str]
) -> None:
    assert after("disk.example.com", policy, held, ours=True) == expected


def test_a_static_volume_gets_no_finalizer_before_it_is_released() -> None:
    assert after("", "Delete", []) == []


def test_a_static_volume_loses_ours_when_its_asset_is_to_be_kept() -> None:
    assert after("", "Retain", [OURS]) == []


@pytest.mark.parametrize("maker", ["kubernetes.io/disk", "disk.example.com"])
def test_nothing_is_added_to_what_is_being_deleted(maker: str) -> None:
    """Item 21.9: the API server refuses it, for ever."""
    assert after(maker, "Delete", [FOREIGN], ours=True, dying=True) == [FOREIGN]


def test_each_driver_marks_its_volumes_by_one_finalizer() -> None:
    assert reclaim_finalizer("disk.example.com") == OURS
    assert reclaim_finalizer("kubernetes.io/disk") == IN_TREE
    assert held_for_reclaim(volume(finalizers=[OURS]))
    assert held_for_reclaim(volume(finalizers=[IN_TREE]))
    assert not held_for_reclaim(volume(finalizers=[EXTERNAL]))


# --- migration ---------------------------------------------------------------------------------------------------

STORAGE = "volume.kubernetes.io/storage-provisioner"
BETA = "volume.beta.kubernetes.io/storage-provisioner"


def migrated(item: Any) -> Any:
    kind = VOLUMES if hasattr(item.spec, "claim_ref") else CLAIMS
    step = migration_step(kind, item)
    return "nothing" if step is None else step.body["metadata"]["annotations"][MIGRATED_TO]


@pytest.mark.parametrize(("plugin", "driver"), MIGRATED_PLUGINS.items())
def test_what_a_migrated_plugin_made_or_shall_make_is_marked(plugin: str, driver: str) -> None:
    assert migrated(volume(annotations={PROVISIONED_BY: plugin})) == driver
    assert migrated(claim(annotations={STORAGE: plugin})) == driver
    assert migrated(claim(annotations={BETA: plugin})) == driver


def test_a_mark_that_stands_is_not_written_again() -> None:
    marked = {PROVISIONED_BY: "kubernetes.io/gce-pd", MIGRATED_TO: "pd.csi.storage.gke.io"}
    assert migrated(volume(annotations=marked)) == "nothing"


def test_a_mark_of_a_plugin_that_is_not_migrated_is_removed() -> None:
    assert migrated(volume(annotations={PROVISIONED_BY: "kubernetes.io/rbd", MIGRATED_TO: "rbd.csi.ceph.com"})) is None


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {MIGRATED_TO: "x"},
        {PROVISIONED_BY: "kubernetes.io/rbd"},
        {PROVISIONED_BY: "pd.csi.storage.gke.io"},
        {PROVISIONED_BY: "kubernetes.io/rbd", MIGRATED_TO: ""},
    ],
)
def test_anything_else_is_left_alone(annotations: dict[str, str]) -> None:
    assert migrated(volume(annotations=annotations)) == "nothing"
