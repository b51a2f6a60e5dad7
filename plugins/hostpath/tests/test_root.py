"""The root marker: an unmounted, exchanged or foreign disk is refused, and heals when it is back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from volplane import Done, InvalidArgument, PermissionDenied, ResourceExhausted, Unavailable
from volplane_hostpath.mounts import parse_fstab
from volplane_hostpath.root import unmounted_above

MIB = 1 << 20


def test_the_first_start_marks_an_empty_directory(new_site: Any) -> None:
    site = new_site()
    (site.root / "lost+found").mkdir()
    site.start()
    marker = json.loads((site.root / ".volplane/root.json").read_text())
    assert marker["cluster_id"] == site.cluster
    assert marker["driver"] == site.driver
    assert len(marker["root_id"]) == 32
    assert (site.root / ".volplane").stat().st_mode & 0o777 == 0o700
    assert site.again().start().root_id() == marker["root_id"]
    assert site.probe() == Done()


def test_a_directory_with_something_in_it_is_refused_unless_it_is_to_be_adopted(new_site: Any) -> None:
    site = new_site()
    (site.root / "photos").mkdir()
    with pytest.raises(Unavailable, match=r"photos.*adopt_root"):
        site.start()
    assert site.leftovers() == ["photos"]
    site.again(adopt_root=True).start()
    assert site.start().listed()["photos"].owner is None


def test_a_missing_root_is_refused_unless_it_is_to_be_made(new_site: Any, tmp_path: Path) -> None:
    path = tmp_path / "disk/root"
    site = new_site(path)
    with pytest.raises(Unavailable, match="create_root"):
        site.start()
    made = new_site(path, create_root=True).start()
    assert made.provision().handle
    site.start()
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(Unavailable, match="no directory"):
        new_site(file).start()


def test_a_root_that_loses_its_disk_is_refused_and_heals(site: Any, tmp_path: Path) -> None:
    asset = site.provision()
    site.root.rename(tmp_path / "unplugged")
    calls = (site.provision, site.find, site.listed, site.room, site.probe, site.start)
    for call in calls:
        with pytest.raises(Unavailable, match="does not exist"):
            call()
    site.root.mkdir()
    for call in calls:
        with pytest.raises(Unavailable, match="not mounted"):
            call()
    with pytest.raises(Unavailable):
        site.delete_once(site.volume(asset))
    assert list(site.root.iterdir()) == []
    site.root.rmdir()
    (tmp_path / "unplugged").rename(site.root)
    assert site.start().provision() == asset


def test_a_root_whose_id_is_configured_is_never_marked_anew(site: Any, tmp_path: Path) -> None:
    pinned = site.again(root_id=site.root_id(), create_root=True, adopt_root=True)
    pinned.start()
    site.root.rename(tmp_path / "unplugged")
    with pytest.raises(Unavailable, match="does not exist"):
        pinned.start()
    site.root.mkdir()
    with pytest.raises(Unavailable, match="not mounted"):
        pinned.start()
    assert list(site.root.iterdir()) == []
    site.again().start()
    with pytest.raises(Unavailable, match="another disk"):
        pinned.start()


def test_another_disk_at_the_same_place_is_refused(site: Any, tmp_path: Path) -> None:
    site.provision()
    site.root.rename(tmp_path / "first")
    site.root.mkdir()
    site.again().start()
    with pytest.raises(Unavailable, match="another disk"):
        site.provision("u2")


def test_a_root_of_another_cluster_or_driver_is_refused_unless_it_is_to_be_adopted(site: Any) -> None:
    asset = site.provision()
    for stranger in (
        type(site)(site.root, cluster="cluster-2"),
        type(site)(site.root, driver="other.volplane.dev"),
    ):
        with pytest.raises(Unavailable, match="belongs to"):
            stranger.start()
    taken = type(site)(site.root, cluster="cluster-2", adopt_root=True).start()
    assert taken.root_id() == site.root_id()
    assert taken.listed()["pvc-u1"].owner.cluster_id == "cluster-1"
    with pytest.raises(Exception, match="belongs to claim"):
        taken.delete_once(taken.volume(asset))
    with pytest.raises(Unavailable, match="belongs to the cluster"):
        site.probe()


def test_a_damaged_root_marker_is_refused(site: Any) -> None:
    (site.root / ".volplane/root.json").write_text("{")
    for call in (site.start, site.probe, site.again().start):
        with pytest.raises(Unavailable, match="restore it"):
            call()
    (site.root / ".volplane/root.json").write_text('{"format": 99}')
    with pytest.raises(Unavailable, match="newer version"):
        site.probe()


def test_a_control_directory_that_is_a_link_is_refused(site: Any, tmp_path: Path) -> None:
    (site.root / ".volplane").rename(tmp_path / "control")
    (site.root / ".volplane").symlink_to(tmp_path / "control")
    for call in (site.start, site.provision):
        with pytest.raises(PermissionDenied, match="symbolic link"):
            call()


def test_replicas_that_start_at_once_agree_on_the_id(new_site: Any) -> None:
    sites = [new_site() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda site: site.start(), sites))
    assert all(site.probe() == Done() for site in sites)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "relative"}, "absolute"),
        ({"root": "/"}, "below /"),
        ({"root": "/a/../b"}, r"'\.\.'"),
        ({"root": "/x", "shared": True, "source": "local"}, "hostPath"),
        ({"root": "/x", "node_name": "node a"}, "option node_name: 'node a' is no value of a label"),
        ({"root": "/x", "node_name": "n" * 64}, "is no value of a label"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, message: Any) -> None:
    from volplane_hostpath import HostPathBackend

    with pytest.raises(InvalidArgument, match=message):
        HostPathBackend(options)


def test_a_disk_of_fstab_that_is_not_mounted_is_not_marked() -> None:
    table = (
        "# comment\nUUID=1 / ext4 rw 0 1\nUUID=2 /mnt/disk\\0401 xfs defaults 0 2\n/dev/sr0 /media auto noauto 0 0\n"
    )
    points = parse_fstab(table)
    assert points == ["/", "/mnt/disk 1"]
    assert unmounted_above("/mnt/disk 1/root", points, ["/"]) == "/mnt/disk 1"
    assert unmounted_above("/mnt/disk 1/root", points, ["/", "/mnt/disk 1"]) == ""
    assert unmounted_above("/mnt/disk 12", points, ["/"]) == ""


def test_a_full_disk_refuses_with_what_to_do_and_heals(new_site: Any, small_disk: Any) -> None:
    point, remount = small_disk
    site = new_site(point).start()
    with pytest.raises(ResourceExhausted, match=r"room for .* asked for were 16 MiB.*grow") as caught:
        site.provision(size=16 * MIB)
    assert caught.value.reschedule
    assert caught.value.scope == str(point)
    assert caught.value.nothing_done
    remount("size=32m")
    site.provision(size=16 * MIB)
    with pytest.raises(OSError, match="No space"):
        (point / "default/filler").write_bytes(b"x" * (64 * MIB))
    with pytest.raises(ResourceExhausted):
        site.provision("u2", 1)
    assert site.probe() == Done()


def refused(site: Any, uid: str) -> ResourceExhausted | None:
    try:
        site.provision(uid, 1)
    except ResourceExhausted as error:
        return error
    return None


def test_a_disk_without_inodes_is_full(new_site: Any, small_disk: Any) -> None:
    point, remount = small_disk
    site = new_site(point).start()
    remount("nr_inodes=20")
    refusals = [refusal for number in range(20) if (refusal := refused(site, f"u{number}"))]
    assert 0 < len(refusals) < 20
    assert all("inodes" in str(error) and error.reschedule for error in refusals)
    remount("nr_inodes=1000")
    assert site.provision("u99", 1)


def test_a_read_only_disk_is_unavailable_and_heals(new_site: Any, small_disk: Any) -> None:
    point, remount = small_disk
    site = new_site(point).start()
    asset = site.provision()
    remount("ro")
    for call in (site.probe, site.start, lambda: site.provision("u2"), lambda: site.delete_once(site.volume(asset))):
        with pytest.raises(Unavailable, match="read-only"):
            call()
    remount("rw")
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_root_that_may_not_be_written_is_denied_and_heals(new_site: Any, unprivileged: Path) -> None:
    site = new_site(unprivileged)
    site.root.chmod(0o500)
    with pytest.raises(PermissionDenied, match="give its user this right") as caught:
        site.start()
    assert caught.value.retry_after
    site.root.chmod(0o700)
    site.start()
