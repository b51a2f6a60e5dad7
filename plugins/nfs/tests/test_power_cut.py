"""A power cut of the server before each message that it gets: its disk as it is at that moment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from volplane import Absent
from volplane_nfs.nfs4 import Address, Stream, dial_tcp
from volplane_nfs.testing import GaneshaServer

from .conftest import MIB, Site


@contextmanager
def mounted(image: Path, point: Path) -> Iterator[Path]:
    """dirsync: NFS-Ganesha 4.3 with FSAL_VFS answers before names are on the disk, which only the mount can change."""
    point.mkdir()
    command = ["mount", "-o", "loop,commit=300,dirsync", str(image), str(point)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mount(2) is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)
        point.rmdir()


class Cut:
    """Connections that copy the disk before the message of this number."""

    def __init__(self, step: int, image: Path, copy: Path) -> None:
        self.left, self.image, self.copy = step, image, copy

    def dial(self, address: Address, seconds: float) -> Stream:
        stream, cut = dial_tcp(address, seconds), self

        class Line:
            recv, close = stream.recv, stream.close

            def send(self, data: bytes | memoryview) -> int:
                cut.left -= 1
                if not cut.left:
                    shutil.copyfile(cut.image, cut.copy)
                return stream.send(data)

        return Line()


def provision(site: Site) -> None:
    site.provision(site.demand("00000000-0000-4000-8000-000000000001"))


def delete(site: Site) -> None:
    site.delete(site.volume(site.provision(site.demand("00000000-0000-4000-8000-000000000001"))))


def archive(site: Site) -> None:
    request = site.demand("00000000-0000-4000-8000-000000000001", parameters={"onDelete": "archive"})
    site.delete(site.volume(site.provision(request)))


@pytest.mark.soak
@pytest.mark.parametrize("act", [provision, delete, archive])
def test_after_a_power_cut_of_the_server_nothing_is_lost_and_nothing_is_stuck(
    memory: Path, act: Callable[[Site], None]
) -> None:
    image, copy = memory / "image", memory / "copy"
    image.touch()
    os.truncate(image, 16 * MIB)
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=False, capture_output=True).returncode:
        pytest.skip("mkfs.ext4 is not installed")
    with mounted(image, memory / "disk") as disk, GaneshaServer(memory / "a", data=disk) as server:
        site = Site(server.share).start()
        kept, request = site.provision(), site.demand("00000000-0000-4000-8000-000000000001")
        path = str(kept[1].source.fields["path"]).removeprefix("/vol/")
        for step in range(1, 100):
            cut = Cut(step, image, copy)
            cutting = Site(server.share, cut.dial)
            act(cutting)
            cutting.stop()
            if cut.left > 0:
                break
            with mounted(copy, memory / "after") as left, GaneshaServer(memory / f"b{step}", data=left) as later:
                after = Site(later.share).start()
                assert (left / path).is_dir()
                found = after.find(request)
                if found != Absent():
                    after.delete(after.volume((request, found), uid=""))
                after.delete(after.volume(after.provision(request)))
                after.delete(after.volume((kept[0], after.find(kept[0]))))
                assert [each for each in after.listed() if each.owner is not None] == []
                assert {each.name for each in left.iterdir()} <= {".volplane", "lost+found"}
                assert list((left / ".volplane/trash").iterdir()) == []
                after.stop()
            if (found := site.find(request)) != Absent():
                site.delete(site.volume((request, found), uid=""))
        assert step > 3
        site.stop()
