"""A full share: what gives space back needs none."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from volplane import Done, Erased, ResourceExhausted
from volplane_nfs.nfs4 import Client
from volplane_nfs.nfs4.files import create_directory, names
from volplane_nfs.nfs4.operations import PUTFH
from volplane_nfs.testing import GaneshaServer, ModelServer, why_no_ganesha
from volplane_nfs.testing.subjects import fill

from .conftest import Site, mounted
from .test_snapshots import cloned, cut, drop

MIB = 1 << 20


@pytest.fixture(params=["tmpfs without inodes", "ext4"])
def small(request: pytest.FixtureRequest) -> Iterator[GaneshaServer]:
    """A server on a small file system."""
    if reason := why_no_ganesha():
        pytest.skip(reason)
    arguments = ["-t", "tmpfs", "-o", "size=8m,nr_inodes=120", "none"]
    with tempfile.TemporaryDirectory(prefix="volplane-", dir="/dev/shm") as directory:
        data, image = Path(directory, "disk"), Path(directory, "image")
        data.mkdir()
        if request.param == "ext4":
            image.touch()
            os.truncate(image, 2 * MIB)
            if subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=False).returncode:
                pytest.skip("mkfs.ext4 is not installed")
            arguments = ["-o", "loop", str(image)]
        with mounted(data, *arguments), GaneshaServer(Path(directory), data=data) as server:
            yield server


def use_up(directory: Path) -> None:
    """Write files until neither a block nor an inode is left."""
    with suppress(OSError), (directory / "big").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with suppress(OSError):
        for number in range(100_000):
            (directory / f"{number:0100}").mkdir(exist_ok=True)


def test_every_volume_of_a_full_share_is_emptied_and_deleted(small: GaneshaServer) -> None:
    site = Site(small.share, check_free_space=False).start()
    made = [site.provision(capacity_bytes=1) for _ in range(4)]
    one, _, large, idle = (small.data / str(each[1].source.fields["path"]).removeprefix("/vol/") for each in made)
    for above in (one, idle):
        (above / "below" / "deeper").mkdir(parents=True)
        (above / "below" / "deeper" / "file").touch()
    use_up(large)
    assert site.probe() == Done()
    assert site.recycle(site.volume(made[3])) == Erased()
    use_up(large)
    site.again().start().stop()
    for each in (made[0], made[1]):
        site.delete(site.volume(each))
    use_up(large)
    assert site.recycle(site.volume(made[2])) == Erased()
    use_up(large)
    site.delete(site.volume(made[2]))
    site.delete(site.volume(made[3]))
    assert {each.name for each in small.data.iterdir()} <= {".volplane", "lost+found"}
    assert not any(any((small.data / ".volplane" / each).iterdir()) for each in ("volumes", "trash", "parents"))
    site.stop()


def test_a_copy_that_does_not_fit_leaves_the_share_as_it_was(small: GaneshaServer) -> None:
    site = Site(small.share, check_free_space=False).start()
    made = site.provision(capacity_bytes=1)
    top = small.data / str(made[1].source.fields["path"]).removeprefix("/vol/")
    free = os.statvfs(small.data).f_bavail * os.statvfs(small.data).f_frsize
    for number in range(4):
        (top / f"{number}").write_bytes(os.urandom(free // 6))
    for act in (lambda: cut(site, made), lambda: cloned(site, made)):
        with pytest.raises(ResourceExhausted, match=r"what was copied of .* is removed") as raised:
            act()
        assert raised.value.nothing_done
        assert not any(any((small.data / ".volplane" / each).iterdir()) for each in ("copies", "snapshots", "trash"))
    (top / "0").unlink()
    (top / "1").unlink()
    (top / "2").unlink()
    snapshot = cut(site, made)
    site.delete(site.volume(made))
    drop(site, snapshot)
    site.stop()


@pytest.fixture(params=[False, True], ids=["renames as on ext4", "renames as on btrfs"])
def full(request: pytest.FixtureRequest, model: ModelServer) -> ModelServer:
    model.renames_take_space = request.param
    return model


def test_nothing_needs_space_to_be_deleted_or_emptied(
    site: Site, client: Client, root: bytes, full: ModelServer
) -> None:
    made = [site.provision(), site.provision(), site.provision(parameters={"onDelete": "retain"})]
    for _, node in sorted(full.share.children[b"default"].children.items())[:2]:
        handle = node.fileid.to_bytes(8, "big")
        fill(client, handle)
        deep = [create_directory(b"d%d" % number, 0o755) for number in range(9)]
        client.compound(PUTFH(handle), *deep)
    full.available = 0
    with pytest.raises(ResourceExhausted):
        site.provision()
    for each in made[1:]:
        site.delete(site.volume(each))
    assert site.recycle(site.volume(made[0])) == Erased()
    site.delete(site.volume(made[0]))
    assert not full.share.children[b".volplane"].children[b"volumes"].children
    assert not full.share.children[b".volplane"].children[b"trash"].children
    assert len(names(client, root)) == 2, "the directory that is retained"
