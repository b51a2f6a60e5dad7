"""The command of the scrubber pod, in the shells that images have, and what is told of a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from volplane.reclaim.scrub_pod import BLOCK_SCRIPT, DEVICE, LONGEST_FAILURE, SCRIPT, last_lines

SHELLS = {"sh": ["/bin/sh"], "dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
APPLETS = ("find", "head", "ls", "rm", "tail")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Mounted at /scrub, as far as the script can see."""
    path = tmp_path / "scrub"
    path.mkdir()
    return path


def scrubbed(shell: str, volume: Path, *, without: str = "", mounts: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script in the shell, with its own commands where it has some. without: a command that is absent."""
    bin_directory = volume.parent / f"bin-{shell}{without}"
    bin_directory.mkdir(exist_ok=True)
    for name in APPLETS:
        found = shutil.which("busybox" if shell == "busybox" else name)
        assert found is not None
        if name != without:
            (bin_directory / name).symlink_to(found)
    script = SCRIPT.replace("/scrub", str(volume))
    if mounts:
        file = volume.parent / "mounts"
        file.write_text(mounts)
        script = script.replace("/proc/self/mounts", str(file))
    program, *more = SHELLS[shell]
    command = [str(shutil.which(program)), *more, "-c", script]
    environment = {"PATH": str(bin_directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_everything_goes_whatever_its_name_kind_and_depth_and_nothing_else(shell: str, volume: Path) -> None:
    kept = volume.parent / "kept"
    kept.mkdir()
    (kept / "file").write_text("of others")
    for name in ("a", ".hidden", "..twice", "-rf", "with space", "with\nline", "*", "ä"):
        (volume / name).mkdir()
        (volume / name / ".in").write_text("x")
    for link in ("link", "a/link"):
        (volume / link).symlink_to(kept)
    os.mkfifo(volume / "pipe")
    deep = volume
    for _ in range(30):
        deep = deep / "d"
        deep.mkdir()
    ended = scrubbed(shell, volume)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert list(volume.iterdir()) == []
    assert (kept / "file").read_text() == "of others"


@pytest.mark.parametrize("tool", APPLETS)
@pytest.mark.parametrize("shell", ["sh", "dash"])
def test_an_image_without_a_command_that_it_needs_never_counts_as_erased(tool: str, shell: str, volume: Path) -> None:
    (volume / "data").write_text("x")
    ended = scrubbed(shell, volume, without=tool)
    assert ended.returncode != 0 or not list(volume.iterdir())


def test_what_cannot_be_removed_is_named_at_the_end(volume: Path) -> None:
    (volume / "data").write_text("x")
    bin_directory = volume.parent / "bin"
    bin_directory.mkdir()
    (bin_directory / "rm").write_text(
        "#!/bin/sh\nfor name; do :; done\necho rm: $name: Operation not permitted >&2\nexit 1\n"
    )
    (bin_directory / "rm").chmod(0o755)
    script = SCRIPT.replace("/scrub", str(volume))
    environment = {"PATH": f"{bin_directory}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1
    assert last_lines(ended.stdout).endswith("Operation not permitted not erased: data")


def test_a_mount_below_the_volume_is_not_entered(shell: str, volume: Path) -> None:
    (volume / "other").mkdir()
    (volume / "other" / "file").write_text("of another volume")
    ended = scrubbed(shell, volume, mounts=f"a {volume} ext4 rw 0 0\nb {volume}/other ext4 rw 0 0\n")
    assert ended.returncode == 1
    assert f"something is mounted at {volume}/other: nothing was erased" in ended.stdout
    assert (volume / "other" / "file").exists()


def test_a_volume_that_may_not_be_read_never_counts_as_erased(volume: Path) -> None:
    """The root of an NFS export that squashes root."""
    bin_directory = volume.parent / "bin-dashls"
    bin_directory.mkdir()
    (bin_directory / "ls").write_text("#!/bin/sh\necho ls: cannot open directory: Permission denied >&2\nexit 2\n")
    (bin_directory / "ls").chmod(0o755)
    ended = scrubbed("dash", volume, without="ls")
    assert ended.returncode == 1
    assert "Permission denied" in ended.stderr


BUSYBOX = """find: unrecognized: -delete
BusyBox v1.35.0 (Debian 1:1.35.0-4+b1) multi-call binary.

Usage: find [-HL] [PATH]... [OPTIONS] [ACTIONS]

Search for files and perform actions on them.
First failed action stops processing of current file.
Defaults: PATH is current directory, action is '-print'

\t-L,-follow\tFollow symlinks
\t-H\t\t...on command line only
"""


def test_the_help_text_of_a_command_is_left_out() -> None:
    assert last_lines(f"{BUSYBOX}not erased:\n/scrub/data\n") == "find: unrecognized: -delete not erased: /scrub/data"
    assert last_lines(BUSYBOX * 2) == "find: unrecognized: -delete find: unrecognized: -delete"


def test_the_last_lines_of_much_output_are_kept_whole() -> None:
    text = "\n".join(f"rm: cannot remove '/scrub/{number}'" for number in range(1000)) + "\nrm: no space left"
    told = last_lines(text)
    assert len(told) <= LONGEST_FAILURE
    assert told.startswith("rm: cannot remove")
    assert told.endswith("'/scrub/999' rm: no space left")
    assert len(last_lines("x" * 5000)) == LONGEST_FAILURE
    assert last_lines("") == last_lines("\n \n") == ""


# --- block volumes ----------------------------------------------------------------------------------------------


def overwritten(disk: Path, *, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script on a file in place of the device. without: a command that is absent."""
    commands = disk.parent / "bin"
    shutil.rmtree(commands, ignore_errors=True)
    commands.mkdir()
    for name in ("blkdiscard", "blockdev", "cmp", "dd", "fallocate", "stat"):
        found = shutil.which(name)
        assert found is not None
        if name != without:
            (commands / name).symlink_to(found)
    script = BLOCK_SCRIPT.replace(DEVICE, str(disk))
    environment = {"PATH": str(commands)}
    return subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("without", ["", "fallocate"])
@pytest.mark.parametrize("size", [1, 4096, (4 << 20) + 17])
def test_every_byte_of_a_disk_is_zero_after_a_scrub_and_its_size_stays(tmp_path: Path, without: str, size: int) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(b"secret"[:size] * (size // 6 + 1))
    os.truncate(disk, size)
    ended = overwritten(disk, without=without)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert disk.read_bytes() == bytes(size)


def test_a_disk_that_cannot_be_erased_or_checked_fails_the_scrub(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    assert "there is no volume" in overwritten(disk).stdout
    disk.touch()
    assert "has no size" in overwritten(disk).stdout
    disk.write_bytes(b"secret")
    assert overwritten(disk, without="cmp").returncode != 0
