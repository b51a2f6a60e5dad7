"""A crash before or after any change to the disk: what the next call finds is whole, finished or cleaned up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import Absent, Asset, InProgress, Unavailable
from volplane.directory import dirfd
from volplane_hostpath.testing import tree

MIB = 1 << 20
CHANGES = ("mkdir", "rename", "unlink", "rmdir", "write", "pwrite", "fsync", "fchmod", "fchown", "chmod", "open")


class Crash(BaseException):
    """The process is gone: nothing it does from here on has an effect."""


class Machine:
    """Counts changes to the disk, and dies at one of them. step 0 = never."""

    def __init__(self, step: int, *, after: bool) -> None:
        self.step = step
        self.after = after
        self.count = 0
        self.dead = False

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                return real(*arguments, **options)
            if self.dead:
                raise Crash
            self.count += 1
            if self.count != self.step:
                return real(*arguments, **options)
            self.dead = True
            if self.after:
                result = real(*arguments, **options)
                if name == "open":
                    os.close(result)
            raise Crash

        return change


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch, step: int = 0, *, after: bool = False) -> Iterator[Machine]:
    computer = Machine(step, after=after)
    with monkeypatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, computer.wrapped(name, getattr(os, name)))
        patch.setattr(dirfd, "syncfs", computer.wrapped("syncfs", dirfd.syncfs))
        yield computer


def crashes(site: Any, monkeypatch: pytest.MonkeyPatch, prepare: Any, act: Any) -> Iterator[Any]:
    """Yields a driver of the next process after each possible crash of `act`, on a clean root each time."""
    for _ in range(2):  # The first makes the files of locks.
        prepared = prepare(site)
        with machine(monkeypatch) as whole:
            act(site, prepared)
        clean(site)
    assert whole.count > 3
    for step in range(1, whole.count + 1):
        for after in (False, True):
            before = site.again().start()
            prepared = prepare(before)
            with machine(monkeypatch, step, after=after) as computer, pytest.raises(Crash):
                act(before, prepared)
            assert computer.dead
            yield site.again().start(), prepared
            clean(site.again().start())


def clean(site: Any) -> None:
    for entry in site.listed().values():
        assert entry.owner == site.owner("u1"), entry
        site.delete(site.volume(handle=entry.handle))
    assert site.leftovers() == []


def nothing(_site: Any) -> None:
    """There was nothing before."""


def made(site: Any) -> Asset:
    asset = site.provision()
    for name in ("a", "b"):
        below = site.path(asset) / name
        below.mkdir()
        (below / "file").write_text("x")
    return asset


def provision(site: Any, _prepared: Any) -> None:
    site.provision(parameters={"gid": os.getgid()})


def delete(site: Any, prepared: Asset) -> None:
    site.delete(site.volume(prepared))


def test_provision_again_after_a_crash(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after, _ in crashes(site, monkeypatch, nothing, provision):
        asset = after.provision(parameters={"gid": os.getgid()})
        assert after.path(asset).stat().st_mode & 0o777 == 0o770
        assert list(after.listed()) == ["pvc-u1"]
        assert not list((after.root / ".volplane/tmp").iterdir())


def test_find_after_a_crash_of_provision(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = set()
    for after, _ in crashes(site, monkeypatch, nothing, provision):
        found = after.find()
        answers.add(type(found))
        if found != Absent():
            after.delete(replace(after.volume(found), uid=""))
        assert after.listed() == {}
        assert after.leftovers() == []
    assert answers == {Absent, Asset}


def test_delete_after_a_crash_of_provision(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after, _ in crashes(site, monkeypatch, nothing, provision):
        after.delete(after.volume())
        assert after.leftovers() == []


def test_a_listing_after_a_crash_of_provision_names_what_is_there(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after, _ in crashes(site, monkeypatch, nothing, provision):
        listed = after.listed()
        if not listed:
            assert after.leftovers() == []
        else:
            assert listed["pvc-u1"].owner == after.owner("u1")


def test_delete_again_after_a_crash(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after, asset in crashes(site, monkeypatch, made, delete):
        after.delete(after.volume(asset))
        assert after.leftovers() == []
        assert after.room() > 0


def test_a_look_at_a_volume_whose_directory_is_away_leaves_its_marker(site: Any, tmp_path: Path) -> None:
    asset = site.provision()
    assert site.find(only_look=True) == asset
    (site.path(asset) / "data").write_text("x")
    site.path(asset).rename(tmp_path / "aside")
    assert site.find(only_look=True) == Absent()
    (tmp_path / "aside").rename(site.path(asset))
    assert site.find(only_look=True) == asset
    assert site.expand(site.volume(asset), 2 * MIB).capacity_bytes == 2 * MIB
    site.delete(site.volume(asset))
    assert site.leftovers() == []


@pytest.mark.parametrize("only_look", [False, True])
@pytest.mark.parametrize("hook", ["provision", "delete"])
def test_find_changes_nothing_of_what_a_crash_left(
    site: Any, monkeypatch: pytest.MonkeyPatch, hook: str, only_look: bool
) -> None:
    def prepare(before: Any) -> Any:
        return before.volume(before.provision()) if hook == "delete" else None

    def act(before: Any, volume: Any) -> Any:
        return before.provision() if volume is None else before.delete(volume)

    for after, _ in crashes(site, monkeypatch, prepare, act):
        left = tree(after.root)
        with suppress(Unavailable):
            after.find(only_look=only_look)
        assert tree(after.root) == left
        after.delete(after.volume())


def test_find_after_a_crash_of_delete(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after, asset in crashes(site, monkeypatch, made, delete):
        found = after.find()
        if found != Absent():
            assert found == asset
            after.delete(after.volume(asset))
        assert after.listed() == {}
        assert after.leftovers() == []


def test_provision_after_a_crash_of_delete(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after, asset in crashes(site, monkeypatch, made, delete):
        after.delete(after.volume(asset))
        fresh = after.provision(generation=2)
        assert list(after.path(fresh).iterdir()) == []
        after.delete(after.volume(fresh))


def test_expand_again_after_a_crash(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def expand(site: Any, asset: Asset) -> None:
        site.expand(site.volume(asset), 3 * MIB)

    for after, asset in crashes(site, monkeypatch, made, expand):
        assert after.expand(after.volume(asset), 3 * MIB).capacity_bytes == 3 * MIB
        assert after.listed()["pvc-u1"].capacity_bytes == 3 * MIB
        assert after.provision().capacity_bytes == 3 * MIB


def test_a_static_deletion_again_after_a_crash(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def team(site: Any) -> Any:
        (site.root / "team/below").mkdir(parents=True)
        (site.root / "team/below/file").write_text("x")
        return site.static(site.root / "team")

    def remove(site: Any, volume: Any) -> None:
        site.delete(volume)

    for after, volume in crashes(site, monkeypatch, team, remove):
        after.delete(volume)
        assert after.leftovers() == []


def test_the_first_start_again_after_a_crash(new_site: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as whole:
        new_site(tmp_path / "whole", create_root=True).start()
    for step in range(1, whole.count + 1):
        for after in (False, True):
            path = tmp_path / f"root-{step}-{after}"
            with machine(monkeypatch, step, after=after), pytest.raises(Crash):
                new_site(path, create_root=True).start()
            site = new_site(path, create_root=True).start()
            assert site.leftovers() == []
            assert site.provision()


def test_a_volume_deleted_in_slices_by_processes_that_die_is_gone(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = made(site)
    for attempt in range(100):
        with machine(monkeypatch, 2 + attempt % 5, after=True):
            try:
                answer = site.again().delete_once(site.volume(asset), timeout=0)
            except Crash:
                continue
        if not isinstance(answer, InProgress):
            break
    assert site.leftovers() == []


@pytest.mark.parametrize("on_delete", ["retain", "delete"])
def test_data_that_was_there_outlives_every_crash(
    new_site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_delete: str
) -> None:
    use = {"pathTemplate": "${namespace}/${claim}", "exactPath": True, "onExisting": "use", "onDelete": on_delete}

    def site_with_data(name: str) -> Any:
        data = tmp_path / name / "default/data"
        (tmp_path / name).mkdir()
        site = new_site(tmp_path / name).start()
        data.mkdir(parents=True)
        (data / "file").write_text("kept")
        return site

    def act(site: Any) -> None:
        asset = site.provision(parameters=use)
        # What a class lets be removed all the same outlives an asset that never becomes a volume.
        site.delete(replace(site.volume(asset), uid="" if on_delete == "delete" else "pv-u1"))

    with machine(monkeypatch) as whole:
        act(site_with_data("whole"))
    for step in range(1, whole.count + 1):
        site = site_with_data(f"root-{step}")
        with machine(monkeypatch, step), suppress(Crash):
            act(site)
        again = site.again().start()
        found = again.find()
        if isinstance(found, Asset):
            again.delete(replace(again.volume(found), uid=""))
        assert (site.root / "default/data/file").read_text() == "kept"
        asset = again.provision("u2", parameters=use)
        assert (again.path(asset) / "file").read_text() == "kept"
        assert list(again.listed()) == ["default", "pvc-u2"]
