"""Removing what a volume holds: odd names, missing rights, mounts, long work."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    InProgress,
    PermissionDenied,
    PodScrub,
    VolumeInUse,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@contextmanager
def mounted(*arguments: str, point: Path) -> Iterator[None]:
    point.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(point)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this machine does not let root mount")
    try:
        yield
    finally:
        # Wherever it has been moved to since.
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            if line.split()[4].endswith(point.name):
                subprocess.run(["umount", line.split()[4]], check=True)


def test_a_tree_deeper_than_any_limit_is_removed(site: Any) -> None:
    asset = site.provision()
    fd = os.open(site.path(asset), os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=fd)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_names_that_are_no_text_are_removed(site: Any) -> None:
    asset = site.provision()
    for name in (b"\xff\xfe", b"new\nline", b"-rf", "ünï".encode(), b"x" * 255):
        Path(os.fsdecode(os.fsencode(site.path(asset)) + b"/" + name)).mkdir()
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_directories_without_rights_are_removed_by_their_owner(site: Any) -> None:
    asset = site.provision()
    site.grow(site.path(asset), depth=2)
    for below in ("dir0/dir1", "dir0", "dir1"):
        (site.path(asset) / below).chmod(0)
    (site.path(asset) / "dir2").chmod(0o500)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_deep_directories_without_rights_are_removed_by_their_owner(site: Any) -> None:
    asset = site.provision()
    below = site.path(asset)
    chain = []
    for _ in range(40):
        below /= "d"
        below.mkdir()
        chain.append(below)
    for directory in reversed(chain):
        directory.chmod(0)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_long_removal_comes_in_slices_and_every_slice_gets_on(site: Any) -> None:
    asset = site.provision()
    site.grow(site.path(asset), width=3, depth=3)
    first = site.delete_once(site.volume(asset), timeout=0)
    assert isinstance(first, InProgress)
    assert not site.path(asset).exists()
    assert site.listed()["pvc-u1"].owner == site.owner("u1")
    assert 2 < site.delete(site.volume(asset), timeout=0) < 400
    assert site.leftovers() == []


def test_a_cancelled_removal_stops(site: Any) -> None:
    asset = site.provision()
    site.grow(site.path(asset))
    assert isinstance(site.delete_once(site.volume(asset), cancelled=lambda: True), InProgress)
    site.delete(site.again().start().volume(asset))
    assert site.leftovers() == []


@as_root
def test_a_file_system_mounted_in_a_volume_is_seen_before_anything_is_removed(site: Any) -> None:
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    point = site.path(asset) / "dir1/mounted-tmpfs"
    with mounted("-t", "tmpfs", "none", point=point):
        (point / "precious").write_text("x")
        before = sorted(str(path) for path in site.root.rglob("*") if ".volplane" not in path.parts)
        for call in (site.delete_once, site.recycle):
            with pytest.raises(VolumeInUse, match="mounted-tmpfs is a mount point"):
                call(site.volume(asset))
        assert sorted(str(path) for path in site.root.rglob("*") if ".volplane" not in path.parts) == before
    site.delete(site.volume(asset))
    assert site.leftovers() == []


@as_root
def test_a_bind_mount_of_the_same_file_system_is_seen_too(site: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    asset = site.provision()
    point = site.path(asset) / "mounted-bind"
    with mounted("--bind", str(outside), point=point), pytest.raises(VolumeInUse, match="mount point"):
        site.delete_once(site.volume(asset))
    assert (outside / "precious").read_text() == "x"
    site.delete(site.volume(asset))


@as_root
def test_a_mount_that_comes_while_the_trash_is_emptied_is_not_entered(site: Any) -> None:
    asset = site.provision()
    site.grow(site.path(asset), depth=2)
    site.delete_once(site.volume(asset), timeout=0)
    (trashed,) = (site.root / ".volplane/trash").glob("*/*")
    with mounted("-t", "tmpfs", "none", point=trashed / "mounted-late"):
        (trashed / "mounted-late/precious").write_text("x")
        with pytest.raises(VolumeInUse):
            site.delete(site.volume(asset))
        assert (trashed / "mounted-late/precious").read_text() == "x"
    site.delete(site.volume(asset))
    assert site.leftovers() == []


@as_root
def test_removal_itself_does_not_cross_into_a_mount_that_nobody_reported(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = site.provision()
    monkeypatch.setattr("volplane_hostpath.mounts.MountTable.current", lambda _: [])
    for arguments in (("-t", "tmpfs", "none"), ("--bind", str(site.root.parent))):
        with mounted(*arguments, point=site.path(asset) / "mounted-unseen"):
            with pytest.raises(VolumeInUse):
                site.delete(site.volume(asset))
            # Back to where it was, for the next kind.
            (trashed,) = (site.root / ".volplane/trash").glob("*/*")
            site.path(asset).parent.mkdir(exist_ok=True)
            trashed.rename(site.path(asset))
    assert site.root.is_dir()


@as_root
def test_a_volume_that_is_mounted_elsewhere_is_in_use(site: Any, tmp_path: Path) -> None:
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    with mounted("--bind", str(site.path(asset) / "dir1"), point=tmp_path / "mounted-pod"):
        with pytest.raises(VolumeInUse, match="still in use"):
            site.delete_once(site.volume(asset))
        assert site.path(asset).is_dir()
        assert isinstance(site.recycle(site.volume(asset)), PodScrub)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


@as_root
@pytest.mark.skipif(shutil.which("chattr") is None, reason="needs chattr")
def test_an_immutable_file_is_named_and_the_rest_waits_in_the_trash(site: Any) -> None:
    asset = site.provision()
    (site.path(asset) / "stone").write_text("x")
    if subprocess.run(["chattr", "+i", str(site.path(asset) / "stone")], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable files")
    with pytest.raises(Exception, match=r"stone cannot be removed.*chattr -i"):
        site.delete_once(site.volume(asset))
    (stone,) = (site.root / ".volplane/trash").glob("*/*/stone")
    subprocess.run(["chattr", "-i", str(stone)], check=True)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_empty_directories_above_go_with_the_last_volume_and_others_stay(site: Any) -> None:
    template = {"pathTemplate": "tenants/${namespace}/${claim}-${uid}"}
    one, two = site.provision("u1", parameters=template), site.provision("u2", parameters=template)
    site.delete(site.volume(one, "u1"))
    assert (site.root / "tenants/default").is_dir()
    (site.root / "tenants/note").write_text("an operator's")
    site.delete(site.volume(two, "u2"))
    assert site.leftovers()[-2:] == ["tenants", "tenants/note"]
    three = site.provision("u3", parameters=template)
    (site.root / "tenants/note").unlink()
    site.delete(site.volume(three, "u3"))
    assert site.leftovers() == []


def test_a_directory_that_somebody_makes_where_a_parent_was_is_theirs(site: Any) -> None:
    site.delete(site.volume(site.provision()))
    (site.root / "default").mkdir()
    with pytest.raises(AlreadyExists, match="not made by this driver"):
        site.provision("u2")


@pytest.mark.parametrize("immutable", ["d1/deeper/31", "d1/deeper", "d1"])
def test_what_is_immutable_is_named_and_keeps_nothing_else(site: Any, immutable: str) -> None:
    asset = site.provision()
    for number in range(60):
        below = site.path(asset) / f"d{number % 3}" / "deeper"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"{number}").touch()
    if subprocess.run(["chattr", "+i", site.path(asset) / immutable], check=False, capture_output=True).returncode:
        pytest.skip("no immutable files here")
    try:
        with pytest.raises(PermissionDenied, match=rf"{immutable.rpartition('/')[2]} cannot be removed: .*chattr -i"):
            site.delete(site.volume(asset))
        left = {each.name for each in site.root.glob(".volplane/trash/*/*/*")}
    finally:
        subprocess.run(["chattr", "-R", "-i", site.root], check=False, capture_output=True)
    assert left == {"d1"}
    site.delete(site.volume(asset))
    assert site.leftovers() == []
