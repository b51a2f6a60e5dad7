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


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (pd("mine", "projects/p/zones/us-a/disks/d"), pd("other", "d")),
        (pd("mine", "d", **ZONE), pd("other", "d")),
        (pd("mine", "projects/UNSPECIFIED/zones/us-a/disks/d"), pd("other", "projects/p/zones/us-a/disks/d")),
        (pd("mine", "projects/p/zones/UNSPECIFIED/disks/d"), pd("other", "projects/p/zones/us-a/disks/d")),
        (pd("mine", "projects/p/zones/UNSPECIFIED/disks/d"), pd("other", "d", **ZONE)),
    ],
)
def test_a_disk_whose_project_or_zone_nobody_wrote_down_may_be_any_of_its_name(mine: Volume, other: Volume) -> None:
    overlaps = known(mine, other)
    assert overlaps.of(mine) == Overlap("other", "is that of")
    assert overlaps.of(other) == Overlap("mine", "is that of")
    overlaps.changed(other, None)
    assert overlaps.of(mine) is None
    assert overlaps.freed_by(other) == ["mine"]


def test_what_a_disk_does_not_say_of_itself_may_not_contradict_what_it_says() -> None:
    here = pd("mine", "projects/UNSPECIFIED/zones/us-a/disks/d")
    assert known(here, pd("other", "projects/p/zones/us-b/disks/d")).of(here) is None


# --- one disk in two notations -------------------------------------------------------------------------------------

