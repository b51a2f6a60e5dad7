"""Waits for the disk: how many, shared by whom, and what is on the disk after each."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from volplane import Absent, Done, Unavailable
from volplane.directory import dirfd
from volplane_hostpath.mounts import MountTable
from volplane_hostpath.testing import tree


class Disk:
    """Counts the waits of all kinds, and remembers what was there when the last one began.

    before: called at the start of each wait.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, kind: str = "ext4") -> None:
        self.root = root
        self.waits = 0
        self.durable: dict[str, Any] = tree(root)
        self.before: Callable[[], None] = lambda: None
        patch.setattr(MountTable, "kind", lambda *_: kind)
        for module, name in ((os, "fsync"), (os, "fdatasync"), (os, "sync"), (dirfd, "syncfs")):
            patch.setattr(module, name, self._wrapped(getattr(module, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any) -> Any:
            self.waits += 1
            self.before()
            found = tree(self.root)
            result = real(*arguments)
            self.durable = found
            return result

        return wait


@pytest.fixture
def disk(site: Any, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch, site.root)


def test_a_volume_waits_twice_for_the_disk_when_it_is_made_and_when_it_is_deleted(site: Any, disk: Disk) -> None:
    for number, template in enumerate(("${volume}", "${namespace}/${volume}", "a/b/${namespace}/${volume}")):
        disk.waits = 0
        asset = site.provision(f"u{number}", parameters={"pathTemplate": template})
        assert disk.waits <= 2
        site.delete(site.volume(asset, f"u{number}"))
        assert disk.waits <= 4
    assert site.leftovers() == []


def test_an_equal_demand_waits_once(site: Any, disk: Disk) -> None:
    asset = site.provision()
    disk.waits = 0
    assert site.provision() == asset
    assert disk.waits == 1


def test_sixteen_volumes_that_are_made_at_once_share_their_waits(site: Any, disk: Disk) -> None:
    end = time.monotonic() + 5

    def others_have_come() -> None:
        # The first wait lasts until the others have written their markers, as on a slow disk. Locks have stripes, so
        # that two of the volumes may have to come one after the other.
        while disk.waits == 1 and len(list(site.marker("x").parent.iterdir())) < 14 and time.monotonic() < end:
            time.sleep(0.001)

    disk.before = others_have_come
    with ThreadPoolExecutor(16) as pool:
        assets = list(pool.map(lambda number: site.provision(f"u{number}", namespace=f"ns{number % 3}"), range(16)))
    # The first alone, then rounds of whoever waits when the last one ends. How many there are depends on when threads
    # run; without sharing there would be 32, two for each volume.
    assert disk.waits <= 16
    assert all(disk.durable[f"{site.marker(f'u{number}')}"] for number in range(16))
    assert all(str(site.path(asset)) in disk.durable for asset in assets)


def test_what_was_returned_is_on_the_disk_with_its_mode(site: Any, disk: Disk) -> None:
    asset = site.provision(parameters={"mode": 0o2750})
    assert disk.durable[str(site.path(asset))] & 0o7777 == 0o2750
    assert disk.durable[str(site.marker())] == site.marker().read_bytes()
    site.grow(site.path(asset), depth=1)
    site.delete(site.volume(asset))
    assert not [path for path in disk.durable if "u1" in path]


def test_no_directory_is_in_its_place_before_what_names_it_is_on_the_disk(
    site: Any, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of changes: what may come back after a power failure is never without marker or entry."""
    real_rename, real_mkdir, real_unlink = os.rename, os.mkdir, os.unlink
    seen = []

    def rename(source: Any, target: Any, **named: Any) -> None:
        if str(source).endswith("@1"):
            assert disk.durable[str(site.marker())]
            assert disk.durable[f"{site.root}/.volplane/tmp/pvc-u1@1"] & 0o777 == 0o770
            seen.append("placed")
        real_rename(source, target, **named)

    def mkdir(name: Any, *rest: Any, **named: Any) -> None:
        if name == "default":
            entries = [path for path in disk.durable if f"{site.root}/.volplane/parents/" in path]
            assert [disk.durable[path] for path in entries] == [b"default"]
            seen.append("parent")
        real_mkdir(name, *rest, **named)

    def unlink(name: Any, **named: Any) -> None:
        if name == "pvc-u1.json":
            assert not [path for path in disk.durable if path.startswith(f"{site.root}/default")]
            seen.append("unmarked")
        real_unlink(name, **named)

    for name, double in (("rename", rename), ("mkdir", mkdir), ("unlink", unlink)):
        monkeypatch.setattr(os, name, double)
    asset = site.provision()
    site.delete(site.volume(asset))
    assert seen == ["parent", "placed", "unmarked"]


def test_where_syncfs_does_not_reach_the_disk_each_file_is_synced(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(MountTable, "kind", lambda *_: "nfs4")
    monkeypatch.setattr(dirfd, "syncfs", None)
    asset = site.provision()
    control = site.root / ".volplane"
    placed = [str(site.marker()), str(control / "volumes"), str(site.root), str(site.path(asset).parent)]
    entry = str(next((control / "parents").iterdir()))
    first, second = synced[: -len(placed)], synced[-len(placed) :]
    assert set(first) == {*placed[:2], str(control / "tmp/pvc-u1@1"), str(control / "parents"), entry}
    assert set(second) == set(placed)
    site.delete(site.volume(asset))
    assert synced[-1] == str(control / "volumes")


def test_a_wait_that_fails_is_an_error_for_all_who_share_it(site: Any, disk: Disk) -> None:
    def broken() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def attempt(number: int) -> str:
        try:
            site.provision(f"u{number}")
        except Unavailable as error:
            assert error.nothing_done  # noqa: PT017
            return str(error.code)
        return "made"

    disk.before = broken
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(attempt, range(8))) == {"EIO"}
    assert site.leftovers() == []


@pytest.mark.parametrize("content", [b"", b"\0" * 600])
def test_a_marker_that_a_power_failure_left_without_content_is_none(site: Any, content: bytes) -> None:
    site.marker().write_bytes(content)
    (site.root / ".volplane/tmp/pvc-u1@1").mkdir()
    assert site.listed() == {}
    assert site.leftovers() == []
    site.marker().write_bytes(content)
    assert site.find() == Absent()
    assert site.marker().exists()
    assert site.delete_once(site.volume()) == Done()
    assert site.leftovers() == []
    site.marker().write_bytes(content)
    assert site.provision()
    assert list(site.listed()) == ["pvc-u1"]


def test_few_bytes_are_read_for_a_volume_however_many_mounts_and_volumes_there_are(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        site.provision(f"v{number}", 1)
    asset = site.provision("u0", 1)
    site.delete(site.volume(asset, "u0"))
    counted = []

    def counting(real: Callable[..., bytes]) -> Callable[..., bytes]:
        def read(*arguments: Any) -> bytes:
            counted.append(real(*arguments))
            return counted[-1]

        return read

    monkeypatch.setattr(os, "read", counting(os.read))
    monkeypatch.setattr(os, "pread", counting(os.pread))
    monkeypatch.setattr(os, "listdir", None)
    asset = site.provision("u1", 1)
    site.delete(site.volume(asset))
    assert sum(map(len, counted)) < 2000
