"""What people put into `.volplane`, or break in it: it is reported once and skipped, and everything else goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from volplane import Done, Unavailable
from volplane.directory.dirfd import closing
from volplane_hostpath.locks import Locks

KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("x"),
    "directory": lambda path: path.mkdir(),
    "full directory": lambda path: (path.mkdir(), (path / "file").touch()),
    "link": lambda path: path.symlink_to("/etc"),
    "link to nothing": lambda path: path.symlink_to("/nowhere"),
    "pipe": os.mkfifo,
    "later version": lambda path: path.write_text('{"format": 99}'),
}


NAMES = ["junk", "junk.json", "other@1", "static-junk", "\udcff", "\udcff.json", "a" * 255]


@pytest.mark.parametrize("kind", KINDS)
def test_what_somebody_put_into_a_folder_of_the_driver_stops_nothing(
    site: Any, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    known = site.provision()
    for folder in ("volumes", "trash", "parents", "locks", "retained", "tmp", "copies", "snapshots"):
        for name in NAMES:
            KINDS[kind](site.root / ".volplane" / folder / name)
    with caplog.at_level(logging.WARNING):
        site = site.again().start()
        assert site.probe() == Done()
        assert "pvc-u1" in site.listed()
        assert site.find() == known
        assert all(each.owner is None for each in site.snapshots())
        site.delete(site.volume(site.provision("u2"), "u2"))
        site.delete(site.volume(known))
        reported = [record.getMessage() for record in caplog.records]
        site.listed()
    assert [record.getMessage() for record in caplog.records] == reported, "once"


@pytest.mark.parametrize("kind", ["directory", "link", "link to nothing"])
def test_what_has_the_name_of_a_lock_stops_nothing(site: Any, kind: str) -> None:
    locks = site.root / ".volplane" / "locks"
    for number in range(256):
        KINDS[kind](locks / str(number))
    site.delete(site.volume(site.provision()))
    assert site.leftovers() == []


def test_a_lock_that_is_held_without_its_file_is_held_when_the_file_can_be_made(tmp_path: Path) -> None:
    def held() -> bool:
        """As another process sees it."""
        try:
            with Locks().hold("pvc-1", directory, 0.01):
                return False
        except Unavailable:
            return True

    file = tmp_path / Locks().stripe("pvc-1")
    file.mkdir()
    with closing(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)) as directory:
        with Locks().hold("pvc-1", directory, 1.0):
            file.rmdir()
            assert held()
        for _ in range(2):
            with Locks().hold("pvc-1", directory, 1.0):
                assert held()
        assert not held()
    assert file.is_file()
