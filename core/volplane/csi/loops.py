"""Loop devices (loop(4)) over image files. A mark in each tells whose it is: those of others are not touched."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from volplane.csi.syscalls import Mount

_CLEAR, _STATUS, _SET_CAPACITY, _CONFIGURE, _GET_FREE = 0x4C01, 0x4C05, 0x4C07, 0x4C0A, 0x4C82
_INFO: Final = struct.Struct("<5Q4I64s64s32s2Q")
"""`struct loop_info64`: device, inode and others of the file, then flags as its ninth, then its name."""
_READ_ONLY: Final = 1
_NAME: Final = re.compile(r"/?loop([0-9]+)")
_ATTEMPTS: Final = 10
"""To take a free device before another process does."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An attached device."""

    number: int
    device: int
    inode: int
    read_only: bool
    mark: str

    @property
    def path(self) -> str:
        return f"/dev/loop{self.number}"

    def backs(self, image: os.stat_result) -> bool:
        """Tell whether it shows this file."""
        return (self.device, self.inode) == (image.st_dev, image.st_ino)


class Loops:
    """The loop devices of one driver."""

    def __init__(self, driver: str) -> None:
        self._mark = f"volplane-csi-{hashlib.sha256(driver.encode()).hexdigest()[:16]}"

    def attached(self) -> Iterator[Loop]:
        """Yield those of this driver."""
        for known in Path("/sys/block").glob("loop*/loop"):
            if match := _NAME.fullmatch(known.parent.name):
                with suppress(OSError):  # It is detached meanwhile.
                    loop = _status(int(match[1]))
                    if loop.mark == self._mark:
                        yield loop

    def attach(self, image: int, *, read_only: bool) -> Loop:
        """Return a device that shows an open file, all of it: the one that does already, or another one."""
        seen = os.fstat(image)
        for loop in self.attached():
            if loop.backs(seen) and loop.read_only == read_only:
                return loop
        flags = _READ_ONLY if read_only else 0
        info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, self._mark.encode(), b"", b"", 0, 0)
        for attempt in range(_ATTEMPTS):
            with _opened("/dev/loop-control") as control:
                number = fcntl.ioctl(control, _GET_FREE)
            try:
                with _opened(f"/dev/loop{number}") as device:
                    fcntl.ioctl(device, _CONFIGURE, struct.pack("<II", image, 0) + info + bytes(64))
            except OSError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return _status(number)
        raise AssertionError

    def resize(self, loop: Loop) -> None:
        """Let a device have the size of its file."""
        with _opened(loop.path) as device:
            fcntl.ioctl(device, _SET_CAPACITY)

    def detach_unused(self, mounts: list[Mount]) -> None:
        """Detach those that are mounted nowhere. One that is still open goes when it is closed."""
        mounted = {int(match[1]) for each in mounts if (match := _NAME.fullmatch(each.root))}
        for loop in self.attached():
            if loop.number not in mounted:
                with suppress(OSError), _opened(loop.path) as device:  # A next call tries again.
                    fcntl.ioctl(device, _CLEAR)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def _status(number: int) -> Loop:
    content = bytearray(_INFO.size)
    with _opened(f"/dev/loop{number}") as device:
        fcntl.ioctl(device, _STATUS, content)
    file, inode, _, _, _, _, _, _, flags, name, *_rest = _INFO.unpack(content)
    return Loop(number, file, inode, bool(flags & _READ_ONLY), name.rstrip(b"\0").decode("utf-8", "replace"))
