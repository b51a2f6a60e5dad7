"""Loop devices: an image file as a block device. Source: loop(4), Linux Documentation/ABI/testing/sysfs-block-loop."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from volplane import Unavailable, VolumeInUse

__all__ = ["attach_image", "attached_to", "detach_device", "device_of", "update_capacity"]

_SET_FD: Final = 0x4C00
_CLR_FD: Final = 0x4C01
_SET_CAPACITY: Final = 0x4C07
_GET_FREE: Final = 0x4C82
_CONTROL: Final = Path("/dev/loop-control")
_MAJOR: Final = 7
_TRIES: Final = 16


def attached_to(image: Path) -> list[Path]:
    """Return every loop device backed by this file."""
    wanted = str(image.resolve())
    found = []
    for backing in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        try:
            file = backing.read_text().rstrip("\n")
        except OSError:  # detached meanwhile
            continue
        if file == wanted:
            found.append(Path("/dev") / backing.parent.parent.name)
    return found


def device_of(image: Path) -> Path | None:
    """Return the loop device of this file, if it has one."""
    return next(iter(attached_to(image)), None)


def attach_image(image: Path) -> Path:
    """Return a loop device backed by the file: an existing one, else a new one."""
    known = device_of(image)
    if known is not None:
        return known
    for _ in range(_TRIES):
        device = _free_device()
        with image.open("r+b") as contents, device.open("r+b", buffering=0) as loop:
            try:
                fcntl.ioctl(loop, _SET_FD, contents.fileno())
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device
    raise Unavailable("other programs took every free loop device", retry_after=1.0)


def _free_device() -> Path:
    try:
        with _CONTROL.open("r+b", buffering=0) as control:
            number = fcntl.ioctl(control, _GET_FREE)
    except OSError as error:
        raise Unavailable(
            f"{_CONTROL} cannot be used ({error.strerror}): load the loop module and run as root, or set devices to "
            "false"
        ) from error
    device = Path(f"/dev/loop{number}")
    if not device.exists():  # /dev is not a devtmpfs here
        os.mknod(device, stat.S_IFBLK | 0o660, os.makedev(_MAJOR, number))
    return device


def detach_device(device: Path, label: str) -> None:
    """Detach a loop device; raises VolumeInUse if it is mounted or opened exclusively."""
    try:
        fd = os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise VolumeInUse(f"{label} is in use as {device}: unmount it; nothing was removed") from error
        raise
    try:
        fcntl.ioctl(fd, _CLR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:  # it is detached already
            raise
    finally:
        os.close(fd)


def update_capacity(device: Path) -> None:
    """Set the size of the device to that of its file."""
    with device.open("r+b", buffering=0) as loop:
        fcntl.ioctl(loop, _SET_CAPACITY)