RBD = {"monitors": ["10.0.0.1:6789", "10.0.0.2:6789"], "pool": "p", "image": "i"}
ISCSI = {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2001-04.com.example:disk1", "lun": 0}
FC = {"targetWWNs": ["500a0982991b8dc5", "500a0982891b8dc5"], "lun": 2}
AZURE_DISK = "/subscriptions/S/resourceGroups/rg/providers/Microsoft.Compute/disks/Disk-1"
AZURE_SECRET = "azure-storage-account-acct-secret"


def csi(driver: str, handle: str, **attributes: str) -> dict[str, Any]:
    return {"csi": {"driver": driver, "volumeHandle": handle, "volumeAttributes": attributes}}


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["10.0.0.2:6789", "10.0.0.1:6789"], "user": "x", "keyring": "/k"}}),
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["10.0.0.2"], "readOnly": True, "secretRef": {"name": "s"}}}),
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["v2:10.0.0.1:3300/0"]}}),
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["[v2:10.0.0.9:3300,v1:10.0.0.1:6789]"]}}),
        (
            {"rbd": RBD | {"monitors": ["Mon-A.example.com.:6789"]}},
            {"rbd": RBD | {"monitors": ["mon-a.example.com"]}},
        ),
        ({"rbd": RBD | {"monitors": ["[fd00::1]:6789"]}}, {"rbd": RBD | {"monitors": ["FD00:0:0::1"]}}),
        ({"cephfs": {"monitors": ["a:6789", "b"], "path": "/x"}}, {"cephfs": {"monitors": ["B:6789"], "user": "u"}}),
        ({"iscsi": ISCSI}, {"iscsi": ISCSI | {"targetPortal": "10.0.0.1", "iscsiInterface": "default"}}),
        ({"iscsi": ISCSI}, {"iscsi": ISCSI | {"iqn": ISCSI["iqn"].upper(), "initiatorName": "iqn.i"}}),
        ({"iscsi": ISCSI}, {"iscsi": ISCSI | {"targetPortal": "10.0.0.2", "portals": ["10.0.0.1:3260"]}}),
        ({"iscsi": ISCSI}, {"iscsi": {key: ISCSI[key] for key in ("targetPortal", "iqn")} | {"chapAuthSession": True}}),
        ({"fc": FC}, {"fc": FC | {"targetWWNs": ["50:0A:09:82:89:1B:8D:C5"], "fsType": "xfs"}}),
        ({"fc": FC}, {"fc": FC | {"targetWWNs": ["0x500a0982991b8dc5"]}}),
        ({"fc": {"wwids": ["3600508B4"]}}, {"fc": {"wwids": ["3600508b4", "other"]}}),
        ({"glusterfs": {"endpoints": "g", "path": "v"}}, {"glusterfs": {"endpoints": "g", "path": "/v/sub"}}),
        (
            {"glusterfs": {"endpoints": "g", "path": "v"}},
            {"glusterfs": {"endpoints": "g", "path": "v", "endpointsNamespace": "n", "readOnly": True}},
        ),
        (
            {"quobyte": {"registry": "a:7861,b:7861", "volume": "v", "user": "root"}},
            {"quobyte": {"registry": "b", "volume": "v", "group": "g"}},
        ),
        ({"cinder": {"volumeID": "c-1", "fsType": "xfs"}}, csi("cinder.csi.openstack.org", "c-1")),
        ({"azureDisk": {"diskURI": AZURE_DISK, "cachingMode": "None"}}, {"azureDisk": {"diskURI": AZURE_DISK.lower()}}),
        ({"azureDisk": {"diskURI": AZURE_DISK, "kind": "Managed"}}, csi("disk.csi.azure.com", AZURE_DISK.lower())),
        ({"azureFile": {"shareName": "s", "secretName": AZURE_SECRET}}, csi("file.csi.azure.com", "rg#acct#s#pv#ns")),
        ({"azureFile": {"shareName": "s"}}, csi("file.csi.azure.com", "rg#acct#S##")),
        (
            csi("file.csi.azure.com", "rg#acct#s"),
            csi("file.csi.azure.com", "any", shareName="s", storageAccount="acct"),
        ),
        ({"vsphereVolume": {"volumePath": "[ds] a.vmdk", "fsType": "x"}}, csi("csi.vsphere.vmware.com", "[ds] a.vmdk")),
        (
            {"vsphereVolume": {"volumePath": "[ds] a.vmdk", "storagePolicyName": "gold"}},
            csi("csi.vsphere.vmware.com", "uuid", initialvolumefilepath="[ds] a.vmdk"),
        ),
        ({"portworxVolume": {"volumeID": "p-1"}}, csi("pxd.portworx.com", "p-1")),
        ({"photonPersistentDisk": {"pdID": "p"}}, {"photonPersistentDisk": {"pdID": "p", "fsType": "xfs"}}),
        (
            {"scaleIO": {"gateway": "https://a", "system": "s", "volumeName": "v", "storageMode": "ThickProvisioned"}},
            {"scaleIO": {"gateway": "https://b", "system": "s", "volumeName": "v", "sslEnabled": True}},
        ),
        (
            {"storageos": {"volumeName": "v", "volumeNamespace": "n"}},
            {"storageos": {"volumeName": "v", "volumeNamespace": "n", "secretRef": {"name": "s"}}},
        ),
        ({"flocker": {"datasetUUID": "d"}}, {"flocker": {"datasetUUID": "d", "datasetName": ""}}),
        (
            {"flexVolume": {"driver": "d/x", "options": {"id": "1"}}},
            {"flexVolume": {"driver": "d/x", "options": {"id": "1"}, "fsType": "xfs"}},
        ),
        ({"nfs": {"server": "fd00::1", "path": "/x"}}, {"nfs": {"server": "[FD00:0::1]", "path": "/x/"}}),
        (
            {"nfs": {"server": "a", "path": "/x/y"}},
            csi("nfs.csi.k8s.io", "a#x#y##", server="a", share="/x", subdir="y"),
        ),
    ],
    ids="".join,
)
def test_one_disk_in_two_notations_is_one_disk(mine: Any, other: Any) -> None:
    ours, theirs = volume("mine", hostPath=None, **mine), volume("other", hostPath=None, **other)
    for first, second in ((ours, theirs), (theirs, ours)):
        overlaps = known(first, second)
        for each, twin in ((first, second), (second, first)):
            found = overlaps.of(each)
            assert found is not None
            assert found.name == twin.name
        overlaps.changed(first, None)
        assert overlaps.of(second) is None
        overlaps.changed(second, None)
        assert not overlaps.freed_by(first)


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ({"rbd": RBD}, {"rbd": RBD | {"image": "j"}}),
        ({"rbd": RBD}, {"rbd": RBD | {"pool": "q"}}),
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["10.0.0.10:6789"]}}),
        ({"cephfs": {"monitors": ["a"], "path": "/x"}}, {"cephfs": {"monitors": ["a"], "path": "/y"}}),
        ({"iscsi": ISCSI}, {"iscsi": ISCSI | {"lun": 1}}),
        ({"iscsi": ISCSI}, {"iscsi": ISCSI | {"targetPortal": "10.0.0.3"}}),
        ({"fc": FC}, {"fc": FC | {"lun": 3}}),
        ({"cinder": {"volumeID": "c-1"}}, csi("cinder.csi.openstack.org", "c-2")),
        ({"azureFile": {"shareName": "s", "secretName": AZURE_SECRET}}, csi("file.csi.azure.com", "rg#other#s")),
        ({"portworxVolume": {"volumeID": "p"}}, {"cinder": {"volumeID": "p"}}),
        (
            {"flexVolume": {"driver": "d/x", "options": {"id": "A"}}},
            {"flexVolume": {"driver": "d/x", "options": {"id": "B"}}},
        ),
    ],
    ids="".join,
)
def test_two_disks_are_two(mine: Any, other: Any) -> None:
    ours, theirs = volume("mine", hostPath=None, **mine), volume("other", hostPath=None, **other)
    assert known(ours, theirs).of(ours) is None
    assert known(ours, theirs).of(theirs) is None


def test_volumes_that_show_one_snapshot_share_nothing_that_a_deletion_takes_away() -> None:
    shown = [at(name, "/data/s", annotations={"volplane.dev/backing-snapshot": "s"}) for name in ("one", "two")]
    overlaps = known(*shown, at("other", "/data/s"))
    assert [overlaps.of(each) for each in shown] == [None, None]
    assert overlaps.of(at("mine", "/data/s")) == Overlap("other", "is that of")
