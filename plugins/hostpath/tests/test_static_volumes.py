"""Volumes that people made: deleted, owned and recycled like others, or refused."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    Done,
    InProgress,
    InvalidArgument,
    NotFound,
    PodScrub,
    Unavailable,
    VolumeInUse,
)
from volplane_hostpath import delete

# --- volumes that people made ---------------------------------------------------------------------------------------


def test_a_static_volume_below_the_root_is_deleted(site: Any) -> None:
    (site.root / "team").mkdir()
    site.grow(site.root / "team", depth=1)
    volume = site.static(site.root / "team")
    assert site.owns(str(site.root / "team"))
    site.delete(volume)
    assert site.leftovers() == []
    assert site.delete_once(volume) == Done()


def test_a_static_deletion_goes_on_after_a_restart(site: Any) -> None:
    (site.root / "team").mkdir()
    site.grow(site.root / "team", depth=2)
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
    root = {"hostPath": {"path": str(site.root), "type": "Directory"}}
    below = str(site.path(asset).relative_to(site.root))
    assert site.recycle(site.volume(asset)) == PodScrub(volume=root, sub_path=below)
    (site.root / "team").mkdir()
    assert site.recycle(site.static(site.root / "team")) == PodScrub(volume=root, sub_path="team")
    with pytest.raises(NotFound, match="gone"):
        site.recycle(site.static(site.root / "missing"))
    with pytest.raises(NotFound):
        site.recycle(site.volume(uid="u9"))


def test_a_volume_made_while_a_static_one_is_deleted_is_not_taken_with_it(site: Any, monkeypatch: Any) -> None:
    """The static volume names a directory that becomes one of ours between the check and the move."""
    real = delete.refuse_not_static
    made: list[Any] = []
    with ThreadPoolExecutor(1) as pool:

        def check(*arguments: Any) -> None:
            real(*arguments)
            made.append(pool.submit(site.provision))
            wait(made, timeout=0.2)

        monkeypatch.setattr(delete, "refuse_not_static", check)
        site.delete(site.static(site.root / "default"))
        assert site.path(made[0].result()).is_dir()


def test_a_static_volume_is_refused_while_the_path_of_a_volume_is_not_known(site: Any) -> None:
    asset = site.provision(parameters={"pathTemplate": "${volume}"})
    whole = site.marker().read_bytes()
    site.marker().write_bytes(whole[:20])
    other = site.again().start()
    for call in (other.delete_once, other.recycle):
        with pytest.raises(Unavailable, match="restore or repair"):
            call(other.static(site.path(asset)))
    assert site.path(asset).is_dir()


def test_a_static_volume_in_the_root_of_another_driver_is_refused(site: Any) -> None:
    nested = type(site)(site.root / "nested", driver="other.volplane.dev", create_root=True).start()
    asset = nested.provision()
    for path in (nested.root, site.path(asset).parent, site.path(asset)):
        for call in (site.delete_once, site.recycle):
            with pytest.raises(AlreadyExists, match="another driver"):
                call(site.static(path))
    assert site.path(asset).is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_static_volume_within_one_that_a_pod_uses_is_refused(site: Any, tmp_path: Path) -> None:
    (site.root / "foreign/sub").mkdir(parents=True)
    point = tmp_path / "pod"
    point.mkdir()
    subprocess.run(["mount", "--bind", str(site.root / "foreign"), str(point)], check=True)
    try:
        for call in (site.delete_once, site.recycle):
            with pytest.raises(VolumeInUse, match="lies in a directory that is mounted"):
                call(site.static(site.root / "foreign/sub"))
    finally:
        subprocess.run(["umount", str(point)], check=True)
    site.delete(site.static(site.root / "foreign/sub"))
    assert site.leftovers() == ["foreign"]
