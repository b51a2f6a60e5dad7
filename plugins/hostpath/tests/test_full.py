"""A full file system: what gives space back needs none, of blocks or of inodes."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from volplane import Done, ResourceExhausted

MIB = 1 << 20
SYSTEMS = {
    "tmpfs without inodes": ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=120", "none"],
    "ext4": ["mount", "-o", "loop"],
}


@pytest.fixture(params=SYSTEMS)
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system at tmp_path/disk."""
    point, command = tmp_path / "disk", SYSTEMS[request.param]
    point.mkdir()
    if request.param == "ext4":
        image = tmp_path / "image"
        image.touch()
        os.truncate(image, 2 * MIB)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=False).returncode
        command = [*command, str(image)]
        if made:
            pytest.skip("mkfs.ext4 is not installed")
    if os.geteuid() != 0 or subprocess.run([*command, str(point)], check=False).returncode:
        pytest.skip("mount(2) is not allowed here")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def fill(directory: Path) -> None:
    """Write files until neither a block nor an inode is left."""
    with suppress(OSError), (directory / "big").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with suppress(OSError):
        for number in range(100_000):
            (directory / f"{number:0100}").mkdir(exist_ok=True)


def test_every_volume_of_a_full_file_system_can_be_deleted(new_site: Any, full: Path) -> None:
    site = new_site(full, overcommit_percent=1000, adopt_root=True).start()
    small, empty, large = (site.provision(f"u{number}", 1) for number in range(3))
    (site.path(small) / "below").mkdir()
    (site.path(small) / "below" / "file").touch()
    static = full / "by-hand"
    static.mkdir()
    (static / "file").touch()
    fill(site.path(large))
    assert site.probe() == Done()
    site.again().start()
    site.delete(site.static(static))
    fill(site.path(large))
    for number, asset in enumerate((small, empty, large)):
        site.delete(site.volume(asset, f"u{number}"))
    assert set(site.leftovers()) <= {"lost+found"}


def test_a_deep_tree_is_deleted_though_no_directory_of_it_can_be_moved(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on btrfs, where a rename needs space too."""
    asset = site.provision()
    below = site.path(asset)
    for number in range(60):
        below = below / f"d{number}"
        below.mkdir()
    (below / "file").touch()

    def rename(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", rename)
    site.delete(site.volume(asset))
    monkeypatch.undo()
    site.again().start()
    assert site.leftovers() == []


def test_expired_archives_give_their_space_back_to_what_is_archived_on_a_full_file_system(
    new_site: Any, full: Path
) -> None:
    site = new_site(full, overcommit_percent=1000, adopt_root=True).start()
    for uid, retention in (("u0", 0.0), ("u1", None)):
        parameters = {"onDelete": "archive", "archiveRetention": retention}
        asset = site.provision(uid, 1, parameters=parameters)
        (site.path(asset) / "file").touch()
        if uid == "u1":
            fill(site.path(asset))
            with pytest.raises(ResourceExhausted, match="free space on it or grow it"):
                site.delete(site.volume(asset, uid))
        site.delete(site.volume(asset, uid))
    [archive] = (full / ".volplane" / "archive").iterdir()
    assert archive.name.startswith("pvc-u1@1.")
    assert (archive / "data" / "file").exists()
