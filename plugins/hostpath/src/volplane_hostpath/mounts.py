"""Mounts, from /proc. A bind mount of the same file system has the same st_dev, so only the mount id tells it apart."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

__all__ = [
    "Mount",
    "MountIdentity",
    "mount_id",
    "mounts_below",
    "mounts_of",
    "parse_fstab",
    "parse_mountinfo",
    "read_mounts",
]

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountIdentity:
    """The mount of an open directory: st_dev, and the id of the mount through which it was opened."""

    device: int
    mount: int

    @classmethod
    def of(cls, fd: int) -> MountIdentity:
        return cls(os.fstat(fd).st_dev, mount_id(fd))


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo (proc_pid_mountinfo(5)). root: the mounted directory of the file system."""

    number: int
    device: str
    root: str
    point: str


def mount_id(fd: int) -> int:
    """The mount through which fd was opened (proc_pid_fdinfo(5), kernel 3.15)."""
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for line in os.read(info, 1024).splitlines():
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    finally:
        os.close(info)
    raise OSError(f"/proc/self/fdinfo/{fd} has no mnt_id")


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def parse_mountinfo(text: str) -> list[Mount]:
    """All mounts of a mountinfo file."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ", 5)
        if len(fields) > 5:
            mounts.append(Mount(int(fields[0]), fields[2], _unescaped(fields[3]), _unescaped(fields[4])))
    return mounts


def read_mounts() -> list[Mount]:
    """The mounts that this process sees."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        return parse_mountinfo(file.read())


def _is_in(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


def mounts_below(fd: int, mounts: list[Mount]) -> list[str]:
    """Paths of the mount points on or beneath an open directory."""
    path = _path_of(fd)
    own = mount_id(fd)
    return [mount.point for mount in mounts if _is_in(mount.point, path) and mount.number != own]


def mounts_of(fd: int, mounts: list[Mount]) -> list[str]:
    """Paths where this directory, or one beneath it, is bind-mounted, for example into a pod that uses the volume."""
    path = _path_of(fd)
    own = next((mount for mount in mounts if mount.number == mount_id(fd)), None)
    if own is None or not _is_in(path, own.point):
        return []
    inside = own.root.rstrip("/") + path[len(own.point.rstrip("/")) :]
    return [
        mount.point
        for mount in mounts
        if mount.device == own.device and mount.number != own.number and _is_in(mount.root, inside)
    ]


def parse_fstab(text: str) -> list[str]:
    """Mount points that fstab(5) mounts at boot."""
    points = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0].startswith("#") or "noauto" in fields[3].split(","):
            continue
        if fields[1].startswith("/"):
            points.append(_unescaped(fields[1]))
    return points
