"""Directories, files and devices of this machine as volumes. Everything here blocks: call it in a thread."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

__all__ = [
    "MountError",
    "check_host_path",
    "check_local",
    "mount_nfs",
    "remove_tree",
    "set_volume_ownership",
    "unmount_below",
]

_MOUNT_SECONDS: Final = 60
_KINDS: Final[Mapping[str, tuple[str, Callable[[int], bool]]]] = {
    "Directory": ("a directory", stat.S_ISDIR),
    "DirectoryOrCreate": ("a directory", stat.S_ISDIR),
    "File": ("a file", stat.S_ISREG),
    "FileOrCreate": ("a file", stat.S_ISREG),
    "Socket": ("a socket", stat.S_ISSOCK),
    "CharDevice": ("a character device", stat.S_ISCHR),
    "BlockDevice": ("a block device", stat.S_ISBLK),
}


class MountError(Exception):
    """Why a volume cannot be used now; becomes a FailedMount event and is tried again."""


def check_host_path(path: str, kind: str) -> None:
    """Make sure that a hostPath of this type is there: types that say so, and no type at all, create it.

    Raises MountError.
    """
    if kind and kind not in _KINDS:
        raise MountError(f"hostPath type {kind} is not known; one of {', '.join(_KINDS)} is")
    try:
        if kind in {"", "DirectoryOrCreate"} and not os.path.lexists(path):
            Path(path).mkdir(mode=0o755, parents=True, exist_ok=True)
        elif kind == "FileOrCreate" and not os.path.lexists(path):
            Path(path).touch(mode=0o644)
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise MountError(f"hostPath type check failed: {path}: {error.strerror}") from error
    if kind and not _KINDS[kind][1](mode):
        raise MountError(f"hostPath type check failed: {path} is not {_KINDS[kind][0]}")


def check_local(path: str, *, block: bool) -> None:
    """Make sure that a local volume is there. Raises MountError."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise MountError(f'path "{path}" does not exist or cannot be read: {error.strerror}') from error
    if block and not stat.S_ISBLK(mode):
        raise MountError(f'path "{path}" is not a block device')
    if not block and not stat.S_ISDIR(mode):
        raise MountError(f'path "{path}" is not a directory; file systems on devices are not mounted here')


def set_volume_ownership(directory: Path, group: int, *, on_root_mismatch: bool) -> None:
    """Give everything below to the group, readable and writable, new files too: what fsGroup asks for.

    only_if_wrong: look at the top alone and leave the rest if that is right (OnRootMismatch). Raises MountError.
    """
    if os.geteuid() != 0:
        return  # every file is ours, and so is the container
    if on_root_mismatch:
        top = directory.lstat()
        if top.st_gid == group and top.st_mode & 0o2070 == 0o2070:
            return
    try:
        for _root, names, files, fd in os.fwalk(directory, topdown=False):
            for name in files:
                _hand(name, group, fd)
            for name in names:
                _hand(name, group, fd)
        _hand(str(directory), group, None)
    except OSError as error:
        raise MountError(f"applying fsGroup {group} to {directory} failed: {error}") from error


def _hand(name: str, group: int, parent: int | None) -> None:
    """Through a descriptor, so that a name that becomes a symlink meanwhile leads nowhere."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISLNK(mode):
            path = Path(f"/proc/self/fd/{fd}")
            os.chown(path, -1, group)
            path.chmod(stat.S_IMODE(mode) | (0o2070 if stat.S_ISDIR(mode) else 0o060))
    finally:
        os.close(fd)


def mount_nfs(server: str, path: str, target: Path, options: list[str]) -> None:
    """Mount an export at `target`. Raises MountError, if it cannot be done with the time and tools there are."""
    if os.geteuid() != 0:
        raise MountError(f"mounting {server}:{path} needs root")
    if shutil.which("mount.nfs") is None:
        raise MountError(f"mounting {server}:{path} needs mount.nfs, which is not installed (package nfs-common)")
    target.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(target):
        return
    command = ["mount", "-t", "nfs", *(["-o", ",".join(options)] if options else []), f"{server}:{path}", str(target)]
    _run(command, f"mounting {server}:{path}")


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_MOUNT_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise MountError(f"{what} took longer than {_MOUNT_SECONDS} s") from error
    except OSError as error:
        raise MountError(f"{what} failed: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise MountError(f"{what} failed: {said or f'exit code {done.returncode}'}")


def unmount_below(directory: Path) -> None:
    """Unmount everything that is mounted in `directory`, the innermost first. Raises MountError."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    for point in reversed(points):
        if Path(point).is_relative_to(directory):
            _run(["umount", point], f"unmounting {point}")


def remove_tree(directory: Path) -> None:
    """Remove a directory of ours with all its content. Raises MountError while something is mounted in it."""
    unmount_below(directory)
    if directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
