"""Deleting a volume: whose it is, and no way out of it."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    BackendError,
    Done,
    Unavailable,
)
from volplane.directory import dirfd

MIB = 1 << 20


def test_a_deleted_volume_leaves_nothing(site: Any) -> None:
    asset = site.provision()
    site.grow(site.path(asset))
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
    site.grow(outside, depth=1)
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


@pytest.mark.parametrize("step", ["open", "open_beneath", "scandir", "unlink", "rmdir", "rename"])
def test_a_directory_swapped_for_a_link_while_it_is_removed_leads_nowhere(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    site.grow(outside, depth=1)
    before = sorted(str(path) for path in outside.rglob("*"))
    asset = site.provision()
    site.grow(site.path(asset), depth=2)
    module = dirfd if step == "open_beneath" else os
    real = getattr(module, step)
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
        patch.setattr(module, step, swapping)
        patch.setattr(dirfd, "AVAILABLE", dirfd.AVAILABLE and step != "open")
        with suppress(BackendError):
            site.delete(site.volume(asset))
    site.delete(site.volume(asset))
    assert sorted(str(path) for path in outside.rglob("*")) == before
    assert site.leftovers() == []
