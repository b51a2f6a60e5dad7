"""Deleting volumes: only what is proven ours, only what is unused, and never anything outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    BackendError,
    Done,
    InProgress,
    InvalidArgument,
    NotFound,
    PodScrub,
    Unavailable,
    VolumeInUse,
)

MIB = 1 << 20
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


def grow(directory: Path, *, width: int = 3, depth: int = 3) -> None:
    for number in range(width):
        (directory / f"file{number}").write_text("x")
    if depth:
        for number in range(width):
            below = directory / f"dir{number}"
            below.mkdir()
            grow(below, width=width, depth=depth - 1)


def test_a_deleted_volume_leaves_nothing(site: Any) -> None:
    asset = site.provision()
    grow(site.path(asset))
    site.delete(site.volume(asset))
    assert site.leftovers() == []
    assert site.listed() == {}
    assert site.delete_once(site.volume(asset)) == Done()


def test_what_never_was_is_gone(site: Any) -> None:
    assert site.delete_once(site.volume()) == Done()
    assert site.delete_once(site.volume(handle="no-such-handle")) == Done()


def test_a_volume_can_be_deleted_without_its_handle(site: Any) -> None:
    site.provision()
    site.delete(site.volume())
    assert site.leftovers() == []


def test_another_owners_volume_is_refused(site: Any) -> None:
    asset = site.provision()
    for owner in (site.owner("u2"), replace(site.owner("u1"), cluster_id="cluster-2")):
        with pytest.raises(AlreadyExists):
            site.delete_once(site.volume(asset, owner=owner))
        with pytest.raises(AlreadyExists):
            site.recycle(site.volume(asset, owner=owner))
        with pytest.raises(AlreadyExists):
            site.expand(site.volume(asset, owner=owner), 2 * MIB)
    assert site.path(asset).is_dir()


def test_the_handle_of_an_earlier_generation_does_not_reach_the_present_one(site: Any) -> None:
    first = site.provision()
    site.delete(site.volume(first))
    second = site.provision(generation=2)
    assert second.handle != first.handle
    assert site.delete_once(site.volume(first)) == Done()
    assert site.path(second).is_dir()


def test_a_volume_of_another_disk_is_not_called_gone(site: Any, tmp_path: Path) -> None:
    asset = site.provision()
    site.root.rename(tmp_path / "unplugged")
    site.root.mkdir()
    other = site.again().start()
    for call in (other.delete_once, other.recycle, lambda volume: other.expand(volume, 2 * MIB)):
        with pytest.raises(Unavailable, match="mount the disk"):
            call(site.volume(asset))


def test_a_directory_without_its_mark_is_not_removed(site: Any) -> None:
    asset = site.provision()
    site.marker().unlink()
    with pytest.raises(AlreadyExists, match="no mark"):
        site.delete_once(site.volume(asset))
    assert site.path(asset).is_dir()


def test_the_mark_of_one_volume_does_not_serve_for_another(site: Any) -> None:
    site.provision("u1")
    site.marker("u2").write_bytes(site.marker("u1").read_bytes())
    for call in (site.find, site.provision):
        with pytest.raises(Unavailable, match="marker of pvc-u1"):
            call("u2")


def test_a_damaged_mark_stops_everything_until_it_is_repaired(site: Any) -> None:
    asset = site.provision()
    whole = site.marker().read_bytes()
    site.marker().write_bytes(whole[:20])
    for call in (site.provision, site.find, lambda: site.delete_once(site.volume(asset))):
        with pytest.raises(Unavailable, match="repair"):
            call()
    assert site.listed()["pvc-u1"].owner is None
    site.marker().write_bytes(whole)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


@pytest.mark.parametrize("path", ["../outside", "/etc", ".volplane/volumes", "default/../../outside", "a//b", ""])
def test_a_mark_with_a_path_that_leads_out_is_refused(site: Any, tmp_path: Path, path: Any) -> None:
    (tmp_path / "outside").mkdir()
    asset = site.provision()
    fields = json.loads(site.marker().read_text())
    site.marker().write_text(json.dumps({**fields, "path": path}))
    with pytest.raises(Unavailable):
        site.delete_once(site.volume(asset))
    assert (tmp_path / "outside").is_dir()


def test_symbolic_links_in_a_volume_are_removed_and_not_followed(site: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    grow(outside, depth=1)
    before = sorted(str(path) for path in outside.rglob("*"))
    asset = site.provision()
    volume = site.path(asset)
    (volume / "dir").symlink_to(outside, target_is_directory=True)
    (volume / "file").symlink_to(outside / "file0")
    (volume / "up").symlink_to("../../..")
    (volume / "loop").symlink_to("loop")
    os.link(outside / "file1", volume / "hard")
    os.mkfifo(volume / "pipe")
    site.delete(site.volume(asset))
    assert sorted(str(path) for path in outside.rglob("*")) == before
    assert (outside / "file1").read_text() == "x"
    assert site.leftovers() == []


@pytest.mark.parametrize("component", ["default", "default/data-u1"])
def test_a_component_replaced_by_a_link_is_refused(site: Any, tmp_path: Path, component: Any) -> None:
    outside = tmp_path / "outside"
    (outside / "data-u1").mkdir(parents=True)
    (outside / "data-u1/precious").write_text("x")
    asset = site.provision(parameters={"pathTemplate": "${namespace}/${claim}-${uid}"})
    # Renders as data-<digest> because u1 is no UUID; the attack swaps whatever is there.
    real = site.path(asset) if "/" in component else site.path(asset).parent
    real.rename(tmp_path / "aside")
    real.symlink_to(outside if component == "default" else outside / "data-u1")
    if component == "default":
        (outside / site.path(asset).name).mkdir()
    for call in (site.delete_once, site.recycle):
        with pytest.raises(Exception, match="symbolic link"):
            call(site.volume(asset))
    assert (outside / "data-u1/precious").read_text() == "x"


@pytest.mark.parametrize("step", ["open", "scandir", "unlink", "rmdir", "rename"])
def test_a_directory_swapped_for_a_link_while_it_is_removed_leads_nowhere(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    grow(outside, depth=1)
    before = sorted(str(path) for path in outside.rglob("*"))
    asset = site.provision()
    grow(site.path(asset), depth=2)
    real = getattr(os, step)
    trash = site.root / ".volplane/trash"
    busy = []

    def swapping(*arguments: Any, **options: Any) -> Any:
        if not busy:
            busy.append(True)
            swap()
            busy.clear()
        return real(*arguments, **options)

    def swap() -> None:
        for above, directories, _ in os.walk(trash):
            for name in directories:
                found = Path(above) / name
                if name.startswith("dir") and not found.is_symlink():
                    shutil.rmtree(found)
                    found.symlink_to(outside)
                    return

    with monkeypatch.context() as patch:
        patch.setattr(os, step, swapping)
        with suppress(BackendError):
            site.delete(site.volume(asset))
    site.delete(site.volume(asset))
    assert sorted(str(path) for path in outside.rglob("*")) == before
    assert site.leftovers() == []


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
    grow(site.path(asset), depth=2)
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
    grow(site.path(asset), width=3, depth=3)
    first = site.delete_once(site.volume(asset), timeout=0)
    assert isinstance(first, InProgress)
    assert not site.path(asset).exists()
    assert site.listed()["pvc-u1"].owner == site.owner("u1")
    assert 2 < site.delete(site.volume(asset), timeout=0) < 400
    assert site.leftovers() == []


def test_a_cancelled_removal_stops(site: Any) -> None:
    asset = site.provision()
    grow(site.path(asset))
    assert isinstance(site.delete_once(site.volume(asset), cancelled=lambda: True), InProgress)
    site.delete(site.again().start().volume(asset))
    assert site.leftovers() == []


@as_root
def test_a_file_system_mounted_in_a_volume_is_seen_before_anything_is_removed(site: Any) -> None:
    asset = site.provision()
    grow(site.path(asset), depth=1)
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
    grow(site.path(asset), depth=2)
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
    monkeypatch.setattr("volplane_hostpath.deletion.read_mounts", list)
    for arguments in (("-t", "tmpfs", "none"), ("--bind", str(site.root.parent))):
        with mounted(*arguments, point=site.path(asset) / "mounted-unseen"):
            with pytest.raises(VolumeInUse):
                site.delete(site.volume(asset))
            # Back to where it was, for the next kind.
            (trashed,) = (site.root / ".volplane/trash").glob("*/*")
            trashed.rename(site.path(asset))
    assert site.root.is_dir()


@as_root
def test_a_volume_that_is_mounted_elsewhere_is_in_use(site: Any, tmp_path: Path) -> None:
    asset = site.provision()
    grow(site.path(asset), depth=1)
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


# --- volumes that people made ---------------------------------------------------------------------------------------


def test_a_static_volume_below_the_root_is_deleted(site: Any) -> None:
    (site.root / "team").mkdir()
    grow(site.root / "team", depth=1)
    volume = site.static(site.root / "team")
    assert site.owns(str(site.root / "team"))
    site.delete(volume)
    assert site.leftovers() == []
    assert site.delete_once(volume) == Done()


def test_a_static_deletion_goes_on_after_a_restart(site: Any) -> None:
    (site.root / "team").mkdir()
    grow(site.root / "team", depth=2)
    volume = site.static(site.root / "team")
    assert isinstance(site.delete_once(volume, timeout=0), InProgress)
    site.again().start()
    assert site.leftovers() == []
    assert site.delete_once(volume) == Done()


def test_a_static_volume_on_a_marked_directory_is_refused(site: Any) -> None:
    asset = site.provision()
    (site.path(asset) / "inside").mkdir()
    for path in (site.path(asset), site.path(asset) / "inside", site.path(asset).parent):
        for call in (site.delete_once, site.recycle):
            with pytest.raises(AlreadyExists, match="not touched"):
                call(site.static(path))
    assert (site.path(asset) / "inside").is_dir()


@pytest.mark.parametrize("path", ["", "/", ".", "/../root", "/.volplane", "/.volplane/tmp", "/a/../b", "-twin"])
def test_a_static_volume_elsewhere_is_refused(site: Any, path: Any) -> None:
    source = f"{site.root}{path}"
    assert not site.owns(source)
    for call in (site.delete_once, site.recycle):
        with pytest.raises(InvalidArgument, match="not touched"):
            call(site.static(source))


def test_a_static_volume_behind_a_link_is_refused(site: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    (site.root / "link").symlink_to(outside)
    for path in (site.root / "link", site.root / "link/below"):
        assert not site.owns(str(path))
        for call in (site.delete_once, site.recycle):
            with pytest.raises(Exception, match="symbolic link"):
                call(site.static(path))
    assert (outside / "below").is_dir()


def test_owning_is_a_question_of_the_path(site: Any, tmp_path: Path) -> None:
    root = str(site.root)
    (tmp_path / "alias").symlink_to(site.root)
    assert site.owns(f"{root}/not-there-yet")
    assert site.owns(f"{root}//a/./b/", type="Directory")
    assert site.owns(f"{root}/a", kind="local")
    assert not site.owns(f"{root}/a", type="Socket")
    assert not site.owns(f"{root}/a", kind="nfs")
    assert not site.owns("relative")
    assert not site.owns(f"{root}/a\0b")
    assert not site.owns(f"{root}/a\ud800")
    assert site.again().owns(f"{root}/a")
    aliased = type(site)(tmp_path / "alias")
    assert aliased.owns(f"{root}/a")
    assert aliased.owns(f"{tmp_path}/alias/a")


def test_recycling_is_for_a_pod_that_sees_only_the_directory(site: Any) -> None:
    asset = site.provision(parameters={"volumeType": "local"})
    expected = PodScrub(volume={"hostPath": {"path": str(site.path(asset)), "type": "Directory"}})
    assert site.recycle(site.volume(asset)) == expected
    (site.root / "team").mkdir()
    assert site.recycle(site.static(site.root / "team")).volume["hostPath"]["path"] == str(site.root / "team")
    with pytest.raises(NotFound, match="gone"):
        site.recycle(site.static(site.root / "missing"))
    with pytest.raises(NotFound):
        site.recycle(site.volume(uid="u9"))
