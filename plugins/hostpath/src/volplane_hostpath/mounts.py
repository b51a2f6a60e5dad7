"""Mounts, from /proc. A bind mount of the same file system has the same st_dev, so only the mount id tells it apart."""

from __future__ import annotations

import os
import re
import select
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from volplane.directory.dirfd import MountIdentity, mount_id

IMAGE = "volume.img"
"""Name of the image file of a block volume, in its directory; the node service of `volplane csi` makes it."""
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""

    number: int
    device: str
    root: str
    """The mounted directory of the file system."""
    point: str
    kind: str = field(default="", compare=False)
    """Type of the file system, as in "ext4"."""


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def parse_mountinfo(text: str) -> list[Mount]:
    """Return all mounts of a mountinfo file."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ", 5)
        if len(fields) > 5:
            kind = fields[5].partition(" - ")[2].partition(" ")[0]
            mounts.append(Mount(int(fields[0]), fields[2], _unescaped(fields[3]), _unescaped(fields[4]), kind))
    return mounts


_MOUNTINFO = "/proc/self/mountinfo"
_BLOCK = 1 << 16


def read_mounts() -> list[Mount]:
    """Return the mounts that this process sees."""
    fd = os.open(_MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse_mountinfo(_text_of(fd))
    finally:
        os.close(fd)


def _text_of(fd: int) -> str:
    content = b""
    while block := os.pread(fd, _BLOCK, len(content)):
        content += block
    return content.decode("utf-8", "surrogateescape")


class MountTable:
    """The mounts that this process sees, read again when they have changed.

    The kernel reports a change as POLLERR on an open mountinfo, once for each open file (proc_pid_mounts(5)). A node
    has a mount for every volume of every pod, so that reading them for each deletion would cost more than the deletion.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._close: weakref.finalize[[int], MountTable] | None = None
        self._fd = -1
        self._poll = select.poll()
        self._mounts: list[Mount] = []
        self._kinds: dict[int, str] = {}

    def current(self) -> list[Mount]:
        """Return all mounts, as of now."""
        with self._lock:
            if self._process != os.getpid():
                # A fork shares the file with its parent: a change would be reported to one of them only.
                self._forget()
                self._fd = os.open(_MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
                self._close = weakref.finalize(self, os.close, self._fd)
                self._poll = select.poll()
                self._poll.register(self._fd, select.POLLERR | select.POLLPRI)
                self._process = os.getpid()
            elif not self._poll.poll(0):
                return self._mounts
            # Read after the poll: a change since then is reported by the next one.
            self._mounts = parse_mountinfo(_text_of(self._fd))
            self._kinds = {mount.number: mount.kind for mount in self._mounts}
            return self._mounts

    def kind(self, mount: MountIdentity) -> str:
        """Return the type of the file system of a mount, "" if it is not known."""
        self.current()
        return self._kinds.get(mount.mount, "")

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None
        self._process = 0


def is_in(path: str, above: str) -> bool:
    """Return whether one path is the other, or lies below it."""
    return path == above or path.startswith(above.rstrip("/") + "/")


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


def mounts_below(fd: int, mounts: list[Mount]) -> list[str]:
    """Return the paths of the mount points on or beneath an open directory."""
    path = _path_of(fd)
    points = [mount for mount in mounts if is_in(mount.point, path)]
    if not points:
        return []
    own = mount_id(fd)
    return [mount.point for mount in points if mount.number != own]


def mounts_of(fd: int, mounts: list[Mount]) -> list[str]:
    """Return the paths where this directory, or one beneath it, is bind-mounted, for example into a pod that uses the
    volume.
    """
    own, inside = _place_of(fd, mounts)
    return [mount.point for mount in _others(own, mounts) if is_in(mount.root, inside)]


def loop_over(fd: int) -> str:
    """Return the loop device of the image file in an open directory, by which a pod uses the volume; "" = none."""
    image = f"{_path_of(fd)}/{IMAGE}"
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # It is detached meanwhile.
            if backing.read_bytes().removesuffix(b"\n") == os.fsencode(image):
                return f"/dev/{backing.parents[1].name}"
    return ""


def mounts_above(fd: int, root: int, mounts: list[Mount]) -> list[str]:
    """Return the paths where a directory that contains this one, and lies strictly below the open directory `root`, is
    mounted.
    """
    own, inside = _place_of(fd, mounts)
    _, top = _place_of(root, mounts)
    return [
        mount.point
        for mount in _others(own, mounts)
        if is_in(inside, mount.root) and is_in(mount.root, top) and mount.root != top
    ]


def _place_of(fd: int, mounts: list[Mount]) -> tuple[Mount | None, str]:
    """Return the mount through which fd was opened, and its path in that file system."""
    number, path = mount_id(fd), _path_of(fd)
    own = next((mount for mount in mounts if mount.number == number), None)
    if own is None or not is_in(path, own.point):
        return None, ""
    return own, own.root.rstrip("/") + path[len(own.point.rstrip("/")) :]


def _others(own: Mount | None, mounts: list[Mount]) -> list[Mount]:
    if own is None:
        return []
    return [mount for mount in mounts if mount.device == own.device and mount.number != own.number]


def parse_fstab(text: str) -> list[str]:
    """Return the mount points that fstab(5) mounts at boot."""
    points = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0].startswith("#") or "noauto" in fields[3].split(","):
            continue
        if fields[1].startswith("/"):
            points.append(_unescaped(fields[1]))
    return points
