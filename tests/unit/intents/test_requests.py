"""Volumes as hooks see them, whatever people wrote into the objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bench.counting import lines_of_core

from unit.binding.objects import storage_class
from volplane.assets import AccessMode
from volplane.intents.requests import MOST_SEGMENTS, allowed_segments, count_segments, volume_identity
from volplane.kube.objects import Volume
from volplane.state.naming import asset_key

OURS = {"pv.kubernetes.io/provisioned-by": "disk.example.com"}


def made(annotations: dict[str, str] | None = None, **spec: Any) -> Volume:
    body = {"metadata": {"name": "pvc-1", "uid": "u", "annotations": annotations or {}}, "spec": spec}
    return msgspec.convert(body, Volume)


@pytest.mark.parametrize(("said", "meant"), [("3", 3), ("", 1), ("x", 1), ("²", 1), ("9" * 5000, 1), ("-1", 1)])
def test_a_generation_that_is_none_is_the_first(said: str, meant: int) -> None:
    owner = volume_identity(made(OURS | {"volplane.dev/generation": said}), "cluster").owner
    assert owner is not None
    assert owner.generation == meant


def test_an_access_mode_of_a_later_kubernetes_keeps_no_volume_from_being_deleted() -> None:
    seen = volume_identity(made(accessModes=["ReadWriteOnce", "WriteOnlyNever"]), "cluster")
    assert seen.access_modes == (AccessMode.READ_WRITE_ONCE,)


@pytest.mark.parametrize(
    "spec",
    [{}, {"csi": {}}, {"csi": {"driver": 7, "volumeHandle": ["x"]}}, {"hostPath": {}}, {"nfs": {"path": None}}],
)
def test_a_volume_with_an_odd_source_or_none_has_an_identity_and_a_key(spec: dict[str, Any]) -> None:
    seen = volume_identity(made(**spec), "cluster")
    assert isinstance(seen.handle, str)
    assert seen.source.kind == next(iter(spec), "")
    assert asset_key(made(**spec)).startswith(seen.source.kind)


def test_two_static_volumes_of_one_disk_have_one_key_though_they_are_mounted_otherwise() -> None:
    disk = {"driver": "disk.example.com", "volumeHandle": "h-1"}
    assert asset_key(made(csi=disk)) == asset_key(made(csi={**disk, "fsType": "xfs", "readOnly": True}))
    assert asset_key(made(csi=disk)) != asset_key(made(csi={**disk, "volumeHandle": "h-2"}))


def test_two_notations_of_one_static_disk_have_one_key() -> None:
    """Operations under one key exclude each other."""
    keys = {
        asset_key(made(awsElasticBlockStore={"volumeID": "aws://us-east-1a/vol-1", "fsType": "xfs"})),
        asset_key(made(awsElasticBlockStore={"volumeID": "vol-1", "partition": 1})),
        asset_key(made(csi={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"})),
    }
    assert keys == {"csi:vol-1"}
    nfs = {"server": "a", "path": "/x"}
    assert asset_key(made(nfs=nfs)) == asset_key(made(nfs={**nfs, "readOnly": True}))


def test_a_product_of_topology_labels_takes_no_more_steps_than_the_places_that_are_supported() -> None:
    def steps(keys: int, values: int) -> tuple[int, int, int]:
        expressions = [{"key": f"k{key}", "values": [f"v{value}" for value in range(values)]} for key in range(keys)]
        of_class = storage_class(allowedTopologies=[{"matchLabelExpressions": expressions}])
        with lines_of_core() as lines:
            places, count = allowed_segments(of_class), count_segments(of_class)
        return len(places), count, lines.count

    *_, few = steps(3, 10)
    places, count, many = steps(12, 20)
    assert (places, count) == (MOST_SEGMENTS, 20**12)
    assert many <= few * 10, "the labels are looked at, not their product"
