"""A power cut at each step: the disk as it is at that moment, without what the kernel has not written yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import Absent
from volplane.directory import dirfd

from .conftest import Site
from .test_crashes import CHANGES

MIB = 1 << 20


@contextmanager
def mounted(image: Path, point: Path) -> Iterator[Path]:
    point.mkdir()
    command = ["mount", "-o", "loop,commit=300", str(image), str(point)]  # The kernel's own commits show too much.
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mount(2) is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)
        point.rmdir()


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="volplane-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def disk(memory: Path) -> Iterator[Path]:
    """An ext4 file system, in the file `image`."""
    image = memory / "image"
    image.touch()
    os.truncate(image, 16 * MIB)
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=False, capture_output=True).returncode:
        pytest.skip("mkfs.ext4 is not installed")
    with mounted(image, memory / "disk") as point:
        yield point


class Cut:
    """Copies the disk before the change of this number."""

    def __init__(self, step: int, image: Path, copy: Path) -> None:
        self.left = step
        self.image = image
        self.copy = copy

    def wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if not self.left:
                shutil.copyfile(self.image, self.copy)
            return real(*arguments, **options)

        return change

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in CHANGES:
                patch.setattr(os, name, self.wrapped(getattr(os, name)))
            patch.setattr(dirfd, "syncfs", self.wrapped(dirfd.syncfs))
            yield


def provision(site: Site) -> None:
    site.provision("u1")


def delete(site: Site) -> None:
    site.delete(site.volume(site.provision("u1")))


def archive(site: Site) -> None:
    site.delete(site.volume(site.provision("u1", parameters={"onDelete": "archive"})))


def grow(site: Site) -> None:
    site.expand(site.volume(site.provision("u1")), 2 * MIB)


@pytest.mark.soak
@pytest.mark.parametrize("act", [provision, delete, archive, grow])
def test_after_a_power_cut_nothing_is_lost_and_nothing_is_stuck(
    disk: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Site], None]
) -> None:
    site = Site(disk / "root", create_root=True).start()
    kept = site.provision("kept")
    with (site.path(kept) / "file").open("w") as file:
        file.write("precious")
        file.flush()
        os.fsync(file.fileno())
    step, copy = 0, memory / "copy"
    while True:
        step += 1
        cut = Cut(step, memory / "image", copy)
        with cut.watching(monkeypatch):
            act(site)
        made = site.find("u1")
        over = cut.left > 0
        if over:  # Nothing was going on.
            shutil.copyfile(memory / "image", copy)
        with mounted(copy, memory / "after") as point:
            after = Site(point / "root").start()
            assert (after.path(after.find("kept")) / "file").read_text() == "precious"
            found = after.find("u1")
            if over:
                assert (found == Absent()) == (made == Absent())
            if found != Absent():
                after.delete(replace(after.volume(found, "u1"), uid=""))
            after.delete(after.volume(after.provision("u1"), "u1"))
            after.delete(after.volume(after.find("kept"), "kept"))
            shutil.rmtree(point / "root/.volplane/archive", ignore_errors=True)
            assert after.listed() == {}
            assert after.leftovers() == []
            after.backend._mounts.close()
        if over:
            break
        if made != Absent():
            site.delete(replace(site.volume(made, "u1"), uid=""))
        shutil.rmtree(disk / "root/.volplane/archive", ignore_errors=True)
    assert step > 10
