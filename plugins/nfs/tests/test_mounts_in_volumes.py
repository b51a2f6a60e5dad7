"""Another file system that is mounted in a volume on the server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from volplane import Absent, Unavailable, Unsupported, VolumeInUse
from volplane_nfs.testing import GaneshaServer, why_no_ganesha

from .conftest import Site

pytestmark = pytest.mark.skipif(bool(why_no_ganesha()), reason=why_no_ganesha())


@contextmanager
def mounted(*command: str, at: Path) -> Iterator[None]:
    at.mkdir(parents=True)
    if subprocess.run(["mount", *command, str(at)], check=False, capture_output=True).returncode:
        pytest.skip("mount(2) is not allowed here")
    try:
        yield
    finally:
        # The volume may have been moved meanwhile, and the mount with it.
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        for point in {line.split()[4] for line in lines if line.split()[4].endswith("/mnt") and "volplane-" in line}:
            subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.parametrize("below", ["mnt", "a/mnt", "a/b/mnt", "a/b/c/mnt"])
@pytest.mark.parametrize("bound", [False, True], ids=["tmpfs", "bind"])
def test_what_is_mounted_in_a_volume_is_never_emptied(
    ganesha: GaneshaServer, live: Site, memory: Path, below: str, bound: bool
) -> None:
    made = live.provision()
    directory = ganesha.data / str(made[1].source.fields["path"]).removeprefix("/vol/")
    other = ganesha.data / f"other-{bound}-{below.replace('/', '-')}"
    other.mkdir()
    command = ("--bind", str(other)) if bound else ("-t", "tmpfs", "tmpfs")
    at = directory / below
    with mounted(*command, at=at):
        (at / "kept").mkdir()
        (at / "kept" / "file").write_text("precious")
        for number in range(40):
            (directory / f"d{number}").mkdir()
            (directory / f"d{number}" / "file").touch()
        with pytest.raises((VolumeInUse, Unavailable, Unsupported)):
            live.delete(live.volume(made))
        kept = other if bound else next(ganesha.data.rglob("mnt"))
        assert (kept / "kept" / "file").read_text() == "precious"
    live.delete(live.volume(made))
    assert live.find(made[0]) == Absent()
    other.rmdir() if not bound else shutil.rmtree(other)
