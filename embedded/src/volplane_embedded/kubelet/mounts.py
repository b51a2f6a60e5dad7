"""Checks, mounts and unmounts of directories, files and devices (k8s.io/mount-utils, pkg/volume).

All functions block: call them in a thread.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from volplane_embedded.kubelet.trees import remove_directory, visit_tree

_MOUNT_SECONDS: Final = 60
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""Spaces, tabs, line ends and backslashes in /proc/self/mountinfo (proc(5))."""
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
    """Why a volume cannot be used now. It is reported as a FailedMount event, and mounting is tried again."""


def check_host_path(path: str, kind: str) -> None:
    """Check a hostPath of this type; `DirectoryOrCreate`, `FileOrCreate` and no type create it.

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
    """Check the path of a local volume. Raises MountError."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise MountError(f'path "{path}" does not exist or cannot be read: {error.strerror}') from error
    if block and not stat.S_ISBLK(mode):
        raise MountError(f'path "{path}" is not a block device')
    if not block and not stat.S_ISDIR(mode):
        raise MountError(f'path "{path}" is not a directory; file systems on devices are not mounted here')


def set_volume_ownership(directory: Path, group: int, *, on_root_mismatch: bool) -> None:
    """Apply fsGroup: the group owns the tree, may read and write it, and owns new files in it (setgid).

    on_root_mismatch: do nothing if the top directory is right already (OnRootMismatch). Raises MountError.
    Source: pkg/volume/volume_linux.go (SetVolumeOwnership).
    """
    if os.geteuid() != 0:
        return  # all files and the container have the same user
    if on_root_mismatch:
        top = directory.lstat()
        if top.st_gid == group and top.st_mode & 0o2070 == 0o2070:
            return
    try:
        visit_tree(directory, lambda name, parent: _change_group(name, group, parent))
        _change_group(str(directory), group, None)
    except OSError as error:
        raise MountError(f"applying fsGroup {group} to {directory} failed: {error}") from error


def _change_group(name: str, group: int, parent: int | None) -> None:
    """Change one entry through a descriptor, so that no symlink is followed that replaces it meanwhile."""
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
    """Mount an export at `target`. Raises MountError without root, mount.nfs or NFS in the kernel, after 60 s."""
    instead = f"if the server is this machine, use --nfs-export {server}:/PATH=DIRECTORY instead"
    if os.geteuid() != 0:
        raise MountError(f"mounting {server}:{path} needs root; {instead}")
    if shutil.which("mount.nfs") is None:
        raise MountError(
            f"mounting {server}:{path} needs mount.nfs, which is not installed (package nfs-common); {instead}"
        )
    target.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(target):
        return
    # After "--" nothing is an option, whatever the name of the server begins with.
    where = ["--", f"{server}:{path}", str(target)]
    command = ["mount", "-t", "nfs", *(["-o", ",".join(options)] if options else []), *where]
    try:
        _run(command, f"mounting {server}:{path}")
    except MountError as error:
        raise MountError(f"{error}; {instead}") from error


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_MOUNT_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise MountError(f"{what} took longer than {_MOUNT_SECONDS} s") from error
    except OSError as error:
        raise MountError(f"{what} failed: {error.strerror}") from error
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace").strip()
        raise MountError(f"{what} failed: {output or f'exit code {done.returncode}'}")


def unmount_below(directory: Path) -> None:
    """Unmount everything below `directory`, the innermost mount first. Raises MountError."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    points = [_ESCAPED.sub(lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]
    for point in reversed(points):
        if Path(point).is_relative_to(directory):
            _run(["umount", point], f"unmounting {point}")


def remove_tree(directory: Path) -> None:
    """Unmount everything below a directory, or a file in its place, and remove it. Raises MountError if anything
    stays.
    """
    unmount_below(directory)
    try:
        if directory.is_dir() and not directory.is_symlink():
            remove_directory(directory)
        else:
            directory.unlink(missing_ok=True)
    except OSError as error:
        raise MountError(f"{directory} cannot be removed: {error.strerror}") from error
