"""Making volumes."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Absent,
    AccessMode,
    AlreadyExists,
    InvalidArgument,
    NodeIdentity,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unsupported,
    VolumeMode,
)

MIB = 1 << 20
HOSTNAME = "kubernetes.io/hostname"
UID = "0f0e0d0c-1111-4222-8333-444455556666"


def test_a_volume_is_a_directory_with_a_marker(site: Any) -> None:
    asset = site.provision(UID, 5 * MIB)
    assert asset.source.kind == "local"
    assert dict(asset.source.fields) == {"path": f"{site.root}/default/data-{UID}"}
    assert asset.capacity_bytes == 5 * MIB
    assert [dict(segment) for segment in asset.node_affinity] == [{HOSTNAME: "node-a"}]
    assert asset.handle == f"{site.root_id()}/pvc-{UID}@1"
    assert stat.S_IMODE(site.path(asset).stat().st_mode) == 0o770
    assert site.marker(UID).exists()
    assert list((site.root / ".volplane/tmp").iterdir()) == []


def test_an_equal_demand_gets_the_same_volume_and_keeps_its_files(site: Any) -> None:
    asset = site.provision()
    (site.path(asset) / "file").write_text("kept")
    site.path(asset).chmod(0o700)
    assert site.provision() == asset
    assert site.again().start().provision() == asset
    assert (site.path(asset) / "file").read_text() == "kept"
    assert stat.S_IMODE(site.path(asset).stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "other",
    [
        {"size": 2 * MIB},
        {"parameters": {"mode": 0o700}},
        {"parameters": {"pathTemplate": "${uid}"}},
        {"parameters": {"volumeType": "hostPath"}},
        {"access_modes": (AccessMode.READ_WRITE_ONCE_POD,)},
        {"generation": 2},
    ],
)
def test_another_demand_is_refused(site: Any, other: Any) -> None:
    asset = site.provision()
    with pytest.raises(AlreadyExists):
        site.provision(**other)
    assert site.find() == asset


def test_another_owner_is_refused(site: Any) -> None:
    site.provision()
    stranger = site.again()
    stranger.start()
    with pytest.raises(AlreadyExists, match="u1"):
        stranger.provision(owner=stranger.owner("u2"), name="pvc-u1")


def test_class_parameters_shape_the_directory(site: Any) -> None:
    asset = site.provision(
        parameters={"mode": 0o2750, "gid": os.getgid(), "uid": os.getuid(), "volumeType": "hostPath"}
    )
    assert dict(asset.source.fields) == {"path": str(site.path(asset)), "type": "Directory"}
    assert stat.S_IMODE(site.path(asset).stat().st_mode) == 0o2750
    assert asset.gid == os.getgid()
    assert asset.node_affinity


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give directories away")
def test_the_directory_belongs_to_the_user_and_group_of_the_class(site: Any) -> None:
    status = site.path(site.provision(parameters={"uid": 4711, "gid": 4712})).stat()
    assert (status.st_uid, status.st_gid) == (4711, 4712)


def test_the_umask_has_no_say(site: Any) -> None:
    before = os.umask(0o077)
    try:
        asset = site.provision(parameters={"mode": 0o755})
    finally:
        os.umask(before)
    assert stat.S_IMODE(site.path(asset).stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"volume_mode": VolumeMode.BLOCK}, Unsupported),
        ({"access_modes": (AccessMode.READ_WRITE_MANY,)}, Unsupported),
        ({"access_modes": (AccessMode.READ_WRITE_ONCE, AccessMode.READ_ONLY_MANY)}, Unsupported),
        ({"source_snapshot": "snap"}, NotFound),
        ({"source_volume": "other"}, NotFound),
        ({"mount_options": ("ro",)}, InvalidArgument),
        ({"limit_bytes": 1}, InvalidArgument),
        ({"size": 0}, InvalidArgument),
        ({"parameters": {"mode": 0o070}}, InvalidArgument),
        ({"parameters": {"pathTemplate": "../${uid}"}}, InvalidArgument),
        ({"name": "../evil"}, InvalidArgument),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(site: Any, fields: Any, error: Any) -> None:
    with pytest.raises(error) as caught:
        site.provision(**fields)
    assert caught.value.nothing_done
    assert site.leftovers() == []


def test_a_shared_root_has_no_affinity_and_all_access_modes(new_site: Any) -> None:
    site = new_site(shared=True).start()
    asset = site.provision(access_modes=tuple(AccessMode))
    assert asset.node_affinity == ()
    assert asset.source.kind == "hostPath"
    assert site.describe().topology_keys == ()
    assert site.describe().access_modes == frozenset(AccessMode)
    with pytest.raises(InvalidArgument, match="volumeType"):
        site.provision("u2", parameters={"volumeType": "local"})


def test_the_driver_option_chooses_the_source(new_site: Any) -> None:
    assert new_site(source="hostPath").start().provision().source.kind == "hostPath"


def test_another_nodes_claim_is_sent_back_to_the_scheduler(site: Any) -> None:
    for demand in (
        {"segment": {HOSTNAME: "node-b"}},
        {"selected_node": NodeIdentity(name="node-b")},
        {"selected_node": NodeIdentity(name="b", labels={HOSTNAME: "node-b"})},
    ):
        with pytest.raises(ResourceExhausted, match="node-b") as caught:
            site.provision(**demand)
        assert caught.value.reschedule
        assert caught.value.nothing_done
    with pytest.raises(InvalidArgument, match="allowedTopologies"):
        site.provision(allowed_segments=({HOSTNAME: "node-b"},))
    assert site.leftovers() == []


def test_a_node_instance_uses_the_label_of_its_node_not_its_name(new_site: Any) -> None:
    site = new_site().start("node-a.example.internal")
    node = NodeIdentity(name="node-a.example.internal", labels={HOSTNAME: "node-a-label"})
    asset = site.provision(selected_node=node, segment={HOSTNAME: "node-a-label"})
    assert [dict(segment) for segment in asset.node_affinity] == [{HOSTNAME: "node-a-label"}]
    plain = site.provision("u2")
    assert [dict(segment) for segment in plain.node_affinity] == [{HOSTNAME: "node-a.example.internal"}]
    assert site.find("u1") == asset


def test_a_directory_that_is_in_the_way_is_not_touched(site: Any) -> None:
    (site.root / "data-u1").mkdir()
    (site.root / "data-u1/precious").write_text("x")
    (site.root / UID).mkdir()
    for template in ("data-u1/${uid}", "${uid}"):
        with pytest.raises(AlreadyExists, match="move it away") as caught:
            site.provision(UID, parameters={"pathTemplate": template})
        assert caught.value.nothing_done
    assert site.find(UID) == Absent()
    assert site.leftovers() == [UID, "data-u1", "data-u1/precious"]


def test_no_volume_is_made_inside_another(site: Any) -> None:
    outer = site.provision(UID, parameters={"pathTemplate": "${uid}"})
    inner = "aaaaaaaa-1111-4222-8333-444455556666"
    with pytest.raises(AlreadyExists, match="directory of volume"):
        site.provision(inner, namespace=UID, parameters={"pathTemplate": "${namespace}/${uid}"})
    assert list(site.path(outer).iterdir()) == []


def test_a_symbolic_link_above_a_volume_is_refused(site: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    site.provision("u1")
    (site.root / "default").rename(site.root / "moved")
    (site.root / "default").symlink_to(outside)
    with pytest.raises(Exception, match="symbolic link"):
        site.provision("u2")
    assert list(outside.iterdir()) == []


def test_a_volume_in_the_trash_is_not_given_out_again(site: Any) -> None:
    asset = site.provision()
    for number in range(200):
        (site.path(asset) / str(number)).write_text("x")
    site.delete_once(site.volume(asset), timeout=0)
    assert not site.path(asset).exists()
    with pytest.raises(Unavailable, match="being deleted"):
        site.provision()
    assert site.find() == asset
    site.delete(site.volume(asset))
    assert site.find() == Absent()
    assert site.leftovers() == []


def test_fifty_threads_make_fifty_volumes(site: Any) -> None:
    with ThreadPoolExecutor(50) as pool:
        assets = list(pool.map(lambda number: site.provision(f"u{number}", namespace=f"ns{number % 3}"), range(50)))
    assert len({asset.handle for asset in assets}) == 50
    assert all(site.path(asset).is_dir() for asset in assets)
    assert {name for name, entry in site.listed().items() if entry.owner} == {f"pvc-u{number}" for number in range(50)}
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda n: site.delete(site.volume(assets[n], f"u{n}")), range(50)))
    assert site.leftovers() == []


def test_two_processes_making_the_same_volume_make_one(site: Any) -> None:
    other = site.again().start()
    with ThreadPoolExecutor(8) as pool:
        assets = list(pool.map(lambda number: (site, other)[number % 2].provision(), range(16)))
    assert len({asset.handle for asset in assets}) == 1
    assert len(site.listed()) == 1


def test_no_descriptor_is_left_open(site: Any) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    asset = site.provision()
    site.find()
    site.listed()
    site.room()
    site.probe()
    site.recycle(site.volume(asset))
    with pytest.raises(AlreadyExists):
        site.provision(size=2 * MIB)
    site.delete(site.volume(asset))
    assert opened() == before


@pytest.mark.parametrize("mode", [AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY])
def test_no_image_is_made_that_several_nodes_would_attach(new_site: Any, mode: AccessMode) -> None:
    site = new_site(shared=True, images=True).start()
    with pytest.raises(Unsupported, match="each node would attach the image"):
        site.provision(volume_mode=VolumeMode.BLOCK, access_modes=(mode,))
    assert site.leftovers() == []
    assert site.provision(volume_mode=VolumeMode.BLOCK, access_modes=(AccessMode.READ_WRITE_ONCE,))
    assert site.provision("u2", access_modes=(mode,))
