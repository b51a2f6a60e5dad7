"""The volume that stands for an asset, as it is created."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, storage_class
from unit.deciding import DRIVER, disk
from volplane.assets import Asset, VolumeSource
from volplane.provision.decide import volume_body
from volplane.schemas import ParameterSchema
from volplane.state.records import INTENT_VERSION, ClaimIntent

ASSET: dict[str, Any] = {
    "handle": "h",
    "source": VolumeSource(kind="hostPath", fields={"path": "/a"}),
    "capacity_bytes": 2 * 2**30,
}
CSI = VolumeSource(kind="csi", fields={"driver": DRIVER, "volumeHandle": "h"})
MARKS = {
    "pv.kubernetes.io/provisioned-by": DRIVER,
    "volplane.dev/driver": DRIVER,
    "volplane.dev/handle": "h",
    "volplane.dev/generation": "3",
    "volplane.dev/schema-version": "4",
}


def made(
    asset: dict[str, Any] | None = None,
    *,
    of_class: dict[str, Any] | None = None,
    of_claim: dict[str, Any] | None = None,
    driver: str = DRIVER,
    generation: int = 3,
) -> dict[str, Any]:
    """The volume for an asset. asset: what is otherwise about it; of_class, of_claim: fields of those."""
    return volume_body(
        claim(storageClassName="fast", accessModes=["ReadWriteOnce", "ReadOnlyMany"], **(of_claim or {})),
        storage_class(provisioner=driver, **(of_class or {})),
        disk(driver, parameters=ParameterSchema(version=4)),
        ClaimIntent(v=INTENT_VERSION, driver=driver, generation=generation),
        Asset(**{**ASSET, **(asset or {})}),
    )


def test_a_volume_says_what_it_is_whose_and_how_it_was_made() -> None:
    assert made() == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pvc-uid-c", "annotations": MARKS, "finalizers": ["volplane.dev/reclaim"]},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "apiVersion": "v1",
                "namespace": "default",
                "name": "c",
                "uid": "uid-c",
                "resourceVersion": "1",
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "hostPath": {"path": "/a"},
        },
    }


def test_a_volume_whose_asset_is_kept_is_held_by_nothing() -> None:
    body = made(of_class={"reclaimPolicy": "Retain"})
    assert body["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert "finalizers" not in body["metadata"]


@pytest.mark.parametrize(("release", "mark"), [("recycle", {"volplane.dev/on-release": "recycle"}), ("delete", {})])
def test_what_becomes_of_it_at_its_release_stands_on_it(release: str, mark: dict[str, str]) -> None:
    body = made(of_class={"parameters": {"volplane.dev/on-release": release}})
    assert body["metadata"]["annotations"] == {**MARKS, **mark}


def test_what_the_backend_said_of_the_asset_stands_on_it() -> None:
    asset = {
        "attributes": {"tier": "gold", "läge": "här"},
        "gid": 0,
        "mount_options": ("nolock",),
        "node_affinity": ({"zone": "a", "rack": "1"}, {"zone": "b"}),
    }
    body = made(asset, of_class={"mountOptions": ["hard"]})
    marks = {"volplane.dev/attributes": '{"läge": "här", "tier": "gold"}', "pv.beta.kubernetes.io/gid": "0"}
    assert body["metadata"]["annotations"] == {**MARKS, **marks}
    assert body["spec"]["hostPath"] == {"path": "/a"}
    assert body["spec"]["mountOptions"] == ["hard", "nolock"]
    both = [
        {"key": "rack", "operator": "In", "values": ["1"]},
        {"key": "zone", "operator": "In", "values": ["a"]},
    ]
    terms = [{"matchExpressions": both}, {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
    assert body["spec"]["nodeAffinity"] == {"required": {"nodeSelectorTerms": terms}}


def test_annotations_for_other_controllers_stand_on_it_and_overrule_none_of_ours() -> None:
    told = {"example.com/secret-name": "x", "pv.kubernetes.io/provisioned-by": "somebody"}
    assert made({"annotations": told})["metadata"]["annotations"] == {"example.com/secret-name": "x", **MARKS}


def test_attributes_of_a_csi_volume_stand_in_its_source_and_do_not_overrule_it() -> None:
    body = made({"source": CSI, "attributes": {"tier": "gold"}})
    assert body["spec"]["csi"] == {**CSI.fields, "volumeAttributes": {"tier": "gold"}}
    assert body["metadata"]["annotations"] == MARKS
    given = VolumeSource(kind="csi", fields={**CSI.fields, "volumeAttributes": {"tier": "best"}})
    body = made({"source": given, "attributes": {"tier": "gold", "zone": "a"}})
    assert body["spec"]["csi"]["volumeAttributes"] == {"tier": "best", "zone": "a"}
    assert made({"source": CSI})["spec"]["csi"] == CSI.fields


def test_mode_and_attributes_class_are_those_of_the_claim() -> None:
    spec = made(of_claim={"volumeMode": "Block", "volumeAttributesClassName": "gold"})["spec"]
    assert (spec["volumeMode"], spec["volumeAttributesClassName"]) == ("Block", "gold")
    assert made(of_claim={"volumeMode": None})["spec"]["volumeMode"] == "Filesystem"


def test_a_claim_without_access_modes_makes_a_volume_without() -> None:
    assert (
        volume_body(
            claim(accessModes=None),
            storage_class(),
            disk(),
            ClaimIntent(v=INTENT_VERSION, driver=DRIVER),
            Asset(**ASSET),
        )["spec"]["accessModes"]
        == []
    )


@pytest.mark.parametrize(
    ("generation", "handle", "noted"),
    [
        (1, "/a", {}),
        (1, "h", {"volplane.dev/handle": "h"}),
        (2, "/a", {"volplane.dev/generation": "2"}),
    ],
)
def test_of_an_in_tree_name_only_what_is_needed_is_noted(generation: int, handle: str, noted: dict[str, str]) -> None:
    body = made({"handle": handle}, driver="kubernetes.io/disk", generation=generation)
    assert body["metadata"]["annotations"] == {"pv.kubernetes.io/provisioned-by": "kubernetes.io/disk", **noted}
    assert body["metadata"]["finalizers"] == ["kubernetes.io/pv-controller"]
