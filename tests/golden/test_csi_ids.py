"""Names and ids that a bridge has given out keep their meaning in all versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from volplane.csi import ids
from volplane.directory import Handle

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("csi_ids.json").read_text("utf-8"))


def test_the_cluster_of_a_bridge_is_marked_as_ever() -> None:
    assert {given: ids.cluster_of(given) for given in GOLDEN["clusters"]} == GOLDEN["clusters"]


@pytest.mark.parametrize("name", GOLDEN["names"])
def test_a_name_is_that_of_the_same_asset_as_ever(name: str) -> None:
    assert ids.asset_name(name) == GOLDEN["names"][name]


def test_different_names_are_different_assets() -> None:
    assert len(set(GOLDEN["names"].values())) == len(GOLDEN["names"])
    for asset in GOLDEN["names"].values():
        assert ids.asset_name(asset) == asset or asset.startswith("csi-")


def test_marks_are_those_that_were_ever_written() -> None:
    for name, marks in GOLDEN["owners"].items():
        owner = ids.owner_of(name, "prod/csi", 1)
        assert [owner.cluster_id, owner.claim_uid, owner.volume_name, owner.generation] == marks
    for kind, owner_of in (("snapshots", ids.snapshot_owner_of), ("groups", ids.group_owner_of)):
        for name, marks in GOLDEN[kind].items():
            mark = owner_of(name, "prod/csi")
            assert [mark.cluster_id, mark.snapshot_uid, mark.content_name] == marks


def test_a_token_that_an_earlier_version_gave_out_is_read() -> None:
    for token, (page, after) in GOLDEN["tokens"].items():
        assert ids.read_token(token) == (page, after)


def test_the_id_of_a_directory_says_what_its_deletion_needs_as_ever() -> None:
    for id_, parts in GOLDEN["directories"].items():
        handle = Handle.parse(id_)
        assert handle is not None
        assert [handle.storage_id, handle.volume_name, handle.generation] == parts
        assert str(handle) == id_


def test_the_ids_of_disks_are_those_of_the_clouds() -> None:
    """... and of their official drivers, so that volumes can be handed over."""
    aws, gce = pytest.importorskip("volplane_aws_ebs.resources"), pytest.importorskip("volplane_gce_pd.resources")
    assert {id_: aws.volume_id_from(id_) for id_ in GOLDEN["disks"]["aws_ebs"]} == GOLDEN["disks"]["aws_ebs"]
    for id_, key in GOLDEN["disks"]["gce_pd"].items():
        assert list(gce.disk_key_from(id_, "p-1")) == key
