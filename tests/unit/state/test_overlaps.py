"""Which volumes share storage."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import volume
from volplane.kube.objects import Volume
from volplane.state.naming import Overlap, Overlaps


def at(name: str, path: str, *, node: str = "", label: str = "kubernetes.io/hostname", **source: Any) -> Volume:
    fields: dict[str, Any] = source or {"hostPath": {"path": path}}
    if node:
        terms = [{"matchExpressions": [{"key": label, "operator": "In", "values": node.split()}]}]
        fields["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    base = {} if "hostPath" in fields else {"hostPath": None}
    return volume(name, **base, **fields)


def known(*volumes: Volume) -> Overlaps:
    overlaps = Overlaps()
    for item in volumes:
        overlaps.changed(None, item)
    return overlaps


@pytest.mark.parametrize(
    ("mine", "other", "relation"),
    [
        ("/data/a", "/data/a", "is that of"),
        ("/data/a", "/data//./a/", "is that of"),
        ("/data/a/b/c", "/data/a", "lies within that of"),
        ("/data/a", "/", "lies within that of"),
        ("/data/a", "/data/a/b/c", "contains that of"),
        ("/", "/data", "contains that of"),
        ("/data/a", "/data/a/\U0001f600", "contains that of"),
    ],
)
def test_paths_overlap_by_their_parts(mine: str, other: str, relation: str) -> None:
    overlaps = known(at("mine", mine), at("other", other))
    assert overlaps.of(at("mine", mine)) == Overlap("other", relation)
    assert overlaps.of(at("other", other)) is not None, "it is mutual"


@pytest.mark.parametrize("other", ["/data/ab", "/data/b", "/data/a-b", "/dat", "/data/A"])
def test_neighbours_do_not(other: str) -> None:
    assert known(at("mine", "/data/a"), at("other", other)).of(at("mine", "/data/a")) is None


def test_local_and_host_path_are_one_tree() -> None:
    local = at("mine", "", local={"path": "/data/a"})
    assert known(local, at("other", "/data")).of(local) == Overlap("other", "lies within that of")


@pytest.mark.parametrize(
    ("mine", "other", "overlap"),
    [
        ({"node": "n1"}, {"node": "n2"}, False),
        ({"node": "n1"}, {"node": "n1"}, True),
        ({"node": "n1 n2"}, {"node": "n2 n3"}, True),
        ({"node": "n1"}, {}, True),
        ({}, {"node": "n1"}, True),
        ({"node": "n1"}, {"node": "a", "label": "topology.kubernetes.io/zone"}, True),
        ({"node": "a", "label": "zone"}, {"node": "b", "label": "zone"}, False),
    ],
)
def test_one_path_on_two_nodes_is_two_places(mine: Any, other: Any, overlap: bool) -> None:
    """Every node of a cluster may have its /mnt/disk1. Where nobody knows the nodes, they may be the same."""
    ours, theirs = at("mine", "/mnt/disk1", **mine), at("other", "/mnt/disk1/sub", **other)
    overlaps = known(ours, theirs)
    assert (overlaps.of(ours) is not None) is overlap
    assert (overlaps.of(theirs) is not None) is overlap


@pytest.mark.parametrize(
    ("mine", "other", "overlap"),
    [
        ({"nfs": {"server": "a", "path": "/x"}}, {"nfs": {"server": "A.", "path": "/x/y"}}, True),
        ({"nfs": {"server": "a", "path": "/x"}}, {"nfs": {"server": "b", "path": "/x"}}, False),
        ({"nfs": {"server": "a", "path": "/x"}}, {"hostPath": {"path": "/x"}}, False),
        (
            {"nfs": {"server": "a", "path": "/x/y/z"}},
            {
                "csi": {
                    "driver": "nfs",
                    "volumeHandle": "h",
                    "volumeAttributes": {"server": "a", "share": "/x", "subDir": "y"},
                }
            },
            True,
        ),
        (
            {"csi": {"driver": "d", "volumeHandle": "v"}},
            {"csi": {"driver": "d", "volumeHandle": "v", "fsType": "xfs"}},
            True,
        ),
        ({"csi": {"driver": "d", "volumeHandle": "a"}}, {"csi": {"driver": "d", "volumeHandle": "a/b"}}, False),
        ({"csi": {"driver": "d", "volumeHandle": "v"}}, {"csi": {"driver": "e", "volumeHandle": "v"}}, False),
        (
            {"awsElasticBlockStore": {"volumeID": "vol-1", "partition": 1}},
            {"awsElasticBlockStore": {"volumeID": "vol-1"}},
            True,
        ),
        ({"awsElasticBlockStore": {"volumeID": "vol-1"}}, {"awsElasticBlockStore": {"volumeID": "vol-12"}}, False),
        ({"iscsi": {"iqn": "q", "lun": 1}}, {"iscsi": {"iqn": "q", "lun": 2}}, False),
    ],
)
def test_other_sources_are_compared_by_what_they_are(mine: Any, other: Any, overlap: bool) -> None:
    ours, theirs = at("mine", "", **mine), at("other", "", **other)
    assert (known(ours, theirs).of(ours) is not None) is overlap


@pytest.mark.parametrize(
    "source", [{"hostPath": {}}, {"hostPath": {"path": 7}}, {"nfs": {"server": 7, "path": "/"}}, {"csi": {}}]
)
def test_a_source_without_a_place_is_nobodys_neighbour(source: Any) -> None:
    odd = at("odd", "", **source)
    assert known(odd, at("other", "/")).of(odd) is None


def test_what_is_gone_frees_the_others_and_leaves_nothing() -> None:
    inner, outer, far = at("inner", "/a/b"), at("outer", "/a"), at("far", "/z")
    overlaps = known(inner, outer, far)
    overlaps.changed(outer, None)
    assert overlaps.freed_by(outer) == ["inner"]
    assert overlaps.of(inner) is None
    overlaps.changed(inner, None)
    overlaps.changed(far, None)
    assert not overlaps.freed_by(at("root", "/"))


def test_two_of_three_that_share_a_place_free_nobody_when_the_third_goes() -> None:
    same = [at(f"v{n}", "/a") for n in range(3)]
    overlaps = known(*same)
    overlaps.changed(same[0], None)
    assert overlaps.freed_by(same[0]) == []
    overlaps.changed(same[1], None)
    assert overlaps.freed_by(same[1]) == ["v2"]


def test_a_change_of_the_affinity_is_followed() -> None:
    here, there = at("v", "/a", node="n1"), at("v", "/a", node="n2")
    other = at("other", "/a", node="n2")
    overlaps = known(here, other)
    assert overlaps.of(other) is None
    overlaps.changed(here, there)
    assert overlaps.of(other) == Overlap("v", "is that of")


# --- disks with sources of both kinds ------------------------------------------------------------------------------

ZONE = {"labels": {"topology.kubernetes.io/zone": "us-a"}}
REGION = {"labels": {"topology.kubernetes.io/zone": "us-a__us-b"}}


def ebs(name: str, handle: str, *, csi: bool) -> Volume:
    csi_source = {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": handle}}
    return volume(name, hostPath=None, **(csi_source if csi else {"awsElasticBlockStore": {"volumeID": handle}}))


def pd(name: str, handle: str, **more: Any) -> Volume:
    csi = handle.startswith("projects/")
    csi_source = {"csi": {"driver": "pd.csi.storage.gke.io", "volumeHandle": handle}}
    return volume(name, hostPath=None, **(csi_source if csi else {"gcePersistentDisk": {"pdName": handle}}), **more)


SAME = [
    (ebs("mine", "vol-1", csi=True), ebs("other", "vol-1", csi=False)),
    (ebs("mine", "vol-1", csi=True), ebs("other", "aws://us-east-1a/vol-1", csi=False)),
    (ebs("mine", "vol-1", csi=False), ebs("other", "aws://us-east-1a/vol-1", csi=False)),
    (pd("mine", "projects/p/zones/us-a/disks/d"), pd("other", "d", **ZONE)),
    (pd("mine", "projects/p/regions/us/disks/d"), pd("other", "d", **REGION)),
    (pd("mine", "d", **ZONE), pd("other", "d", **ZONE)),
]
OTHERS = [
    (ebs("mine", "vol-1", csi=True), ebs("other", "vol-2", csi=False)),
    (pd("mine", "projects/p/zones/us-a/disks/d"), pd("other", "projects/q/zones/us-a/disks/d")),
    (pd("mine", "projects/p/zones/us-b/disks/d"), pd("other", "d", **ZONE)),
    (pd("mine", "projects/p/zones/us-a/disks/e"), pd("other", "d", **ZONE)),
]


@pytest.mark.parametrize(("mine", "other"), SAME)
def test_a_disk_is_the_same_whether_its_source_is_csi_or_in_tree(mine: Volume, other: Volume) -> None:
    overlaps = known(mine, other)
    assert overlaps.of(mine) == Overlap("other", "is that of")
    assert overlaps.of(other) == Overlap("mine", "is that of")
    assert overlaps.same_asset(mine) == overlaps.same_asset(other) == ["mine", "other"]
    overlaps.changed(other, None)
    assert overlaps.of(mine) is None


@pytest.mark.parametrize(("mine", "other"), OTHERS)
def test_disks_with_other_names_or_in_other_places_are_others(mine: Volume, other: Volume) -> None:
    overlaps = known(mine, other)
    assert overlaps.of(mine) is None
    assert overlaps.same_asset(mine) == ["mine"]
